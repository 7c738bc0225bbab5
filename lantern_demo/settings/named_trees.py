"""Draft trees: as text, by name, and the default ones of each kind of device."""

from __future__ import annotations

from typing import Any, NamedTuple

from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.trees import Path
from lantern_demo.decoding.window import Window


def read_paths(text: str) -> tuple[Path, ...]:
    """Parse paths such as "0 1 00 01", one digit per choice.

    Raises ValueError for other characters than digits and spaces.
    """
    return tuple(tuple(int(digit) for digit in word) for word in text.split())


# Of the released LANTERN code. "021" is child 1 of child 2 of child 0 of the root.
STATIC_TREES: dict[str, tuple[Path, ...]] = {
    "mc_sim_7b_63": read_paths(
        "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
    ),
    "mc_sim_7b_63_balanced": read_paths(
        "0 1 2 00 01 02 10 11 12 20 21 000 001 002 010 011 100 101 110 111 0000 0001 0002 "
        "00000 00001"
    ),
    "naive_extend_57": read_paths(
        "0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 31 40 "
        "000 001 002 003 010 011 012 020 021 022 030 031 100 101 110 200 "
        "0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200 "
        "00000 00001 00002 00010 00011 00100 00101 00110 00200"
    ),
    "medusa_2_7b_63": read_paths(
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 30 31 40 50 60 70 "
        "000 001 002 003 004 005 006 007 008 010 011 012 013 020 021 030 040 050 "
        "100 101 102 110 200 0000 0001 0002 0003 0010 0020 0100"
    ),
    "reverse_balanced_25": read_paths(
        "0 1 2 00 01 10 20 000 001 002 010 011 100 0000 0001 0002 0010 0011 "
        "00000 00001 00002 00003 00010 00011 00012"
    ),
    "chain": read_paths("0 00 000 0000 00000"),
}

# Trees of static methods and shapes of dynamic ones by name: "small" suits machines on which
# checking a node is not free, and "paper" is what LANTERN and LANTERN++ published.
STATIC_BY_NAME = {
    "small": read_paths("0 1 2 00 01 10 000"),
    "paper": STATIC_TREES["naive_extend_57"],
    **STATIC_TREES,
}
DYNAMIC_TREES: dict[str, tuple[int, int, int]] = {"small": (4, 2, 8), "paper": (10, 4, 59)}
DEFAULT = "default"
TREES = (DEFAULT, *STATIC_BY_NAME)


class DefaultDrafts(NamedTuple):
    """The drafts of `tree="default"`."""

    static: tuple[Path, ...]
    dynamic: tuple[int, int, int]  # top_k, depth, and nodes with the root
    window: int  # positions


# A node costs a fifth of a pass on a processor, and nearly nothing on a GPU, where steps were timed
# on an H200 (docs/benchmark.md).
DEFAULTS = {
    "cpu": DefaultDrafts(read_paths("0 00 000"), (2, 1, 4), 4),
    "cuda": DefaultDrafts(
        read_paths("0 1 2 3 00 01 02 10 11 20 000 001 010 100 0000"), (10, 4, 59), 8
    ),
}


def drafts_by_device(own: Any) -> dict[str, DefaultDrafts]:
    """Return the default drafts by kind of device, a model folder's own before DEFAULTS.

    own: {"cpu": {"static": "0 00", "dynamic": [2, 1, 4], "window": 4}}. Raises ValueError for
    anything else.
    """
    if not isinstance(own, dict) or not own.keys() <= DEFAULTS.keys():
        raise ValueError(f"trees must be an object with some of {', '.join(DEFAULTS)}, got {own!r}")
    found = dict(DEFAULTS)
    for device, trees in own.items():
        try:
            top_k, depth, nodes = map(int, trees["dynamic"])
            static = read_paths(trees["static"])
            window = int(trees["window"])
            StaticTree(static)  # these raise what such trees would
            DynamicTree(top_k, depth, nodes)
            Window(window)
            found[device] = DefaultDrafts(static, (top_k, depth, nodes), window)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            wanted = "static, dynamic and window"
            raise ValueError(f"trees of {device} must have {wanted}: {error!r}") from None
    return found
