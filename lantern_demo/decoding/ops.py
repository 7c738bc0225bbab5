"""The operations of the law, `Ops`: cut scores, draw tokens, decide on drafts.

A run gets them with its `Config`. They are PyTorch's, of `sampling` and `accept`. A subclass
replaces some of them, such as by kernels, and keeps their law.
"""

from __future__ import annotations

from . import accept, sampling


class KernelError(Exception):
    """An error of a kernel that stands for operations of PyTorch."""


class Ops:
    """PyTorch's operations."""

    cut = staticmethod(sampling.cut)
    top = staticmethod(sampling.top)
    draw = staticmethod(sampling.draw)
    draw_in_turn = staticmethod(sampling.draw_in_turn)
    decide = staticmethod(accept.decide)

    def __init__(self, reason: str = "") -> None:
        self.reason = reason  # why no kernels stand for them where some could; empty: none could

    def refuse(self, error: KernelError) -> None:
        """Use PyTorch's operations from now on, because of an error. Raise it if they are used."""
        raise error


PYTORCH = Ops()
