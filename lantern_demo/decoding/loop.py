"""The decoding loop, `decode`: prefill, then draft, verify and commit until all tokens are drawn.
All methods share it: vanilla is the tree of the root alone.

The same steps run on every device (see `step`). A `Runner` takes them one by one. On a GPU a
`GraphRunner` replays them as captured graphs, without waiting for the host. With the same seed both
give the same tokens, up to rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import switch
from .config import Config
from .drafting import Proposer, RunContext
from .graphs import GraphRunner, Runner, Runners, captures
from .interfaces import Drafter, Target, Verifier
from .results import Step as Step
from .sampling import NO_PROBS, uniforms_of, warp
from .step import Steps
from .timing import Clock
from .verify import RejectionVerifier, SharedNoiseVerifier

Parts = Callable[[Config, int], tuple[Proposer, Verifier]]  # (config, vocabulary) -> a run's parts


@dataclass(frozen=True)
class Decoded:
    """The outcome of a run. A step is one target forward after the prefill."""

    tokens: list[int]  # in raster order
    steps: int
    accepted_lengths: list[int]  # one entry per step, not cut at the image's end
    # tokens per step, without the prefill's and those cut at the end; 0 without steps
    mean_accepted_length: float
    seconds: dict[str, float]  # per part of the clock
    decode_seconds: float
    # the decode seconds in which the thread had no processor; None on a GPU
    waited_seconds: float | None
    tokens_per_second: float
    nodes: int  # nodes of the draft tree, root included
    runner: str  # "plain" or "graphs"
    # why it fell back to plain steps, or from Triton kernels; empty: it did not
    runner_reason: str


def parts_of(config: Config, vocabulary: int) -> tuple[Proposer, Verifier]:
    """Return a run's proposer and verifier."""
    run = RunContext(config.sampling, config.torch_device, vocabulary, config.positions)
    if config.shared:
        shared = SharedNoiseVerifier(config, vocabulary)
        return config.tree.proposer(run._replace(add_noise=shared.add_noise)), shared
    return config.tree.proposer(run), RejectionVerifier(config, vocabulary)


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
    iterator may be closed at any time. Raises ValueError at the call for models that do not fit
    the configuration."""
    drafter = drafter if config.method.needs_drafter else None
    clock = clock or Clock(config.device)
    config.check_models(target.vocab_size, drafter)
    make_run = partial(Run, target, drafter, config, clock, runners, make_parts)
    return _events(make_run, condition, config, clock)


# cuDNN would build a plan for every shape. These take any mask, and a step's numbers do not depend
# on which of them is chosen.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _device_work(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of work on a device: no gradients, and on a GPU that device and
    `ATTENTION`. Never yield inside: the modes would leak into the consumer."""
    if device.type != "cuda":
        return torch.inference_mode()
    stack = ExitStack()
    for mode in (torch.inference_mode(), torch.cuda.device(device), sdpa_kernel(ATTENTION)):
        stack.enter_context(mode)
    return stack


class Run:
    """A run's place on a runner: a new one, or a captured one that `runners` lends. Up to `ahead`
    steps are in flight, so that reading a result is the only wait, once per step."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        config: Config,
        clock: Clock,
        runners: Runners | None,
        make_parts: Parts,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.config = config
        self.proposer, self.verifier = make_parts(config, target.vocab_size)
        self.captured = captures(config.torch_device) and not self.proposer.needs_host_sync
        self.runners = runners if self.captured else None
        if self.runners is None:
            self.runner = self._make()
        else:
            self.runner = self.runners.take(self._key, self._make)
        self.runner.clock = clock
        self.steps = self.runner.steps
        self.steps.config = config  # a lent runner has the previous run's
        # of steps not read yet: whether they draft, and their most tokens
        self.flying: deque[tuple[bool, int]] = deque()
        self.launched = 0
        self.open = True

    def _make(self) -> Runner:
        steps = Steps(self.target, self.drafter, self.config, self.proposer, self.verifier)
        if not self.captured:
            return Runner(steps)
        return GraphRunner(steps, (lambda: False) if self.runners is None else self.runners.clear)

    @property
    def _key(self) -> tuple[object, ...]:
        """Everything that a runner's steps depend on, except for values set in each run. The steps
        read the prefix length from the device."""
        c = self.config
        # ids of objects that a kept runner refers to
        objects = id(self.target), id(self.drafter), id(c.neighbours)
        return (c.torch_device, c.rows, c.positions, c.tree, c.sampling, c.rule, c.shared, *objects)

    def prefill(self, condition: Any) -> int:
        """Read the prompt and draw the first token. Raise ValueError for a condition with another
        number of rows, and FloatingPointError if no token can be drawn."""
        config = self.config
        target = self.target
        steps = self.steps
        verifier = steps.verifier  # graphs hold on to their verifier
        uniforms = uniforms_of(config.seed, config.torch_device, config.num_tokens, steps.draws)
        hidden = target.prefill(condition, steps.cache)
        if hidden.shape[0] != config.rows:
            raise ValueError(f"condition gave {hidden.shape[0]} rows; this run needs {config.rows}")
        verifier.begin(config.seed)
        scores = warp(target.head(hidden[:, -1:]), config.sampling)
        place = torch.zeros(1, dtype=torch.int64, device=config.torch_device)
        root = verifier.sample(scores, place, uniforms[0])
        if not 0 <= int(root) < target.vocab_size:
            raise FloatingPointError(NO_PROBS)
        if config.num_tokens > 1:
            steps.begin(hidden, root, uniforms, condition)
        return int(root)

    def next(self, committed: int) -> Step:
        """Draft, verify and commit a step after `committed` tokens."""
        while len(self.flying) < self.runner.ahead:
            # after all steps in flight
            most = committed + sum(tokens for _, tokens in self.flying)
            upcoming = self.steps.upcoming(most, bool(self.flying))
            if upcoming is None:
                break
            shape, tokens = upcoming
            self.launched += 1
            self.runner.launch(self.launched, shape)
            self.flying.append((shape.drafts, tokens))
        oldest = self.launched - len(self.flying) + 1
        drafts, _ = self.flying.popleft()
        return self.runner.result(oldest, drafts)

    def close(self, sound: bool) -> None:
        """Return the runner to `runners`; steps may be in flight if the consumer stopped early.
        sound: no fault occurred. After a fault no run uses the runner again."""
        if self.open:
            self.open = False
            self.runner.close()
            if sound and self.runners is not None:
                self.runners.give(self._key, self.runner)


def _events(
    make_run: Callable[[], Run], condition: Any, config: Config, clock: Clock
) -> Generator[Step | Decoded, None, None]:
    """Yield the steps and the result of a run."""
    run: Run | None = None
    sound = False
    tokens = list[int]()
    lengths = list[int]()
    try:
        with _device_work(config.torch_device):
            with clock.measure("prefill"):
                run = make_run()
                tokens.append(switch.tried(partial(run.prefill, condition)))
            if run.captured and config.num_tokens > 1:  # so that later runs capture nothing
                run.runner.prepare(run.steps.shapes())
        yield Step(0, list(tokens), 1, 1, clock.decode_seconds, ["target"])
        while len(tokens) < config.num_tokens:
            missing = config.num_tokens - len(tokens)
            with _device_work(config.torch_device):
                step = run.next(len(tokens))
                lengths.append(step.accepted_length)
                tokens.extend(step.tokens[:missing])
                if len(tokens) == config.num_tokens:
                    run.close(True)  # early, so that the last step has all of the run's seconds
            yield replace(
                step,
                index=len(lengths),
                tokens=step.tokens[:missing],
                kinds=step.kinds[:missing],
                committed=len(tokens),
                seconds=clock.decode_seconds,
            )
        sound = True
    except GeneratorExit:
        sound = True  # the consumer stopped; this is no fault
        raise
    finally:
        if run is not None:
            with _device_work(config.torch_device):
                run.close(sound)
    yield _result(tokens, lengths, clock, config.tree.nodes, run.runner)


def _result(
    tokens: list[int], lengths: list[int], clock: Clock, nodes: int, runner: Runner
) -> Decoded:
    """Sum up a run from its tokens and the accepted length of each step."""
    steps = len(lengths)
    seconds = clock.decode_seconds
    return Decoded(
        tokens=tokens,
        steps=steps,
        accepted_lengths=lengths,
        mean_accepted_length=(len(tokens) - 1) / steps if steps else 0.0,
        seconds=dict(clock.seconds),
        decode_seconds=seconds,
        waited_seconds=clock.waited_seconds,
        tokens_per_second=len(tokens) / seconds if seconds > 0 else 0.0,
        nodes=nodes,
        runner=runner.name,
        runner_reason=runner.reason or switch.reason,
    )
