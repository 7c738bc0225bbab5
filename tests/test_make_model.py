"""The program that trains the bundled model: its words, its scenes, how its target grows, and a
run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny import command, ran, write_tiny_model

from examples.make_bundled_model import networks, palette
from examples.make_bundled_model.networks import BUNDLED, PREFIX, grown, left_out, origins_of
from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.train import FOREIGN, with_strips
from examples.make_bundled_model.world import LONGEST, PAD, PICTURES, Captions, vocabulary
from examples.quality.classifier import load_classifier
from examples.train_drafter.teaching import train_hidden
from lantern_demo import load
from lantern_demo.models import bundled
from lantern_demo.scenes import ATTRIBUTES, THING_PLACES, THINGS, WORDINGS

IDS = {word: number + 3 for number, word in enumerate(vocabulary())}


def test_every_thing_has_a_picture_in_the_order_of_the_things() -> None:
    assert list(PICTURES) == [names[0][0] for names in THINGS] == list(ATTRIBUTES["thing"])[1:]
    assert len({picture.file for picture in PICTURES.values()}) == len(PICTURES)


def test_captions_have_the_right_article_and_may_omit() -> None:
    writer = Captions(IDS)
    ids = writer(sample(600, 5).attributes(), 1)
    assert ids.shape == (600, LONGEST)
    told = writer.text(ids)
    pairs = [
        pair for caption in told for pair in zip(caption.split(), caption.split()[1:], strict=False)
    ]
    articles = [(a, b) for a, b in pairs if a in ("a", "an")]
    assert all((a == "an") == (b[0] in "aeiou") for a, b in articles)
    assert {"a", "an"} == {a for a, _ in articles}
    short = [
        caption for caption in told if not {"moon", "moonless", "moonlight"} & {*caption.split()}
    ]
    assert 0.1 < len(short) / len(told) < 0.35


def test_captions_say_where_a_lantern_hangs_or_a_thing_stands() -> None:
    attributes = sample(200, 5).attributes()
    told = Captions(IDS).text(Captions(IDS)(attributes, 1, omit=False))
    rows = zip(told, attributes["thing"].tolist(), attributes["place"].tolist(), strict=True)
    for caption, thing, place in rows:
        wordings = (THING_PLACES if thing else WORDINGS["place"])[place]
        assert any(wording in caption for wording in wordings), caption


@torch.inference_mode()
def test_a_grown_target_writes_blocks_several_times() -> None:
    assert origins_of(4, 4) == [0, 1, 2, 3]
    assert origins_of(4, 7) == [0, 1, 1, 1, 2, 2, 3]
    old = bundled.load(BUNDLED, torch.device("cpu")).target
    layers = old.config.layers
    with pytest.raises(SystemExit, match=f"--layers must be at least {layers}, got {layers - 1}"):
        grown(old, layers - 1, PREFIX)
    deep = grown(old, 2 * layers - 2, PREFIX)
    assert len(deep.layers) == 2 * layers - 2
    assert torch.equal(deep.layers[-1].mlp.down_proj.weight, old.layers[-1].mlp.down_proj.weight)
    for half in (deep.layers[1], deep.layers[2]):
        assert torch.equal(half.mlp.up_proj.weight, old.layers[1].mlp.up_proj.weight)
        assert torch.equal(2 * half.mlp.down_proj.weight, old.layers[1].mlp.down_proj.weight)
        assert torch.equal(2 * half.self_attn.o_proj.weight, old.layers[1].self_attn.o_proj.weight)


def test_a_target_grown_by_nothing_computes_the_same_without_a_block_it_does_not() -> None:
    before = bundled.load(BUNDLED, torch.device("cpu"))
    layers = before.target.config.layers
    same = grown(before.target, layers, PREFIX).eval()
    before.target.feature_layers = ()
    encoded = before.text.encode("three red lanterns over a lake at dusk")
    missing = same.config.prefix - before.target.config.prefix
    features = torch.nn.functional.pad(encoded.features, (0, 0, missing, 0))
    mask = torch.nn.functional.pad(encoded.mask, (missing, 0))
    tokens = torch.randint(2048, (1, 255), generator=torch.Generator().manual_seed(0))
    old = train_hidden(before.target, tokens, encoded.features, encoded.mask)[:, -256:]
    new = train_hidden(same, tokens, features, mask)[:, -256:]
    torch.testing.assert_close(new, old, atol=1e-4, rtol=1e-4)
    with left_out(same, 1):
        assert len(same.layers) == layers - 1
        assert (train_hidden(same, tokens, features, mask)[:, -256:] - new).abs().max() > 0.1
    assert len(same.layers) == layers


def test_strips_replace_rows_of_a_share_of_the_pictures() -> None:
    ids = torch.arange(400)[:, None].expand(-1, 256)
    seen = with_strips(ids, torch.Generator().manual_seed(0))
    changed = seen != ids
    share = changed.any(1).float().mean()
    assert abs(float(share) - FOREIGN) < 0.07
    assert not changed[:, : 4 * 16].any()
    rows = changed.view(400, 16, 16)
    assert torch.equal(rows.any(-1), rows.all(-1))
    assert PAD == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_small_run_of_every_stage_leaves_a_model_that_draws(
    sprites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = tmp_path / "run", tmp_path / "model"
    begin = write_tiny_model(tmp_path / "begin", grid=16, scale=2, text=(256, 2))
    sizes = "--minutes 0.3 --layers 3 --ffn 64 --batch 2 --pictures-batch 1 --bank 8 --scenes 8"
    more = "--own 16 --held-out 8 --log-every 1"
    script = "examples/make_bundled_model/train.py"
    given = "--out", run, "--begin", begin, "--sprites", sprites
    done = ran(sys.executable, script, *given, *sizes.split(), *more.split(), timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((run / "facts.json").read_text(encoding="utf-8"))
    assert len(facts["worth_of_blocks"]) == 3
    assert facts["race"]["prompts"] >= 1
    assert {"eagle1", "eagle2", "lantern", "lantern++"} <= {*facts["race"]}
    files = [path for path in run.iterdir() if path.is_file()]
    assert len(files) <= 8
    assert max(path.stat().st_size for path in files) < 16_000_000

    command(networks, "--run", run, "--out", folder, "--begin", begin)
    monkeypatch.setattr(palette, "BATCH", 2)
    command(palette, "--model", folder, "--scenes", 2, "--sprites", sprites)
    pipe = load(folder, "cpu")
    assert pipe.networks.trained["layers"] == 3 == pipe.networks.target.config.layers
    assert pipe.networks.palette is not None
    assert pipe.generate("two foxes in a field", "eagle1", tree="small").image.size == (256, 256)
    classifier = load_classifier(folder, pipe.device)
    trained = {
        name.removeprefix("classifier."): weight
        for path in run.glob("weights-*.pt")
        for name, weight in torch.load(path, weights_only=True).items()
        if name.startswith("classifier.")
    }
    assert trained.keys() == classifier.state_dict().keys()
    for name, weight in classifier.state_dict().items():
        assert torch.equal(weight, trained[name].to(weight.dtype)), name
