"""Pipelines, pictures and measurements as a notebook or a worker meets them."""

from __future__ import annotations

import copy
import pickle
from io import BytesIO

import pytest
import torch
from PIL import Image

import lantern_demo
from lantern_demo import Result, load
from lantern_demo.runs.pipeline import Pipeline


def test_a_cell_of_a_notebook_shows_a_line_and_the_picture(pipe: Pipeline) -> None:
    drawn = pipe.generate("a red lantern", "vanilla", seed=3)
    for shown in (pipe, drawn):
        assert len(repr(shown)) < 120
    ran = f"{drawn.steps} steps, {drawn.decode_seconds:.2f} s"
    assert repr(drawn) == f"<Result of vanilla: 'a red lantern', seed 3, {ran}>"
    picture = Image.open(BytesIO(drawn._repr_png_()))
    assert picture.tobytes() == drawn.image.tobytes()


def test_a_pipeline_is_loaded_anew_in_each_process(pipe: Pipeline) -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^a Pipeline cannot be copied or pickled; load "):
            copied(pipe)


def test_a_dtype_is_a_name_or_pytorchs(folder: str) -> None:
    assert load(folder, device="cpu", dtype=torch.bfloat16).dtype == "bfloat16"
    with pytest.raises(ValueError, match=r"^dtype must be one of auto, .*, got 'int8'$"):
        load(folder, dtype=torch.int8)


def test_the_package_lists_what_it_offers() -> None:
    assert {*lantern_demo.__all__, "__version__"} <= set(dir(lantern_demo))


def test_a_pipeline_is_called_with_a_prompt_or_several(pipe: Pipeline) -> None:
    one = pipe("a red lantern", "vanilla", seed=3)
    two = pipe(["a red lantern", "two lanterns"], "vanilla", seed=3)
    assert isinstance(one, Result) and isinstance(two, list)
    assert two[0].tokens == one.tokens != two[1].tokens
    with pytest.raises(ValueError, match=r"unknown setting 'guidance_scale'; it is cfg_scale here"):
        pipe("a red lantern", guidance_scale=3.0)
