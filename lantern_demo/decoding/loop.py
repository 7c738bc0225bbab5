"""The decoding loop, `decode`: prefill, then draft, verify and commit until all tokens are drawn.
All methods share it: vanilla is the tree of the root alone. Tokens that a run keeps of another
picture are read with the prompt.

The same steps run on every device (see `step`). A `Runner` takes them one by one. On a GPU a
`GraphRunner` replays them as captured graphs, without waiting for the host. With the same seed both
give the same tokens, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .config import Config
from .drafting import Proposer, RunContext
from .graphs import GraphRunner, Runner, Runners, captures
from .interfaces import Drafter, Target
from .ops import KernelError
from .results import Step as Step
from .step import Steps
from .timing import Clock
from .verify import RejectionVerifier, SharedNoiseVerifier, Verifier

Parts = Callable[[Config, int], tuple[Proposer, Verifier]]  # (config, vocabulary) -> a run's parts


# cuDNN would build a plan for every shape. These take any mask, and a step's numbers do not depend
# on which of them is chosen.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class Decoded:
    """The outcome of a run. A step is one target forward after the prefill."""

    tokens: list[int]  # in raster order
    accepted_lengths: list[int]  # one entry per step, not cut at the image's end
    seconds: dict[str, float]  # per part of the clock
    decode_seconds: float
    # the decode seconds in which the thread had no processor; None on a GPU
    waited_seconds: float | None
    nodes: int  # nodes of the draft tree, root included
    runner: str  # "plain" or "graphs"
    # why a GPU took plain steps, or none of the Triton kernels that it could run; empty: neither
    runner_reason: str
    kept: int = 0  # the first tokens, which the run did not draw

    @property
    def steps(self) -> int:
        return len(self.accepted_lengths)

    @property
    def drawn(self) -> int:
        """How many of the tokens the run drew."""
        return len(self.tokens) - self.kept

    @property
    def mean_accepted_length(self) -> float:
        """Drawn tokens per step, without the prefill's and those cut at the end; 0 without
        steps."""
        return (self.drawn - 1) / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.drawn / self.decode_seconds if self.decode_seconds > 0 else 0.0


def parts_of(config: Config, vocabulary: int) -> tuple[Proposer, Verifier]:
    """Return a run's proposer and verifier."""
    device, positions = config.torch_device, config.positions
    run = RunContext(config.sampling, device, vocabulary, positions, ops=config.ops)
    if config.shared:
        shared = SharedNoiseVerifier(config, vocabulary)
        return config.drafts.proposer(run._replace(add_noise=shared.add_noise)), shared
    return config.drafts.proposer(run), RejectionVerifier(config, vocabulary)


def key_of(
    target: Target, drafter: Drafter | None, config: Config, make_parts: Parts = parts_of
) -> Hashable:
    """Return everything that a runner's steps depend on, except for values set in each run."""
    c, drafter = config, drafter if config.drafts.needs_drafter else None
    objects = (id(target), id(drafter), id(c.neighbours))  # a runner keeps them
    # the reason: captured kernels would stay after an error that refused all others
    here = c.torch_device, c.ops, c.ops.reason, c.positions
    return *here, c.drafts, c.sampling, c.rule, c.shared, make_parts, *objects


def decode(
    target: Target,
    drafter: Drafter | None,
    condition: Any,
    config: Config,
    clock: Clock | None = None,
    runners: Runners | None = None,
    make_parts: Parts = parts_of,
) -> Generator[Step | Decoded, None, None]:
    """Decode an image: yield a `Step` per step, and last the `Decoded` result. `clock` may be
    shared with other parts of a run. `runners` keeps captured runners for later runs. `make_parts`
    is `parts_of`, or adds an observer to it. No model is called before the first `next`, and the
    iterator may be closed at any time. After an error of a kernel the run restarts with PyTorch's
    operations, with step 0. Raises ValueError at the call for models that do not fit the
    configuration."""
    drafter = drafter if config.drafts.needs_drafter else None
    config.check_models(target.vocab_size, drafter)
    runners = Runners(most=0) if runners is None else runners

    def make() -> Runner:
        proposer, verifier = make_parts(config, target.vocab_size)
        steps = Steps(target, drafter, config, proposer, verifier)
        if not captures(config.torch_device) or proposer.needs_host_sync:
            return Runner(steps)
        return GraphRunner(steps, runners.clear)

    key = partial(key_of, target, drafter, config, make_parts)
    return _events(runners, key, make, condition, config, clock or Clock(config.device))


def _events(
    runners: Runners,
    find_key: Callable[[], Hashable],
    make: Callable[[], Runner],
    condition: Any,
    config: Config,
    clock: Clock,
) -> Generator[Step | Decoded, None, None]:
    """Yield the steps and the result of a run on a runner from `runners`, or on a new one."""
    runner: Runner | None = None
    sound = False  # no fault occurred; after a fault no run uses the runner again
    tokens = list(config.keep)
    lengths = list[int]()
    try:
        with device_work(config.torch_device):
            # A GPU keeps runners: the few runs that make one would otherwise seem slower.
            with clock.measure("capture" if captures(config.torch_device) else "prefill"):
                key = find_key()  # now: an error may have refused kernels since the call
                runner = runners.take(key, make)
            with clock.measure("prefill"):
                tokens.append(runner.begin(config, clock, condition))
            if len(tokens) < config.num_tokens:  # so that later runs capture nothing
                runner.prepare()
        yield Step(0, tokens[-1:], 1, len(tokens), clock.decode_seconds, ["target"])
        while len(tokens) < config.num_tokens:
            with device_work(config.torch_device):
                step = runner.next(len(tokens))
            lengths.append(step.accepted_length)
            tokens.extend(step.tokens)
            yield step
        sound = True
    except GeneratorExit:
        sound = True  # the consumer stopped; this is no fault
        raise
    except KernelError as error:
        config.ops.refuse(error)
    finally:
        if runner is not None:
            with device_work(config.torch_device):
                runner.close()
            if sound:
                runners.give(key, runner)
    if runner is None or not sound:  # a kernel failed
        runner = None  # the next one needs its memory
        clock.restart()
        yield from _events(runners, find_key, make, condition, config, clock)
        return
    yield Decoded(
        tokens,
        lengths,
        dict(clock.seconds),
        clock.decode_seconds,
        clock.waited_seconds,
        config.drafts.nodes,
        runner.name,
        runner.reason or config.ops.reason,
        len(config.keep),
    )


def device_work(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of work on a device: no gradients, and on a GPU that device and
    `ATTENTION`. Never yield inside: the modes would leak into the consumer."""
    if device.type != "cuda":
        return torch.inference_mode()
    stack = ExitStack()
    for mode in (torch.inference_mode(), torch.cuda.device(device), sdpa_kernel(ATTENTION)):
        stack.enter_context(mode)
    return stack
