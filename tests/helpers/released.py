"""Golden cases: what the released code (LlamaGen, LANTERN) gave on tiny random models, and those
models under this project's names. The files lie in tests/golden.
"""

from __future__ import annotations

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
from lantern_demo.models.anole import FIRST, Anole, AnoleDrafter, ChameleonTokenizer
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.registry import (
    AnoleConfig,
    AnoleDrafterConfig,
    DrafterConfig,
    LlamaGenConfig,
)
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
    "anole pictures": "anole_a_e2e",
    "greedy pictures": "e2e_a e2e_a_fullgrid e2e_a_small_dynamic",
    "image tokenizer": "vq_a",
    "chameleon tokenizer": "chameleon_vqgan_a",
    "sampling filters": "sampling_filters_a",
    "tables of static trees": "static_trees",
    "cleaned prompts": "text_cleaning",
}
# The weights that they were made with, by kind.
_WEIGHTS = {
    "llamagen": "{case}_weights",
    "target": "lantern_pair_a_target",
    "drafter": "lantern_pair_a_drafter",
    "anole": "anole_a_target_weights",
    "anole drafter": "anole_a_drafter_weights",
    "image tokenizer": "vq_a_weights_dec vq_a_weights_enc",
    "chameleon tokenizer": "chameleon_vqgan_a_weights_dec chameleon_vqgan_a_weights_enc",
}
NAMED = [name for names in _CASES.values() for name in names.split()]
NAMED += [f"{name}_weights" for name in _CASES["llamagen"].split()]
NAMED += [name for kind, names in _WEIGHTS.items() if kind != "llamagen" for name in names.split()]


@dataclass(frozen=True, eq=False, repr=False)
class Golden:
    """One golden file."""

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
    """The file of this name."""
    path = GOLDEN / f"{name}.json"
    if path.exists():
        return Golden(path, json.loads(path.read_text(encoding="utf-8")))
    path = GOLDEN / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        about = {key: _decoded(text) for key, text in (file.metadata() or {}).items()}
        return Golden(path, about, tuple(file.keys()))


def cases(kind: str, parts: Callable[[Golden], Iterable[str]] | None = None) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: every file of a kind, or with `parts` every file
    with each of its parts.
    """
    found = [golden(name) for name in _CASES[kind].split()]
    if parts is None:
        return [pytest.param(file, id=file.name) for file in found]
    return [
        pytest.param(file, part, id=f"{file.name}-{part}") for file in found for part in parts(file)
    ]


def parts_like(pattern: str) -> Callable[[Golden], list[str]]:
    """For `cases`: what the group of a regular expression takes from the names of a file's tensors,
    each once.
    """

    def parts(file: Golden) -> list[str]:
        return list(
            dict.fromkeys(
                found[1] for key in sorted(file.keys) if (found := re.fullmatch(pattern, key))
            )
        )

    return parts


def weights_of(case: Golden, kind: str) -> list[Golden]:
    """The files with the weights of a kind that a case was made with."""
    return [golden(name) for name in _WEIGHTS[kind].format(case=case.name).split()]


def close(got: Tensor, wanted: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def same_neighbours(vectors: Tensor, wanted: Tensor) -> None:
    """The neighbour table of a codebook, up to entries so nearly as far that rounding decides which
    is first.
    """
    got = neighbour_table(vectors, wanted.shape[1]).long()
    apart = torch.cdist(vectors.double(), vectors.double())
    swapped = got != wanted
    assert bool(((apart.gather(1, got) - apart.gather(1, wanted)).abs()[swapped] < 1e-6).all())
    assert torch.equal(got.sort().values, wanted.sort().values)


# -- the released code's conventions


def lantern_probabilities(logits: Tensor, sampling: Sampling, **_: Any) -> Tensor:
    """`probabilities` with the filters in LANTERN's order, top-p before top-k.

    Here and in LlamaGen top-k goes first, which makes a difference where both are on.
    """
    if sampling.greedy or sampling.top_k == 0 or sampling.top_p == 1:
        return probabilities(logits, sampling)
    return probabilities(
        probabilities(logits, replace(sampling, top_k=0)).log(), Sampling(top_k=sampling.top_k)
    )


def listed_paths(parents: Sequence[int], ordered: bool) -> Tensor:
    """A tree's paths from the root to its leaves as the released code lists them, [leaves, depth +
    1] padded with -1: sorted (`ordered`, as for static trees and when sampling) or by leaf. parents
    [n], the root's is 0.
    """
    leaves = sorted(set(range(len(parents))) - set(parents[1:]))
    paths = []
    for leaf in leaves:
        path = [leaf]
        while path[0] > 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    # No path is the beginning of another, so the padding never decides.
    return pad_sequence(
        [torch.tensor(path) for path in (sorted(paths) if ordered else paths)], True, -1
    )


# -- weights, read as a user's: their names and layout are the authors', and not ours to make up


def _loaded(model: Any, form: str, *files: Golden) -> Any:
    paths = [file.path for file in files]
    return load_weights(model, paths, LAYOUTS[form], torch.device("cpu"), torch.float32)


@lru_cache
def llamagen(case: Golden) -> LlamaGen:
    """LlamaGen's own transformer of a case."""
    file = weights_of(case, "llamagen")[0]
    c, state = file.about["config"], file.tensors
    config = LlamaGenConfig(
        dim=c["dim"],
        layers=c["n_layer"],
        heads=c["n_head"],
        ffn=state["layers.0.feed_forward.w1.weight"].shape[0],
        vocab=c["vocab_size"],
        grid=math.isqrt(c["block_size"]),
        prefix=c["cls_token_num"],
        caption_dim=c["caption_dim"],
        rope_base=c.get("rope_base", 10000.0),
        eps=c.get("norm_eps", 1e-5),
    )
    return _loaded(LlamaGen(config), "llamagen", file)


def sizes_of(c: dict[str, Any]) -> dict[str, Any]:
    """Sizes under the names of this project, of a configuration as LANTERN's networks have them."""
    return {
        "dim": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "ffn": c["intermediate_size"],
        "eps": c["rms_norm_eps"],
    }


@lru_cache
def lantern_target(case: Golden) -> LlamaGen:
    """LANTERN's target of a case."""
    file = weights_of(case, "target")[0]
    c = file.about["config"]
    config = LlamaGenConfig(
        **sizes_of(c),
        layers=c["num_hidden_layers"],
        vocab=c["vocab_size"],
        grid=math.isqrt(c["block_size"]),
        prefix=c["cls_token_num"],
        caption_dim=c["caption_dim"],
        rope_base=c.get("rope_base", 10000.0),
        padding="released",
    )
    return _loaded(LlamaGen(config), "lantern", file)


# The released drafter sets its number of image tokens by the kind of its input, whatever the
# target's.
_DRAFTER_TOKENS = {"t2i": 256, "t2i2": 1024}


@lru_cache
def lantern_drafter(case: Golden) -> Drafter:
    """LANTERN's drafter of a case; its prefix is its target's."""
    file, target = weights_of(case, "drafter")[0], weights_of(case, "target")[0]
    c, t = file.about["config"], target.about["config"]
    config = DrafterConfig(
        **sizes_of(c),
        vocab=c["vocab_size"],
        grid=math.isqrt(_DRAFTER_TOKENS.get(c.get("input_type"), t["block_size"])),
        prefix=t["cls_token_num"],
        bias="fc.bias" in file.keys,
    )
    return _loaded(Drafter(config), "drafter", file)


@lru_cache
def image_tokenizer(case: Golden, grid: int) -> ImageTokenizer:
    """LlamaGen's image tokenizer of a case, for pictures of grid x grid tokens; its weights may lie
    in several files.
    """
    parts = weights_of(case, "image tokenizer")
    c = parts[0].about["config"]
    names = "ch ch_mult num_res_blocks z_channels codebook_embed_dim codebook_size"
    sizes = [c[name] for name in names.split()]
    model = with_32_groups(ImageTokenizer(vq_config(*sizes, num_patches=grid)))
    return _loaded(model, "vq", *parts)


# -- Anole


def anole_sizes(case: Golden, part: str) -> dict[str, Any]:
    """What a case's header says of its target or drafter; the image tokens are what its list of the
    others leaves.
    """
    c = case.about[f"{part}_config"]
    return {
        **sizes_of(c),
        "embeddings": c["vocab_size"],
        "vocab": c["vocab_size"] - len(case.tensors["non_image_tokens"]),
        "grid": 8,
        "prefix": case.tensors["input_ids"].shape[1],
        "rope_base": c["rope_theta"],
    }


@lru_cache
def anole(case: Golden) -> Anole:
    """Anole's target of a case; its head lies in the case, and keeps image tokens alone."""
    config = AnoleConfig(
        **anole_sizes(case, "target"), layers=case.about["target_config"]["num_hidden_layers"]
    )
    head = case.tensors["lm_head"][FIRST : FIRST + config.vocab]
    model = Anole(config)
    model.load_state_dict({**weights_of(case, "anole")[0].tensors, "lm_head.weight": head})
    return model.requires_grad_(False).eval()


@lru_cache
def anole_drafter(case: Golden) -> AnoleDrafter:
    """Anole's drafter of a case."""
    file = weights_of(case, "anole drafter")[0]
    config = AnoleDrafterConfig(**anole_sizes(case, "drafter"), bias="fc.bias" in file.keys)
    return _loaded(AnoleDrafter(config), "drafter", file)


@lru_cache
def chameleon_tokenizer(case: Golden) -> ChameleonTokenizer:
    """Chameleon's image tokenizer of a case."""
    parts = weights_of(case, "chameleon tokenizer")
    c = parts[0].about["config"]
    d = c["ddconfig"]
    sizes = [d[name] for name in ["ch", "ch_mult", "num_res_blocks", "z_channels"]]
    sizes += [c["embed_dim"], c["n_embed"]]
    grid = math.isqrt(len(case.tensors["indices"]))
    model = with_32_groups(ChameleonTokenizer(vq_config(*sizes, num_patches=grid)))
    return _loaded(model, "chameleon-vq", *parts)


def with_32_groups(model: Any) -> Any:
    """The released networks have 32 groups at any width; ours have fewer in a narrow network."""
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.num_groups = 32
    return model
