"""The trainer of drafters: what it teaches is what decoding does, also in parts and processes."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from passes import begin, chain_pass, node_pass, stable_pass
from published import GRID, TEXT_ID
from published import networks as networks_of_text
from released import close
from runs import decode
from small_models import FEATURE_LAYERS, TEXT, networks
from tiny import command, log_of, ran
from torch import Tensor, nn

from examples.make_bundled_model.world import vocabulary
from examples.train_drafter import drafter, run
from examples.train_drafter.own import encode_prompts, sample_batch
from examples.train_drafter.teaching import train_hidden, train_passes
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models.checkpoints import load_part
from lantern_demo.models.llama import Condition, added
from lantern_demo.models.registry import model_info
from lantern_demo.runs.load import load

pytestmark = pytest.mark.usefixtures("published_cache")


def overlaps_of(log: list[dict[str, float]]) -> list[float]:
    return [line["held_out_overlap0"] for line in log if "held_out_overlap0" in line]


def test_a_batch_of_prompts_is_read_like_each_alone(text_model: Path) -> None:
    target, _, _ = networks_of_text()
    reader = load_part("text", model_info(TEXT_ID), torch.device("cpu"), folder=text_model)
    prompts = ["a red lantern", "a red lantern at the lake at dusk", "the lake"]
    sampling = Sampling(temperature=1e-3, cfg_scale=5.0)  # all but greedy
    together = encode_prompts(reader, prompts, torch.device("cpu"))
    drawn = sample_batch(target, *together, sampling, 1)
    condition = target.condition(*together, True)
    with torch.no_grad():
        states = train_hidden(target, drawn.repeat(2, 1), condition.features, condition.mask)
    for i, prompt in enumerate(prompts):
        alone = target.condition(*encode_prompts(reader, [prompt], torch.device("cpu")), True)
        *_, last = decode(target, None, alone, num_tokens=GRID * GRID, sampling=sampling)
        assert isinstance(last, Decoded) and last.tokens == drawn[i].tolist()
        cache = target.new_cache(2, GRID * GRID)
        with torch.no_grad():
            prefix = target.prefill(alone, cache)
            wanted = torch.cat((prefix[:, -1:], chain_pass(target, drawn[i], cache)), 1)
        found = states[[i, i + 3], -(GRID * GRID + 1) :]
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("feature_layers", [(), FEATURE_LAYERS], ids=str)
@torch.no_grad()
def test_training_passes_are_what_drafting_does(feature_layers: tuple[int, ...]) -> None:
    _, drafter = networks(TEXT, feature_layers=feature_layers)
    generator = torch.Generator().manual_seed(4)
    c, lead = drafter.config, drafter.config.prefix - 1
    hidden = torch.randn(2, lead + 6, c.dim * (1 + len(c.feature_layers)), generator=generator)
    tokens = torch.randint(c.vocab, (lead + 6,), generator=generator)
    tokens[:lead] = 0
    outputs = train_passes(drafter, tokens.expand(2, -1), hidden, 3)
    for committed in range(1, 5):  # picture's slots that are stable when the chain is drafted
        cache, last = drafter.new_cache(2, 12), lead + committed
        nothing = Condition(torch.zeros(2, 1))
        out = begin(drafter, hidden[:, : lead + 1], tokens[lead : lead + 1], cache, nothing)
        if committed > 1:
            out = stable_pass(drafter, tokens[lead + 1 : last], hidden[:, lead + 1 : last], cache)
        close(out[:, 0], outputs[0][:, last - 1])
        mask = torch.ones(1, 1, dtype=torch.bool)
        for depth in range(1, min(3, 7 - committed)):
            token = tokens[last + depth - 1 : last + depth]
            out = node_pass(drafter, token, out, depth, mask.expand(1, depth), cache)
            close(out[:, 0], outputs[depth][:, last + depth - 1])


def test_training_in_mixed_precision_gets_the_gradients_of_the_sum() -> None:
    torch.manual_seed(0)
    x, part, y = torch.randn(2, 3, 8), nn.Linear(16, 8, bias=False), torch.randn(2, 3, 16)
    for tensor in (x, y):
        tensor.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        added(x, part, y).float().sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))
    wanted = y.detach().sum((0, 1)).expand_as(part.weight)
    torch.testing.assert_close(part.weight.grad, wanted, atol=0.05, rtol=0.02)


SCRIPT = """
import sys
sys.path[:0] = [{root!r} + "/tests/helpers", {root!r}]
from published import TEXT_ID, tiny_info
from lantern_demo.models.registry import REGISTRY
from examples.train_drafter import drafter
REGISTRY[TEXT_ID] = tiny_info(TEXT_ID)
drafter.main()
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_train_for_a_published_model(llamagen_model: Path, tmp_path: Path) -> None:
    script, captions, out = (tmp_path / name for name in ("train.py", "captions.txt", "out"))
    root = Path(__file__).resolve().parents[1]
    script.write_text(SCRIPT.format(root=str(root)), encoding="utf-8")
    captions.write_text("a red lantern\nthe red lake\n", encoding="utf-8")
    given = "--target", TEXT_ID, "--folder", llamagen_model, "--captions", captions, "--out", out
    steps = "--own 64 --batch 8 --lr 3e-3 --warmup 5 --steps 40 --validate-every 20"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = ran(sys.executable, *torchrun, script, *given, *steps.split())
    assert done.returncode == 0, done.stderr[:3000]
    first, second = (torch.load(path, weights_only=True) for path in sorted(out.glob("own?-0.pt")))
    assert not torch.equal(first[0], second[0])
    overlaps = overlaps_of(log_of(out))
    assert len(overlaps) == 2 and overlaps[1] > overlaps[0] + 0.01
    assert "Load it with load(" in done.stdout
    words = {"device": "cpu", "dtype": "float32", "folder": llamagen_model}
    pipe = load(TEXT_ID, drafter=out / "drafter", **words)
    vanilla = pipe.generate("a red lake", "vanilla", temperature=0).tokens
    assert pipe.generate("a red lake", "eagle1", temperature=0).tokens == vanilla


def fitted(folder: Path, steps: int, planned: int, muon: bool) -> nn.Linear:
    """Fit a plane; `planned` fixes the learning rate schedule, `steps` is where this call stops."""
    folder.mkdir(exist_ok=True)
    opts = run.Options(folder, planned, 4, 0.05, 2, 0, 2, 4, torch.device("cpu"), False, muon)
    torch.manual_seed(0)
    model = nn.Linear(3, 3)

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        if step == steps:
            raise KeyboardInterrupt
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(opts.batch_seed(step)))
        return (model(x) - x.flip(1) - 1).square().mean(), {}

    with pytest.raises(KeyboardInterrupt) if steps < planned else nullcontext():
        run.train(model, opts, batch_loss, lambda: {"held_out": 0.0})
    return model


NO_MUON = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon needs PyTorch 2.9")


@pytest.mark.parametrize("muon", [False, pytest.param(True, marks=NO_MUON)])
def test_a_stopped_run_resumes_to_the_same_weights(tmp_path: Path, muon: bool) -> None:
    whole = fitted(tmp_path / "whole", 12, 12, muon)
    stopped = fitted(tmp_path / "parts", 6, 12, muon)
    resumed = fitted(tmp_path / "parts", 12, 12, muon)
    for part in ("weight", "bias"):
        one, half, other = (getattr(of, part) for of in (whole, stopped, resumed))
        assert torch.equal(one, other) and not torch.equal(one, half)
    last = log_of(tmp_path / "parts")[-1]
    assert last["step"] == 12 and "held_out" in last


@pytest.mark.parametrize("more", [["--cfg-scale", 1, "--keep-states"], ["--guided"]], ids=str)
def test_a_drafter_of_a_model_folder_learns_from_captions_of_scenes(
    more: list[object], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter, "SHARD", 8)
    steps = "--steps 60 --validate-every 20 --warmup 5 --batch 4 --own 16 --ffn 64 --device cpu"
    words = "--target", folder, *steps.split(), *more
    command(drafter, "--out", tmp_path / "out", *words)
    overlaps = overlaps_of(log_of(tmp_path / "out"))
    assert len(overlaps) == 3 and overlaps[2] > overlaps[0] + 0.005
    assert any((tmp_path / "out").glob("states*")) == ("--keep-states" in more)
    captions = torch.load(tmp_path / "out" / "own0-0.pt", weights_only=True)[1]
    known = set(vocabulary())
    assert len(captions) == 8 and all(known.issuperset(text.split()) for text in captions)
    assert {"lantern" in text for text in captions} == {True, False}
    command(drafter, "--out", tmp_path / "again", *words, "--steps", 1)
    again = torch.load(tmp_path / "again" / "own0-0.pt", weights_only=True)
    assert again[1] == captions
