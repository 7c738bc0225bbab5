"""Draft configurations made of settings, the settings that give them again, and their words."""

from __future__ import annotations

from typing import Any

from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.window import Window
from lantern_demo.settings.knobs import DYNAMIC_TREES, FIT, WINDOW
from lantern_demo.settings.settings import Settings


def drafts_of(kind: type[DraftConfig], settings: Settings) -> DraftConfig:
    """Return the drafts of a kind under some settings, where they are not fitted to the machine. A kind that no setting shapes
    gets its defaults."""
    if issubclass(kind, StaticTree):
        return kind(settings.static_paths)
    if issubclass(kind, DynamicTree):
        return kind(*settings.dynamic_shape)
    if issubclass(kind, Window):
        return kind(settings.window or WINDOW)
    return kind()


def are_fitted(kind: type[DraftConfig], settings: Settings) -> bool:
    """Return whether the settings leave the drafts of a kind to be fitted to the machine."""
    if issubclass(kind, (StaticTree, DynamicTree)):
        return settings.tree == FIT and not (issubclass(kind, DynamicTree) and settings.shape_given)
    return issubclass(kind, Window) and settings.window == 0


def settings_of(drafts: DraftConfig) -> dict[str, Any]:
    """Return the settings from which `drafts_of` makes these drafts again."""
    if isinstance(drafts, StaticTree):
        return {"tree": " ".join("".join(map(str, path)) for path in drafts.paths)}
    if isinstance(drafts, DynamicTree):
        return {"draft_top_k": drafts.top_k, "draft_depth": drafts.depth, "draft_nodes": drafts.nodes}
    return {"window": drafts.nodes} if isinstance(drafts, Window) else {}


def describe_drafts(drafts: DraftConfig) -> str:
    """Return the shape of drafts in words: "static chain of 3". The root is no draft and does not count."""
    drafted = drafts.nodes - 1
    if isinstance(drafts, StaticTree):
        levels = drafts.deepest
        return f"static chain of {drafted}" if drafted == levels else f"static tree of {drafted} in {levels} levels"
    if isinstance(drafts, DynamicTree):
        levels = min(drafted, drafts.deepest)
        return f"dynamic chain of {drafted}" if drafts.top_k == 1 else f"dynamic tree of {drafted} in up to {levels} levels"
    return f"window of {drafts.nodes}" if isinstance(drafts, Window) else "no tree"


def why_these_drafts(kind: type[DraftConfig], settings: Settings) -> str:
    """Return the reason for the drafts that `drafts_of` makes where the settings ask for them."""
    words = describe_drafts(drafts_of(kind, settings))
    if issubclass(kind, DynamicTree) and not settings.shape_given:
        known = settings.tree in DYNAMIC_TREES
        return f"{settings.tree}: as asked" if known else f"small: {settings.tree} is no dynamic tree"
    if issubclass(kind, StaticTree):
        return f"{settings.tree}: as asked"
    return words if kind is DraftConfig else f"{words}: as asked"
