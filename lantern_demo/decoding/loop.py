"""The decoding loop, `decode`: prefill, then draft, verify and commit until all tokens are drawn. All methods share it: vanilla
is the tree of the root alone.

Two engines take the same steps (see `step`). "plain" waits for the host in every step, which suits processors. "fixed" runs
steps of fixed shapes without waiting, on a CUDA device as captured graphs. With the same seed both give the same tokens, up to
rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .config import Config
from .drafting import Proposer, RunContext
from .graphs import Engines, GraphRunner, Runner
from .interfaces import Drafter, Target, Verifier
from .results import Step as Step
from .sampling import NO_PROBS, uniforms_of, warp
from .step import TreeSteps
from .timing import Clock
from .verify import RejectionVerifier, SharedNoiseVerifier


@dataclass(frozen=True)
class Decoded:
    """The outcome of a run. A step is one target forward after the prefill."""

    tokens: list[int]  # in raster order
    steps: int
    accepted_lengths: list[int]  # one entry per step, not cut at the image's end
    mean_accepted_length: float  # tokens per step, without the prefill's and those cut at the end; 0 without steps
    seconds: dict[str, float]  # per part of the clock
    decode_seconds: float
    waited_seconds: float | None  # the decode seconds in which the thread had no processor; None on a GPU
    tokens_per_second: float
    nodes: int  # nodes of the draft tree, root included
    engine: str  # "plain", "fixed" or "graphs"
    engine_reason: str  # why it fell back to a slower engine; empty: it did not


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
    engines: Engines | None = None,
    make_parts: Callable[[Config, int], tuple[Proposer, Verifier]] = parts_of,
) -> Iterator[Step | Decoded]:
    """Decode an image: yield a `Step` per step, and last the `Decoded` result. `clock` may be shared with other parts of a run.
    `engines` keeps runners of fixed shapes for later runs. `make_parts` is `parts_of`, or adds an observer to it. No model is
    called before the first `next`, and the iterator may be closed at any time. Raises ValueError at the call for models that do
    not fit the configuration."""
    drafter = drafter if config.method.needs_drafter else None
    clock = clock or Clock(config.device)
    config.check_models(target.vocab_size, drafter)
    return _events(partial(Run, target, drafter, config, clock, engines, make_parts), condition, config, clock)


# cuDNN would build a plan for every shape. These take any mask, and a step's numbers do not depend on which of them is chosen.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _device_work(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of work on a device: no gradients, and on a GPU that device and `ATTENTION`. Never yield inside: the
    modes would leak into the consumer."""
    if device.type != "cuda":
        return torch.inference_mode()
    stack = ExitStack()
    for mode in (torch.inference_mode(), torch.cuda.device(device), sdpa_kernel(ATTENTION)):
        stack.enter_context(mode)
    return stack


class Run:
    """The steps of one run, on a new runner or, with fixed shapes, on one that `engines` lends. Up to `ahead` steps are in
    flight, so that reading a result is the only wait, once per step."""

    def __init__(
        self, target: Target, drafter: Drafter | None, config: Config, clock: Clock, engines: Engines | None, make_parts: Any
    ) -> None:
        """make_parts: as in `decode`."""
        self.target, self.drafter, self.config = target, drafter, config
        self.proposer, self.verifier = make_parts(config, target.vocab_size)
        self.draws = self.verifier.draws + self.proposer.draws
        cuda = config.torch_device.type == "cuda"
        if config.engine == "fixed" and self.proposer.needs_host_sync:
            raise ValueError(f"engine is 'fixed'; method {config.method.id} reads numbers back in every step: 'plain' or 'auto'")
        self.eager = self.proposer.needs_host_sync or not (config.engine == "fixed" or (config.engine == "auto" and cuda))
        self.engines = None if self.eager else engines
        self.runner = self._make() if self.engines is None else self.engines.take(self._key, self._make)
        self.runner.clock, self.steps = clock, self.runner.steps
        self.steps.config = config  # a lent runner has the previous run's
        self.flying: deque[tuple[bool, int]] = deque()  # of steps not read yet: whether they draft, and their most tokens
        self.launched, self.open = 0, True

    def _make(self) -> Runner:
        config = self.config
        steps = TreeSteps(self.target, self.drafter, config, self.proposer, self.verifier, self.draws, self.eager)
        if self.eager or config.torch_device.type != "cuda":
            return Runner(steps)
        return GraphRunner(steps, (lambda: False) if self.engines is None else self.engines.clear)

    @property
    def _key(self) -> tuple[object, ...]:
        """Everything that a runner's steps depend on, except for values set in each run. The steps read the prefix length from
        the device."""
        c = self.config
        shape = (c.torch_device, c.rows, c.positions, c.tree, c.sampling, c.rule, c.shared)
        return (*shape, id(self.target), id(self.drafter), id(c.neighbours))  # ids of objects that a kept runner refers to

    def prefill(self, condition: Any) -> int:
        """Read the prompt and draw the first token. Raise ValueError for a condition with another number of rows, and
        FloatingPointError if no token can be drawn."""
        config, target, verifier = self.config, self.target, self.steps.verifier  # graphs hold on to their verifier
        uniforms = uniforms_of(config.seed, config.torch_device, config.num_tokens, self.draws)
        hidden = target.prefill(condition, self.steps.caches[0])
        if hidden.shape[0] != config.rows:
            raise ValueError(f"condition gave {hidden.shape[0]} rows; this run needs {config.rows}")
        verifier.begin(config.seed)
        scores = warp(target.head(hidden[:, -1:]), config.sampling)
        root = verifier.sample(scores, torch.zeros(1, dtype=torch.int64, device=config.torch_device), uniforms[0])
        if not 0 <= int(root) < target.vocab_size:
            raise FloatingPointError(NO_PROBS)
        if config.num_tokens > 1:
            self.steps.begin(hidden, root, uniforms, condition)
        return int(root)

    def next(self, committed: int) -> Step:
        """Draft, verify and commit a step after `committed` tokens."""
        while len(self.flying) < self.runner.ahead:
            most = committed + sum(tokens for _, tokens in self.flying)  # after all steps in flight
            upcoming = self.steps.upcoming(most, bool(self.flying))
            if upcoming is None:
                break
            slots, drafts, tokens = upcoming
            self.launched += 1
            self.runner.launch(self.launched, slots, drafts)
            self.flying.append((drafts, tokens))
        return self.runner.result(self.launched - len(self.flying) + 1, self.flying.popleft()[0])

    def close(self, whole: bool) -> None:
        """Return the runner to `engines`; steps may be in flight if the consumer stopped early. whole: no fault occurred. After
        a fault no run reuses the runner."""
        if self.open:
            self.open = False
            self.runner.close()
            if whole and self.engines is not None:
                self.engines.give(self._key, self.runner)


def _events(make_run: Callable[[], Run], condition: Any, config: Config, clock: Clock) -> Iterator[Step | Decoded]:
    """Yield the steps and the result of a run."""
    run: Run | None = None
    whole, tokens, lengths = False, list[int](), list[int]()
    try:
        with _device_work(config.torch_device):
            with clock.measure("prefill"):
                run = make_run()
                tokens.append(run.prefill(condition))
            if run.engines is not None and config.num_tokens > 1:  # so that later runs capture nothing
                run.runner.prepare(run.steps.shapes())
        yield Step(0, list(tokens), 1, 1, clock.decode_seconds, ["target"])
        while len(tokens) < config.num_tokens:
            with _device_work(config.torch_device):
                step = run.next(len(tokens))
                missing = config.num_tokens - len(tokens)
                lengths.append(step.accepted_length)
                tokens.extend(step.tokens[:missing])
                if len(tokens) == config.num_tokens:
                    run.close(True)  # early, so that the last step has all of the run's seconds
            counted = replace(step, index=len(lengths), committed=len(tokens), seconds=clock.decode_seconds)
            yield replace(counted, tokens=step.tokens[:missing], kinds=step.kinds[:missing])
        whole = True
    except GeneratorExit:
        whole = True  # the consumer stopped; this is no fault
        raise
    finally:
        if run is not None:
            with _device_work(config.torch_device):
                run.close(whole)
    yield _result(tokens, lengths, clock, config.tree.nodes, run.runner)


def _result(tokens: list[int], lengths: list[int], clock: Clock, nodes: int, runner: Runner) -> Decoded:
    """Sum up a run from its tokens and the accepted length of each step."""
    steps, seconds = len(lengths), clock.decode_seconds
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
        engine=runner.name,
        engine_reason=runner.reason,
    )
