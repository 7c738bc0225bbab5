"""The words of the bundled model's world: attributes of a scene, and captions of it.

A scene shows paper lanterns, or one or two of an everyday thing. Captions are made as word ids in
batches, on any device, so that a GPU never waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern_demo.scenes import COLOURS, PLACES, SHAPES, TIMES, WORDINGS

PAD = 0
LONGEST = 27  # words of a caption; the text encoder adds an end mark


@dataclass(frozen=True)
class Thing:
    """A kind of thing: the file of its picture, its names, and where it is.

    The first name is the plain one. Each has its plural after a stroke.
    """

    file: str  # code point of its emoji
    names: tuple[str, ...]
    air: bool = False  # hangs in the air
    crop: float = 0.0  # share of the picture's height that is cut off at its foot


THINGS = (
    Thing("1f408", ("cat/cats", "kitten/kittens")),
    Thing("1f415", ("dog/dogs", "puppy/puppies")),
    Thing("1f989", ("owl/owls",)),
    Thing("1f34e", ("apple/apples",)),
    Thing("1f697", ("car/cars",)),
    Thing("1f3e0", ("house/houses", "home/homes")),
    Thing("1f3f0", ("castle/castles",)),
    Thing("26f5", ("boat/boats", "sailboat/sailboats"), crop=0.18),
    Thing("1f680", ("rocket/rockets", "spaceship/spaceships"), air=True),
    Thing("1f333", ("tree/trees",)),
    Thing("1f344", ("mushroom/mushrooms",)),
    Thing("1f3b8", ("guitar/guitars",)),
    Thing("1f407", ("rabbit/rabbits", "bunny/bunnies")),
    Thing("1f98a", ("fox/foxes",)),
    Thing("1f40e", ("horse/horses", "pony/ponies")),
    Thing("1f418", ("elephant/elephants",)),
    Thing("1f427", ("penguin/penguins",)),
    Thing("1f986", ("duck/ducks",)),
    Thing("1f422", ("turtle/turtles", "tortoise/tortoises")),
    Thing("1f98b", ("butterfly/butterflies",), air=True),
    Thing("1f409", ("dragon/dragons",)),
    Thing("1f382", ("cake/cakes",)),
    Thing("1f68c", ("bus/buses",)),
    Thing("1f6b2", ("bicycle/bicycles", "bike/bikes")),
    Thing("1f33b", ("flower/flowers", "sunflower/sunflowers")),
    Thing("2602-fe0f", ("umbrella/umbrellas",)),
    Thing("1f9f8", ("bear/bears", "teddy bear/teddy bears")),
    Thing("1f388", ("balloon/balloons",), air=True),
    Thing("1f353", ("strawberry/strawberries",)),
    Thing("1f438", ("frog/frogs",)),
    Thing("1f404", ("cow/cows",)),
    Thing("1f451", ("crown/crowns",)),
)
MOST_LANTERNS, MOST_THINGS = 4, 2
# The classes of every attribute, in the order of their indices. Things have no colour and no shape.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "thing": ("lantern", *(thing.names[0].split("/")[0] for thing in THINGS)),
    "count": tuple(str(n + 1) for n in range(MOST_LANTERNS)),
    "colour": (*COLOURS, ""),
    "shape": (*SHAPES, ""),
    "place": PLACES,
    "time": TIMES,
    "moon": ("no", "yes"),
}
NUMBERS = (("a", "a", "one", "a single"), ("two", "two", "a pair of"), ("three",), ("four",))
THING_PLACES = (
    ("on a lake", "on a lake", "by a lake", "on the water", "over a lake"),
    ("in the hills", "in the hills", "on a hill", "in the mountains", "over the hills"),
    ("on a plain", "on a plain", "in a field", "in a meadow", "over a plain"),
)
LEADS = ("", "", "", "a picture of", "a photo of")
TAILS = ("", "", "", "", ", softly lit")
# Odds that a caption leaves out one of these, and that it leaves out the last three together.
OMITTED, BARE = 0.06, 0.15
OPTIONAL = ("colour", "shape", "place", "time", "moon")


def _wordings() -> dict[str, list[tuple[str, ...]]]:
    """Return the wordings of every slot of a caption, a tuple for each class."""
    plural = [("lantern", "paper lantern"), ("lanterns", "paper lanterns")]
    for thing in THINGS:
        names = [name.split("/") for name in thing.names]
        # The plain name is as frequent as all others together.
        often = max(1, len(names) - 1)
        plural += [tuple([names[0][n]] * often + [name[n] for name in names[1:]]) for n in (0, 1)]
    return {
        "lead": [LEADS],
        "count": list(NUMBERS),
        "colour": [*WORDINGS["colour"], ("",)],
        "shape": [*WORDINGS["shape"], ("",)],
        "thing": plural,  # class 2 i is one of thing i, class 2 i + 1 are several
        "place": [*WORDINGS["place"], *THING_PLACES],  # of lanterns, then of things
        "time": list(WORDINGS["time"]),
        "moon": list(WORDINGS["moon"]),
        "tail": [TAILS],
    }


def vocabulary() -> list[str]:
    """Return every word that a caption can contain, sorted."""
    texts = [text for slot in _wordings().values() for wordings in slot for text in wordings]
    return sorted({*" ".join(texts).split(), "an"})


class Captions:
    """Writes captions of scenes as word ids."""

    def __init__(self, ids: Mapping[str, int], device: torch.device | str = "cpu") -> None:
        """ids: the text encoder's id of each word, none of them `PAD`."""
        self.device = torch.device(device)
        self.words = {number: word for word, number in ids.items()}
        self.tables = {}  # slot -> [classes, wordings, words] int64
        for slot, classes in _wordings().items():
            most = max(len(wordings) for wordings in classes)
            longest = max(len(text.split()) for wordings in classes for text in wordings)
            table = torch.full((len(classes), most, longest), PAD)
            for row, wordings in enumerate(classes):
                for column in range(most):
                    for place, word in enumerate(wordings[column % len(wordings)].split()):
                        table[row, column, place] = ids[word]
            self.tables[slot] = table.to(self.device)
        self.a, self.an = ids["a"], ids["an"]
        vowels = [number for word, number in ids.items() if word[0] in "aeiou" and word != "an"]
        self.vowels = torch.tensor(vowels, device=self.device)

    def __call__(self, attributes: Mapping[str, Tensor], seed: int, omit: bool = True) -> Tensor:
        """Return word ids [B, LONGEST] int64, `PAD` at the end, of scenes with attributes [B].

        omit: captions may leave attributes out.
        """
        b = len(attributes["thing"])
        g = torch.Generator(self.device).manual_seed(seed)
        given = {name: values.to(self.device).long() for name, values in attributes.items()}
        lantern = given["thing"] == 0
        classes = {
            **given,
            "lead": torch.zeros(b, dtype=torch.long, device=self.device),
            "tail": torch.zeros(b, dtype=torch.long, device=self.device),
            "thing": 2 * given["thing"] + (given["count"] > 0),
            "place": given["place"] + torch.where(lantern, 0, len(PLACES)),
        }
        bare = torch.rand(b, generator=g, device=self.device) < BARE
        said = {}
        for slot, table in self.tables.items():
            lot = torch.randint(2**31, (b,), generator=g, device=self.device)
            said[slot] = table[classes[slot], lot % table.shape[1]]
            if omit and slot in OPTIONAL:
                out = torch.rand(b, generator=g, device=self.device) < OMITTED
                if slot in ("place", "time", "moon"):
                    out |= bare
                said[slot] = said[slot].masked_fill(out[:, None], PAD)
        early = torch.rand(b, 1, generator=g, device=self.device) < 0.25
        place = torch.cat((said["place"], said["time"]), 1)
        time = torch.cat((said["time"], said["place"]), 1)
        order = ("lead", "count", "colour", "shape", "thing")
        where = torch.where(early, time, place)
        row = torch.cat([*(said[slot] for slot in order), where, said["moon"], said["tail"]], 1)
        kept = row.gather(1, (row == PAD).long().argsort(dim=1, stable=True))[:, :LONGEST]
        kept = torch.nn.functional.pad(kept, (0, LONGEST - kept.shape[1]), value=PAD)
        before_vowel = torch.isin(torch.nn.functional.pad(kept[:, 1:], (0, 1)), self.vowels)
        return torch.where((kept == self.a) & before_vowel, self.an, kept)

    def text(self, ids: Tensor) -> list[str]:
        """Return the captions that word ids [B, T] stand for."""
        rows = ids.tolist()
        return [" ".join(self.words[number] for number in row if number != PAD) for row in rows]
