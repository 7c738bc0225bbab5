"""Shared parts of the commands: options, tables, the machine's description and files."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from lantern_demo.disk_cache import put
from lantern_demo.models.device import device_name, processor_name
from lantern_demo.paths import user_path


def parser_of(description: str | None, command: str = "") -> argparse.ArgumentParser:
    """Return the parser of a program, or of `python -m lantern_demo.bench COMMAND`.

    Its help keeps the description's line breaks.
    """
    prog = f"python -m lantern_demo.bench {command}" if command else None
    as_written = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog, description=description, formatter_class=as_written)


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number of `least` or more."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return number


def json_file(text: str) -> Path:
    """Parse an argument that names a report. Its table is written next to it."""
    if Path(text).suffix != ".json":
        raise argparse.ArgumentTypeError(f"must end in .json, got {text!r}")
    return user_path(text)


def add_model(p: argparse.ArgumentParser) -> None:
    """Add the options for the model, its device and its format."""
    default = "lantern-scenes"
    p.add_argument("--model", default=default, help=f"id or model folder (default: {default})")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    p.add_argument("--dtype", default="auto", help="of target and drafter (default: auto)")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text."""
    rows = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    return "\n".join([rows[0], "|---|" + "--:|" * (len(head) - 1), *rows[1:]])


def number(value: float | None, digits: int) -> str:
    """Format a number. None, an absent measurement, is a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def machine_of(device: torch.device) -> dict[str, Any]:
    """Describe the machine; gpu_memory is in bytes."""
    found: dict[str, Any] = {
        "device": device_name(device),
        "device_type": device.type,
        "processor": processor_name(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found["gpu_memory"] = gpu.total_memory
        found["gpu_capability"] = f"{gpu.major}.{gpu.minor}"
    return found


def commit() -> str | None:
    """Return the commit of this clone, with a + if its files differ from it. None without one."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / ".git").exists():  # else git would find a repository further up
        return None
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+", "--abbrev=8"]
    try:
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or none that may read this clone
        return None
    return done.stdout.strip()


def now() -> str:
    """Return the time, ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write(out: Path, report: dict[str, Any], text: str) -> list[Path]:
    """Write a report as FILE.json and its text as FILE.md, and return the files.

    The JSON has a line per key and per row of a list. Each write is atomic.
    """
    lines = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in report.items())
    files = {out: f"{{\n{lines}\n}}\n", out.with_suffix(".md"): text}
    for file, content in files.items():
        put(file, content)
    return list(files)


def _lines(value: Any) -> str:
    rows = isinstance(value, list) and value and isinstance(value[0], dict)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if rows else json.dumps(value)


def digest_of(folder: Path, *patterns: str) -> str:
    """Return a digest of names and contents of a folder's files that match one of the patterns."""
    digest = hashlib.sha256()
    found = {path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()}
    for path in sorted(found):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
