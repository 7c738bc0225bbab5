"""Every rule at one node, one token at a time, in plain Python. Tests compare everything else with it; nothing else runs it.

p and q are lists of probabilities, the target's and the drafter's; u are uniforms in [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Probs = list[float]
Near = Callable[[Probs, int], list[int]]  # p so far, a draft -> the other tokens that stand for it


def vanilla(p: Probs, u: float) -> int:
    """The first token at which the running sum of p passes u."""
    return next(token for token, total in enumerate(accumulate(p)) if total > u * sum(p))


def shared(scores: Probs, noise: Probs, drafts: Sequence[int]) -> tuple[int | None, int]:
    """With shared noise the target draws by itself, and a draft is right when it equals what came out: its rank, and that
    token."""
    own = max(range(len(scores)), key=lambda token: scores[token] + noise[token])
    return (drafts.index(own) if own in drafts else None), own


def relaxed(
    p: Probs, drafts: Sequence[int], q: Probs | None, u: Sequence[float], near: Near
) -> tuple[int | None, Probs, Probs | None]:
    """Drafts are tried in the order in which they were drawn from q without replacement (None: fixed by the prefix, as if q(x)
    were 1). The rank of the one that is accepted, None where none is; the probabilities p that are left, from which the next
    token is drawn then; and q."""
    for rank, x in enumerate(drafts):
        group = near(p, x)
        if u[rank] * (q[x] if q else 1.0) < p[x] + sum(p[y] for y in group):
            return rank, p, q
        gone = {x, *group}
        p = normalised([0.0 if y in gone else max(0.0, p[y] - (q[y] if q else 0.0)) for y in range(len(p))])
        q = q and normalised([0.0 if y == x else q[y] for y in range(len(q))])
    return None, p, q


def exact(p: Probs, drafts: Sequence[int], q: Probs | None, u: Sequence[float]) -> tuple[int | None, Probs, Probs | None]:
    """Recursive rejection: a draft stands for nothing but itself, and every token follows p."""
    return relaxed(p, drafts, q, u, lambda p, x: [])


def lantern(neighbours: Sequence[Sequence[int]], k: int, delta: float) -> Near:
    """LANTERN: the nearest tokens, as many of the first k as together have at most delta."""

    def near(p: Probs, x: int) -> list[int]:
        sums = accumulate(p[y] for y in neighbours[x][:k])
        return [y for y, mass in zip(neighbours[x], sums, strict=False) if mass <= delta]

    return near


def lantern_plus_plus(neighbours: Sequence[Sequence[int]], k: int, bound: float) -> Near:
    """LANTERN++: at most lambda - 1 times what x has itself."""
    return lambda p, x: lantern(neighbours, k, (bound - 1) * p[x])(p, x)


def normalised(probs: Probs) -> Probs:
    """What sums to 1."""
    return [chance / sum(probs) for chance in probs]
