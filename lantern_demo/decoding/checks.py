"""Check classes from outside the package: the results of a rule, and the drafts of a proposer.

PyTorch would broadcast a wrong shape in silence, or refuse it in words that name neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .rules import Rule, columns, with_neighbours
from .trees import Draft

NODES, DRAFTS = 3, 2  # of the question to a rule; no two sizes are equal


def check_rule(rule: Rule) -> None:
    """Ask a rule about some nodes. Raise ValueError with its method that returns another shape or
    numbers out of range. A rule that claims to be exact must return the exact rule's numbers.
    """
    try:
        replace(rule)
    except TypeError as error:
        raise ValueError(f"{rule!r:.80} must be a dataclass ({error})") from None
    try:
        hash(rule)
    except TypeError as error:
        raise ValueError(
            f"{rule!r:.80} has a value that may change ({error}); use a tuple"
        ) from None
    for with_q in (True, False):
        with torch.device("cpu"):  # a caller may have set another one
            answers = _answers(rule, with_q)
            exact = {} if rule.relaxes else _answers(Rule(), with_q)
        for name, wanted in exact.items():
            if not torch.allclose(answers[name], wanted):
                told = f"{rule!r:.80} is said to be exact, and its {name} is not the exact rule's"
                raise ValueError(f"{told}; `relaxes` must be True")


def _answers(rule: Rule, with_q: bool) -> dict[str, Tensor]:
    """Return a rule's decisions on the first drafts of NODES random nodes, by its methods."""
    random = torch.Generator().manual_seed(0)
    vocabulary = max(11, columns(rule) + 2)
    p, q = torch.rand(2, NODES, vocabulary, generator=random).log_softmax(-1).exp()
    x = torch.rand(NODES, vocabulary, generator=random).topk(DRAFTS).indices
    u = torch.rand(NODES, DRAFTS, generator=random)
    near = (torch.arange(vocabulary)[:, None] + torch.arange(1, vocabulary)) % vocabulary
    ids, drafted, depth = with_neighbours(rule, x, near), torch.ones_like(x, dtype=torch.bool), 1.0
    told = q if with_q else None
    whole, one = (NODES, vocabulary), (NODES, 1)

    def answer(name: str, shapes: list[tuple[int, ...]], *given: Any) -> Any:
        try:
            found = getattr(rule, name)(*given)
        except Exception as error:
            raise ValueError(f"{rule!r:.80} fails in {name}: {error}") from error
        if shapes and (not isinstance(found, Tensor) or tuple(found.shape) not in shapes):
            got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            asks = f"for {NODES} nodes, {DRAFTS} drafts each, {vocabulary} tokens"
            raise ValueError(f"{rule!r:.80}: {name} must return {allowed} {asks}, got {got}")
        return found

    target = answer("target", [whole], p, told)
    qx = q.gather(1, x) if with_q else None
    threshold = answer("threshold", [(NODES, DRAFTS), one], u, qx, target)
    members = answer("members", [], target, ids[:, :1], drafted[:, :1])
    score = answer("score", [one], members, depth)
    left = answer("reject", [whole], target, told, members, depth)
    if not bool((left >= 0).all()):
        raise ValueError(f"{rule!r:.80}: reject must return numbers of at least 0")
    if not bool((threshold > 0).all()):  # at 0 any score passes, and the page divides by it
        raise ValueError(f"{rule!r:.80}: threshold must return numbers above 0")
    # the exact rule rejects only drafts that p has less of than q
    refused = slice(None) if qx is None else (p.gather(1, x) < qx)[:, 0]
    found = {"target": target, "threshold": threshold.expand(u.shape)}
    return {**found, "score": score, "reject": left[refused]}


def check_draft(draft: Any, name: str, vocabulary: int) -> None:
    """Raise ValueError unless a proposer, called `name`, returned a tree with the tokens drawn.

    It reads numbers back to the host, so it is for a run's first drafts alone.
    """
    if not isinstance(draft, Draft):
        raise ValueError(f"{name}.propose must return a Draft, got {type(draft).__name__}")
    tree = draft.tree
    inner = len(tree.inner)
    parts: list[tuple[str, Tensor | None, list[int], torch.dtype]] = [
        ("tokens", draft.tokens, [tree.size], torch.int64),
        ("drawn", draft.drawn, [inner, tree.width], torch.int64),
        ("q", draft.q, [inner, vocabulary], torch.float32),
    ]
    for part, found, shape, dtype in parts:
        if found is not None and (list(found.shape), found.dtype) != (shape, dtype):
            got = f"{list(found.shape)} {found.dtype}"
            raise ValueError(f"{name}: {part} of its Draft must be {shape} {dtype}, got {got}")
    if not bool(((draft.tokens >= 0) & (draft.tokens < vocabulary)).all()):
        raise ValueError(f"{name}: tokens of its Draft must be from 0 to {vocabulary - 1}")
    children = tree.of_inner(tree.children)
    there = children >= 0
    if not torch.equal(draft.drawn[there], draft.tokens[children[there]]):
        raise ValueError(f"{name}: drawn of its Draft must repeat the children's tokens")
