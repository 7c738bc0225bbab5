"""Drafters that read some blocks of their target: what they read, how they are kept and trained."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from passes import begin, chain_pass, node_pass, stable_pass
from published import same_weights
from runs import decode
from small_models import (
    FEATURE_LAYERS,
    PADDED,
    TEXT,
    condition_of,
    networks,
    settings,
    strong,
)
from tiny import trained, write_tiny_model
from torch import Tensor

from examples.make_bundled_model.folder import save
from examples.train_drafter import drafter as trainer
from examples.train_drafter import run
from lantern_demo import load
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models import bundled, prepare
from lantern_demo.models.llamagen import Drafter, LeanDrafter, LeanTarget
from lantern_demo.models.registry import DrafterConfig

CPU = torch.device("cpu")
WIDTH = 128 * (1 + len(FEATURE_LAYERS))


# -- what is read


@torch.inference_mode()
def test_states_carry_the_outputs_of_feature_layers() -> None:
    target, _ = networks(TEXT)
    condition, tokens = condition_of(target, PADDED), torch.tensor([3, 9, 11])
    found = []
    for feature_layers in ((), (1, 3)):
        target.feature_layers, seen = feature_layers, list[Tensor]()
        keep = lambda *given, seen=seen: seen.append(given[-1].clone())  # noqa: E731
        hooks = [target.layers[layer - 1].register_forward_hook(keep) for layer in (1, 3)]
        cache = target.new_cache(2, 8)
        hidden = torch.cat((target.prefill(condition, cache), chain_pass(target, tokens, cache)), 1)
        found.append(
            (
                hidden,
                target.head(hidden),
                torch.cat((torch.cat(seen[:2], -1), torch.cat(seen[2:], -1)), 1),
            )
        )
        for hook in hooks:
            hook.remove()
    (plain, logits, outputs), (wide, same, _) = found
    assert torch.equal(wide, torch.cat((plain, outputs), -1))
    # a drafter's outputs are as wide as final states
    assert torch.equal(same, logits) and torch.equal(target.head(plain), logits)


@torch.inference_mode()
def test_a_stable_slot_reads_feature_layers_and_a_node_its_parents_output() -> None:
    _, drafter = networks(TEXT, feature_layers=FEATURE_LAYERS)
    embedded, before = torch.randn(2, 3, 128), 3 * torch.randn(2, 3, WIDTH)
    state, features = before.split((128, WIDTH - 128), -1)
    joined = drafter.fc(torch.cat((embedded, state), -1))
    normed = features.unflatten(-1, (2, 128))
    normed = normed / normed.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    torch.testing.assert_close(
        drafter.fuse(embedded, before),
        joined + drafter.fc_taps(normed.flatten(-2)),
        atol=1e-5,
        rtol=1e-5,
    )
    torch.testing.assert_close(
        drafter.fuse(embedded, state), joined + drafter.fc_own(state), atol=1e-5, rtol=1e-5
    )


def test_a_target_that_was_not_told_is_refused() -> None:
    target, drafter = networks(TEXT, feature_layers=FEATURE_LAYERS)
    target.feature_layers = ()
    knobs = {"num_tokens": 4, "sampling": Sampling(cfg_scale=2.0), **settings("eagle1")}
    with torch.inference_mode():
        condition = condition_of(target, PADDED)
    for fused in ((LeanTarget(target), LeanDrafter(drafter)), (target, drafter)):
        with pytest.raises(ValueError, match=r"128 wide; a drafter with feature layers \[1, 3\]"):
            list(decode(*fused, condition, **knobs))


# -- on disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder whose drafter reads both blocks of its target."""
    networks = bundled.load(write_tiny_model(tmp_path / "without", grid=4), CPU)
    torch.manual_seed(3)
    networks.drafter = strong(
        Drafter(DrafterConfig(**{**vars(networks.drafter.config), "feature_layers": (1, 2)}))
    )
    save(tmp_path / "feature_layers", networks, torch.float32)
    return tmp_path / "feature_layers"


def test_a_model_folder_keeps_them(folder: Path) -> None:
    found = bundled.load(folder, CPU)
    assert found.drafter is not None
    assert found.drafter.config.feature_layers == found.target.feature_layers == (1, 2)
    torch.manual_seed(3)
    same_weights(found.drafter, strong(Drafter(found.drafter.config)))
    for fused in (
        lambda networks: prepare.on_cpu(networks, "plain", "plain"),
        lambda networks: prepare.on_gpu(networks.target, networks.drafter),
    ):
        target: Any = fused(found).target
        assert getattr(target, "original", target).feature_layers == (1, 2)
    pipe = load(folder, device="cpu")
    plain = pipe.generate("two red lanterns over a lake", "vanilla", temperature=0).tokens
    assert (
        pipe.generate("two red lanterns over a lake", "eagle1", temperature=0, tree="small").tokens
        == plain
    )


@pytest.mark.parametrize("feature_layers", [[2, 1], [1, 3], [True, 2]], ids=str)
def test_bad_feature_layers_are_refused(feature_layers: Any, folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["drafter"]["feature_layers"] = feature_layers
    path.write_text(json.dumps(config), encoding="utf-8")
    sentence = f"its feature layers are {feature_layers}; they must be numbers of the target's"
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(sentence)):
        bundled.load(folder, CPU)


# -- training


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model folder without feature layers. Its target draws two pictures at a time."""
    monkeypatch.setattr(trainer, "SHARD", 2)
    return write_tiny_model(tmp_path / "plain", grid=4)


def test_training_starts_as_the_drafter_without(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, at stable slots and at nodes. Layers that a target lacks are refused."""
    begun: list[Drafter] = []
    monkeypatch.setattr(run, "train", lambda model, *_: begun.append(model))
    (tmp_path / "log.jsonl").touch()
    words = "--target", plain, "--start-from", plain, "--ffn", 64, "--device", "cpu"
    with pytest.raises(SystemExit, match=r"layers are \[2, 3\]; they must be numbers of the targ"):
        trained(trainer, tmp_path, *words, "--feature-layers", 2, 3)
    trained(trainer, tmp_path, *words, "--feature-layers", 1, 2)
    new = begun[0].eval()
    old = bundled.load(plain, CPU).drafter
    assert old is not None and new.config.feature_layers == (1, 2)
    hidden, tokens = torch.randn(2, 26, 3 * 64), torch.randint(64, (26,))
    outputs = []
    with torch.inference_mode():
        for drafter, states in ((old, hidden[..., :64]), (new, hidden)):
            cache = drafter.new_cache(2, 16)
            last = begin(drafter, states[:, :24], tokens[:1], cache)
            stable = stable_pass(drafter, tokens[1:3], states[:, 24:], cache)
            node = node_pass(
                drafter, tokens[3:4], stable, 1, torch.ones(1, 1, dtype=torch.bool), cache
            )
            outputs.append(torch.cat((last, stable, node), 1))
    assert torch.equal(*outputs)


def test_training_starts_from_a_drafter_that_read_as_many_other_blocks(
    folder: Path, tmp_path: Path
) -> None:
    found = bundled.load(folder, CPU)
    assert found.drafter is not None
    opts = run.options(run.parser("").parse_args(["--out", str(tmp_path / "run")]))
    other = replace(found.drafter.config, feature_layers=(2, 5))
    same_weights(trainer.begin(other, found.target, opts, folder), found.drafter)
    fewer = replace(found.drafter.config, feature_layers=(5,))
    with pytest.raises(SystemExit, match="--start-from has a drafter of"):
        trainer.begin(fewer, found.target, opts, folder)
