"""Write a folder that transformers' `generate(custom_generate=FOLDER, trust_remote_code=True)` decodes with.

transformers copies `custom_generate/generate.py` and the files beside it that it imports by one name each, as in
`from .name import`; it knows no folders below. So the decoding module is written flat: every file that `generate.py` needs, as it
is but for its imports.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import lantern_demo
from lantern_demo.export import generate

PACKAGE = Path(lantern_demo.__file__).parent
OURS = re.compile(r"^(\s*)from (\.+[\w.]*|lantern_demo[\w.]*) import ", re.MULTILINE)

CARD = """---
license: apache-2.0
library_name: transformers
tags:
  - custom_generate
  - speculative-decoding
---

# Speculative decoding, with and without a drafter

For causal models of transformers, with PyTorch alone. SJD (speculative Jacobi decoding, arXiv 2410.01699) needs no drafter: the
model guesses the next tokens itself, in the pass before, and keeps those that it would have drawn. EAGLE (arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858), LANTERN (arXiv 2410.03355) and LANTERN++ (arXiv 2502.06352) draft
a tree of tokens with a small network and verify it in one pass.

```python
out = model.generate(**inputs, max_new_tokens=256, do_sample=True, custom_generate="FOLDER", trust_remote_code=True,
                     lantern_method="sjd", lantern_window=8, lantern_seed=7, return_dict_in_generate=True)
out.sequences, out.speculative_decoding["mean_acceptance_length"]

out = model.generate(**inputs, max_new_tokens=256, do_sample=True, custom_generate="FOLDER", trust_remote_code=True,
                     lantern_method="eagle2", lantern_drafter="PATH", lantern_seed=7)
```

FOLDER is this repository's name or a folder that holds it. `lantern_method` is `vanilla` or `sjd`, and with a drafter
also `eagle1`, `eagle2`, `lantern` or `lantern++`. All but LANTERN's two are exact. With `lantern_dice="same"`, the default,
every token is drawn with noise of its own place, so that exact methods draw the same tokens, up to rounding; `"own"` is the
papers' rejection sampling. Greedy search (`do_sample=False`) by an exact method gives the tokens of `generate` itself. Logits
processors, `prefix_allowed_tokens_fn`, stopping criteria, `guidance_scale` with `negative_prompt_ids`, a growing and a static
cache work as ever. One prompt at a time.

- **LLaMA and its like, Emu3**: as above.
- **Chameleon, Anole**: `lantern_image=True` draws from the image tokens alone.
- **Janus, Janus-Pro**: `lantern_image=True` in the default text mode draws a picture, and returns its tokens.
  `generation_mode="image"` takes no `custom_generate`, neither a name nor a function: transformers refuses unknown arguments
  there.

`lantern_drafter` is the path of a file of tensors, or of a folder with `model.safetensors` or `pytorch_model.bin` and, if
there is one, `config.json`, in the format of EAGLE-1 and EAGLE-2, or of LANTERN's drafter of Anole: `fc` over an embedding
and a hidden state, and one LLaMA layer. It must have been trained for the model. Drafters of EAGLE-3 and of Janus with
`fusion` are refused; LlamaGen is no model of transformers. Trees need `attn_implementation` `eager` or `sdpa`; with another
one the drafts are a chain, and a warning says so. LANTERN's neighbours come from the codebook of a Chameleon or a Janus, or
from a table whose path is `lantern_neighbours`.

On a processor a pass over eight tokens costs more than one over one, so fewer passes need not be less time.
"""


def write(folder: Path) -> list[Path]:
    """Write the folder: `custom_generate` with `generate.py`, what it imports and its requirements, and README.md.

    Returns the files. Raises ValueError where the folder holds other files, or two of the files would have one name.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"OUT is {folder}; it must be a folder that is empty or not there yet")
    code = folder / "custom_generate"
    code.mkdir(parents=True)
    sources = _needed(Path(generate.__file__))
    names = [source.stem for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two modules are called {twice[0]}; a flat folder needs names of their own")
    texts = {code / source.name: _flat(source) for source in sources}
    texts[code / "requirements.txt"] = f"torch>=2.8\ntransformers>={version('transformers')}\n"
    texts[folder / "README.md"] = CARD
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _needed(first: Path) -> list[Path]:
    """A file of the package and all of its own that it imports, directly or not."""
    found = [first]
    for source in found:
        for _, name in OURS.findall(source.read_text(encoding="utf-8")):
            if (path := _file(source, name)) not in found:
                found.append(path)
    return found


def _file(source: Path, name: str) -> Path:
    """The file of a module that `source` imports by `name`."""
    dots = len(name) - len(name.lstrip("."))
    base = source.parents[dots - 1] if dots else PACKAGE.parent
    return base.joinpath(*name[dots:].split(".")).with_suffix(".py")


def _flat(source: Path) -> str:
    """The text of a file whose imports of the package name the file alone."""
    return OURS.sub(lambda found: f"{found[1]}from .{found[2].rsplit('.', 1)[-1]} import ", source.read_text(encoding="utf-8"))
