"""The loss of the target on a batch of scenes.

A picture of a thing is lost in its first rows: there only the caption names it. Most terms
of the loss hold the name until then. `docs/training.md` explains them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.make_bundled_model.bank import Bank, Pictures
from examples.make_bundled_model.compiled import compile_layers
from examples.make_bundled_model.networks import AHEAD, Model
from examples.train_drafter.teaching import train_hidden
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.scenes import ATTRIBUTES

COVERED = 0.05  # share of a token's square from which it is the thing's
FIRST_ROWS = 2  # of a thing
# Weights of a token outside, of one inside, and the addition in the first rows.
OUTSIDE, INSIDE, FIRST = 0.35, 1.2, 8.0
# Of FIRST, the share where another thing has its first rows; and how often one must have them.
ELSEWHERE, BEGINS = 0.6, 0.2
# Weights added in the picture's first row and at its first token: there only the caption names
# the time of day.
TOP, START = 3.0, 24.0
# Weights of the terms; the divergence's is 1.
MISSED, PLAN, NAMES, READ, WORDS, OPENING = 1.0, 0.4, 0.1, 0.1, 0.05, 1.0
DROPPED = 0.04  # share of pictures that lose their caption
# Share of pictures with rows of another, most rows of it, and the first row where it may begin.
FOREIGN, STRIP, BELOW = 0.15, 8, 3
# Share of pictures with wrong tokens, and the largest share of tokens that are wrong in one.
NOISY, NOISE = 0.6, 0.25

CaptionIds = tuple[Tensor, Tensor]  # a caption's ids [B, T] int64 and their mask [B, T] bool


def target_states(
    model: Model, target: LlamaGen, captions: CaptionIds, seen: Tensor, drop: Tensor
) -> Tensor:
    """Return hidden states [B, N, (1 + F) H] of tokens, with the caption hidden where `drop`."""
    features, mask = model.text(*captions)
    features = torch.where(drop[:, None, None], target.no_caption().to(features.dtype), features)
    return train_hidden(target, seen[:, :-1], features, mask)[:, target.config.prefix - 1 :]


def opening(model: Model, target: LlamaGen, captions: CaptionIds) -> Tensor:
    """Return the logits [B, V] of the first token of pictures with these captions."""
    features, mask = model.text(*captions)
    nothing = captions[0][:, :0]
    last = train_hidden(target, nothing, features, mask)[:, -1, : target.config.dim]
    return target.lm_head(last).float()


def with_strips(ids: Tensor, g: torch.Generator) -> Tensor:
    """Return ids [B, N] of which a share FOREIGN has some rows of the picture before it.

    After the tokens of its own picture a token gains little from the caption, after rows of another
    thing much. So a target learns to trust its caption.
    """
    b, n = ids.shape
    grid = round(n**0.5)
    row = torch.arange(n, device=ids.device) // grid
    first = torch.randint(BELOW, grid, (b, 1), generator=g, device=ids.device)
    high = torch.randint(1, STRIP + 1, (b, 1), generator=g, device=ids.device)
    foreign = torch.rand(b, 1, generator=g, device=ids.device) < FOREIGN
    return torch.where(foreign & (row >= first) & (row < first + high), ids.roll(1, 0), ids)


def with_noise(ids: Tensor, other: Tensor, g: torch.Generator) -> Tensor:
    """Return ids [B, N] of which a share NOISY has some tokens of another picture [B, N].

    Drawing makes errors that true pictures never show. Without noise one error led to another
    thing.
    """
    noisy = torch.rand(len(ids), 1, generator=g, device=ids.device) < NOISY
    share = NOISE * noisy * torch.rand(len(ids), 1, generator=g, device=ids.device)
    return torch.where(torch.rand(ids.shape, generator=g, device=ids.device) < share, other, ids)


def first_rows(cover: Tensor) -> Tensor:
    """Return which tokens [B, N] bool lie in a thing's first rows; cover is [B, N]."""
    grid = round(cover.shape[1] ** 0.5)
    squares = cover.view(-1, grid, grid)
    top = (squares.amax(2) > 0.25).float().argmax(1)
    below = torch.arange(grid, device=cover.device) - top[:, None]
    rows = (below >= 0) & (below < FIRST_ROWS)
    return (rows[..., None] & (squares > COVERED)).flatten(1)


def beginnings(things: Bank) -> Tensor:
    """Return for each token [N] the largest share, over the kinds of things, of scenes in which it
    is in a thing's first rows.
    """
    first = first_rows(things.cover.float()).float()
    kinds = things.attributes["thing"]
    return torch.stack([first[kinds == kind].mean(0) for kind in kinds.unique()]).amax(0)


@dataclass
class Missed:
    """How far a target's guesses are from the laws of B pictures' tokens, in nats."""

    divergence: Tensor  # [B, N] from the law
    outside: Tensor  # [B, N] minus the logarithm of the probability of the law's tokens


def missed(guess: Tensor, codes: Tensor, probs: Tensor) -> Missed:
    """Compare guesses [B, N, V], logarithms of probabilities, with laws [B, N, NEAREST]."""
    kept = guess.gather(-1, codes.long())
    probs = probs.float()
    divergence = torch.xlogy(probs, probs).sum(-1) - (probs * kept).sum(-1)
    return Missed(divergence, -kept.logsumexp(-1))


def unnamed(logits: Tensor, attributes: dict[str, Tensor]) -> Tensor:
    """Return minus the logarithm of what logits [B, N, classes of all attributes] give a scene's
    attributes, summed over the attributes: the mean over the tokens, [B].
    """
    parts = logits.float().split([len(classes) for classes in ATTRIBUTES.values()], -1)
    total = logits.new_zeros(len(logits), dtype=torch.float32)
    for name, part in zip(ATTRIBUTES, parts, strict=True):
        wanted = attributes[name][:, None].expand(part.shape[:2])
        total = total + F.cross_entropy(part.mT, wanted, reduction="none").mean(1)
    return total


class Lesson:
    """The loss of things, and of lanterns, whose law is a teacher's."""

    def __init__(self, model: Model, things: Bank, teacher: Model | None = None) -> None:
        """things: scenes that show where things begin. teacher: a copy of the model, if None."""
        self.model, self.begins = model, beginnings(things)
        self.teacher = (teacher or copy.deepcopy(model)).requires_grad_(False)
        self.teacher.target.feature_layers = ()
        self.top = torch.zeros_like(self.begins)
        self.top[: model.target.config.grid] = TOP
        self.top[0] = START
        layers = model.target.config.layers
        # blocks whose states predict the name, and the rows below
        model.target.feature_layers = layers // 3, 2 * layers // 3
        for one in (model, self.teacher):
            compile_layers(one.target)

    def __call__(
        self,
        things: Bank,
        lanterns: Pictures,
        captions: CaptionIds,
        more: CaptionIds,
        g: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the losses of a batch; "loss" is minimised. Captions are of things first.

        more: captions of lanterns of which only the first token is learnt. It takes a tenth of the
        time of a picture, and decides the time of day.
        """
        model, n, dim = self.model, len(things), self.model.target.config.dim
        lit, lit_attributes = lanterns
        tokens = torch.cat((things.drawn(g), lit))
        other = torch.randperm(n, generator=g, device=tokens.device)
        shaken = with_noise(with_strips(tokens[:n], g), tokens[other], g)
        seen = torch.cat((shaken, tokens[n:]))
        drop = torch.rand(len(seen), generator=g, device=seen.device) < DROPPED
        features, mask = model.text(*captions)
        read = model.target.cls_embedding(features).masked_fill(~mask[..., None], 0.0)
        mean = (read.sum(1) / mask.sum(1, keepdim=True)).float()
        final, early, late = target_states(model, model.target, captions, seen, drop).split(dim, -1)
        guess = model.target.lm_head(final).float().log_softmax(-1)

        every = {k: torch.cat((v, lit_attributes[k])) for k, v in things.attributes.items()}
        cover = things.cover.float()
        # At the first row of one thing another one still has sky, which must be as sure.
        first = torch.maximum(first_rows(cover).float(), ELSEWHERE * self.begins)
        weight = OUTSIDE + INSIDE * cover.sqrt() + FIRST * first + self.top
        weight = weight / weight.mean()
        off = missed(guess[:n], things.codes, things.probs)
        inside = cover > COVERED
        told = inside | (self.begins > BEGINS)
        named, known = unnamed(model.names_head(early), every), ~drop
        words = model.words_head(mean[:n]).log_softmax(-1).gather(1, tokens[:n])
        losses = {
            "divergence": (off.divergence * weight).mean(),
            "missed": (off.outside * told * weight).mean(),
            "plan": self._planned(late[:n], things),
            "names": (named * known).sum() / known.sum().clamp(min=1),
            "read": F.cross_entropy(model.reader_head(mean), every["thing"]),
            "words": -(words * (0.3 + cover)).mean(),
        }
        weights = {"missed": MISSED, "plan": PLAN, "names": NAMES, "read": READ, "words": WORDS}
        total = torch.stack([weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
        if len(lit):
            wanted = self._taught((captions[0][n:], captions[1][n:]), seen[n:], drop[n:])
            apart = (torch.xlogy(wanted, wanted) - wanted * guess[n:]).sum(-1)
            weight = 1 + self.top
            losses["lanterns"] = (apart * (weight / weight.mean())).mean()
            total = total + losses["lanterns"] * len(lit) / n
            losses["lanterns_start"] = apart[:, 0].mean()
            losses["opening"] = self._opened(more)
            total = total + OPENING * losses["opening"]
        with torch.no_grad():
            clean = (shaken == tokens[:n]).all(1)[:, None]
            each = clean.sum().clamp(min=1)
            losses["sum_inside"] = (off.divergence * inside * clean).sum() / each
            losses["missed_inside"] = (off.outside * inside * clean).sum() / each
            losses["missed_first"] = (off.outside * first_rows(cover) * clean).sum() / each
        return {"loss": total, **losses}

    def _planned(self, late: Tensor, things: Bank) -> Tensor:
        """Return the loss of the tokens AHEAD rows below, inside a thing (arXiv 2404.19737)."""
        grid = self.model.target.config.grid
        late = F.rms_norm(late.float(), late.shape[-1:])
        total = late.new_zeros(())
        for ahead, head in zip(AHEAD, self.model.plan_heads, strict=True):
            below = (things.cover[:, grid * ahead :] > COVERED).nonzero(as_tuple=True)
            to = below[0], below[1] + grid * ahead
            guess = head(late[below]).float().log_softmax(-1)
            total = total + missed(guess, things.codes[to], things.probs[to]).divergence.mean()
        return total / len(AHEAD)

    def _opened(self, captions: CaptionIds) -> Tensor:
        """Return the divergence of first tokens from the teacher's law."""
        with torch.no_grad():
            wanted = opening(self.teacher, self.teacher.target, captions).softmax(-1)
        guess = opening(self.model, self.model.target, captions).log_softmax(-1)
        return F.kl_div(guess, wanted, reduction="batchmean")

    @torch.no_grad()
    def _taught(self, captions: CaptionIds, seen: Tensor, drop: Tensor) -> Tensor:
        """Return the teacher's distributions [B, N, V] of lanterns."""
        hidden = target_states(self.teacher, self.teacher.target, captions, seen, drop)
        return self.teacher.target.lm_head(hidden).float().softmax(-1)
