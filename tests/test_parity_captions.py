"""The cleaning of captions against recorded pairs."""

from __future__ import annotations

import pytest
from released import Golden, cases

from lantern_demo.models.llamagen.captions import clean, clean_once


@pytest.mark.parametrize("file", cases("cleaned prompts"))
def test_cleaning_is_the_published_one(file: Golden) -> None:
    for row in file.about["rows"]:
        assert (clean_once(row["in"]), clean(row["in"])) == (row["once"], row["out"]), row["in"]
