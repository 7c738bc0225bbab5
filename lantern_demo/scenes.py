"""The words of the bundled model's world: attributes of a scene, wordings, captions.

A scene shows one to four paper lanterns, or one everyday thing. Only lanterns have a number, a
colour and a shape.
"""

from __future__ import annotations

from collections.abc import Mapping

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SHAPES = ("round", "box", "sky")
PLACES = ("lake", "hills", "plain")
TIMES = ("dusk", "night", "dawn")
MOST_LANTERNS = 4  # of a scene

LANTERN, LANTERNS = "lantern", "lanterns"
# Everyday things by the name that captions have, with other names that prompts may have.
THINGS: dict[str, tuple[str, ...]] = {
    "cat": ("kitten", "kitty"),
    "dog": ("puppy", "doggy"),
    "rabbit": ("bunny", "hare"),
    "fox": (),
    "bear": (),
    "panda": (),
    "lion": (),
    "tiger": (),
    "monkey": (),
    "pig": ("piglet",),
    "cow": (),
    "frog": ("toad",),
    "horse": ("pony",),
    "unicorn": (),
    "owl": (),
    "penguin": (),
    "duck": ("duckling",),
    "bird": (),
    "elephant": (),
    "turtle": ("tortoise",),
    "fish": (),
    "whale": (),
    "octopus": (),
    "butterfly": (),
    "dragon": (),
    "dinosaur": ("dino",),
    "robot": (),
    "ghost": (),
    "snowman": (),
    "pumpkin": (),
    "heart": (),
    "flower": ("sunflower",),
    "cactus": (),
    "tree": (),
    "mushroom": ("toadstool",),
    "apple": (),
    "strawberry": (),
    "cake": (),
    "burger": ("hamburger", "cheeseburger"),
    "car": ("auto", "automobile"),
    "bus": (),
    "train": (),
    "boat": ("sailboat",),
    "rocket": ("spaceship",),
    "balloon": (),
    "house": ("home",),
    "castle": (),
    "crown": (),
    "guitar": (),
    "umbrella": (),
}

# The classes of every attribute, in the order of their indices. Things have the empty colour and
# shape.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "thing": (LANTERN, *THINGS),
    "count": tuple(str(n + 1) for n in range(MOST_LANTERNS)),
    "colour": (*COLOURS, ""),
    "shape": (*SHAPES, ""),
    "place": PLACES,
    "time": TIMES,
    "moon": ("no", "yes"),
}
OF_LANTERNS = ("colour", "shape")  # attributes that things lack; they also come singly

# For each class of an attribute, the wordings that captions choose from, the plainest first. A
# repeated one is chosen twice as often. They stand in a caption in this order.
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
    "thing": ((LANTERN, "paper lantern"), *((name,) for name in THINGS)),
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
# where things stand, on the ground
THING_PLACES = (
    ("on a lake", "on a lake", "by a lake", "on the water", "over a lake"),
    ("in the hills", "in the hills", "on a hill", "in the mountains", "over the hills"),
    ("on a plain", "on a plain", "in a field", "in a meadow", "over a plain"),
)
SINGULAR = WORDINGS["count"][0]


def plural(noun: str) -> str:
    """Return the plural of a thing's name, of a lantern's too."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun == "snowman":
        return "snowmen"
    return noun + ("es" if noun.endswith(("s", "x", "sh", "ch")) else "s")


def with_article(noun: str) -> str:
    """Return the name of a thing with "a" or "an"."""
    vowel = noun[0] in "aeiou" and not noun.startswith("uni")
    return f"{'an' if vowel else 'a'} {noun}"


def full_caption(
    thing: int, count: int, colour: int, shape: int, place: int, time: int, moon: int
) -> str:
    """Return the plainest wording that names every attribute, by class index.

    Quality is measured on these captions.
    """
    wording = {
        "thing": WORDINGS["thing"][thing][0],
        "place": (THING_PLACES if thing else WORDINGS["place"])[place][0],
        "time": WORDINGS["time"][time][0],
        "moon": WORDINGS["moon"][moon][0],
    }
    if not thing:
        wording["count"] = WORDINGS["count"][count][0]
        wording |= {"colour": WORDINGS["colour"][colour][0], "shape": WORDINGS["shape"][shape][0]}
    return worded(wording)


def worded(wording: Mapping[str, str]) -> str:
    """Return a caption with some attributes, each in the given wording.

    It describes lanterns unless "thing" is given: several, unless the number is one. A thing comes
    without a number, a colour and a shape.
    """
    noun, lacks = wording.get("thing", LANTERN), set[str]()
    if noun in THINGS:
        noun, lacks = with_article(noun), {"count", *OF_LANTERNS}
    elif wording.get("count") not in SINGULAR:
        noun = plural(noun)
    words = {**wording, "thing": noun}
    return " ".join(words[name] for name in WORDINGS if name in words and name not in lacks)
