"""Measure on a GPU, in at most 8 minutes, whether the Triton kernels pay.

    python examples/gpu_session.py OUT

It needs no network and no published weights. It times captured steps with and without kernels, and
their parts against PyTorch's. It compares the tokens of both, and prints GO or NO-GO for each.
Every row rewrites OUT/session.json; a stage that would exceed the budget is left out. With
TRITON_INTERPRET=1, `--device cpu` tries the command with tiny models; its times say nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["LANTERN_KERNELS"] = "1"

from lantern_demo.bench.gpu import BUNDLED, XL, alike, step_ms, trees
from lantern_demo.bench.models import TimedModel, timed_model
from lantern_demo.bench.report import parser_of
from lantern_demo.decoding import sampling, switch
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import llama

Row = dict[str, Any]
Call = Callable[[], Any]
START = time.monotonic()
BUDGET = 480  # seconds
LOSSLESS = ("vanilla", "eagle1", "eagle2")
SMALL_METHODS = ("vanilla", "eagle1", "lantern++")  # a dynamic tree takes minutes to interpret
# (method, nodes) of each variant of a step: sums that copy, as it was; sums in place; kernels of
# the layers; of the selections; of both
VARIANTS: dict[str, list[tuple[str, int]]] = {
    "copies": [("vanilla", 0), ("lantern++", 16)],
    "in place": [("vanilla", 0), ("eagle1", 16), ("lantern++", 16), ("lantern", 58)],
    "layers": [("vanilla", 0), ("lantern++", 16)],
    "selections": [("eagle1", 16), ("lantern++", 16)],
    "both": [("vanilla", 0), ("eagle1", 16), ("lantern++", 16), ("lantern", 58)],
}


def added_with_a_copy(x: Tensor, part: Any, y: Tensor) -> Tensor:
    """As `llama.added` with gradients: CUDA copies x first."""
    rows = torch.addmm(x.reshape(-1, x.shape[-1]), y.flatten(0, -2), part.weight.t())
    return rows.view(x.shape)


@contextmanager
def variant(timed: TimedModel, name: str) -> Iterator[None]:
    """Run steps as one of `VARIANTS` meanwhile."""
    from lantern_demo.models.kernels import fused

    for network in (timed.target, timed.drafter):
        layers: Any = network.layers  # type: ignore[attr-defined]
        network.fused = fused(layers) if name in ("layers", "both") else ()  # type: ignore[attr-defined]
    with ExitStack() as stack:
        if name not in ("selections", "both"):
            stack.enter_context(patch.object(sampling, "kernels_for", lambda _: None))
        if name == "copies":
            stack.enter_context(patch.object(llama, "added", added_with_a_copy))
        yield


class Session:
    """The report of a session, its time, and its stages."""

    def __init__(self, out: Path, device: torch.device) -> None:
        self.out = out
        self.device = device
        self.small = device.type == "cpu"
        self.half = torch.float32 if self.small else torch.bfloat16
        self.report: Row = {"small": self.small, "torch": torch.__version__, "verdicts": []}
        if not self.small:
            self.report["device"] = torch.cuda.get_device_name(device)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return BUDGET - (time.monotonic() - START)

    def add(self, stage: str, row: Row) -> None:
        """Add a row to a stage's table, print it and write the report."""
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
        self.report.setdefault(stage, []).append(rounded)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "session.json").write_text(json.dumps(self.report, indent=1), encoding="utf-8")
        told = ", ".join(f"{key} {value}" for key, value in rounded.items())
        print(f"[{time.monotonic() - START:4.0f} s] {stage}: {told}", flush=True)

    def judge(self, what: str, good: bool, read: str) -> None:
        """Add a verdict on a kernel."""
        self.add("verdicts", {"of": what, "verdict": "GO" if good else "NO-GO", "read": read})

    def microseconds(self, calls: Sequence[Call], repeats: int = 20) -> float:
        """Return the microseconds of a call, all replayed in one graph."""
        for call in calls[:3]:
            call()
        if self.small:
            start = time.perf_counter()
            for call in calls:
                call()
            return 1e6 * (time.perf_counter() - start) / len(calls)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        start_event, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_event.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return 1000 * start_event.elapsed_time(end) / repeats / len(calls)

    # -- stages

    def profiled(self, timed: TimedModel) -> None:
        """Count what a step of today launches, and how long each kernel takes."""
        if self.small:
            return
        for method, nodes in (("vanilla", 0), ("lantern++", 16)):
            tree = trees(METHODS[method].drafts, (nodes,))[0]
            with variant(timed, "copies"):
                timed.decoded(method, tree, 8)
                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    done = timed.decoded(method, tree, 24)
            count: Counter[str] = Counter()
            spent: Counter[str] = Counter()
            for event in seen.events() or ():
                if event.device_type == torch.autograd.DeviceType.CUDA:
                    count[event.name[:90]] += 1
                    spent[event.name[:90]] += event.time_range.elapsed_us()
            copies = sum(n for name, n in count.items() if "Memcpy DtoD" in name) / done.steps
            row = {"method": method, "steps": done.steps, "copies a step": copies}
            self.add("profile", row)
            for name, total in spent.most_common(25):
                mean = total / count[name]
                self.add("kernels", {"name": name, "launches": count[name], "mean us": mean})

    def steps(self, timed: TimedModel) -> None:
        """Time steps of every variant."""
        ms: dict[tuple[str, str], float] = {}
        for name, runs in VARIANTS.items():
            for method, nodes in runs:
                if self.left < 60:
                    return
                if self.small and method not in SMALL_METHODS:
                    continue
                tree = trees(METHODS[method].drafts, (4 if self.small and nodes else nodes,))[0]
                with variant(timed, name):
                    done = timed.decoded(method, tree, 4 if self.small else 96)
                ms[name, method] = step_ms(done)
                row: Row = {"variant": name, "method": method, "nodes": done.nodes}
                row["ms a step"] = step_ms(done)
                for part in ("draft", "verify", "commit"):
                    row[f"{part} ms"] = 1000 * done.seconds[part] / max(1, done.steps)
                self.add("steps", row | {"ran as": done.runner, "reason": done.runner_reason})
        copies, in_place = ms["copies", "vanilla"], ms["in place", "vanilla"]
        told = f"vanilla {in_place:.2f} ms a step, with copies {copies:.2f}"
        self.judge("sums in place", in_place <= copies, told)
        layers = ms["layers", "vanilla"]
        told = f"vanilla {layers:.2f} ms a step; at most 1.3 wanted, modules {in_place:.2f}"
        self.judge("layer kernels", layers <= 1.3, told)
        both = ms["both", "lantern++"]
        told = f"LANTERN++ with 16 nodes {both:.2f} ms a step; at most 1.9 wanted"
        self.judge("all kernels", both <= 1.9, told)

    def tokens(self, timed: TimedModel) -> None:
        """Compare the tokens of kernels with those of modules, and with vanilla's."""
        full = torch.float32
        models = [(XL, full, 96), (BUNDLED, full, 256), (XL, self.half, 96)]
        for model, dtype, count in [(XL, full, 4)] if self.small else models:
            if self.left < 60:
                return
            own = timed if dtype == self.half else timed_model(model, self.device, False, dtype)
            agree = True
            vanilla: list[int] = []
            for method in (*LOSSLESS, "lantern", "lantern++"):
                if self.small and method not in SMALL_METHODS:
                    continue
                tree = trees(METHODS[method].drafts, (4 if self.small else 16,))[0]
                found: dict[str, list[int]] = {}
                for name in ("in place", "both"):
                    with variant(own, name):
                        found[name] = own.decoded(method, tree, count, seed=2).tokens
                vanilla = vanilla or found["both"]
                same = alike(found["both"], found["in place"])
                row: Row = {"model": model, "format": str(dtype)[6:], "method": method}
                row["kernels as modules"] = f"{same} of {count}"
                agree &= same == count
                if method in LOSSLESS:
                    as_vanilla = alike(found["both"], vanilla)
                    row["as vanilla"] = f"{as_vanilla} of {count}"
                    agree &= as_vanilla == count
                self.add("tokens", row)
            if dtype == full:
                self.judge(f"tokens of {model} in float32", agree, "all must be the same")

    def selections(self, timed: TimedModel) -> None:
        """Time selections from rows of scores."""
        from lantern_demo.decoding import selection

        width, many = (1024, 2) if self.small else (16384, 20)
        slowest: Counter[str] = Counter()
        for rows in (1, 4) if self.small else (1, 4, 16, 58):
            x = torch.randn(rows, width, device=self.device)
            q = x.softmax(-1)
            u = torch.rand(rows, 4, device=self.device).clamp(min=sampling.TINY)
            out = torch.zeros(4, max(2, rows), device=self.device, dtype=torch.int64)
            row: Row = {"rows": rows}
            calls: dict[str, Call] = {
                "kthvalue": partial(x.kthvalue, width - 999, keepdim=True),
                "topk 4": partial(x.topk, 4),
                "draw 4": partial(sampling.draw_in_turn, q, u, out),
                "kernel cut": partial(selection.cut, x.clone(), 1000),
                "kernel top 4": partial(selection.top, x, 4, out),
                "kernel draw 4": partial(selection.draw_in_turn, q, u, out),
            }
            for name, call in calls.items():
                with patch.object(sampling, "kernels_for", lambda _: None):
                    row[name] = self.microseconds([call] * many)
                if rows <= 16:
                    slowest[name] = max(slowest[name], row[name])
            self.add("selections us", row)
        for name, most in (("cut", 12), ("top 4", 10), ("draw 4", 40)):
            read = slowest[f"kernel {name}"]
            told = f"{read:.1f} us for 16 rows or fewer; at most {most} wanted"
            self.judge(f"selection kernel {name}", read <= most, told)

    def attention(self, timed: TimedModel) -> None:
        """Time attention; the kernel also rotates and writes to the cache."""
        from lantern_demo.models.kernels import attend

        heads, d, layers = (2, 32, 2) if self.small else (20, 64, 36)
        where: Row = {"device": self.device, "dtype": self.half}
        for nodes in (1, 4) if self.small else (1, 16, 58):
            for seen in (64,) if self.small else (192, 384):
                slabs = [torch.randn(2, 2 * heads, seen + 72, d, **where) for _ in range(layers)]
                q = torch.randn(2, heads, nodes, d, **where)
                bias = torch.zeros(2, 1, nodes, seen, **where)
                row: Row = {"nodes": nodes, "slots": seen}
                for kind in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
                    calls: list[Call] = []
                    for slab in slabs:
                        k, v = slab[:, :, :seen].chunk(2, 1)
                        one = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=bias)
                        calls.append(one)
                    if not self.small:
                        with sdpa_kernel([kind]):
                            row[kind.name] = self.microseconds(calls)
                qkv = torch.randn(2, nodes, 3, heads, d, device=self.device)
                table = llama.angles(nodes, d, 1e4).to(self.device)
                turns = llama.rotations(table[None])
                slots = torch.arange(seen - nodes, seen, device=self.device)
                out = torch.empty(2, nodes, heads * d, **where)
                calls = [partial(attend, qkv, turns, slots, bias, s, out, False) for s in slabs]
                row["kernel"] = self.microseconds(calls)
                self.add("attention us", row)
                if nodes == 1 and (seen == 192 or self.small):
                    told = f"{row['kernel']:.1f} us with rotation and write; at most 7 wanted"
                    self.judge("attention kernel alone", row["kernel"] <= 7, told)

    def matmuls(self, timed: TimedModel) -> None:
        """Time the four matmuls of a layer, by the library and by blocks of the kernel."""
        from lantern_demo.models import kernels

        dim, ffn, layers = (64, 64, 2) if self.small else (1280, 3584, 36)
        where: Row = {"device": self.device, "dtype": self.half}
        norm = llama.RMSNorm(dim, 1e-5).to(**where)
        for rows in (2,) if self.small else (2, 32, 116):
            sums: Counter[str] = Counter()
            for name, n, k in (
                ("qkv", 3 * dim, dim),
                ("out", dim, dim),
                ("gate and up", 2 * ffn, dim),
                ("down", dim, ffn),
            ):
                if self.left < 30:
                    return
                gated = name == "gate and up"
                adds = name in ("out", "down")
                weights = [torch.randn(n, k, **where) * k**-0.5 for _ in range(layers)]
                x = torch.randn(rows, k, **where)
                kind = torch.float32 if name == "qkv" else self.half
                out = torch.zeros(rows, n // 2 if gated else n, device=self.device, dtype=kind)
                row: Row = {"rows": rows, "matmul": name}
                if adds:
                    calls: list[Call] = [partial(out.addmm_, x, w.t()) for w in weights]
                else:
                    calls = [partial(F.linear, x, w) for w in weights]
                row["library"] = self.microseconds(calls)
                before = None if adds else norm
                calls = [partial(kernels.linear, x, w, out, before, gated, adds) for w in weights]
                own = kernels.blocks_of(rows, k, n // 2 if gated else n, x.element_size(), gated)
                tried = [own]
                if not self.small and rows < 116:
                    for outputs in (16, 32, 64):
                        for inputs in (128, 256):
                            tried.append(own._replace(outputs=outputs, k=inputs, stages=4))
                best = float("inf")
                for blocks in tried:
                    with patch.object(kernels, "blocks_of", lambda *_, of=blocks: of):
                        try:
                            took = self.microseconds(calls, 8)
                        except RuntimeError:  # these blocks do not fit the GPU
                            continue
                    if blocks == own:
                        row["kernel"] = took
                    if took < best:
                        best = took
                        row["best"] = took
                        row["blocks"] = str(tuple(blocks))
                sums["library"] += row["library"]
                sums["kernel"] += best
                self.add("matmuls us", row)
            ratio = sums["kernel"] / sums["library"]
            most = 0.7 if rows == 2 else 1.1
            told = f"{ratio:.2f} of the library's time for a layer; at most {most} wanted"
            self.judge(f"matmul kernel, {rows} rows", ratio <= most, told)


STAGES: dict[str, Callable[[Session, TimedModel], None]] = {
    "profile": Session.profiled,
    "steps": Session.steps,
    "tokens": Session.tokens,
    "selections": Session.selections,
    "attention": Session.attention,
    "matmuls": Session.matmuls,
}


def main() -> None:
    p = parser_of(__doc__)
    p.add_argument("out", type=Path, help="folder for session.json")
    p.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = p.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu" and not switch.INTERPRETED:
        p.error("with --device cpu the variable TRITON_INTERPRET must be 1")
    if device.type == "cuda" and not torch.cuda.is_available():
        p.error("--device is cuda, and PyTorch finds no GPU")
    if not switch.on(device):
        p.error(f"the kernels cannot run here: {switch.reason}")
    session = Session(args.out, device)
    timed = timed_model(XL, device, session.small, session.half)
    for stage in args.stages:
        if session.left < 30:
            session.add("left out", {"stage": stage})
            continue
        try:
            with torch.inference_mode():
                STAGES[stage](session, timed)
        except Exception:  # one stage must not cost the others
            session.add("errors", {"stage": stage, "error": traceback.format_exc()[-1500:]})
    session.add("seconds", {"all": time.monotonic() - START})


if __name__ == "__main__":
    main()
