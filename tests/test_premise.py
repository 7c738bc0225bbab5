"""The picture of LANTERN's premise: the tokens that it shows are the codebook's neighbours."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture(scope="module")
def premise() -> SimpleNamespace:
    return SimpleNamespace(
        **runpy.run_path(str(Path(__file__).parents[1] / "examples" / "premise.py"))
    )


def test_every_token_becomes_its_neighbour(premise: SimpleNamespace) -> None:
    codes, tokens = (
        torch.rand(400, 4, generator=torch.Generator().manual_seed(1)),
        torch.arange(400).view(4, 100),
    )
    found = premise.replaced(tokens, codes)
    distance = torch.cdist(codes, codes).sort(-1).values  # column 0: the token itself
    assert (
        torch.equal(found.pop("true tokens"), tokens) and int(found.pop("random token").max()) < 400
    )
    for name, ids in found.items():
        rank = int(name.removeprefix("neighbour "))
        torch.testing.assert_close(
            (codes[ids] - codes[tokens]).norm(dim=-1).flatten(),
            distance[:, rank],
            atol=1e-5,
            rtol=0,
        )


def test_the_sheet_has_a_column_for_each_name(premise: SimpleNamespace) -> None:
    colours = {"a": 0.0, "b": 1.0}
    sheet = premise.sheet(
        {name: torch.full((8, 3, 16, 16), colour) for name, colour in colours.items()}
    )
    middle = premise.LEGEND + premise.TILE // 2
    assert sheet.size == (2 * premise.TILE, premise.LEGEND + premise.SHOWN * premise.TILE)
    assert [sheet.getpixel((x * premise.TILE + 9, middle)) for x in range(2)] == [
        (0, 0, 0),
        (255, 255, 255),
    ]
