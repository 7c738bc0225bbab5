"""Warnings about prompts that the bundled model, which knows few words, cannot draw."""

from __future__ import annotations

from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import NOUNS, nearest, read, vocabulary


def draws_scenes(info: ModelInfo) -> bool:
    """Return whether a model draws scenes only: its text encoder knows the words of their captions."""
    return info.vocabulary is not None and info.vocabulary.issuperset(vocabulary())


def cannot_draw(info: ModelInfo, prompt: str) -> tuple[str, str] | None:
    """Return why a model cannot draw a prompt, and the nearest prompt that it can draw. Return None if it can draw this one."""
    if not draws_scenes(info):
        return None
    reading = read(prompt)
    if not reading.drawable:
        return f"This model draws {len(NOUNS)} things, and the prompt names none of them.", nearest(prompt)
    if reading.second is not None:
        return f"This model draws one kind of thing at a time, and the prompt also names: {reading.second}.", nearest(prompt)
    if reading.number is not None:
        return f'This model draws one to three of a thing, and the prompt has the number "{reading.number}".', nearest(prompt)
    return None


def warning(info: ModelInfo, prompt: str) -> str | None:
    """Return the warning shown with the picture of a prompt that the model cannot draw, otherwise None."""
    lacking = cannot_draw(info, prompt)
    return None if lacking is None else f"The picture does not show the prompt. {lacking[0]} Try: {lacking[1]}"
