"""The words of the bundled model's world: attributes of a scene, wordings, captions.

A scene shows one to four paper lanterns, or one or two of an everyday thing. Only lanterns have a
colour and a shape. The bundled model has learnt all of it, and is asked for SHOWN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SHAPES = ("round", "box", "sky")
PLACES = ("lake", "hills", "plain")
TIMES = ("dusk", "night", "dawn")
MOST_LANTERNS, MOST_THINGS = 4, 2  # of a scene; of SHOWN things the model draws one

LANTERN = "lantern"
# The names of everyday things with their plurals, the plain name first.
THINGS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("cat", "cats"), ("kitten", "kittens")),
    (("dog", "dogs"), ("puppy", "puppies")),
    (("owl", "owls"),),
    (("apple", "apples"),),
    (("car", "cars"),),
    (("house", "houses"), ("home", "homes")),
    (("castle", "castles"),),
    (("boat", "boats"), ("sailboat", "sailboats")),
    (("rocket", "rockets"), ("spaceship", "spaceships")),
    (("tree", "trees"),),
    (("mushroom", "mushrooms"),),
    (("guitar", "guitars"),),
    (("rabbit", "rabbits"), ("bunny", "bunnies")),
    (("fox", "foxes"),),
    (("horse", "horses"), ("pony", "ponies")),
    (("elephant", "elephants"),),
    (("penguin", "penguins"),),
    (("duck", "ducks"),),
    (("turtle", "turtles"), ("tortoise", "tortoises")),
    (("butterfly", "butterflies"),),
    (("dragon", "dragons"),),
    (("cake", "cakes"),),
    (("bus", "buses"),),
    (("bicycle", "bicycles"), ("bike", "bikes")),
    (("flower", "flowers"), ("sunflower", "sunflowers")),
    (("umbrella", "umbrellas"),),
    (("bear", "bears"), ("teddy bear", "teddy bears")),
    (("balloon", "balloons"),),
    (("strawberry", "strawberries"),),
    (("frog", "frogs"),),
    (("cow", "cows"),),
    (("crown", "crowns"),),
)
# The names of what a scene shows, in the order of the classes of "thing".
NOUNS = (((LANTERN, "lanterns"), ("paper lantern", "paper lanterns")), *THINGS)


class Sure(NamedTuple):
    """Where the model draws a thing surely, and seeds with which every method draws it there."""

    at: tuple[tuple[int, int], ...]  # classes of place and time, the surest first
    seeds: tuple[int, ...]  # in the order in which they are taken


def _sure(at: str, *seeds: int) -> Sure:
    rows = [place.split() for place in at.split(", ")]
    pairs = ((PLACES.index(place), TIMES.index(time)) for place, *times in rows for time in times)
    return Sure(tuple(pairs), seeds)


# The things that the model is asked for, with places and their times. At each of them at least 80 %
# of 36 pictures have the shape of the thing. At the first place and time all methods' pictures have
# it with these seeds, which an eye chose among 1 to 20. `examples/quality/shape.py` measures both.
SURE = {
    "cat": _sure("plain dusk", 1, 9, 11, 15, 17, 18),
    "dog": _sure("lake dusk", 1, 5, 6, 8, 9, 4),
    "apple": _sure(
        "lake dusk night dawn, hills dusk night dawn, plain dusk night dawn", 1, 2, 3, 4, 5, 6
    ),
    "bear": _sure("plain dusk, lake dawn dusk, hills dusk", 1, 2, 5, 6, 7, 9),
    "fox": _sure("plain dusk, lake dusk", 1, 15, 14, 5, 2, 4),
    "car": _sure("lake dusk, hills dusk", 1, 3, 4, 5, 6, 7),
    "turtle": _sure("lake dusk, plain dusk", 1, 3, 4, 5, 6, 7),
    "umbrella": _sure("hills dusk, plain night", 1, 2, 3, 4, 6, 7),
    "strawberry": _sure("hills dawn, lake dusk", 1, 2, 3, 4, 5, 6),
    "elephant": _sure("hills night, lake night", 1, 2, 4, 5, 7, 9),
    "duck": _sure("plain dawn, lake dusk", 1, 5, 6, 7, 8, 9),
    "crown": _sure("lake dusk dawn", 7, 9, 10, 12, 5, 4),
    "horse": _sure("lake night", 2, 5, 7, 8, 14, 6),
    "bus": _sure("lake dawn, hills dusk", 3, 5, 7, 13, 14, 15),
    "balloon": _sure("hills dusk", 2, 3, 4, 6, 7, 9),
    "castle": _sure("plain dusk", 1, 3, 11, 14, 17, 19),
    "owl": _sure("lake dawn", 1, 9, 10, 11, 14, 15),
    "penguin": _sure("lake dusk", 2, 6, 7, 8, 12, 13),
}
# The classes of "thing" that it is asked for: lanterns and the other things.
SHOWN = tuple(kind for kind, names in enumerate(NOUNS) if not kind or names[0][0] in SURE)

# The classes of every attribute, in the order of their indices. Things have the empty colour and
# shape.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "thing": tuple(names[0][0] for names in NOUNS),
    "count": tuple(str(n + 1) for n in range(MOST_LANTERNS)),
    "colour": (*COLOURS, ""),
    "shape": (*SHAPES, ""),
    "place": PLACES,
    "time": TIMES,
    "moon": ("no", "yes"),
}
OF_LANTERNS = ("colour", "shape")  # attributes that things lack

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
    "thing": tuple(tuple(singular for singular, _ in names) for names in NOUNS),
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
# Places of things, which stand on the ground.
THING_PLACES = (
    ("on a lake", "on a lake", "by a lake", "on the water", "over a lake"),
    ("in the hills", "in the hills", "on a hill", "in the mountains", "over the hills"),
    ("on a plain", "on a plain", "in a field", "in a meadow", "over a plain"),
)
SINGULAR = WORDINGS["count"][0]
PLURALS = {singular: plural for names in NOUNS for singular, plural in names}


def full_caption(
    thing: int, count: int, colour: int, shape: int, place: int, time: int, moon: int
) -> str:
    """Return the plainest wording that names every attribute, by class index.

    Quality is measured on these captions.
    """
    said = {
        "thing": WORDINGS["thing"][thing][0],
        "count": WORDINGS["count"][count][0],
        "place": (THING_PLACES if thing else WORDINGS["place"])[place][0],
        "time": WORDINGS["time"][time][0],
        "moon": WORDINGS["moon"][moon][0],
    }
    if not thing:
        said |= {"colour": WORDINGS["colour"][colour][0], "shape": WORDINGS["shape"][shape][0]}
    return worded(said)


def worded(said: Mapping[str, str]) -> str:
    """Return a caption with some attributes, each in the given wording.

    It describes lanterns unless "thing" is given, and several unless the number is one.
    """
    noun = said.get("thing", LANTERN)
    words = {**said, "thing": noun if said.get("count") in SINGULAR else PLURALS[noun]}
    return " ".join(words[name] for name in WORDINGS if name in words)
