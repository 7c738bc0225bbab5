"""Reference for the acceptance rules: every rule at one node, one token at a time, in plain Python.
Tests compare all other code with it; no other code runs it.

p and q are lists of probabilities, the target's and the drafter's; u are uniforms in [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Probs = list[float]
Near = Callable[[Probs, int], list[int]]  # p so far, a draft -> the other tokens that stand for it


def vanilla(p: Probs, u: float) -> int:
    """Return the first token at which the running sum of p passes u, a fraction of the whole
    sum."""
    return next(token for token, total in enumerate(accumulate(p)) if total > u * sum(p))


def relaxed(
    p: Probs, drafts: Sequence[int], q: Probs | None, u: Sequence[float], near: Near
) -> tuple[int | None, Probs, Probs | None]:
    """Try drafts in the order in which they were drawn from q without replacement (None: fixed by
    the prefix, as if q(x) were 1). Return the rank of the accepted draft or None, the remaining p,
    from which the next token is then drawn, and q."""
    for rank, x in enumerate(drafts):
        group = near(p, x)
        if u[rank] * (q[x] if q else 1.0) < p[x] + sum(p[y] for y in group):
            return rank, p, q
        gone = {x, *group}
        p = normalised(
            [0.0 if y in gone else max(0.0, p[y] - (q[y] if q else 0.0)) for y in range(len(p))]
        )
        q = q and normalised([0.0 if y == x else q[y] for y in range(len(q))])
    return None, p, q


def shared(drafts: Sequence[int], own: int) -> int | None:
    """Compare drafts with the token `own`, which the target drew with the position's shared noise.
    Return the rank of the first draft that equals it, or None: `own` is then the bonus token. This
    is the exact rule alone."""
    return next((rank for rank, x in enumerate(drafts) if x == own), None)


def exact(p: Probs, x: int) -> list[int]:
    """Return near of the exact rule: no token stands for x."""
    return []


def lantern(neighbours: Sequence[Sequence[int]], k: int, delta: float) -> Near:
    """Return near of LANTERN: the longest prefix of the first k neighbours with a total probability
    of at most delta."""

    def near(p: Probs, x: int) -> list[int]:
        sums = accumulate(p[y] for y in neighbours[x][:k])
        return [y for y, mass in zip(neighbours[x], sums, strict=False) if mass <= delta]

    return near


def lantern_plus_plus(neighbours: Sequence[Sequence[int]], k: int, bound: float) -> Near:
    """Return near of LANTERN++: as LANTERN, with delta = (lambda - 1) p(x)."""
    return lambda p, x: lantern(neighbours, k, (bound - 1) * p[x])(p, x)


def normalised(probs: Probs) -> Probs:
    """Return the probabilities divided by their sum."""
    return [chance / sum(probs) for chance in probs]
