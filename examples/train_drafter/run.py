"""One training run: steps, learning rate, checkpoints, resume and a log for plots; on one process
or several.

Data is a pure function of the step and the rank, so a stopped and resumed run reads the same data.
Under `torchrun` every process draws its own batches and gradients are averaged.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from examples.ranks import place_of
from lantern_demo.disk_cache import replacing
from lantern_demo.paths import user_path

AVERAGE = 0.998  # decay of the running average of the weights, which is validated and saved
MUON_SHARE = 3.0  # Muon's learning rate over AdamW's; small networks tolerate larger steps


@dataclass
class Options:
    """The options of a run, from the command line."""

    out: Path
    steps: int
    batch: int
    lr: float
    warmup: int
    seed: int
    save_every: int
    validate_every: int
    device: torch.device
    compile: bool
    muon: bool
    # of training; the learning rate then falls by the clock, and the run ends with it
    minutes: float | None = None
    rank: int = 0
    world: int = 1

    def batch_seed(self, step: int) -> int:
        """Return the seed of this process's batch of a step; each is used once."""
        return (self.seed * 1_000_003 + step) * self.world + self.rank + 1


def parser(description: str, **defaults: object) -> argparse.ArgumentParser:
    """Return the common command line; `defaults` are the trainer's own."""
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument(
        "--out",
        type=user_path,
        required=True,
        help="folder of checkpoints and log; a run found there is resumed",
    )
    p.add_argument("--steps", type=int, help="optimizer steps in all")
    p.add_argument(
        "--minutes",
        type=float,
        help="end after so much training, all starts together, if --steps have not ended it",
    )
    p.add_argument("--batch", type=int, help="examples a step and process")
    p.add_argument("--lr", type=float, help="peak learning rate")
    p.add_argument("--warmup", type=int, default=200, help="steps of linear warm-up")
    p.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    p.add_argument("--save-every", type=int, default=250, help="steps between checkpoints")
    p.add_argument("--validate-every", type=int, default=500, help="steps between validations")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile the target's pass (needs a C++ compiler on a CPU)",
    )
    p.add_argument(
        "--muon",
        action="store_true",
        help="train the linear layers with Muon, not AdamW",
    )
    p.set_defaults(**defaults)
    return p


def options(args: argparse.Namespace) -> Options:
    """Return options from the parsed command line.

    Join the process group when started by torchrun.
    """
    if args.muon and not hasattr(torch.optim, "Muon"):
        raise SystemExit(f"--muon needs PyTorch 2.9 or newer; this is {torch.__version__}")
    try:
        place = place_of(args.device)
    except ValueError as error:
        raise SystemExit(f"--{error}") from None
    if args.minutes is not None and (place.world > 1 or not args.minutes > 0):
        raise SystemExit(
            "--minutes must be above 0 and is for one process, whose clock is its own; got "
            f"{args.minutes:g} in {place.world}"
        )
    if place.world > 1:
        dist.init_process_group("nccl" if place.device.type == "cuda" else "gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    given = {name: getattr(args, name) for name in Options.__dataclass_fields__ if name in args}
    return Options(**given | place._asdict())


def train(
    model: nn.Module,
    opts: Options,
    batch_loss: Callable[[int], tuple[Tensor, dict[str, float]]],
    validate: Callable[[], dict[str, float]],
) -> None:
    """Train `model` in place; it ends with the averaged weights.

    `batch_loss(step)` draws the batch of a step and returns its scalar loss and numbers for the
    log; `validate()` is called while the model has the averaged weights. Writes log.jsonl and
    last.pt to opts.out; resumes from an existing last.pt.
    """
    run = _Run(model, opts)
    model.train()
    bar = tqdm(
        range(run.first, opts.steps),
        initial=run.first,
        total=opts.steps,
        disable=opts.rank > 0,
        mininterval=5,
    )
    for step in bar:
        minutes = run.seconds / 60
        rate = learning_rate(step, opts, minutes)
        loss, numbers = batch_loss(step)
        loss.backward()
        run.step(step, rate)
        done = step + 1
        ends = done == opts.steps or (opts.minutes is not None and minutes >= opts.minutes)
        if done % 20 == 0:
            run.write(done, {"loss": loss.item(), "lr": rate, **numbers})
            bar.set_postfix(loss=f"{loss.item():.4f}")
        if done % opts.validate_every == 0 or ends:
            run.write(done, run.with_average(validate))
        if done % opts.save_every == 0 or ends:
            run.save(done)
        if ends:
            break
    model.load_state_dict(run.average)
    model.eval()


class _Run:
    """A model in training: its optimizers, the running average of its weights, its checkpoint and
    its log.
    """

    def __init__(self, model: nn.Module, opts: Options) -> None:
        self.model, self.opts = model, opts
        self.learnt = [p for p in model.parameters() if p.requires_grad]
        linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear) and opts.muon]
        inner = [weight for weight in linear if weight.requires_grad]
        self.optimizers = optimizers_of(self.learnt, inner, opts.lr, decay_vectors=False)
        self.average = {k: v.detach().float().clone() for k, v in model.state_dict().items()}
        self.last, self.first, self._spent = opts.out / "last.pt", 0, 0.0
        if self.last.exists():
            saved = torch.load(self.last, map_location=opts.device, weights_only=True)
            model.load_state_dict(saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.average = saved["average"]
            self.first, self._spent = saved["step"], saved["seconds"]
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of training, all starts together."""
        return self._spent + time.perf_counter() - self._began

    def step(self, step: int, rate: float) -> None:
        """Take an optimizer step, unless gradients are not finite, and update the average."""
        for group in (g for o in self.optimizers for g in o.param_groups):
            group["lr"] = rate * group.get("share", 1.0)
        average_gradients(self.learnt, self.opts.world)
        norm = nn.utils.clip_grad_norm_(self.learnt, 1.0)
        for optimizer in self.optimizers:
            if torch.isfinite(norm):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # Early on the average must follow quickly, so that it forgets the random start.
        decay = min(AVERAGE, (step + 1) / (step + 20))
        for name, value in self.model.state_dict().items():
            self.average[name].lerp_(value.detach().float(), 1 - decay)

    def with_average(self, call: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Call a function while the model has the averaged weights, and return its result."""
        kept = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        self.model.eval()
        try:
            with torch.no_grad():
                return call()
        finally:
            self.model.load_state_dict(kept)
            self.model.train()

    def write(self, step: int, numbers: dict[str, float]) -> None:
        if self.opts.rank == 0:
            rounded = {name: round(value, 5) for name, value in numbers.items()}
            line = {"step": step, "seconds": round(self.seconds, 1), **rounded}
            with (self.opts.out / "log.jsonl").open("a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")

    def save(self, step: int) -> None:
        if self.opts.rank == 0:
            state = {
                "model": self.model.state_dict(),
                "optimizers": [o.state_dict() for o in self.optimizers],
                "average": self.average,
                "step": step,
                "seconds": self.seconds,
            }
            # a run killed while it saves keeps the previous checkpoint
            with replacing(self.last) as part:
                torch.save(state, part)


def optimizers_of(
    learnt: list[nn.Parameter], inner: list[nn.Parameter], lr: float, decay_vectors: bool = True
) -> list[torch.optim.Optimizer]:
    """Return AdamW for the weights `learnt` but `inner`, and Muon for `inner` if there are any.

    Muon's step is scaled to the usual size of AdamW's (arXiv 2502.16982, section 2.2). The item
    "share" of its group is its learning rate over AdamW's.
    """
    taken = {id(p) for p in inner}
    rest = [p for p in learnt if id(p) not in taken]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.dim() > 1], "weight_decay": 0.02},
            {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.02 * decay_vectors},
        ],
        lr=lr,
        betas=(0.9, 0.98),
    )
    if not inner:
        return [adamw]
    groups, decay = [{"params": inner, "share": MUON_SHARE}], 0.02 / MUON_SHARE
    muon = torch.optim.Muon(groups, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [adamw, muon]


def learning_rate(step: int, opts: Options, minutes: float = 0.0) -> float:
    """Return the learning rate: linear warm-up, then a cosine down to a fiftieth of the peak, over
    the steps or, if they end sooner, the minutes.
    """
    if step < opts.warmup:
        return opts.lr * (step + 1) / opts.warmup
    progress = (step - opts.warmup) / max(1, opts.steps - opts.warmup)
    if opts.minutes is not None:
        progress = max(progress, minutes / opts.minutes)
    return opts.lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies in bfloat16 faster than in float32."""
    return device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def cast(device: torch.device) -> torch.autocast:
    """Return the number format of training."""
    return torch.autocast(device.type, torch.bfloat16, enabled=multiplies_bfloat16(device))


def average_gradients(parameters: list[nn.Parameter], world: int) -> None:
    """Average gradients over the processes of a torchrun; do nothing for one process."""
    if world == 1:
        return
    for p in parameters:
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world
