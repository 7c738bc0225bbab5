"""The front of a model that draws from captions of the user's own: speed beside FID, KID, CLIP score, precision and recall.

No classifier reads these pictures, and there is no truth but the user's real pictures; the networks that look at them are an extra
(see `published`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from lantern_demo.bench.quality import published
from lantern_demo.bench.quality.assembly import Drawn, gains
from lantern_demo.bench.quality.points import FLOOR, Point
from lantern_demo.bench.quality.report import known, table
from lantern_demo.bench.summary import summarise
from lantern_demo.pipeline import Pipeline

COLUMNS = ("fid", "kid", "clip", "precision", "recall")


def rows_of(
    pipe: Pipeline, points: list[Point], drawn: Drawn, rounds: list[dict[str, Any]], captions: list[str], real: Path, clip: bool,
    networks: tuple[torch.nn.Module, published.Clip | None] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for every point with pictures, vanilla's with other seeds among them: what it gains, and its `scores`.

    `captions` has one for each picture, `real` holds real pictures. `networks` stand in for the fetched ones.
    Raises ValueError for pictures that cannot be read, ModuleNotFoundError with what to install.
    """
    network, reader = networks or (published.inception(), published.Clip.fetched() if clip else None)
    truth = published.features_of(network, published.batches(published.real_files(real)), pipe.device)
    speeds = summarise(rounds, {p.name: p.method for p in points if p.group != "again"})["rows"]
    speeds[FLOOR] = speeds["vanilla"]
    rows = []
    for point in tqdm([p for p in points if drawn[p.name]], desc="measuring", unit="point"):
        records = drawn[point.name]
        made: list[Image.Image | Path] = [pipe.decode_image(record["tokens"]) for record in records]
        found = published.measure(made, captions[: len(made)], truth, network, reader, pipe.device)
        rows.append(gains(pipe, point, records, speeds) | {"scores": found})
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of such a front."""
    shown = [key for key in COLUMNS if any(key in row["scores"] for row in rows)]
    lines = [
        [
            row["label"], str(row["pictures"]), f"{row['speed']['tokens_per_step']:.2f}", f"{row['speed']['c']:.2f}",
            f"{row['speed']['speedup']['median']:.2f}x", known(row["speed"]["price"]),
            *(f"{row['scores'][key]:.4f}" for key in shown),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["point", "pictures", "tokens / step", "c", "speedup", "price", *(key.upper() for key in shown)]
    note = "Vanilla again is vanilla with other seeds: a difference no larger than its own is noise. FID compares only at equal numbers."
    return table(head, lines) + f"\n\n{note}\n"
