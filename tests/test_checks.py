"""Rules and drafts from outside: what is wrong in them gets a sentence."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from lantern_demo import Method, register
from lantern_demo.decoding.checks import check_draft, check_rule
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.trees import Draft, static_tree


def outside(relaxes: bool = True, **methods: Callable[..., Any]) -> Rule:
    """A rule with some methods of its own."""
    names = {"relaxes": property(lambda self: relaxes), **methods}
    return dataclass(frozen=True)(type("Own", (Rule,), names))()


@pytest.mark.parametrize(
    ("methods", "sentence"),
    [
        ({"threshold": lambda s, u, q, p: p.amax(-1)}, r"threshold .* \[3, 2\] or \[3, 1\]"),
        ({"threshold": lambda s, u, q, p: 0.3}, "threshold .* got float"),
        ({"target": lambda s, p, q: p[0]}, r"target must return \[3, 11\] .* got \[11\]"),
        ({"score": lambda s, m, d: m.mass[:, 0, 0]}, r"score must return \[3, 1\] .* got \[3\]"),
        ({"reject": lambda s, p, q, m, d: -p}, "reject must return numbers of at least 0"),
        ({"threshold": lambda s, u, q, p: u - 1}, "threshold must return numbers above 0"),
        ({"members": lambda s, p, i, d: 1 / 0}, "fails in members: division by zero"),
        ({"relaxes": False, "threshold": lambda s, u, q, p: u * 0.5}, "its threshold is not the"),
    ],
)
def test_a_wrong_rule_is_refused_when_registered(methods: dict[str, Any], sentence: str) -> None:
    rule = outside(**methods)
    with pytest.raises(ValueError, match=sentence):
        register(Method("own", "Own", StaticTree, rule, False, "Mine.", default=False))


def test_a_rule_whose_values_can_change_is_refused() -> None:
    """Kept runners are found by their rule."""

    @dataclass(frozen=True)
    class Listed(Rule):
        values: list[float]

    with pytest.raises(ValueError, match=r"Listed\(.*has a value that may change"):
        check_rule(Listed([0.5]))


def test_right_rules_pass() -> None:
    for rule in (Rule(), Lantern(), Lantern(5, 0.2), LanternPlusPlus(20, 4.0)):
        check_rule(rule)


TREE = static_tree([(0,), (1,), (0, 0)], "cpu")
RIGHT = Draft(TREE, torch.tensor([5, 1, 2, 3]), torch.tensor([[1, 2], [3, -1]]))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": RIGHT.tokens[1:]}, r"tokens of its Draft must be \[4\] torch.int64, got \[3\]"),
        ({"tokens": RIGHT.tokens.float()}, "tokens of its Draft must be .* got .* torch.float32"),
        ({"tokens": torch.tensor([5, 1, 2, 9])}, "tokens of its Draft must be from 0 to 8"),
        ({"tokens": torch.tensor([5, 1, 2, -1])}, "tokens of its Draft must be from 0 to 8"),
        ({"drawn": torch.tensor([1, 2])}, r"drawn of its Draft must be \[2, 2\]"),
        ({"drawn": torch.tensor([[1, 4], [3, -1]])}, "drawn of its Draft must repeat the children"),
        ({"q": torch.ones(2, 8)}, r"q of its Draft must be \[2, 9\] torch.float32"),
    ],
)
def test_a_wrong_draft_is_refused(changes: dict[str, Any], sentence: str) -> None:
    check_draft(RIGHT, "Mine", 9)
    with pytest.raises(ValueError, match=f"^Mine: {sentence}"):
        check_draft(replace(RIGHT, **changes), "Mine", 9)
