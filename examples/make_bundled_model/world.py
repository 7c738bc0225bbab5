"""Captions of scenes, and the pictures of their things.

Captions are made as word ids in batches, on any device, so that a GPU never waits for them. Their
words are those of `lantern_demo.scenes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern_demo.scenes import NOUNS, PLACES, THING_PLACES, WORDINGS

PAD = 0
LONGEST = 27  # positions for the words of a caption; the text encoder adds an end mark


@dataclass(frozen=True)
class Picture:
    """The picture of a thing."""

    file: str  # code point of its emoji
    air: bool = False  # hangs in the air
    crop: float = 0.0  # share of the picture's height that is cut off at its foot


# By the plain names of the things, in the order of `lantern_demo.scenes.THINGS`.
PICTURES = {
    "cat": Picture("1f408"),
    "dog": Picture("1f415"),
    "owl": Picture("1f989"),
    "apple": Picture("1f34e"),
    "car": Picture("1f697"),
    "house": Picture("1f3e0"),
    "castle": Picture("1f3f0"),
    "boat": Picture("26f5", crop=0.18),
    "rocket": Picture("1f680", air=True),
    "tree": Picture("1f333"),
    "mushroom": Picture("1f344"),
    "guitar": Picture("1f3b8"),
    "rabbit": Picture("1f407"),
    "fox": Picture("1f98a"),
    "horse": Picture("1f40e"),
    "elephant": Picture("1f418"),
    "penguin": Picture("1f427"),
    "duck": Picture("1f986"),
    "turtle": Picture("1f422"),
    "butterfly": Picture("1f98b", air=True),
    "dragon": Picture("1f409"),
    "cake": Picture("1f382"),
    "bus": Picture("1f68c"),
    "bicycle": Picture("1f6b2"),
    "flower": Picture("1f33b"),
    "umbrella": Picture("2602-fe0f"),
    "bear": Picture("1f9f8"),
    "balloon": Picture("1f388", air=True),
    "strawberry": Picture("1f353"),
    "frog": Picture("1f438"),
    "cow": Picture("1f404"),
    "crown": Picture("1f451"),
}
NUMBERS = (("a", "a", "one", "a single"), ("two", "two", "a pair of"), ("three",), ("four",))
LEADS = ("", "", "", "a picture of", "a photo of")
TAILS = ("", "", "", "", ", softly lit")
# Odds that a caption leaves out one of these, and that it leaves out the last three together.
OMITTED, BARE = 0.06, 0.15
OPTIONAL = ("colour", "shape", "place", "time", "moon")


def _wordings() -> dict[str, list[tuple[str, ...]]]:
    """Return the wordings of every slot of a caption, a tuple for each class."""
    # The plain name is as frequent as all others together.
    often = [(names[0],) * max(1, len(names) - 1) + names[1:] for names in NOUNS]
    plural = [tuple(name[n] for name in names) for names in often for n in (0, 1)]
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
