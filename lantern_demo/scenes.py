"""The words of the bundled model's lantern scenes: attributes, wordings, captions."""

from __future__ import annotations

from collections.abc import Mapping

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SHAPES = ("round", "box", "sky")
PLACES = ("lake", "hills", "plain")
TIMES = ("dusk", "night", "dawn")
MAX_COUNT = 4

# The classes of every attribute, in the order of their indices.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "count": tuple(str(n + 1) for n in range(MAX_COUNT)),
    "colour": COLOURS,
    "shape": SHAPES,
    "place": PLACES,
    "time": TIMES,
    "moon": ("no", "yes"),
}

NOUN = "lantern"
BEFORE_NOUN = ("count", "colour", "shape")  # attributes named before the noun; the others follow it
# For each class of an attribute, the wordings that captions choose from, the plainest first. A
# repeated one is chosen twice as often.
WORDINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "count": (
        ("one", "a", "a single"),
        ("two", "a pair of", "two"),
        ("three", "three"),
        ("four", "four"),
    ),
    "colour": (
        ("red", "red", "scarlet", "crimson"),
        ("orange", "orange", "amber"),
        ("yellow", "yellow", "golden"),
        ("green", "green", "jade"),
        ("blue", "blue", "azure"),
        ("purple", "purple", "violet"),
    ),
    "shape": (("round", "round", "globe"), ("box", "box", "square"), ("sky", "sky", "floating")),
    "place": (
        ("over a lake", "over a lake", "above still water", "by the lake", "over the water"),
        ("over the hills", "over hills", "above rolling hills", "in the hills", "in the mountains"),
        ("over a plain", "over a plain", "above the fields", "over a meadow", "in a field"),
    ),
    "time": (
        ("at dusk", "at dusk", "at sunset", "in the evening"),
        ("at night", "at night", "at midnight", "in the night"),
        ("at dawn", "at dawn", "at sunrise", "in the morning"),
    ),
    "moon": (
        ("without a moon", "no moon", "under a moonless sky"),
        ("with a full moon", "under the moon", "with a moon", "in the moonlight"),
    ),
}


def full_caption(count: int, colour: int, shape: int, place: int, time: int, moon: int) -> str:
    """Return the plainest wording that names every attribute, by class index.

    Quality is measured on these captions.
    """
    classes = {
        "count": count,
        "colour": colour,
        "shape": shape,
        "place": place,
        "time": time,
        "moon": moon,
    }
    return worded({name: WORDINGS[name][value][0] for name, value in classes.items()})


def worded(said: Mapping[str, str]) -> str:
    """Return a caption with some attributes, each in the given wording.

    Without a number it describes several lanterns.
    """
    noun = NOUN if said.get("count") in WORDINGS["count"][0] else f"{NOUN}s"
    before = [said[name] for name in WORDINGS if name in said and name in BEFORE_NOUN]
    after = [said[name] for name in WORDINGS if name in said and name not in BEFORE_NOUN]
    return " ".join((*before, noun, *after))


def vocabulary() -> list[str]:
    """Return every word that a caption can contain, sorted."""
    text = " ".join(
        phrase for classes in WORDINGS.values() for phrases in classes for phrase in phrases
    )
    return sorted(
        {
            *text.split(),
            "an",
            NOUN,
            f"{NOUN}s",
            "paper",
            "picture",
            "of",
            "and",
            "softly",
            "lit",
            ",",
        }
    )
