"""Fast decoding of visual autoregressive models, side by side: vanilla, EAGLE-1, EAGLE-2, LANTERN,
LANTERN++, SJD.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING
from warnings import catch_warnings

from lantern_demo.version import __version__ as __version__

__all__ = ["Method", "Pipeline", "Result", "load", "register"]

_HOMES = {  # the module of each name
    "Method": "decoding.methods",
    "Pipeline": "runs.pipeline",
    "Result": "runs.result",
    "load": "runs.load",
    "register": "decoding.methods",
}

if "torch" not in sys.modules:
    # OpenMP reads this once, while PyTorch loads. As soon as other programs run, threads that spin
    # while they wait take the CPU from the thread that they wait for: see
    # `models.device.pick_threads`.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from lantern_demo.decoding.methods import Method, register
    from lantern_demo.runs.load import load
    from lantern_demo.runs.pipeline import Pipeline
    from lantern_demo.runs.result import Result


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    # `lantern_demo.decoding` depends on torch alone, so importing the package must not import the
    # models' libraries.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # PyTorch's compiler, which transformers imports, leaves a filter of warnings and a variable.
    with catch_warnings():
        before = set(os.environ)
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        for variable in set(os.environ) - before:
            del os.environ[variable]
    return found
