"""The decoding loop: prefill, then draft, verify and commit until all tokens are there. One for every method; vanilla is the tree
of the root alone, and rows that are drawn side by side have steps of their own (see `zipar`).

There are two engines, of one step (see `step`). "plain" waits for the host in every step: it suits processors. "fixed" runs steps
of fixed shapes without waiting, on a CUDA device as captured graphs. With the same seed both give the same tokens, up to
rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .config import Config
from .graphs import Engines, GraphRunner, Runner, Steps
from .interfaces import Drafter, Target
from .sampling import NO_PROBS, uniforms_of, warp
from .step import TreeSteps
from .timing import Clock
from .trees import Source
from .verify import RejectionVerifier, SharedNoiseVerifier, Verifier
from .verify import Step as Step
from .zipar import RowSteps, Wavefront


@dataclass(frozen=True)
class Decoded:
    """The outcome of a run. A step is one target forward after the prefill."""

    tokens: list[int]  # in raster order
    steps: int
    accepted_lengths: list[int]  # one uncut entry per step
    mean_accepted_length: float  # tokens per step, without the prefill's and those past the last one; 0 without steps
    seconds: dict[str, float]  # per part of the clock
    decode_seconds: float
    waited_seconds: float | None  # of decode_seconds, those without a processor; None on a GPU
    tokens_per_second: float
    nodes: int  # of the draft tree, root included
    engine: str  # "plain", "fixed" or "graphs"
    engine_reason: str  # why it is not what it could be, if so


def parts_of(config: Config, vocabulary: int) -> tuple[Source, Verifier]:
    """What fills a run's draft trees, and what verifies them."""
    if config.shared:
        shared = SharedNoiseVerifier(config, vocabulary)
        return config.tree.source(config, vocabulary, shared.add_noise), shared
    return config.tree.source(config, vocabulary, None), RejectionVerifier(config, vocabulary)


def decode(
    target: Target,
    drafter: Drafter | None,
    condition: Any,
    config: Config,
    clock: Clock | None = None,
    engines: Engines | None = None,
    make_parts: Callable[[Config, int], tuple[Source, Verifier]] = parts_of,
) -> Iterator[Step | Decoded]:
    """Decode; yields a `Step` per step and at last the `Decoded` result. `clock` may be shared with other parts of a run.
    `engines` keeps what the fixed engine has set up for later runs. `make_parts` is `parts_of`, or adds an observer to it.
    The models are not called before the first `next`; closing the iterator early is allowed at any time. Raises ValueError at
    the call for models that do not go with the configuration."""
    drafter = drafter if config.method.needs_drafter else None
    clock = clock or Clock(config.device)
    config.check_models(target.vocab_size, drafter)
    if config.engine == "fixed" and config.tree.reads_back:
        raise ValueError(f"engine is 'fixed'; method {config.method.id} reads numbers back in every step: 'plain' or 'auto'")
    return _events(target, drafter, condition, config, clock, engines, make_parts)


# cuDNN would build a plan for every shape. These take any mask, and a step's numbers do not hang on which of several is chosen.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _device_work(device: torch.device) -> AbstractContextManager[Any]:
    """Work on a device: without gradients, on a GPU with that one current and one kind of attention. Never yield inside: the
    modes would leak into the consumer."""
    if device.type != "cuda":
        return torch.inference_mode()
    stack = ExitStack()
    for mode in (torch.inference_mode(), torch.cuda.device(device), sdpa_kernel(ATTENTION)):
        stack.enter_context(mode)
    return stack


class Run:
    """The steps of one run, on a runner of its own or, where steps have fixed shapes, on one that `engines` lends. Up to `ahead`
    steps are in flight, so that reading a result is the only wait, once per step."""

    def __init__(
        self, target: Target, drafter: Drafter | None, config: Config, clock: Clock, engines: Engines | None, make_parts: Any
    ) -> None:
        """make_parts is that of `decode`."""
        self.target, self.drafter, self.config = target, drafter, config
        self.source, self.verifier = make_parts(config, target.vocab_size)
        self.draws = self.verifier.draws + self.source.draws
        cuda = config.torch_device.type == "cuda"
        self.exact = config.tree.reads_back or not (config.engine == "fixed" or (config.engine == "auto" and cuda))
        self.engines = None if self.exact else engines
        self.runner = self._make() if self.engines is None else self.engines.take(self._key, self._make)
        self.runner.clock, self.steps = clock, self.runner.steps
        self.steps.config = config  # of which a lent one knows the run before
        self.flying: deque[tuple[bool, int]] = deque()  # of steps that are not read: whether they draft, and tokens at most
        self.launched, self.open = 0, True

    def _make(self) -> Runner:
        config = self.config
        if isinstance(config.tree, Wavefront):
            steps: Steps = RowSteps(self.target, config, self.verifier, self.draws, self.exact)
        else:
            steps = TreeSteps(self.target, self.drafter, config, self.source, self.verifier, self.draws, self.exact)
        if self.exact or config.torch_device.type != "cuda":
            return Runner(steps)
        return GraphRunner(steps, (lambda: False) if self.engines is None else self.engines.clear)

    @property
    def _key(self) -> tuple[object, ...]:
        """All that a runner's steps depend on, but for what a run fills in. How long the prefix is they read from the device."""
        c = self.config
        shape = (c.torch_device, c.rows, c.positions, c.row_length, c.tree, c.sampling, c.rule, c.shared)
        return (*shape, id(self.target), id(self.drafter), id(c.neighbours))  # of things that a kept runner holds on to

    def prefill(self, condition: Any) -> int:
        """Read the prompt and draw the first token. Raises ValueError for a condition of another number of rows, and
        FloatingPointError where no token can be drawn."""
        config, target, verifier = self.config, self.target, self.steps.verifier  # graphs hold on to a verifier
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
        """Draft, verify and commit a step, with so many tokens before it."""
        while len(self.flying) < self.runner.ahead:
            most = committed + sum(tokens for _, tokens in self.flying)  # once all that is in flight has come in
            upcoming = self.steps.upcoming(most, bool(self.flying))
            if upcoming is None:
                break
            slots, drafts, tokens = upcoming
            self.launched += 1
            self.runner.launch(self.launched, slots, drafts)
            self.flying.append((drafts, tokens))
        return self.runner.result(self.launched - len(self.flying) + 1, self.flying.popleft()[0])

    def close(self, whole: bool) -> None:
        """Hand the runner back; steps may be in flight when the consumer gave up. After a fault nobody shall have it again.
        whole: without one."""
        if self.open:
            self.open = False
            self.runner.close()
            if whole and self.engines is not None:
                self.engines.give(self._key, self.runner)


def _events(
    target: Target,
    drafter: Drafter | None,
    condition: Any,
    config: Config,
    clock: Clock,
    engines: Engines | None,
    make_parts: Callable[[Config, int], tuple[Source, Verifier]],
) -> Iterator[Step | Decoded]:
    """The steps and the result of a run."""
    run: Run | None = None
    whole, tokens, lengths, places = False, list[int](), list[int](), [0]
    try:
        with _device_work(config.torch_device):
            with clock.measure("prefill"):
                run = Run(target, drafter, config, clock, engines, make_parts)
                tokens.append(run.prefill(condition))
            if run.engines is not None and config.num_tokens > 1:  # the next run is to find everything in place
                run.runner.prepare(run.steps.shapes())
        yield Step(0, list(tokens), 1, 1, clock.decode_seconds, ["target"], places=[0])
        while len(tokens) < config.num_tokens:
            with _device_work(config.torch_device):
                step = run.next(len(tokens))
                before, missing = len(tokens), config.num_tokens - len(tokens)
                lengths.append(step.accepted_length)
                tokens.extend(step.tokens[:missing])
                places.extend(step.places or range(before, len(tokens)))
                if len(tokens) == config.num_tokens:
                    run.close(True)  # so that the last step has all of the run's seconds, however late the result is asked for
            counted = replace(step, index=len(lengths), committed=len(tokens), seconds=clock.decode_seconds)
            yield replace(counted, tokens=step.tokens[:missing], kinds=step.kinds[:missing], places=places[before:])
        whole = True
    except GeneratorExit:
        whole = True  # given up by the consumer, not by a fault
        raise
    finally:
        if run is not None:
            with _device_work(config.torch_device):
                run.close(whole)
    steps, seconds = len(lengths), clock.decode_seconds
    yield Decoded(
        tokens=[token for _, token in sorted(zip(places, tokens, strict=True))],
        steps=steps,
        accepted_lengths=lengths,
        mean_accepted_length=(len(tokens) - 1) / steps if steps else 0.0,
        seconds=dict(clock.seconds),
        decode_seconds=seconds,
        waited_seconds=clock.waited_seconds,
        tokens_per_second=len(tokens) / seconds if seconds > 0 else 0.0,
        nodes=config.nodes,
        engine=run.runner.name,
        engine_reason=run.runner.reason,
    )
