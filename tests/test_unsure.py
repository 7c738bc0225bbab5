"""Where the model was unsure: the entropy of a picture's places, and its map."""

import re
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from html import unescape
from math import exp
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from passes import step
from PIL import Image
from tiny import page_of

from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.runs.entropy import entropy_of
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.ui import texts
from lantern_demo.ui.actions import results_of
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.run_state import PageRun
from lantern_demo.ui.run_view import picture_address, picture_of
from lantern_demo.ui.unsure import heat, show_unsure, unsure_html

PROMPT = "two red lanterns"
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "cfg_scale": 2},
]


@pytest.mark.parametrize("settings", SAMPLINGS, ids=["plain", "greedy", "filtered"])
def test_the_entropy_is_that_of_each_tokens_law(pipe: Pipeline, settings: dict[str, Any]) -> None:
    """Computed again one token a pass."""
    drawn = pipe.generate(PROMPT, "vanilla", seed=3, **settings)
    with pipe.turn():
        found = entropy_of(pipe, PROMPT, drawn.tokens, **settings)
    sampling, target = pipe.settings(**settings).sampling(), pipe.target
    encoded = pipe.read(PROMPT).encoded
    with torch.inference_mode():
        guided = sampling.cfg_scale != 1
        condition = pipe.networks.target.condition(encoded.features, encoded.mask, guided)
        cache = target.new_cache(1 + guided, len(drawn.tokens))
        states = [target.prefill(condition, cache)[:, -1:]]
        states += [step(target, torch.tensor(token), cache) for token in drawn.tokens[:-1]]
        logits = guide(target.head(torch.cat(states, 1)), sampling.cfg_scale)
        p = probabilities(logits, sampling).double()
    right = torch.where(p > 0, -p * p.log(), 0).sum(-1)
    assert found.shape == (len(drawn.tokens),) and right.max() > 0.5
    torch.testing.assert_close(found.double(), right, atol=1e-4, rtol=0)


def test_the_map_tells_where_guesses_and_look_alikes_were_kept() -> None:
    """By half of each method's own picture."""
    run = recorded_runs()[0]
    record, picture = run.record, picture_of(run.pictures["vanilla"])
    methods, count = record["methods"], record["methods"]["vanilla"]["tokens"]
    rising = [float(at % 7) for at in range(count)]
    falling = [6 - value for value in rising]
    entropy = {name: falling if name == "lantern" else rising for name in methods}
    told = unescape(unsure_html(record, picture, entropy))
    facts = {"least": 1, "most": exp(6), "median": exp(3)}
    words = [texts.UNSURE_TOLD.format(method="Vanilla", **facts)]
    words.append(texts.UNSURE_HALVES.format(half=count // 2))
    more = 0
    for name in ("eagle1", "eagle2", "lantern", "lantern++"):
        kinds = methods[name]["events"]["kinds"]
        places = sorted(range(count), key=lambda at: entropy[name][at])
        halves = {"sure": places[: count // 2], "unsure": places[count // 2 :]}
        kept = {half: sum(kinds[at] != "t" for at in some) for half, some in halves.items()}
        alike = {half: sum(kinds[at] == "r" for at in some) for half, some in halves.items()}
        more += kept["sure"] - kept["unsure"]
        words.append(texts.UNSURE_KEPT.format(method=METHODS[name].label, **kept))
        words[-1] += texts.UNSURE_ALIKE.format(**alike) if "r" in kinds else ""
        words[-1] += "."
    assert len({word.partition(":")[2] for word in words[2:]}) == 4
    words += [texts.UNSURE_MORE] if more > 0 else []
    assert re.findall("<p>(.*?)</p>", told) == words


def test_the_brightest_place_is_the_most_unsure_one() -> None:
    found = heat(Image.new("RGB", (64, 64), "white"), [0, 1, 2, 4])
    seen: Any = [found.getpixel((x, y)) for y in (16, 48) for x in (16, 48)]
    reds, _, blues = (list(colour) for colour in zip(*seen, strict=True))
    assert reds == sorted(set(reds)) and blues == sorted(set(blues), reverse=True)
    dark = heat(Image.new("RGB", (64, 64), "white"), [0, 0, 0, 0])  # with top-k 1
    assert dark.getpixel((16, 16)) == dark.getpixel((48, 48)) == found.getpixel((16, 16))


def test_a_map_is_shown_in_its_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another model has none, nor has a Space that lends its GPU. A fault is told."""
    service, w, event = page_of(folder, show_unsure)
    status, pipe = event.fn.args[2], service.wait()
    drawn = pipe.generate(PROMPT, "vanilla", seed=3)
    shown = PageRun({}, drawn.record, {"vanilla": picture_address(drawn.image)})

    def words(page_run: PageRun) -> str:
        answers = [*event.fn(page_run)]
        assert not any(w.unsure in found for found in answers)
        return unescape([found[status] for found in answers if status in found][-1])

    assert texts.NO_RUN in words(PageRun())
    other = {"id": "another", "trained": {}, "sources": {}}
    assert texts.NO_MAP in words(PageRun({}, drawn.record | {"model": other}, shown.pictures))
    fault = RuntimeError("out of memory")
    with patch("lantern_demo.ui.unsure.entropy_of", side_effect=fault):
        assert texts.internal_error(fault) in words(shown)
    with ThreadPoolExecutor(1) as pool:
        with pipe.turn():
            asked = pool.submit(lambda: [*event.fn(shown)][-2])
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.3)
        found = asked.result(timeout=60)
    assert found[status] == "" and found[w.unsure].startswith('<figure class="unsure"><img src="')
    assert results_of(w, shown, "live", True)[w.unsure] == "", "it goes with its run"
    monkeypatch.setattr("lantern_demo.ui.unsure.on_zero_gpu", lambda: True)
    assert texts.NO_MAP_HERE in words(shown)
