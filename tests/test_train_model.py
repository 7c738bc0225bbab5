"""The program that trains the bundled model: soft codes, its losses, its compiled layers, a run."""

import copy
import json
import sys
from pathlib import Path

import pytest
import torch
from tiny import command, ran, write_tiny_model

from examples.make_bundled_model import bank, compiled, networks, palette
from examples.make_bundled_model.bank import World
from examples.make_bundled_model.networks import PREFIX, Model
from examples.make_bundled_model.target_loss import Lesson
from examples.train_drafter.teaching import train_hidden
from lantern_demo import load
from lantern_demo.models import bundled


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model folder of 16 x 16 tokens that reads captions."""
    folder = tmp_path_factory.mktemp("begin")
    return write_tiny_model(folder, grid=16, scale=2, prefix=PREFIX, layers=3)


@pytest.fixture
def world(begin: Path, sprites: Path) -> World:
    return World(Model(begin), sprites, torch.device("cpu"))


def test_soft_codes_are_the_law_of_distances(world: World) -> None:
    scenes = world.bank(5, 8, lanterns=False, kept=8)
    assert scenes.codes.shape == (8, 256, bank.NEAREST)
    tokenizer = world.model.tokenizer
    small = torch.nn.functional.avg_pool2d(scenes.pictures[:, :3].float() / 255, 2)
    with torch.no_grad():
        z = tokenizer.latent(small).flatten(2).mT
        distance = (z[:, :, None] - tokenizer.codebook[scenes.codes.long()]).square().sum(-1)
    law = (-distance / bank.TEMPERATURE).softmax(-1)
    torch.testing.assert_close(scenes.probs.float(), law, atol=2e-3, rtol=2e-2)
    assert torch.equal(scenes.nearest, tokenizer.encode(small))
    # of many draws of one scene each token comes as often as its law says
    many = scenes.rows(torch.zeros(4000, dtype=torch.long))
    tokens = many.drawn(torch.Generator().manual_seed(1))
    at = int(scenes.probs[0].amax(-1).float().argmin())  # the least sure place
    shares = (tokens[:, at, None] == scenes.codes[0, at].long()).float().mean(0)
    assert (shares - scenes.probs[0, at].float()).abs().max() < 0.04


def test_a_compiled_pass_is_the_modules(begin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a copy, by its own settings."""
    monkeypatch.setattr(compiled, "_compiled", compiled._layer)  # the same code, not compiled
    model = bundled.load(begin, torch.device("cpu"))
    model.target.feature_layers = (1,)
    said = model.text.encode("three red lanterns over a lake")
    tokens = torch.randint(64, (1, 255), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = train_hidden(model.target, tokens, said.features, said.mask)
        compiled.compile_layers(model.target)
        twin = copy.deepcopy(model.target)
        model.target.feature_layers = (1, 2)
        found = train_hidden(twin, tokens, said.features, said.mask)
        short = train_hidden(twin, tokens[:, :9], said.features, said.mask)
    assert found.shape == wanted.shape == (1, PREFIX + 255, 2 * 64)
    close = torch.nn.functional.cosine_similarity(found, wanted, dim=-1)[:, PREFIX - 1 :]
    assert close.min() > 0.99 and not torch.equal(found, wanted)
    assert short.shape[1] == PREFIX + 9  # by the modules


def test_a_lesson_teaches_and_holds_lanterns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_compiled", compiled._layer)
    things, lanterns = (world.bank(seed, 8, lanterns=bool(seed)) for seed in (0, 1))
    both = {k: torch.cat((v, lanterns.attributes[k])) for k, v in things.attributes.items()}
    lesson = Lesson(world.model, things)
    lit = lanterns.nearest, lanterns.attributes
    more = world.caption_ids(lanterns.attributes, 2)

    def losses() -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(3)
        return lesson(things, lit, world.caption_ids(both, 1), more, g)

    before = losses()
    assert max(before["lanterns"], before["opening"]) < 1e-3  # it is the teacher still
    optimizer = torch.optim.AdamW(world.model.parameters(), lr=3e-3)
    for _ in range(12):
        found = losses()
        found["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    for name in ("loss", "divergence", "missed", "plan", "names", "read", "words"):
        assert found[name] < before[name], name
    for name in ("lanterns", "opening"):
        assert found[name] > before[name], name  # the teacher has not moved


@pytest.mark.long
@pytest.mark.slow
def test_a_small_run_of_every_stage_leaves_a_model_that_draws(
    begin: Path, sprites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = tmp_path / "run", tmp_path / "model"
    sizes = "--minutes 1 --things 2 --lanterns 2 --pictures-batch 2 --scenes 8"
    more = "--own-batch 2 --held-out 8 --log-every 1"
    script = "examples/make_bundled_model/train.py"
    given = "--out", run, "--begin", begin, "--sprites", sprites
    done = ran(sys.executable, script, *given, *sizes.split(), *more.split(), timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((run / "facts.json").read_text(encoding="utf-8"))
    assert facts["target"]["steps"] >= 1 and facts["check"]["entropy"] > 0
    assert {"eagle1", "eagle2", "lantern", "lantern++"} <= {*facts["race"]}
    files = [path for path in run.iterdir() if path.is_file()]
    assert max(path.stat().st_size for path in files) < 16_000_000

    command(networks, "--run", run, "--out", folder, "--begin", begin)
    monkeypatch.setattr(palette, "BATCH", 2)
    command(palette, "--model", folder, "--scenes", 2, "--sprites", sprites)
    pipe = load(folder, "cpu")
    assert pipe.networks.trained["target"]["steps"] >= 1
    assert pipe.networks.palette is not None
    assert pipe.generate("a fox in a field", "eagle1", tree="small").image.size == (256, 256)
