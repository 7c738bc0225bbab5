"""Whole greedy pictures by the released networks: each method's tokens, and what steps accepted."""

from collections.abc import Iterator
from typing import Any

import pytest
import released
from released import Golden, anole, cases, lantern_target, parts_like
from released_rule import as_released, released_rule
from runs import decode

from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models.text import left_pad
from lantern_demo.settings.named_trees import STATIC_TREES

Way = tuple[Rule, DraftConfig]


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch) -> None:
    as_released(monkeypatch)


def models_of(case: Golden, run: str) -> tuple[Any, Any, Any]:
    """A case's networks, and their condition: the recorded ids or features of a run's prompt."""
    golden, prompt = case.tensors, run.split(".")[0]
    if f"{prompt}.ids" in golden:
        condition = anole().condition(golden[f"{prompt}.ids"][None], None, True)
        return anole(), released.anole_drafter(), condition
    features, mask = golden[f"{prompt}.t5_embeddings"], golden[f"{prompt}.t5_mask"].bool()
    condition = lantern_target().condition(*left_pad(features, mask), True)
    return lantern_target(), released.lantern_drafter(), condition


def decoded(case: Golden, run: str, way: Way, tokens: int) -> Iterator[Any]:
    rule, drafts = way
    sampling = Sampling(temperature=0, cfg_scale=case.about["cfg_scale"])
    knobs: dict[str, Any] = {"sampling": sampling, "neighbours": case.tensors["nearest"]}
    return decode(*models_of(case, run), num_tokens=tokens, rule=rule, drafts=drafts, **knobs)


def way_of(case: Golden, run: str) -> Way:
    """What a run's name PROMPT.MODE or PROMPT.MODE.TREE stands for. Modes may hold points."""
    _, rest = run.split(".", 1)
    mode = max((mode for mode in case.about["modes"] if f"{rest}.".startswith(f"{mode}.")), key=len)
    tree = rest[len(mode) + 1 :]
    about = case.about["modes"][mode]
    rule = released_rule(about)
    if about["static_tree"]:
        name = tree or case.about.get("default_tree", "naive_extend_57")
        return rule, StaticTree(STATIC_TREES[name])
    return rule, DynamicTree(case.about["top_k"], case.about["depth"], case.about["total_token"])


@pytest.mark.parametrize(
    ("case", "run"), cases("greedy pictures", parts_like(r"(.*(?<!\.ar))\.tokens"))
)
def test_tokens_and_steps(case: Golden, run: str) -> None:
    """With a token more than were recorded, so that the last recorded step has drafts here, too."""
    golden, way = case.tensors, way_of(case, run)
    wanted = golden[f"{run}.accept_length_per_step"].tolist()
    chosen = golden[f"{run}.best_candidate_per_step"].tolist()
    _, *steps, result = decoded(case, run, way, 1 + sum(length + 1 for length in wanted) + 1)
    assert result.tokens[: case.about["max_length"]] == golden[f"{run}.tokens"].tolist()
    steps = steps[: len(wanted)]
    assert [step.accepted_length - 1 for step in steps] == wanted
    assert [best_candidate(step, isinstance(way[1], StaticTree)) for step in steps] == chosen
    mean = sum(step.accepted_length for step in steps) / len(steps)
    assert mean == pytest.approx(float(golden[f"{run}.mean_accept"]), abs=1e-6)


def best_candidate(step: Step, ordered: bool) -> int:
    """The first of the tree's listed paths that begins with what a step accepted."""
    paths = released.listed_paths(step.parents, ordered).tolist()
    return next(number for number, path in enumerate(paths) if path[: len(step.path)] == step.path)


@pytest.mark.parametrize(("case", "run"), cases("greedy pictures", parts_like(r"(.*\.ar)\.tokens")))
def test_tokens_without_drafts(case: Golden, run: str) -> None:
    length = case.about["max_length"]
    *_, result = decoded(case, run, (Rule(), DraftConfig()), length)
    assert result.tokens == case.tensors[f"{run}.tokens"].tolist()
    assert result.steps == length - 1
