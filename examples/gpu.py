"""Time the steps of every method on a GPU, and compare their tokens.

    python examples/gpu.py --out runs/gpu

It needs no network and no published weights: the bundled model has its own, others get random ones.
The cost of a step with a given tree depends neither on the weights nor on the accepted tokens. What
trained weights would accept is not measured.

Replayed graphs must draw the tokens of eager steps, Triton kernels those of plain modules, and
lossless methods those of vanilla. In float32 all must agree. In 16 bits the program counts those
that do. It times steps in a model's last format, with trees of several sizes, and splits them into
draft, verify and commit. LANTERN_KERNELS=1 runs Triton kernels.

Every row rewrites DIR/gpu.json and DIR/gpu.md. `--device cpu` tries the program with tiny models.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from torch import Tensor, nn

from lantern_demo.bench.report import machine_of, now, parser_of, table, write
from lantern_demo.decoding import interfaces
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded, Step, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.ops import PYTORCH, Ops
from lantern_demo.kernels import switch
from lantern_demo.models import bundled
from lantern_demo.models.device import half, pick_device
from lantern_demo.models.families import blank_network
from lantern_demo.models.prepare import on_gpu
from lantern_demo.models.registry import AnoleConfig, LlamaGenConfig, Sizes, model_info
from lantern_demo.models.tensors import fill
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.paths import user_path
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.settings.named_trees import (
    DEFAULTS,
    STATIC_TREES,
    DefaultDrafts,
    drafts_by_device,
)
from lantern_demo.settings.settings import Settings, planned

Row = dict[str, Any]

BUNDLED, XL, LARGE, ANOLE = "lantern-scenes", "llamagen-t2i-256", "llamagen-t2i-512", "anole-7b"
# Of each model; HALF is a GPU's own 16-bit format. Anole-7B in float32 exceeds many cards.
HALF = "half"
FORMATS = {
    BUNDLED: ("float32",),
    XL: ("float32", HALF),
    LARGE: ("float32", HALF),
    ANOLE: (HALF,),
}
MODELS = (BUNDLED, XL, ANOLE)  # by default
TOKENS, FEW = 96, 10  # of a run with random weights, and of one with tiny models
NODES = (8, 16, 32, 58)
TOP_K, DEPTH = 10, 4  # of the dynamic trees, as published
RUNS_AS = {"cuda": "graphs", "cpu": "plain"}
PARTS = ("draft", "verify", "commit")

PROMPT = "three red round lanterns over a lake at dusk"
BLOCK = 2**22  # random numbers that all weights are built from
WORDS = 64  # tokens of a prompt that is part of the sequence, its marks included
# sizes of tiny models
SMALL: dict[str, Any] = {"dim": 64, "heads": 2, "ffn": 64, "vocab": 1024, "grid": 6, "prefix": 24}


# -- models


@dataclass(frozen=True)
class TimedModel:
    """A model on a device with its encoded prompt."""

    id: str
    target: interfaces.Target
    drafter: interfaces.Drafter
    condition: Any
    knobs: Settings
    default: DefaultDrafts
    neighbours: Tensor
    tokens: int  # of a picture
    device: torch.device
    ops: Ops

    def run(
        self,
        method: str,
        drafts: DraftConfig | None = None,
        tokens: int | None = None,
        seed: int = 0,
        keep: tuple[int, ...] = (),
    ) -> Iterator[Step | Decoded]:
        """Decode this many tokens, or a picture, with a draft tree or that of the settings; with
        the first tokens of another one to keep.
        """
        plan = planned(METHODS[method], self.knobs, self.default)
        config = Config(
            tokens or self.tokens,
            self.knobs.sampling(),
            plan.rule,
            drafts or plan.drafts,
            self.neighbours,
            seed,
            self.device,
            noise=self.knobs.noise,
            ops=self.ops,
            keep=keep,
        )
        return decode(self.target, self.drafter, self.condition, config)

    def decoded(self, *given: Any, **options: Any) -> Decoded:
        """Return the outcome of `run`, with the same arguments."""
        *_, last = self.run(*given, **options)
        assert isinstance(last, Decoded)
        return last


@torch.inference_mode()
def timed_model(
    model: str, device: torch.device, small: bool = False, dtype: torch.dtype = torch.float32
) -> TimedModel:
    """Load a model of the registry.

    The bundled one keeps its weights. Another has random weights in `dtype`; `small` shrinks it.
    """
    info = model_info(model)
    knobs, default = Settings(**info.preset), DEFAULTS[device.type]
    if info.folder is not None:
        networks = bundled.load(info.folder, device)
        target: Any = networks.target
        drafter: Any = networks.drafter
        default = drafts_by_device(networks.trees)[device.type]
        encoded = networks.text.encode(PROMPT)
        features, mask = encoded.features, encoded.mask
        book = networks.tokenizer.codebook
        near = neighbour_table(book, min(MAX_LANTERN_K, len(book) - 1)).to(device)
    else:
        assert info.published is not None
        torch.manual_seed(0)
        sizes: Sizes = info.published.target
        own: Sizes = info.published.drafter
        if small:
            sizes, own = replace(sizes, **SMALL, layers=2), replace(own, **SMALL)
        target = random_network(sizes, device, dtype)
        drafter = random_network(own, device, dtype)
        features, mask = prompt_of(sizes, device, dtype)
        # A table of the right shape: every token's neighbours are those that follow it.
        columns = torch.arange(1, min(MAX_LANTERN_K, sizes.vocab - 1) + 1, device=device)
        near = ((torch.arange(sizes.vocab, device=device)[:, None] + columns) % sizes.vocab).int()
    condition = target.condition(features, mask, knobs.cfg_scale != 1)
    ops = on_gpu(target, drafter).ops
    tokens = target.config.tokens
    return TimedModel(model, target, drafter, condition, knobs, default, near, tokens, device, ops)


def random_network(sizes: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a network of random weights within float16 range.

    They are scaled so that states neither vanish nor blow up.
    """
    network: nn.Module = blank_network(sizes)
    # billions of numbers would take long to draw
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))

    def weight(name: str, shape: torch.Size) -> Tensor:
        if "norm" in name or len(shape) == 1:
            return torch.full(shape, float(name.endswith("weight")), dtype=dtype, device=device)
        # each begins elsewhere, or queries would equal keys, and a gate its up projection
        own = block.roll(crc32(name.encode()))
        scaled = (own * shape[1] ** -0.5).half().to(device, dtype)
        return scaled.repeat(-(-shape.numel() // BLOCK))[: shape.numel()].view(shape)

    weights = {name: weight(name, w.shape) for name, w in network.state_dict().items()}
    return fill(network, weights, device, dtype)


def prompt_of(
    sizes: Sizes, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return features [1, n, H] and mask [1, n] of a random prompt, or Anole's ids [1, n]."""
    if isinstance(sizes, AnoleConfig):
        # word ids follow Anole's image token ids
        shape = (1, min(WORDS, sizes.prefix))
        return torch.randint(8712, sizes.embeddings, shape, device=device), None
    assert isinstance(sizes, LlamaGenConfig)
    mask = torch.ones(1, sizes.prefix, dtype=torch.bool, device=device)
    return torch.randn(1, sizes.prefix, sizes.caption_dim, device=device).to(dtype), mask


# -- measurements


def without_graphs() -> AbstractContextManager[Any]:
    """Disable graph capture meanwhile, so that steps run eagerly."""
    off = RuntimeError("switched off for a comparison")
    return patch.object(torch.cuda, "CUDAGraph", side_effect=off)


@contextmanager
def without_kernels(timed: TimedModel) -> Iterator[TimedModel]:
    """Give the model without Triton kernels; meanwhile its modules compute."""
    with patch.object(timed.target, "fused", ()), patch.object(timed.drafter, "fused", ()):
        yield replace(timed, ops=PYTORCH)


def identity(timed: TimedModel, dtype: str, tokens: int) -> Iterator[Row]:
    """Yield a row per method: how many tokens agree with eager steps', modules' and vanilla's.

    `ok` is False if float32 tokens differ or nothing was replayed.
    """
    vanilla = timed.decoded("vanilla", tokens=tokens, seed=2)
    for method in METHODS:
        with without_graphs():
            others = {"eager": timed.decoded(method, tokens=tokens, seed=2)}
        replayed = timed.decoded(method, tokens=tokens, seed=2)
        if kernels_of(timed) == "on":
            with without_kernels(timed) as modules:
                others["modules"] = modules.decoded(method, tokens=tokens, seed=2)
        if METHODS[method].lossless:
            others["vanilla"] = vanilla
        same = {
            name: sum(a == b for a, b in zip(replayed.tokens, other.tokens, strict=True))
            for name, other in others.items()
        }
        agrees = dtype != "float32" or set(same.values()) == {tokens}
        yield {
            "model": timed.id,
            "format": dtype,
            "method": method,
            "ran as": replayed.runner,
            **{f"same as {name}": f"{count} of {tokens}" for name, count in same.items()},
            "ok": agrees and replayed.runner == RUNS_AS[timed.device.type],
        }


def trees(cls: type[DraftConfig], nodes: Sequence[int]) -> list[DraftConfig | None]:
    """Return the draft trees that a method is timed with, None for the tree of its settings."""
    if cls is StaticTree:
        # paths whose choices sum to less are likelier; a parent's sum is less than its own
        paths = (*STATIC_TREES["naive_extend_57"], (5,))
        likely = sorted(paths, key=lambda path: (sum(path) + len(path), path))
        return [StaticTree(likely[: count - 1]) for count in nodes]
    return [DynamicTree(TOP_K, DEPTH, count) for count in nodes] if cls is DynamicTree else [None]


def steps(timed: TimedModel, dtype: str, tokens: int, nodes: Sequence[int]) -> Iterator[Row]:
    """Time every method's steps with trees of several sizes.

    c is the cost of a step over that of a vanilla step.
    """
    alone = step_ms(timed.decoded("vanilla", tokens=tokens))
    for method in METHODS:
        for drafts in trees(METHODS[method].drafts, nodes):
            done = timed.decoded(method, drafts, tokens)
            cost = step_ms(done) / alone
            row: Row = {"model": timed.id, "format": dtype, "method": method, "nodes": done.nodes}
            row["ms a step"] = round(step_ms(done), 3)
            for part in PARTS:
                row[f"{part} ms"] = round(1000 * done.seconds[part] / max(1, done.steps), 3)
            row["c"] = round(cost, 2)
            row["ran as"] = done.runner
            if timed.id == BUNDLED:  # the weights are trained
                row["tokens a step"] = round(done.mean_accepted_length, 2)
                row["tokens a second"] = round(done.tokens_per_second, 1)
                row["gain"] = round(done.mean_accepted_length / cost, 2)
            yield row


def step_ms(done: Decoded) -> float:
    """Return the milliseconds of a step, without the prefill."""
    return 1000 * (done.decode_seconds - done.seconds["prefill"]) / max(1, done.steps)


# -- the report


def markdown(report: Row) -> str:
    """Return the report's tables in Markdown."""
    kernels = "; ".join(f"{name}: {told}" for name, told in report["kernels"].items())
    about = f"{report['created']}, PyTorch {report['torch']}. Triton kernels: {kernels}."
    if report["small"]:
        about += " Tiny models, few steps: these numbers say nothing about a GPU."
    about += " Weights are random but of lantern-scenes: what those would accept is not shown."
    parts = [f"# Steps on {report['machine']['device']}", about]
    for title, rows in (("Tokens that agree", report["identity"]), ("Steps", report["speed"])):
        head = list(dict.fromkeys(key for row in rows for key in row))
        lines = [[str(row.get(key, "-")) for key in head] for row in rows]
        parts += [f"## {title}", table(head, lines)]
    return "\n\n".join(parts) + "\n"


def kernels_of(timed: TimedModel) -> str:
    """Return whether a model runs Triton kernels: "on", "off", or why they went off."""
    return (timed.ops.reason or "on") if switch.on(timed.device) else "off"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and return 0, or 1 if float32 tokens differ or nothing was replayed.

    Exit with 2 and a sentence for a missing device.
    """
    p = parser_of(__doc__)
    folder = "folder for gpu.json and gpu.md"
    p.add_argument("--out", type=user_path, required=True, metavar="DIR", help=folder)
    known = f"of {', '.join(FORMATS)} (default: {', '.join(MODELS)})"
    p.add_argument("--models", nargs="+", choices=FORMATS, default=MODELS, metavar="ID", help=known)
    devices = "cuda, cuda:N, or cpu for tiny models (default: cuda)"
    p.add_argument("--device", default="cuda", help=devices)
    args = p.parse_args(argv)
    try:
        device = pick_device(args.device)
    except ValueError as error:
        p.error(str(error))
    small = device.type == "cpu"
    report: Row = {"created": now(), "machine": machine_of(device), "torch": torch.__version__}
    report |= {"small": small, "kernels": {}, "identity": [], "speed": []}
    for model in args.models:
        own = "float32" if small else half(device)
        formats = list(dict.fromkeys(own if name == HALF else name for name in FORMATS[model]))
        for name in formats:
            timed = timed_model(model, device, small, getattr(torch, name))
            tokens = FEW if small else timed.tokens if model == BUNDLED else TOKENS
            tables = {"identity": identity(timed, name, tokens)}
            if name == formats[-1]:
                tables["speed"] = steps(timed, name, tokens, NODES[:1] if small else NODES)
            for part, rows in tables.items():
                for row in rows:
                    report[part].append(row)
                    report["kernels"][f"{model} {name}"] = kernels_of(timed)
                    files = write(args.out / "gpu.json", report, markdown(report))
                    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            del timed, tables, rows  # the next model needs the memory
    print(f"wrote {', '.join(map(str, files))}")
    return 0 if all(row["ok"] for row in report["identity"]) else 1


if __name__ == "__main__":
    sys.exit(main())
