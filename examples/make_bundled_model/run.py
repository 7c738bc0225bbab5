"""A run of training: its clock, its log, its files, and how a stage learns."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from examples.make_bundled_model.networks import Model
from examples.train_drafter.run import multiplies_bfloat16, optimizers_of
from lantern_demo.disk_cache import replacing

# The share of the minutes that each stage gets.
SHARES = {
    "scenes": 0.10,
    "lanterns": 0.06,
    "target": 0.48,
    "picture": 0.11,
    "pictures": 0.06,
    "drafter": 0.14,
    "check": 0.02,
    "race": 0.03,
}
SHARD = 15_000_000  # most bytes of a file
# Matrices that AdamW learns, not Muon: those next to embeddings and heads.
OUTER = re.compile(r"text\.|cap_proj|_head")
# Factors of the learning rate: the reader's, and that of heads that only training needs.
FASTER = {r"^text\.|cls_embedding": 3.0, r"^(plan_heads|reader_head)\.": 12.0}


class Run:
    """The clock, the log and the files of a run."""

    def __init__(self, args: argparse.Namespace, device: torch.device, model: Model) -> None:
        self.args, self.device, self.model = args, device, model
        self.began = self.saved = time.monotonic()
        self.ends = self.began  # of the stage
        args.out.mkdir(parents=True, exist_ok=True)
        told = args.out / "facts.json"
        found = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
        self.facts: dict[str, Any] = found

    def begin(self, stage: str) -> bool:
        """Start the clock of a stage. Return False if it is left out."""
        if stage not in self.args.stages:
            return False
        left = self.args.stages[self.args.stages.index(stage) :]
        time_left = self.began + 60 * self.args.minutes - time.monotonic()
        self.ends = time.monotonic() + time_left * SHARES[stage] / sum(SHARES[s] for s in left)
        self.stage, self.stage_began = stage, time.monotonic()
        return True

    @property
    def progress(self) -> float:
        """The share of the stage's time that is over, at most 1."""
        now = time.monotonic()
        return min(1.0, (now - self.stage_began) / max(1e-9, self.ends - self.stage_began))

    def over(self) -> bool:
        """Return whether the stage's time is over."""
        return self.progress == 1.0

    def tell(self, **numbers: float | Tensor) -> None:
        """Print numbers of the stage and keep the last of each."""
        rounded = {k: round(float(v), 4) for k, v in numbers.items()}
        seconds = round(time.monotonic() - self.began, 1)
        self.facts.setdefault(self.stage, {}).update(rounded, seconds=seconds)
        print(f"{seconds:7.1f} s  {self.stage}: {rounded}", flush=True)

    def save(self) -> None:
        """Write the networks in float16, and the facts."""
        shards: list[dict[str, Tensor]] = [{}]
        size = 0
        for name, value in self.model.kept().items():
            half = value.detach().half() if value.is_floating_point() else value
            if size + half.nbytes > SHARD:
                shards, size = [*shards, {}], 0
            shards[-1][name] = half.cpu().contiguous().clone()
            size += half.nbytes
        for number, shard in enumerate(shards):
            with replacing(self.args.out / f"weights-{number}.pt") as part:
                torch.save(shard, part)
        (self.args.out / "facts.json").write_text(
            json.dumps(self.facts, indent=1), encoding="utf-8"
        )
        self.saved = time.monotonic()


def fit(
    run: Run,
    parts: dict[str, nn.Module],
    loss_of: Callable[[int], dict[str, Tensor]],
    lr: float,
    muon: bool = True,
) -> None:
    """Train networks until the stage ends.

    `loss_of(step)` returns losses, of which "loss" is minimised. Matrices between embedding and
    head learn by Muon, unless it is off. Saved weights, and those at the end, are running averages.
    """
    networks = nn.ModuleDict(parts)
    named = {name: p for name, p in networks.named_parameters() if p.requires_grad}
    learnt, inner = list(named.values()), list[nn.Parameter]()
    if muon and multiplies_bfloat16(run.device):  # in which Muon computes
        linear = {id(m.weight) for m in networks.modules() if isinstance(m, nn.Linear)}
        inner = [p for name, p in named.items() if id(p) in linear and not OUTER.search(name)]
    optimizers = optimizers_of(learnt, inner, lr)
    _hasten(optimizers, named)
    average = [p.detach().float().clone() for p in learnt]
    step = 0
    while run.progress < 1.0:
        # The rate follows the clock: a short warm-up, then a cosine.
        rate = min(1.0, (step + 1) / 30) * (0.02 + 0.49 * (1 + math.cos(math.pi * run.progress)))
        for group in (g for o in optimizers for g in o.param_groups):
            group["lr"] = lr * group.get("share", 1.0) * rate
        losses = loss_of(step)
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(
            average, [p.detach().float() for p in learnt], 1 - min(0.99, (step + 1) / (step + 12))
        )
        if step % run.args.log_every == 0:
            run.tell(step=step, **{name: loss.item() for name, loss in losses.items()})
        if time.monotonic() - run.saved > 60:
            now = [p.detach().clone() for p in learnt]
            _put(learnt, average)
            run.save()
            _put(learnt, now)
        step += 1
    _put(learnt, average)
    run.tell(steps=step)


def _put(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    for p, value in zip(parameters, values, strict=True):
        p.data.copy_(value)


def _hasten(optimizers: list[torch.optim.Optimizer], named: dict[str, nn.Parameter]) -> None:
    """Give the parameters of FASTER separate groups."""
    for pattern, factor in FASTER.items():
        fast = {id(p) for name, p in named.items() if re.search(pattern, name)}
        for optimizer in optimizers:
            for group in list(optimizer.param_groups):
                taken = [p for p in group["params"] if id(p) in fast]
                if not taken:
                    continue
                group["params"] = [p for p in group["params"] if id(p) not in fast]
                share = group.get("share", 1.0) * factor
                optimizer.add_param_group({**group, "params": taken, "share": share})
