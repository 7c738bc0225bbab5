"""The decoding loop: prefill, then draft, verify, accept and commit until all tokens are there. One for every method; vanilla is the
tree of the root alone.

There are two engines. "plain" waits for the host in every step: it suits CPUs and is the reference. "fixed" runs steps of fixed
shapes without waiting, on a CUDA device as captured graphs. With the same seed both give the same tokens, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .config import Config
from .drafting import source_of
from .engines.kept import Engines, FixedRun
from .engines.plain import Plain
from .protocols import Drafter, FixedDrafter, FixedTarget, Target, Watcher
from .sampling import NO_LAW, Uniforms, draw, guide, probabilities
from .timing import Clock
from .verify import Judged, Outcome

AcceptKind = Literal["exact", "relaxed", "target"]


@dataclass(frozen=True)
class Step:
    """What one step committed. Step 0 is the prefill, whose token the target draws alone; it has no tree.

    A step's last token is the target's own ("target": the bonus token), those before were drafted ("exact",
    or "relaxed" when only the relaxation accepted them). At the image's end `tokens` and `kinds` are cut,
    while `accepted_length` and `path` are not.
    """

    index: int
    tokens: list[int]  # newly committed tokens
    accepted_length: int  # accepted drafts and the bonus token
    committed: int  # tokens so far
    seconds: float  # decode seconds so far
    kinds: list[AcceptKind] = field(default_factory=list)  # one per token
    tree_tokens: list[int] = field(default_factory=list)  # the draft tree, root first
    parents: list[int] = field(default_factory=list)  # parent of each tree node, the root's is 0
    path: list[int] = field(default_factory=list)  # accepted nodes, root first
    judged: list[Judged] = field(default_factory=list)  # the drafts that were tried; only the plain engine keeps them


@dataclass(frozen=True)
class Decoded:
    """The outcome of a run. A step is one target forward after the prefill.

    `mean_accepted_length` is tokens committed per step, the bonus tokens counted, the prefill's token and
    overshoot past the last token not (0 without steps). `accepted_lengths` has one uncut entry per step.
    `nodes` is the size of the draft tree, root included.
    """

    tokens: list[int]
    steps: int
    accepted_lengths: list[int]
    mean_accepted_length: float
    seconds: dict[str, float]  # per part of the clock
    decode_seconds: float
    waited_seconds: float | None  # of decode_seconds, those without a processor; None on a GPU
    tokens_per_second: float
    nodes: int
    engine: str  # "plain", "fixed" or "graphs"
    engine_reason: str  # why it is not what it could be, if so


def decode(
    target: Target, drafter: Drafter | None, condition: Any, config: Config,
    clock: Clock | None = None, engines: Engines | None = None, watcher: Watcher | None = None,
) -> Iterator[Step | Decoded]:  # fmt: skip
    """Decode; yields a `Step` per step and at last the `Decoded` result.

    `clock` may be shared with other parts of a run. `engines` keeps what the fixed engine has set up for later runs. `watcher` looks at
    the steps. The models are not called before the first `next`; closing the iterator early is allowed at any time. Raises ValueError at the call for models
    that do not go with the configuration.
    """
    drafter = drafter if config.method.needs_drafter else None
    config.check_models(target.vocab_size, drafter)
    return _Run(target, drafter, condition, config, clock or Clock(config.device), engines, watcher).events()


def _on_fixed(target: Target, drafter: Drafter | None, config: Config) -> bool:
    """Whether the fixed engine runs. Raises ValueError where it is asked for and the models lack what it needs."""
    able = isinstance(target, FixedTarget) and (drafter is None or isinstance(drafter, FixedDrafter))
    if config.engine == "fixed" and not able:
        raise ValueError("engine is 'fixed'; target and drafter must implement FixedTarget and FixedDrafter")
    return able and (config.engine == "fixed" or (config.engine == "auto" and config.place.type == "cuda"))


Given = ParamSpec("Given")
Found = TypeVar("Found")
# cuDNN would build a plan for every shape. These take any mask, and a step's numbers do not hang on which of several is chosen.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _device_work(part: Callable[Concatenate[_Run, Given], Found]) -> Callable[Concatenate[_Run, Given], Found]:
    """A method of a run as work on its device: without gradients, on a GPU with that one current and one kind of attention. A mode
    that is entered around a yield would leak into the consumer."""

    @wraps(part)
    @torch.inference_mode()
    def work(run: _Run, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        if run.device.type != "cuda":
            return part(run, *args, **kwargs)
        with torch.cuda.device(run.device), sdpa_kernel(ATTENTION):
            return part(run, *args, **kwargs)

    return work


class _Run:
    """The state of one run."""

    def __init__(
        self, target: Target, drafter: Drafter | None, condition: Any, config: Config, clock: Clock, engines: Engines | None,
        watcher: Watcher | None,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.condition, self.config, self.clock = target, drafter, condition, config, clock
        self.device, self.engines, self.fixed = config.place, engines, _on_fixed(target, drafter, config)
        self.watcher = watcher
        self.engine: Plain | FixedRun | None = None
        self.tokens: list[int] = []
        self.accepted_lengths: list[int] = []

    def events(self) -> Iterator[Step | Decoded]:
        whole = False
        try:
            self._prefill()
            yield Step(0, list(self.tokens), 1, 1, self.clock.decode_seconds, ["target"])
            while len(self.tokens) < self.config.num_tokens:
                yield self._step(self._next())
            whole = True
        except GeneratorExit:
            whole = True  # given up by the consumer, not by a fault
            raise
        finally:
            self._close(whole)
        yield self._decoded()

    @_device_work
    def _prefill(self) -> None:
        """Prefix, then image token 0."""
        config, sampling = self.config, self.config.sampling
        source = source_of(config.tree, sampling, self.device)
        uniforms = Uniforms(config.seed, self.device, config.num_tokens, config.tree.nodes, config.tree.width, source.draws)
        with self.clock.measure("prefill"):
            run: Any = partial(FixedRun, engines=self.engines) if self.fixed else Plain
            self.engine = run(self.target, self.drafter, self.condition, config, source, uniforms, self.clock, self.watcher)
            hidden = self.target.prefill(self.condition, self.engine.cache)
            if hidden.shape[0] != config.rows:
                raise ValueError(f"condition gave {hidden.shape[0]} rows; this run needs {config.rows}")
            p = probabilities(guide(self.target.head(hidden[:, -1:]), sampling.cfg_scale), sampling)
            if not bool(p.sum() > 0):  # the one host read of the prefill that is not a token
                raise FloatingPointError(NO_LAW)
            root = p.argmax(-1) if sampling.greedy else draw(p, uniforms.rows[0, :1])
            self.tokens.append(int(root))
        if config.num_tokens > 1:
            self.engine.begin(hidden, root)

    @_device_work
    def _next(self) -> Outcome:
        assert self.engine is not None
        return self.engine.next(len(self.tokens))

    def _step(self, outcome: Outcome) -> Step:
        """Take a step's tokens over."""
        before = len(self.tokens)
        self.accepted_lengths.append(len(outcome.tokens))
        self.tokens.extend(outcome.tokens[: self.config.num_tokens - before])
        kinds: list[AcceptKind] = [*("relaxed" if loose else "exact" for loose in outcome.relaxed), "target"]
        committed = len(self.tokens)
        if committed == self.config.num_tokens:
            self._close(True)  # so that the last step has all of the run's seconds, however late the result is asked for
        return Step(
            len(self.accepted_lengths), self.tokens[before:], len(outcome.tokens), committed, self.clock.decode_seconds,
            kinds[: committed - before], outcome.tree_tokens, outcome.tree_parents, outcome.path, list(outcome.judged),
        )  # fmt: skip

    @_device_work
    def _close(self, whole: bool) -> None:
        if self.engine is not None:
            self.engine.close(whole)

    def _decoded(self) -> Decoded:
        assert self.engine is not None
        steps, seconds = len(self.accepted_lengths), self.clock.decode_seconds
        return Decoded(
            tokens=self.tokens, steps=steps, accepted_lengths=self.accepted_lengths,
            mean_accepted_length=(len(self.tokens) - 1) / steps if steps else 0.0,
            seconds=dict(self.clock.seconds), decode_seconds=seconds, waited_seconds=self.clock.waited_seconds,
            tokens_per_second=len(self.tokens) / seconds if seconds > 0 else 0.0,
            nodes=self.config.tree.nodes, engine=self.engine.name, engine_reason=self.engine.reason,
        )  # fmt: skip
