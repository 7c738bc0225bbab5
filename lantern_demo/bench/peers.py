"""Other people's decoders in the same rounds: `--against FILE.py`.

The file defines `load(pipe) -> {name: generate}`, where `generate(prompt, seed)` returns the image's token ids, as a list of
ints. `pipe` is the loaded pipeline; its `defaults` are the settings to sample with. A `generate` that has a method
`prepare(prompt)` gets that called first, off the clock: the place for reading the prompt, which is off our clock too. The file's
docstring is shown below the table and should say what is timed.
"""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern_demo.bench.speed import Run, start_peak, stop_peak
from lantern_demo.decoding.timing import Clock
from lantern_demo.runs.pipeline import Pipeline

Generate = Callable[[str, int], list[int]]


@dataclass(frozen=True)
class PeerFile:
    """An adapter: what it offers, what it says of itself, and which file it is."""

    peers: dict[str, Generate]
    note: str
    sha256: str


def load_peers(path: Path, pipe: Pipeline) -> PeerFile:
    """Run an adapter's `load`. Raises ValueError naming the file when it is not there or not an adapter."""
    if not path.is_file() or path.suffix != ".py":
        raise ValueError(f"--against must name a Python file, got {str(path)!r}")
    names = runpy.run_path(str(path), run_name=f"peer_{path.stem}")
    found = names["load"](pipe) if "load" in names else None
    if not isinstance(found, dict) or not found or not all(isinstance(n, str) and callable(g) for n, g in found.items()):
        raise ValueError(f"{path} must define load(pipe) -> dict of name -> generate(prompt, seed), one or more")
    return PeerFile(found, (names["__doc__"] or "").strip(), hashlib.sha256(path.read_bytes()).hexdigest())


def play_peer(pipe: Pipeline, name: str, generate: Generate, prompt: str, seed: int) -> Run:
    """One picture by a peer, on the wall's clock with the device synchronised. Raises RuntimeError for tokens that are no
    picture."""
    prepare = getattr(generate, "prepare", None)
    if prepare is not None:
        prepare(prompt)
    start_peak(pipe.device)
    clock = Clock(pipe.device)
    with clock.measure("verify"):
        tokens = generate(prompt, seed)
    seconds = clock.seconds["verify"]
    check_tokens(name, tokens, pipe.info.tokens, pipe.target.vocab_size)
    return {
        "peer": True,
        "method": name,
        "tokens": len(tokens),
        "wall_seconds": seconds,
        "tokens_per_second": len(tokens) / seconds,
        "token_ids": tokens,
        "peak_bytes": stop_peak(pipe.device),
    }


def check_tokens(name: str, tokens: Any, count: int, vocabulary: int) -> None:
    """Raises RuntimeError naming the peer when `tokens` are not `count` ints from 0 to below `vocabulary`."""
    if not isinstance(tokens, list) or len(tokens) != count:
        got = f"{len(tokens)}" if isinstance(tokens, list) else type(tokens).__name__
        raise RuntimeError(f"peer {name} must return a list of {count} token ids, got {got}")
    wrong = [t for t in tokens if type(t) is not int or not 0 <= t < vocabulary]
    if wrong:
        raise RuntimeError(f"peer {name} must return whole numbers from 0 to {vocabulary - 1}, got {wrong[0]!r}")
