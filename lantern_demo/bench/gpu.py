"""Everything that only a GPU can tell, in one command: `python -m lantern_demo.bench gpu --out DIR`.

Within ten minutes on one card, without a network and without weights of published models: runs the tests that need a device,
checks that steps run as graphs, that a seed draws the same picture twenty times, and that replayed steps give the tokens of steps
run one by one, compares attention backends, watches the memory over fifty runs, and times the steps of the bundled model, of
LlamaGen-XL and of Anole-7B at trees of several sizes. The last two have random weights of the published sizes: what a step costs
is measured, what it lands is not.

Every part runs in a process of its own with a time limit of its own; one that fails leaves the others alone. DIR/gpu.json and
DIR/gpu.md are written anew after every row. `--device cpu` goes through the same with tiny models in less than a minute, to look
at the command itself.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

from lantern_demo.bench.arguments import parser_of
from lantern_demo.bench.gpu_parts import PARTS, Plan, Row
from lantern_demo.bench.report import now, table, write

Report = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    p = parser_of("gpu", __doc__)
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for gpu.json and gpu.md")
    p.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for the small form (default: cuda)")
    p.add_argument("--minutes", type=float, default=9.5, help="for all parts together (default: 9.5)")
    p.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=f"some parts: {', '.join(PARTS)}")
    return p


def run_part(name: str, plan: Plan, limit: float, heard: Callable[[Row], None]) -> tuple[str, str]:
    """Run a part in a process of its own for at most `limit` seconds -> how it ended, "done", "failed" or "stopped", and why;
    `heard` gets its rows as they come."""
    # A process that used CUDA cannot be forked, and what libraries ask of it when they are imported counts.
    start = "fork" if plan.small and "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(start)
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(there, name, plan), name=name)
    end = monotonic() + limit
    child.start()
    there.close()
    try:
        while here.poll(max(0.0, end - monotonic())):
            try:
                kind, told = here.recv()
            except EOFError:
                child.join()
                return "failed", f"its process ended with code {child.exitcode}"
            if kind != "row":
                return kind, told
            heard(told)
        return "stopped", f"its {limit:.0f} seconds were over"
    finally:
        if child.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # with whatever it started
        child.kill()
        child.join()


def _child(pipe: Connection, name: str, plan: Plan) -> None:
    os.setsid()
    try:
        for row in PARTS[name].run(plan):
            pipe.send(("row", row))
        pipe.send(("done", ""))
    except Exception as error:
        traceback.print_exc()
        pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))


def faults(report: Report) -> list[str]:
    """The parts that failed, were stopped or found something wrong."""
    return [
        name
        for name, part in report["parts"].items()
        if part["ended"] in ("failed", "stopped") or any(row.get("ok") is False for row in part["rows"])
    ]


def markdown(report: Report) -> str:
    """The report as people read it."""
    small = " Tiny models, few runs: these numbers say nothing about a GPU." if report["plan"]["small"] else ""
    lines = [f"# A look at {report['plan']['device']}", f"{report['started']}.{small}"]
    wrong = faults(report)
    lines.append(f"Not as it should be: {', '.join(wrong)}." if wrong else "Nothing went wrong so far.")
    for name, part in report["parts"].items():
        lines += [f"## {PARTS[name].title}", *([PARTS[name].about] if PARTS[name].about else [])]
        if part["rows"]:
            head = list(dict.fromkeys(key for row in part["rows"] for key in row))
            lines.append(table(head, [[_cell(row.get(key)) for key in head] for row in part["rows"]]))
        why = f": {part['why']}" if part["why"] else ""
        lines.append(f"*{part['ended']}, {part['seconds']:.0f} s{why}*")
    return "\n\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return "-" if value is None else str(value).replace("|", "/")


def main(argv: Sequence[str]) -> int:
    """Run the parts -> 0 when all is as it should be, 1 when something is not, 2 when there is no such device."""
    args = parser().parse_args(argv)
    plan, file = Plan(args.device, small=args.device == "cpu"), args.out / "gpu.json"
    report: Report = {"started": now(), "plan": {"device": plan.device, "small": plan.small}, "parts": {}}
    end = monotonic() + 60 * args.minutes
    for name in ["machine", *(name for name in args.only or PARTS if name != "machine")]:
        part = report["parts"][name] = {"ended": "running", "why": "", "seconds": 0.0, "rows": []}
        began = monotonic()

        def heard(row: Row | None, part: dict[str, Any] = part, began: float = began) -> None:
            part["rows"] += [row] if row else []
            part["seconds"] = round(monotonic() - began, 1)
            write(file, report, markdown(report))

        limit = min(PARTS[name].limit, end - began)
        outcome = run_part(name, plan, limit, heard) if limit > 1 else ("stopped", "the minutes for all parts were over")
        part["ended"], part["why"] = outcome
        heard(None)
        print(f"{PARTS[name].title}: {part['ended']}, {part['seconds']:.0f} s {part['why']}", flush=True)
        if name == "machine" and part["ended"] == "failed":
            return 2
    print(f"wrote {file}, {file.with_suffix('.md')}")
    return 1 if faults(report) else 0
