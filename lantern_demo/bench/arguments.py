"""What the command lines of the bench have in common: their parsers, options that several have, and checks of values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def parser_of(command: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m lantern_demo.bench COMMAND`, or of the benchmark of speed, which has no name."""
    prog = f"python -m lantern_demo.bench {command}".strip()
    return argparse.ArgumentParser(prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number of `least` or more."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return number


def json_file(text: str) -> Path:
    """The type of an argument that names a report, beside which its journal and its table lie."""
    if Path(text).suffix != ".json":
        raise argparse.ArgumentTypeError(f"must end in .json, got {text!r}")
    return Path(text)


def add_model(p: argparse.ArgumentParser) -> None:
    """Which model is measured, and on what."""
    p.add_argument("--model", default="lantern-scenes", help="registry id or a model folder (default: lantern-scenes)")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    p.add_argument("--dtype", default="auto", help="of target and drafter (default: auto)")


def add_report(p: argparse.ArgumentParser) -> None:
    """Where the report is written, and whether the command begins anew."""
    p.add_argument("--out", type=json_file, help="FILE.json: write FILE.json and FILE.md, and be resumable")
    p.add_argument("--fresh", action="store_true", help="throw away what an earlier command left beside --out")
