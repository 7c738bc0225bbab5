"""The knobs of a run in one table: range, default, words, and the methods that read each.

Settings, page, API, links and benchmarks read this table.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Literal, TypeGuard, TypeVar

from lantern_demo.decoding.config import NOISE
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree
from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.window import Window
from lantern_demo.faults import NotAllowed
from lantern_demo.settings.named_trees import DEFAULT, DEFAULTS, TREES

DEFAULT_SEED = 7  # of the page, the API and Python
MAX_SEED = 2**31 - 1
MOST_REPEATS = 20  # of a comparison
# of a dynamic tree: levels below the first drafts, and nodes with the root
MAX_DEPTH, MAX_NODES = 8, 128
MAX_LANTERN_K = 1000  # columns of the neighbour table

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def quoted(value: Any) -> str:
    """Return a value as error messages repeat it, at most 120 characters long."""
    try:
        empty = value is None or (isinstance(value, str) and not value)
        text = "nothing" if empty else _SHORT.repr(value)
        return text if len(text) <= 120 else f"{text[:117]}..."
    # a number with thousands of digits, which Python does not write down
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too long to repeat"


def is_id(value: Any, limit: int) -> TypeGuard[int]:
    """Return whether a value is one of `limit` tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


@dataclass(frozen=True)
class Limit:
    """The allowed range of a number."""

    low: float
    high: float
    whole: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Return the value as int or float.

        Raises NotAllowed with the value and the range.
        """
        number = isinstance(value, Real) and not isinstance(value, bool)  # NumPy's numbers, too
        if not number or not self.low <= value <= self.high or (self.whole and value != int(value)):
            wanted = "a whole number" if self.whole else "a number"
            span = f"between {self.low} and {self.high}"
            raise NotAllowed(name, f"must be {wanted} {span}, got {quoted(value)}")
        return int(value) if self.whole else float(value)


def _drafts_by(cls: type[DraftConfig]) -> Callable[[Method], bool]:
    return lambda method: issubclass(method.drafts, cls)


def _accepts_by(*rules: type[Rule]) -> Callable[[Method], bool]:
    return lambda method: type(method.rule) in rules


@dataclass(frozen=True)
class Knob:
    """A setting.

    `label` and `sentence` are for people, on the page and in the API's documentation.
    """

    default: Any
    label: str
    sentence: str
    limit: Limit | None = None  # of a number; None for a text
    choices: tuple[str, ...] = ()  # of a text
    sets: str = ""  # the field of `rules.Rule` that it sets, if one
    of_tree: bool = False  # allows None, the value of the draft tree
    reads: Callable[[Method], bool] = lambda _: True  # whether a method reads it
    short: str = ""  # its name among the knobs of its method; empty: the whole name
    bounds: bool = False  # it bounds the relaxation: its lowest value is the exact rule

    @property
    def allowed(self) -> str:
        """The type and the range, in words."""
        if self.limit is None:
            return f"text, one of {', '.join(self.choices)}"
        number = "int" if self.limit.whole else "float"
        return f"{number}, {self.limit.low} to {self.limit.high}"

    def help_text(self, default: Any) -> str:
        """Return the sentence with type, range and default."""
        usual = "as the draft tree has it" if default is None else default
        return f"{self.sentence} ({self.allowed}; default {usual})"


def knob(*given: Any, **more: Any) -> Any:
    """Return a field of `Knobs` with a Knob and its default."""
    made = Knob(*given, **more)
    return field(default=made.default, metadata={"knob": made})


def of_tree(*given: Any) -> Any:
    """Return a field of `Knobs` that shapes a dynamic tree; None takes the draft tree's value."""
    return knob(None, *given, of_tree=True, reads=_drafts_by(DynamicTree))


@dataclass(frozen=True)
class Knobs:
    """The value of every knob; `lantern_demo.settings.settings.Settings` checks them."""

    seed: int = knob(
        DEFAULT_SEED,
        "Seed",
        "The random seed: the same seed, settings and draft trees give the same tokens, up to "
        "rounding.",
        Limit(0, MAX_SEED, whole=True),
    )
    temperature: float = knob(
        1.0,
        "Temperature",
        "1 samples from the model's own distribution, lower is safer. 0 is greedy: such models "
        "then draw poor, flat pictures, because the likeliest token is mostly the plainest.",
        Limit(0, 2),
    )
    top_k: int = knob(
        0,
        "Top-k",
        "Only the k likeliest tokens may be drawn; 0 allows all.",
        Limit(0, 65536, whole=True),
    )
    top_p: float = knob(
        1.0,
        "Top-p",
        "Only the likeliest tokens that together reach this probability may be drawn.",
        Limit(0.05, 1),
    )
    cfg_scale: float = knob(
        3.0,
        "Guidance (CFG scale)",
        "How much the prompt's effect is exaggerated (classifier-free guidance); 1 leaves it as "
        "the model has it.",
        Limit(1, 20),
    )
    noise: Literal["shared", "independent"] = knob(
        "shared",
        "Random numbers",
        "shared: vanilla and the exact methods draw with the same noise for each token, so exact "
        "ones draw vanilla's picture. independent: all but SJD draw by rejection sampling, "
        "as LANTERN and LANTERN++ do. To compare rules alone, choose independent, and compare "
        "methods with the same tree.",
        choices=NOISE,
    )
    lantern_k: int = knob(
        100,
        "LANTERN k",
        "How many neighbours in the codebook may lend their probability to a guess.",
        Limit(0, MAX_LANTERN_K, whole=True),
        reads=_accepts_by(Lantern),
        sets="k",
        short="k",
    )
    lantern_delta: float = knob(
        0.2,
        "LANTERN delta",
        "The most probability that neighbours may lend: higher accepts more and strays further "
        "from the model.",
        Limit(0, 1),
        sets="bound",
        reads=_accepts_by(Lantern),
        short="delta",
        bounds=True,
    )
    lanternpp_k: int = knob(
        10,
        "LANTERN++ k",
        "How many neighbours may lend their probability in LANTERN++.",
        Limit(0, MAX_LANTERN_K, whole=True),
        reads=_accepts_by(LanternPlusPlus),
        short="k",
        sets="k",
    )
    lanternpp_lambda: float = knob(
        3.0,
        "LANTERN++ lambda",
        "Neighbours may lend up to lambda - 1 times the model's probability of the guess; 1 "
        "relaxes nothing.",
        Limit(1, 40),
        sets="bound",
        reads=_accepts_by(LanternPlusPlus),
        short="lambda",
        bounds=True,
    )
    window: int = knob(
        0,
        "Window (0: default)",
        "How many places in a row a model without a drafter looks at in one step, the next one "
        f"counted; 1 guesses nothing. 0 is the model's default, or {DEFAULTS['cpu'].window} on a "
        f"processor and {DEFAULTS['cuda'].window} on a GPU.",
        Limit(0, 64, whole=True),
        reads=_drafts_by(Window),
    )
    tree: str = knob(
        DEFAULT,
        "Draft tree",
        "default suits the machine: few drafts on a processor, more on a GPU. small has 7 drafts. "
        "paper has the papers' trees, which are for GPUs. Every other name is a static tree; "
        "EAGLE-2 and LANTERN grow a dynamic one, and then use small. Paths such as 0 1 00 are a "
        "tree of your own: 00 is the first child of the first child.",
        choices=TREES,
        reads=lambda method: method.needs_drafter,
    )
    draft_top_k: int | None = of_tree(
        "Dynamic tree: top-k",
        "Children per node of EAGLE-2's and LANTERN's tree.",
        Limit(1, 16, whole=True),
    )
    draft_depth: int | None = of_tree(
        "Dynamic tree: depth",
        "How many levels it grows below its first drafts.",
        Limit(0, MAX_DEPTH, whole=True),
    )
    draft_nodes: int | None = of_tree(
        "Dynamic tree: nodes",
        "How many nodes are kept for checking, the root counted.",
        Limit(2, MAX_NODES, whole=True),
    )
    neighbours: Literal["decoder", "raw"] = knob(
        "decoder",
        "Neighbours",
        "Which codebook vectors say what is near: those that the picture decoder sees, or the raw "
        "stored ones.",
        choices=("decoder", "raw"),
        reads=_accepts_by(Lantern, LanternPlusPlus),
    )


KNOBS: dict[str, Knob] = {one.name: one.metadata["knob"] for one in fields(Knobs)}
ON_THE_FORM = tuple(name for name in KNOBS if name != "seed")  # the page shows the seed elsewhere

F = TypeVar("F", bound=Callable[..., Any])


def lists_settings(function: F) -> F:
    """List all settings at the end of a method's docstring, without defaults: each model has its
    own.
    """
    lines = [f"    {name}: {knob.sentence} ({knob.allowed})" for name, knob in KNOBS.items()]
    head = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings (`defaults` has the model's):"
    function.__doc__ = "\n".join([head, *lines])
    return function


def bound_of(method: Method) -> str | None:
    """Return the setting whose lowest value makes a relaxed method exact, or None without one."""
    return next((name for name, one in KNOBS.items() if one.bounds and one.reads(method)), None)


def short_name(name: str) -> str:
    """Return the name of a knob where its method is known."""
    return KNOBS[name].short or name


def own_name(name: str) -> str:
    """Return the short name of a knob, or its label where others have the same short name."""
    short = short_name(name)
    return KNOBS[name].label if sum(short_name(one) == short for one in KNOBS) > 1 else short


def repeats_of(value: Any, most: int = MOST_REPEATS) -> int:
    """Return a requested number of races as int. Raises NotAllowed with the allowed range."""
    return int(Limit(1, most, whole=True).check("repeats", value))
