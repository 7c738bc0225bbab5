"""What decodes a model: its own networks, or twins of them that are faster on a device."""

from __future__ import annotations

from dataclasses import dataclass

from lantern_demo.decoding import protocols


@dataclass(frozen=True)
class Runners:
    """A target, its drafter if it has one, and the kinds of products they use (see `products.KINDS`), None where PyTorch decides."""

    target: protocols.Target
    drafter: protocols.Drafter | None
    kind: str | None = None
    drafter_kind: str | None = None
