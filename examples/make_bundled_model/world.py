"""Captions of scenes, and the pictures of their things.

Captions are made as word ids in batches, on any device, so that a GPU never waits for them. Their
words are those of `lantern_demo.scenes`. Lanterns have all wordings, things the plainest alone: a
prompt's other words for a thing are replaced before the model reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern_demo.scenes import MOST_LANTERNS, THING_PLACES, WORDINGS, plural, with_article

PAD = 0
# Positions for the words of a caption; the text encoder adds an end mark. Captions are shorter, but
# the weights that training begins with have as many.
LONGEST = 27


@dataclass(frozen=True)
class Picture:
    """The picture of a thing."""

    file: str  # code point of its emoji
    air: bool = False  # hangs in the air
    crop: float = 0.0  # share of the picture's height that is cut off at its foot


# By the plain names of the things, in the order of `lantern_demo.scenes.THINGS`.
PICTURES = {
    "cat": Picture("1f431"),
    "dog": Picture("1f436"),
    "rabbit": Picture("1f430"),
    "fox": Picture("1f98a"),
    "bear": Picture("1f43b"),
    "panda": Picture("1f43c"),
    "lion": Picture("1f981"),
    "tiger": Picture("1f42f"),
    "monkey": Picture("1f435"),
    "pig": Picture("1f437"),
    "cow": Picture("1f42e"),
    "frog": Picture("1f438"),
    "horse": Picture("1f434"),
    "unicorn": Picture("1f984"),
    "owl": Picture("1f989"),
    "penguin": Picture("1f427"),
    "duck": Picture("1f986"),
    "bird": Picture("1f426"),
    "elephant": Picture("1f418"),
    "turtle": Picture("1f422"),
    "fish": Picture("1f420"),
    "whale": Picture("1f433"),
    "octopus": Picture("1f419"),
    "butterfly": Picture("1f98b", air=True),
    "dragon": Picture("1f432"),
    "dinosaur": Picture("1f995"),
    "robot": Picture("1f916"),
    "ghost": Picture("1f47b"),
    "snowman": Picture("26c4"),
    "pumpkin": Picture("1f383"),
    "heart": Picture("2764-fe0f"),
    "flower": Picture("1f33b"),
    "cactus": Picture("1f335"),
    "tree": Picture("1f333"),
    "mushroom": Picture("1f344"),
    "apple": Picture("1f34e"),
    "strawberry": Picture("1f353"),
    "cake": Picture("1f382"),
    "burger": Picture("1f354"),
    "car": Picture("1f697"),
    "bus": Picture("1f68c"),
    "train": Picture("1f682"),
    "boat": Picture("26f5", crop=0.18),
    "rocket": Picture("1f680", air=True),
    "balloon": Picture("1f388", air=True),
    "house": Picture("1f3e0"),
    "castle": Picture("1f3f0"),
    "crown": Picture("1f451"),
    "guitar": Picture("1f3b8"),
    "umbrella": Picture("2602-fe0f"),
}
NUMBERS = (("a", "a", "one", "a single"), ("two", "two", "a pair of"), ("three",), ("four",))
LEADS = ("", "", "", "a picture of", "a photo of")
TAILS = ("", "", "", "", ", softly lit")
BEHIND = ("place", "time", "moon")
OPTIONAL = ("colour", "shape", *BEHIND)
# Odds, for lanterns and for things, that a caption leaves out one of OPTIONAL, and all of BEHIND.
OMITTED, BARE = (0.06, 0.2), (0.15, 0.35)


def _wordings() -> dict[str, list[tuple[str, ...]]]:
    """Return the wordings of every slot of a caption, a tuple for each class.

    The classes of things follow those of lanterns.
    """
    lantern, *things = WORDINGS["thing"]
    of_things = {**WORDINGS, "place": THING_PLACES}
    return {
        "lead": [LEADS, ("",)],
        "count": [*NUMBERS, ("a",)],
        "colour": [*WORDINGS["colour"], ("",)],
        "shape": [*WORDINGS["shape"], ("",)],
        "thing": [lantern, tuple(plural(noun) for noun in lantern), *things],
        **{slot: [*WORDINGS[slot], *(w[:1] for w in of_things[slot])] for slot in BEHIND},
        "tail": [TAILS, ("",)],
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
        vowels = [number for word, number in ids.items() if with_article(word)[:3] == "an "]
        self.vowels = torch.tensor(vowels, device=self.device)

    def __call__(self, attributes: Mapping[str, Tensor], seed: int, omit: bool = True) -> Tensor:
        """Return word ids [B, LONGEST] int64, `PAD` at the end, of scenes with attributes [B].

        omit: captions may leave attributes out.
        """
        b = len(attributes["thing"])
        g = torch.Generator(self.device).manual_seed(seed)
        given = {name: values.to(self.device).long() for name, values in attributes.items()}
        lantern = given["thing"] == 0
        thing = (~lantern).long()
        classes = {
            "lead": thing,
            "count": torch.where(lantern, given["count"], MOST_LANTERNS),
            "colour": given["colour"],
            "shape": given["shape"],
            "thing": torch.where(lantern, (given["count"] > 0).long(), 1 + given["thing"]),
            **{slot: given[slot] + len(WORDINGS[slot]) * thing for slot in BEHIND},
            "tail": thing,
        }
        omitted, bare = (torch.tensor(odds, device=self.device)[thing] for odds in (OMITTED, BARE))
        bare = torch.rand(b, generator=g, device=self.device) < bare
        said = {}
        for slot, table in self.tables.items():
            lot = torch.randint(2**31, (b,), generator=g, device=self.device)
            said[slot] = table[classes[slot], lot % table.shape[1]]
            if omit and slot in OPTIONAL:
                out = torch.rand(b, generator=g, device=self.device) < omitted
                if slot in BEHIND:
                    out |= bare
                said[slot] = said[slot].masked_fill(out[:, None], PAD)
        early = lantern & (torch.rand(b, generator=g, device=self.device) < 0.25)
        place = torch.cat((said["place"], said["time"]), 1)
        time = torch.cat((said["time"], said["place"]), 1)
        order = ("lead", "count", "colour", "shape", "thing")
        where = torch.where(early[:, None], time, place)
        row = torch.cat([*(said[slot] for slot in order), where, said["moon"], said["tail"]], 1)
        kept = row.gather(1, (row == PAD).long().argsort(dim=1, stable=True))[:, :LONGEST]
        kept = torch.nn.functional.pad(kept, (0, LONGEST - kept.shape[1]), value=PAD)
        before_vowel = torch.isin(torch.nn.functional.pad(kept[:, 1:], (0, 1)), self.vowels)
        return torch.where((kept == self.a) & before_vowel, self.an, kept)

    def text(self, ids: Tensor) -> list[str]:
        """Return the captions that word ids [B, T] stand for."""
        rows = ids.tolist()
        return [" ".join(self.words[number] for number in row if number != PAD) for row in rows]
