"""What `generate` is asked for beside transformers' own arguments: methods, the trees of their drafts, and their rules."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from lantern_demo.decoding.config import Method
from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.window import Window
from lantern_demo.static_trees import STATIC_TREES, read_paths

ALLOWED = ("vanilla", "sjd", "eagle1", "eagle2", "lantern", "lantern++")
BRANCHING = ("eager", "sdpa")  # kinds of attention of transformers that take a mask of their caller's


@dataclass(frozen=True)
class Asked:
    """The arguments that say how is decoded. Raises ValueError for a value that is not allowed."""

    method: str
    window: int
    tree: str | tuple[int, int, int] | None
    drafter: str | Path | None
    k: int
    delta: float
    factor: float  # lambda

    def __post_init__(self) -> None:
        if self.method not in ALLOWED:
            raise ValueError(f"lantern_method is {self.method!r}; allowed are {', '.join(ALLOWED)}")
        if not isinstance(self.window, int) or not 2 <= self.window <= 64:
            raise ValueError(f"lantern_window is {self.window!r}; it must be a whole number, 2 to 64")
        if type(self.k) is not int or self.k < 0:
            raise ValueError(f"lantern_k is {self.k!r}; it must be a whole number, 0 or more")
        for name, value, least, most in (("delta", self.delta, 0, 1), ("lambda", self.factor, 1, 100)):
            if not isinstance(value, (int, float)) or not least <= value <= most:
                raise ValueError(f"lantern_{name} is {value!r}; it must be a number, {least} to {most}")
        if self.row.needs_drafter and self.drafter is None:
            raise ValueError(
                f"lantern_drafter is None; lantern_method {self.method!r} needs the path of a drafter, "
                "and without one are allowed " + ", ".join(name for name in ALLOWED if not METHODS[name].needs_drafter)
            )

    @property
    def row(self) -> Method:
        """The method's row of the table."""
        return METHODS[self.method]

    def rule(self) -> Rule:
        """What drafts are accepted by."""
        if type(self.row.rule) is Lantern:
            return Lantern(k=self.k, bound=self.delta)
        return LanternPlusPlus(k=self.k, bound=self.factor) if type(self.row.rule) is LanternPlusPlus else Rule()

    def drafts(self, attention: str | None) -> Drafts:
        """The drafts, of a model with a kind of attention: chains, and a warning, where that takes no mask of a tree."""
        if not self.row.needs_drafter:
            return Window(self.window) if self.row.drafts is Window else Drafts()
        tree = self._static() if self.row.drafts is StaticTree else self._dynamic()
        if attention in BRANCHING or not branches(tree):
            return tree
        warnings.warn(
            f"attn_implementation is {attention!r}, which takes no mask of a tree: drafts are a chain, one token at each depth. "
            f"With {' or '.join(BRANCHING)} they are a tree.",
            stacklevel=2,
        )
        if isinstance(tree, DynamicTree):
            return DynamicTree(1, tree.depth, tree.depth + 2)
        return StaticTree([(0,) * depth for depth in range(1, tree.deepest + 1)])

    def _static(self) -> StaticTree:
        """A named tree, or one of paths."""
        text = "mc_sim_7b_63" if self.tree is None else self.tree
        if not isinstance(text, str):
            raise ValueError(
                f"lantern_tree is {text!r}; with {self.method} it must be a text of paths such as '0 1 00', or a name"
            )
        try:
            return StaticTree(STATIC_TREES[text] if text in STATIC_TREES else read_paths(text))
        except ValueError as error:
            raise ValueError(
                f"lantern_tree is {text!r}; allowed are {', '.join(STATIC_TREES)}, or paths such as '0 1 00': {error}"
            ) from error

    def _dynamic(self) -> DynamicTree:
        """A tree of three numbers."""
        numbers = (10, 4, 59) if self.tree is None else self.tree
        if not isinstance(numbers, (tuple, list)) or len(numbers) != 3 or not all(type(number) is int for number in numbers):
            raise ValueError(
                f"lantern_tree is {numbers!r}; with {self.method} it must be three whole numbers: the beam, its passes, the nodes"
            )
        try:
            return DynamicTree(*numbers)
        except ValueError as error:
            raise ValueError(f"lantern_tree is {numbers!r}: {error}") from error


def branches(drafts: Drafts) -> bool:
    """Whether a node may have several children."""
    return drafts.needs_drafter and drafts.nodes > drafts.deepest + 1
