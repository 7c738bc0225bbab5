"""What strangers send: values for fuzzing, as hypothesis strategies, and how many cases to try.

A few hundred cases run with the tests. FUZZ_CASES=3000 python -m pytest tests/test_fuzz.py tests/test_fuzz_http.py tries
thousands.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.knobs import KNOBS, TREES

pytest.importorskip("hypothesis", reason="hypothesis, which makes the cases, is not installed: see requirements-test.txt")
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FUZZ_CASES", "0"))


def fuzz(usual: int, share: float = 1.0) -> settings:
    """Settings of a property: `usual` cases with the tests, `share` of FUZZ_CASES where that is set. Always the same cases."""
    return settings(
        max_examples=round(CASES * share) or usual,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(10**4000), 10**4000),
    st.floats(),
    st.sampled_from(
        [0, 1, -1, 1e308, -1e308, 5e-324, 2**31, 2**63, -(2**63), 10**400, float("nan"), float("inf"), float("-inf")]
    ),
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Mn", "Zl", "Zp"]), max_size=20),
    st.sampled_from(
        [
            "",
            " \n\t",
            "\x00",
            "\ud800",
            "\u202e",
            "<img src=x onerror=alert(1)>",
            "{{7*7}}",
            "${7*7}",
            "%s%n",
            "../../etc/passwd",
            "file:///etc/passwd",
            "http://127.0.0.1/",
            "'; DROP TABLE runs; --",
            "NaN",
            "x" * 3000,
            "\U0001f3ee" * 50,
        ]
    ),
)
FILES = st.fixed_dictionaries(
    {"path": st.sampled_from(["/etc/passwd", "../x", ""]), "meta": st.just({"_type": "gradio.FileData"})}
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, FILES),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=8), inner, max_size=5)),
    max_leaves=12,
)
DEEP = st.integers(1, 200).map(lambda depth: _nested(depth))

# Trees: paths that have no parent, the same path twice, a million nodes, depth beyond a picture, other digits, other separators.
_WORD = st.text("0123456789", min_size=1, max_size=12)
TREE_TEXTS = st.one_of(
    st.lists(_WORD, max_size=40).map(" ".join),
    st.lists(_WORD, max_size=12).map(
        lambda words: " ".join(sorted({w[:n] for w in words for n in range(1, len(w) + 1)}, key=len))
    ),
    st.sampled_from(
        [
            "0 " * 1_000_000,
            " ".join("0" * n for n in range(1, 300)),
            "0" * 70_000,
            "0 0",
            "00",
            "0 00 0",
            "\u0660",
            "0\u00a01",
            "0,1",
            "-1",
            " ".join(f"{a}{b}" for a in range(10) for b in range(10)),
            "0 1 2 3 4 5 6 7 8 9 " * 13,
            "paper ",
            "Fit",
            "0\n1",
            "(0,)",
            "[[0]]",
        ]
    ),
    st.sampled_from(TREES),
    TEXTS,
)

# Per parameter, what is often right, so that cases get past the first check.
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.sampled_from(["a red lantern", "two blue lanterns over a lake", "\u706f\u7c60", "<b>"]),
    "model": st.sampled_from(["tiny", None]),
    "methods": st.one_of(st.none(), st.lists(st.sampled_from(list(METHODS)), min_size=1, max_size=7)),
    "tree": TREE_TEXTS,
    **{name: st.sampled_from(knob.choices) for name, knob in KNOBS.items() if knob.choices and name != "tree"},
    **{
        name: st.integers(int(limit.low), int(limit.high)) if limit.whole else st.floats(limit.low, limit.high)
        for name, limit in ((name, knob.limit) for name, knob in KNOBS.items())
        if limit is not None
    },
}
BAD = st.one_of(JSON, DEEP)


def _nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value
