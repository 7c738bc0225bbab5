"""Drafters that read some blocks of their target: what they read, how they are kept and trained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
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
    pictures_read,
    settings,
    strong,
)
from tiny import trained, write_tiny_model
from torch import Tensor

from examples.make_bundled_model import export
from examples.train_drafter import drafter as trainer
from examples.train_drafter import run
from lantern_demo import load
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models import bundled, checkpoints, families
from lantern_demo.models.families import blank_network
from lantern_demo.models.llamagen import Drafter, LeanDrafter, LeanTarget
from lantern_demo.models.registry import DrafterConfig, LlamaGenConfig
from lantern_demo.models.tensors import fill

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
        with pytest.raises(
            ValueError, match=r"128 wide; a drafter with feature layers \[1, 3\] reads 384"
        ):
            list(decode(*fused, condition, **knobs))


# -- on disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder whose drafter reads both blocks of its target."""
    networks = bundled.load(write_tiny_model(tmp_path / "plain", grid=4), CPU)
    torch.manual_seed(3)
    networks.drafter = strong(
        Drafter(DrafterConfig(**{**vars(networks.drafter.config), "feature_layers": (1, 2)}))
    )
    bundled.save(tmp_path / "feature_layers", networks, torch.float32)
    return tmp_path / "feature_layers"


def test_rotary_tables_of_16_bit_models_are_not_rounded(folder: Path) -> None:
    found, rounded = bundled.load(folder, CPU), bundled.load(folder, CPU, torch.bfloat16)
    for part in ("target", "drafter"):
        assert torch.equal(getattr(rounded, part).rope, getattr(found, part).rope)


def test_a_model_folder_keeps_them(folder: Path) -> None:
    found = bundled.load(folder, CPU)
    assert (
        found.drafter is not None
        and found.drafter.config.feature_layers == found.target.feature_layers == (1, 2)
    )
    torch.manual_seed(3)
    same_weights(found.drafter, strong(Drafter(found.drafter.config)))
    for fused in (
        lambda networks: families.lean_runners(networks, "plain", "plain"),
        families.joined_runners,
    ):
        target: Any = fused(found).target
        assert getattr(target, "original", target).feature_layers == (1, 2)
    pipe = load(folder, device="cpu")
    plain = pipe.generate("two red lanterns over a lake", "vanilla", temperature=0).tokens
    assert (
        pipe.generate("two red lanterns over a lake", "eagle1", temperature=0, tree="small").tokens
        == plain
    )


@pytest.mark.parametrize(
    "feature_layers", [[2, 1], [1, 1], [0, 1], [1, 3], [1.0], [True, 2], "12", [[1]]], ids=str
)
def test_bad_feature_layers_are_refused(feature_layers: Any, folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["drafter"]["feature_layers"] = feature_layers
    path.write_text(json.dumps(config), encoding="utf-8")
    sentence = (
        f"its feature layers are {list(feature_layers)}; "
        "they must be numbers of the target's blocks, from 1 to 2, "
    )
    sentence += "each above the one before"
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(sentence)):
        bundled.load(folder, CPU)


def test_a_drafter_trained_for_a_published_model_keeps_them(tmp_path: Path) -> None:
    sizes = LlamaGenConfig(dim=64, layers=4, heads=2, vocab=50, grid=4, prefix=5)
    config = DrafterConfig(
        dim=64, heads=2, ffn=64, vocab=50, grid=4, prefix=5, feature_layers=(1, 4)
    )
    drafter = strong(Drafter(config))
    checkpoints.save_drafter(tmp_path, drafter)
    located = checkpoints.drafter_in(tmp_path)
    blank = blank_network(families.drafter_config(located, sizes))
    found = fill(blank, dict(families.weights(blank, located)), CPU, None)
    assert (
        isinstance(found, Drafter) and found.config == config and hash(found.config) == hash(config)
    )
    same_weights(found, drafter)
    with pytest.raises(
        ValueError, match=r"config.json is another model's drafter: its feature layers are \[1, 4\]"
    ):
        families.drafter_config(located, LlamaGenConfig(**{**vars(sizes), "layers": 3}))


# -- training


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model folder without feature layers. Its target draws two pictures at a time."""
    monkeypatch.setattr(trainer, "SHARD", 2)
    return write_tiny_model(tmp_path / "plain", grid=4)


def train(target: Path, out: Path, *more: object) -> list[dict[str, float]]:
    """Train on pictures that the target draws. Return the lines of the log."""
    return trained(
        trainer,
        out,
        "--target",
        target,
        "--ffn",
        64,
        "--batch",
        2,
        "--warmup",
        2,
        "--device",
        "cpu",
        *more,
    )


def started(plain: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Drafter:
    """The drafter that a training starts with."""
    found: list[Drafter] = []
    with monkeypatch.context() as patch:
        patch.setattr(run, "train", lambda model, *_: found.append(model))
        (out / "log.jsonl").parent.mkdir(exist_ok=True)
        (out / "log.jsonl").touch()
        train(plain, out, *more)
    return found[0]


@pytest.mark.parametrize("guided", [[], ["--guided"]], ids=["two rows", "guided"])
def test_training_starts_as_the_drafter_without(
    plain: Path, tmp_path: Path, guided: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, at stable slots and at nodes."""
    if guided:
        config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
        config["drafter"]["guided"] = True
        (plain / "config.json").write_text(json.dumps(config), encoding="utf-8")
    new = started(
        plain,
        tmp_path / "out",
        monkeypatch,
        "--start-from",
        str(plain),
        "--feature-layers",
        "1",
        "2",
        *guided,
    ).eval()
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


def test_a_few_steps_of_training(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, resumed, exported, and trained further."""
    real, steps = run.average_gradients, list[int]()

    def stop_in_the_middle(*given: Any) -> None:
        steps.append(len(steps))
        if len(steps) == 4:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(run, "average_gradients", stop_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        train(
            plain,
            tmp_path / "out",
            "--feature-layers",
            "1",
            "2",
            "--steps",
            "6",
            "--save-every",
            "2",
        )
    log = train(plain, tmp_path / "out", "--feature-layers", "1", "2", "--steps", "6")
    assert len(steps) == 4 + 4, "from the last step that was kept, the second"
    assert [line["step"] for line in log] == [6] and 0 < log[-1]["held_out_overlap2"] < 1
    saved = torch.load(tmp_path / "out" / "last.pt", weights_only=True)
    assert saved["step"] == 6 and all(
        bool(saved["model"][f"{name}.weight"].any()) for name in ("fc_taps", "fc_own")
    )

    parts = bundled.load(plain, CPU)
    parts.drafter = export.load_drafter(tmp_path / "out", CPU)
    assert parts.drafter.config.feature_layers == (1, 2)
    bundled.save(tmp_path / "new", parts, torch.float32)
    again = started(
        plain,
        tmp_path / "more",
        monkeypatch,
        "--start-from",
        str(tmp_path / "new"),
        "--feature-layers",
        "1",
        "2",
    )
    assert torch.equal(again.fc_taps.weight, parts.drafter.fc_taps.weight)
    for feature_layers in ([], ["--feature-layers", "2"]):
        with pytest.raises(
            SystemExit,
            match=r"--start-from has a drafter of DrafterConfig\(.*feature_layers=\(1, 2\)\)",
        ):
            started(
                plain,
                tmp_path / "less",
                monkeypatch,
                "--start-from",
                str(tmp_path / "new"),
                *feature_layers,
            )


def test_kept_states_are_those_of_the_run(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other feature layers they are made anew; a run of other blocks is refused."""
    monkeypatch.setattr(trainer, "SHARD", 4)
    sizes = pictures_read(monkeypatch)
    words = ["--keep-states", "--own", "12", "--warmup", "0", "--batch", "4"]
    held, probe = 4, 1  # validated once, and one picture tells how much room the others need
    train(plain, tmp_path / "out", *words, "--feature-layers", "1", "--steps", "12")
    assert sum(sizes) == 12 + held + probe, "none of them a scene"
    sizes.clear()
    train(plain, tmp_path / "out", *words, "--feature-layers", "1", "--steps", "14")
    assert sum(sizes) == held + probe, "resumed with what is there"
    with pytest.raises(
        SystemExit,
        match=r"--out has a run of a drafter of .*_layers=\(1,\)\), not of .*_layers=\(2,\)\)",
    ):
        train(plain, tmp_path / "out", *words, "--feature-layers", "2", "--steps", "14")
    (tmp_path / "out" / "last.pt").unlink()
    sizes.clear()
    train(plain, tmp_path / "out", *words, "--feature-layers", "2", "--steps", "12")
    assert sum(sizes) == 12 + held + probe
    assert len(list((tmp_path / "out").glob("states0-*.pt"))) == 6


def test_states_are_not_kept_of_nothing_or_where_there_is_no_room(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="--own must be 2 or more, got 1"):
        train(plain, tmp_path / "out", "--own", "1")
    monkeypatch.setattr(trainer, "SHARD", 4)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1e6))
    with pytest.raises(
        SystemExit,
        match=r"--keep-states needs \d\.\d GB in .*, 0\.0 MB a picture, and 0\.0 GB are free",
    ):
        train(plain, tmp_path / "out", "--keep-states", "--own", "80000")


def test_feature_layers_that_a_target_lacks_are_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit,
        match=r"layers are \[2, 3\]; they must be numbers of the target's blocks, from 1 to 2",
    ):
        train(plain, tmp_path / "out", "--feature-layers", "2", "3")
