"""Golden cases: what the released code gave on tiny random models, and these models here."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny import vq_config
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.models import registry
from lantern_demo.models.anole import FIRST, Anole, AnoleDrafter, ChameleonTokenizer
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.tensors import load_weights
from lantern_demo.models.tokenizer import ImageTokenizer, neighbour_table

GOLDEN = Path(__file__).parents[1] / "golden"

# The files of each kind of case.
_CASES = {
    "llamagen": "gpt_t2i_a",
    "target": "lantern_target_a lantern_target_a_fullprompt",
    "dynamic trees": "drafter_dynamic_a drafter_dynamic_a_small",
    "static trees": "drafter_static_a drafter_static_a_small",
    "greedy acceptance": "accept_greedy_a",
    "sampled acceptance": "accept_sampling_scripted_a accept_sampling_scripted_a_proc",
    "anole": "anole_a",
    "greedy pictures": "e2e_a e2e_a_fullgrid e2e_a_small_dynamic anole_a_e2e",
    "image tokenizer": "vq_a",
    "chameleon tokenizer": "chameleon_vqgan_a",
    "sampling filters": "sampling_filters_a",
    "tables of static trees": "static_trees",
    "cleaned prompts": "text_cleaning",
}
# The weights that they were made with, by kind.
_WEIGHTS = {
    "llamagen": "gpt_t2i_a_weights",
    "target": "lantern_pair_a_target",
    "drafter": "lantern_pair_a_drafter",
    "anole": "anole_a_target_weights",
    "anole drafter": "anole_a_drafter_weights",
    "image tokenizer": "vq_a_weights_dec vq_a_weights_enc",
    "chameleon tokenizer": "chameleon_vqgan_a_weights_dec chameleon_vqgan_a_weights_enc",
}
NAMED = [name for names in (*_CASES.values(), *_WEIGHTS.values()) for name in names.split()]


@dataclass(frozen=True, eq=False, repr=False)
class Golden:
    path: Path
    about: Any  # the header, values that are JSON decoded; of a JSON file all of it
    keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, whole numbers as int64."""
        kept = load_file(self.path)
        return {k: v.long() if v.dtype == torch.int32 else v for k, v in kept.items()}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@lru_cache
def golden(name: str) -> Golden:
    path = GOLDEN / f"{name}.json"
    if path.exists():
        return Golden(path, json.loads(path.read_text(encoding="utf-8")))
    path = GOLDEN / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        about = {key: _decoded(text) for key, text in (file.metadata() or {}).items()}
        return Golden(path, about, tuple(file.keys()))


def cases(kind: str, parts: Callable[[Golden], Iterable[str]] | None = None) -> list[Any]:
    """Parameters of a test: every file of a kind, or with `parts` every file with each of these."""
    found = [golden(name) for name in _CASES[kind].split()]
    if parts is None:
        return [pytest.param(file, id=file.name) for file in found]
    pairs = [(file, part) for file in found for part in parts(file)]
    return [pytest.param(file, part, id=f"{file.name}-{part}") for file, part in pairs]


def parts_like(pattern: str) -> Callable[[Golden], list[str]]:
    """For `cases`: what the group of a regular expression takes from the names of tensors."""
    return lambda file: [one[1] for key in sorted(file.keys) if (one := re.fullmatch(pattern, key))]


def close(got: Tensor, wanted: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def same_neighbours(vectors: Tensor, wanted: Tensor) -> None:
    """A codebook's neighbour table, up to entries of which rounding decides which is first."""
    got = neighbour_table(vectors, wanted.shape[1]).long()
    apart = torch.cdist(vectors.double(), vectors.double())
    swapped = got != wanted
    assert bool(((apart.gather(1, got) - apart.gather(1, wanted)).abs()[swapped] < 1e-6).all())
    assert torch.equal(got.sort().values, wanted.sort().values)


def lantern_probabilities(logits: Tensor, sampling: Sampling, **_: Any) -> Tensor:
    """`probabilities` with top-p before top-k, as in LANTERN. Here and in LlamaGen it is after."""
    if sampling.greedy or sampling.top_k == 0 or sampling.top_p == 1:
        return probabilities(logits, sampling)
    without = probabilities(logits, replace(sampling, top_k=0))
    return probabilities(without.log(), Sampling(top_k=sampling.top_k))


def listed_paths(parents: Sequence[int], ordered: bool) -> Tensor:
    """A tree's paths from the root to its leaves as the released code lists them, [leaves, depth +
    1] padded with -1: sorted (`ordered`, as for static trees and when sampling) or by leaf.
    """
    paths = []
    for leaf in sorted(set(range(len(parents))) - set(parents[1:])):
        path = [leaf]
        while path[0] > 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    listed = sorted(paths) if ordered else paths
    return pad_sequence([torch.tensor(path) for path in listed], True, -1)


# -- weights, read as a user's: their names and layout are the authors', and not ours to make up


def _loaded(model: Any, form: str, kind: str) -> Any:
    paths = [golden(name).path for name in _WEIGHTS[kind].split()]
    return load_weights(model, paths, LAYOUTS[form], torch.device("cpu"), torch.float32)


def _config(kind: str) -> dict[str, Any]:
    """The configuration of a kind of weights, by its authors' names."""
    return golden(_WEIGHTS[kind].split()[0]).about["config"]


def _sizes(c: dict[str, Any]) -> dict[str, Any]:
    """Sizes under this project's names, of a configuration as LANTERN's networks have them."""
    return {
        "dim": c["hidden_size"],
        "layers": c["num_hidden_layers"],
        "heads": c["num_attention_heads"],
        "ffn": c["intermediate_size"],
        "eps": c["rms_norm_eps"],
    }


def _llamagen(kind: str, form: str, **sizes: Any) -> LlamaGen:
    c = _config(kind)
    sizes |= {"vocab": c["vocab_size"], "grid": math.isqrt(c["block_size"])}
    sizes |= {"prefix": c["cls_token_num"], "caption_dim": c["caption_dim"]}
    return _loaded(LlamaGen(registry.LlamaGenConfig(**sizes)), form, kind)


@lru_cache
def llamagen() -> LlamaGen:
    c = _config("llamagen")
    sizes = {"dim": c["dim"], "layers": c["n_layer"], "heads": c["n_head"], "ffn": 192}
    return _llamagen("llamagen", "llamagen", **sizes)


@lru_cache
def lantern_target() -> LlamaGen:
    return _llamagen("target", "lantern", **_sizes(_config("target")), padding="released")


@lru_cache
def lantern_drafter() -> Drafter:
    """LANTERN's drafter, which has 256 image tokens, and the prefix of its target."""
    c, prefix = _config("drafter"), _config("target")["cls_token_num"]
    config = registry.DrafterConfig(**_sizes(c), vocab=c["vocab_size"], grid=16, prefix=prefix)
    return _loaded(Drafter(config), "drafter", "drafter")


def _tokenizer(of: type[ImageTokenizer], c: dict[str, Any], dim: int, codes: int) -> Any:
    """One for pictures of 4 x 4 tokens. Released networks have 32 groups, however narrow."""
    sizes = [c[name] for name in ("ch", "ch_mult", "num_res_blocks", "z_channels")]
    model = of(vq_config(*sizes, dim, codes, num_patches=4))
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.num_groups = 32
    return model


@lru_cache
def image_tokenizer() -> ImageTokenizer:
    c = _config("image tokenizer")
    model = _tokenizer(ImageTokenizer, c, c["codebook_embed_dim"], c["codebook_size"])
    return _loaded(model, "vq", "image tokenizer")


@lru_cache
def chameleon_tokenizer() -> ChameleonTokenizer:
    c = _config("chameleon tokenizer")
    model = _tokenizer(ChameleonTokenizer, c["ddconfig"], c["embed_dim"], c["n_embed"])
    return _loaded(model, "chameleon-vq", "chameleon tokenizer")


def _anole_sizes(part: str) -> dict[str, Any]:
    """Of the target or the drafter. The image tokens are what the list of the others leaves."""
    case = golden("anole_a")
    c = case.about[f"{part}_config"]
    return {
        **_sizes(c),
        "embeddings": c["vocab_size"],
        "vocab": c["vocab_size"] - len(case.tensors["non_image_tokens"]),
        "grid": 8,
        "prefix": case.tensors["input_ids"].shape[1],
    }


@lru_cache
def anole() -> Anole:
    """Its head lies in the case, and keeps image tokens alone."""
    config = registry.AnoleConfig(**_anole_sizes("target"))
    head = golden("anole_a").tensors["lm_head"][FIRST : FIRST + config.vocab]
    model = Anole(config)
    model.load_state_dict(golden(_WEIGHTS["anole"]).tensors | {"lm_head.weight": head})
    return model.requires_grad_(False).eval()


@lru_cache
def anole_drafter() -> AnoleDrafter:
    model = AnoleDrafter(registry.AnoleDrafterConfig(**_anole_sizes("drafter")))
    return _loaded(model, "drafter", "anole drafter")
