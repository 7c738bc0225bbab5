"""The table of families: it is complete, and a new family needs an entry and no more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from published import (
    ANOLE,
    ANOLE_DRAFTER,
    ANOLE_ID,
    ANOLE_PICTURES,
    NEEDS,
    anole_networks,
    chameleon_vq_tensors,
    write_vocabulary,
)
from safetensors.torch import save_file
from torch import Tensor, nn

from lantern_demo.models import checkpoints, families
from lantern_demo.models.anole import Anole, AnoleDrafter, prompt_reader
from lantern_demo.models.families import FAMILIES, LAYOUTS, Family, family_of
from lantern_demo.models.registry import (
    REGISTRY,
    AnoleConfig,
    AnoleDrafterConfig,
    Published,
    Source,
)
from lantern_demo.models.tensors import AS_PUBLISHED
from lantern_demo.runs.pipeline import load


def test_every_model_has_a_family_and_every_format_a_layout() -> None:
    seen = set()
    for info in REGISTRY.values():
        if info.published is None:
            continue
        family = family_of(info.published.target)
        seen.add(family.target)
        assert info.published.drafter is None or type(info.published.drafter) is family.drafter
        assert (info.published.on_cpu is None) == (family.lean_target is not None)
        for part, sources in info.published.sources.items():
            assert all(
                source.format in LAYOUTS or (part, source.format) == ("text", "words")
                for source in sources
            ), info.id
    assert seen == {family.target for family in FAMILIES.values()}
    with pytest.raises(TypeError, match="ThirdConfig is the configuration of no family"):
        family_of(ThirdConfig())


# -- a third family: prompts in the sequence, a head of two layers, files under this project's names


class Third(Anole):
    def __init__(self, config: ThirdConfig) -> None:
        super().__init__(config)
        self.aligner = nn.Linear(config.dim, config.dim)

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(F.gelu(self.aligner(hidden))).float()


@dataclass(frozen=True)
class ThirdConfig(AnoleConfig):
    pass


@dataclass(frozen=True)
class ThirdDrafterConfig(AnoleDrafterConfig):
    pass


THIRD = Family(
    target=ThirdConfig,
    target_network=Third,
    drafter=ThirdDrafterConfig,
    drafter_network=AnoleDrafter,
    layouts={"third": AS_PUBLISHED},
    target_facts=lambda sizes, located: {},
    drafter_facts=lambda sizes, located: {},
    prompts=prompt_reader,
)


def test_a_third_family_is_an_entry_and_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(FAMILIES, "Third", THIRD)
    monkeypatch.setitem(LAYOUTS, "third", AS_PUBLISHED)
    sizes, small = ThirdConfig(**vars(ANOLE)), ThirdDrafterConfig(**vars(ANOLE_DRAFTER))
    sources = {
        "target": (Source("nobody/third", "model.safetensors", "third"),),
        "drafter": (Source("nobody/third", "drafter.pt", "drafter"),),
        "tokenizer": (Source("nobody/third", "vq.pt", "chameleon-vq"),),
        "text": (Source("nobody/third", "tokenizer.json", "words"),),
    }
    parts = Published(
        target=sizes,
        sources=sources,
        drafter=small,
        tokenizer=ANOLE_PICTURES,
        needs=NEEDS,
        on_cpu="float32",
    )
    info = replace(
        REGISTRY[ANOLE_ID], id="third", grid=ANOLE.grid, image_size=16 * ANOLE.grid, published=parts
    )
    info = replace(info, preset={"lantern_k": 20, "top_k": 0, "temperature": 0.0, "tree": "small"})
    monkeypatch.setitem(REGISTRY, "third", info)

    base, drafter, tokenizer = anole_networks()
    target = Third(sizes)
    torch.nn.init.normal_(target.aligner.weight, std=0.2)
    target.load_state_dict(base.state_dict(), strict=False)
    folder = tmp_path / "files" / "target"
    folder.mkdir(parents=True)
    save_file(target.state_dict(), folder / "model.safetensors")
    torch.save(drafter.state_dict(), folder.parent / "drafter.pt")
    torch.save(chameleon_vq_tensors(tokenizer), folder.parent / "vq.pt")
    write_vocabulary(folder.parent / "tokenizer.json")

    lines, _ = checkpoints.check(info, "cpu", "float32", folder.parent)
    assert "\n".join(lines).count("as expected") == 4
    pipe = load("third", device="cpu", folder=folder.parent)
    loaded = pipe.networks.target
    assert isinstance(loaded, Third) and isinstance(pipe.networks.drafter, AnoleDrafter)
    assert all(
        torch.equal(weight, target.state_dict()[name])
        for name, weight in loaded.state_dict().items()
    )
    assert families.joined_runners(pipe.networks) == families.Runners(loaded, pipe.networks.drafter)
    # the head of two layers is the one that is decoded with
    plain = pipe.generate("a red lantern", "vanilla")
    assert pipe.generate("a red lantern", "eagle1").tokens == plain.tokens
    loaded.aligner.weight.data.neg_()
    assert pipe.generate("a red lantern", "vanilla").tokens != plain.tokens
