"""Draft configurations made of settings, the settings that give them again, and their words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.window import Window
from lantern_demo.settings.settings import Settings
from lantern_demo.settings.trees import DEFAULTS, DYNAMIC_TREES, Drafts


@dataclass(frozen=True)
class Choice:
    """Drafts, and where they come from."""

    policy: DraftConfig
    reason: str


def choice_of(
    kind: type[DraftConfig], settings: Settings, default: Drafts = DEFAULTS["cpu"]
) -> Choice:
    """Return the drafts of a kind under some settings.

    A kind that no setting shapes gets its defaults.
    """
    source = settings.tree
    if issubclass(kind, StaticTree):
        policy: DraftConfig = kind(settings.static_paths(default.static))
    elif issubclass(kind, DynamicTree):
        shape = settings.dynamic_shape(default.dynamic)
        policy = kind(*shape)
        if shape not in (DYNAMIC_TREES.get(settings.tree), default.dynamic):
            given = shape != DYNAMIC_TREES["small"]
            source = "as asked" if given else f"small, since {settings.tree} is no dynamic tree"
    elif issubclass(kind, Window):
        policy = kind(settings.window or default.window)
        source = "as asked" if settings.window else "default"
    else:
        policy = kind()
        return Choice(policy, describe_drafts(policy))
    return Choice(policy, f"{describe_drafts(policy)} ({source})")


def settings_of(drafts: DraftConfig) -> dict[str, Any]:
    """Return the settings from which `choice_of` makes these drafts again."""
    if isinstance(drafts, StaticTree):
        return {"tree": " ".join("".join(map(str, path)) for path in drafts.paths)}
    if isinstance(drafts, DynamicTree):
        return {
            "draft_top_k": drafts.top_k,
            "draft_depth": drafts.depth,
            "draft_nodes": drafts.nodes,
        }
    return {"window": drafts.nodes} if isinstance(drafts, Window) else {}


def describe_drafts(drafts: DraftConfig) -> str:
    """Return the shape of drafts in words: "static chain of 3".

    The root is no draft and does not count.
    """
    drafted = drafts.nodes - 1
    if isinstance(drafts, StaticTree):
        levels = drafts.deepest
        return (
            f"static chain of {drafted}"
            if drafted == levels
            else f"static tree of {drafted} in {levels} levels"
        )
    if isinstance(drafts, DynamicTree):
        levels = min(drafted, drafts.deepest)
        return (
            f"dynamic chain of {drafted}"
            if drafts.top_k == 1
            else f"dynamic tree of {drafted} in up to {levels} levels"
        )
    return f"window of {drafts.nodes}" if isinstance(drafts, Window) else "no tree"
