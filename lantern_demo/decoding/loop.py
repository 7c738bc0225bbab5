"""The decoding loop: prefill, then draft, verify, accept and commit until all tokens are there. One for every
method; vanilla is the tree of the root alone.

There are two engines. "plain" waits for the host in every step and visits only the nodes that it needs: it suits CPUs and is
the reference. "fixed" runs steps of fixed shapes without waiting (`fixed`, `ahead`), on a CUDA device as captured graphs
(`graphs`). With the same seed both give the same tokens, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .acceptance import Rule
from .ahead import Ahead
from .cache import KVCache
from .distortion import Distortion, RootSample, measure
from .drafting import Draft, bare_draft, dynamic_draft, static_draft
from .fixed import Fixed, Outcome
from .graphs import Eager, Graphs
from .host import walk_levels
from .kept import Engine, Engines
from .methods import Method
from .protocols import Drafter, FixedDrafter, FixedTarget, Target
from .sampling import Sampling, draw, guide, probabilities
from .timing import Clock
from .trees import TreePolicy, static_tree
from .uniforms import Uniforms
from .walk import NO_LAW, Judged, Walk, walk_nodes

EngineKind = Literal["auto", "plain", "fixed"]
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
    judged: list[Judged] = field(default_factory=list)  # the drafts that were tried, on a CPU


@dataclass(frozen=True)
class Decoded:
    """The outcome of a run. A step is one target forward after the prefill.

    `mean_accepted_length` is tokens committed per step, the bonus tokens counted, the prefill's token and
    overshoot past the last token not (0 without steps). `accepted_lengths` has one uncut entry per step.
    `nodes` is the size of the draft tree, root included. `one_step_tvd` is None when it was not measured or
    there was no step.
    """

    tokens: list[int]
    steps: int
    accepted_lengths: list[int]
    mean_accepted_length: float
    seconds: dict[str, float]  # per part of the clock
    decode_seconds: float
    waited_seconds: float | None  # of decode_seconds, those without a processor; None on a GPU
    tokens_per_second: float
    one_step_tvd: float | None
    one_step_tvd_method: str | None
    nodes: int
    engine: str  # "plain", "fixed" or "graphs"; "fixed, without graphs: why" where a capture failed


def decode(
    target: Target,
    drafter: Drafter | None,
    condition: Any,
    *,
    num_tokens: int,
    method: Method,
    sampling: Sampling,
    rule: Rule | None = None,
    tree: TreePolicy | None = None,
    neighbours: Tensor | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    prefix_rows: int | None = None,
    measure_distortion: bool = True,
    clock: Clock | None = None,
    engine: EngineKind = "auto",
    engines: Engines | None = None,
    room: int | None = None,
) -> Iterator[Step | Decoded]:
    """Decode `num_tokens` tokens; yields a `Step` per step and at last the `Decoded` result. What a run gave up is measured
    between its last step and its result, so that a caller may put that off.

    `rule` and `tree` must be those the method names (None: the exact rule, no tree). `neighbours` [V, >= k]
    int32 or int64 on the device lists each token's nearest others and is needed by rules that relax.
    `seed` is 0 to 2**32 - 1. `prefix_rows` is the number of rows R, by default 1 without guidance (`sampling.cfg_scale` 1) and 2
    with it, where 1 is refused. `clock` may be shared with other parts of a run. `engine` is "plain", "fixed" or "auto": fixed on
    a CUDA device, with models that implement it. `engines` keeps what the fixed engine has set up for later runs, each with room
    for `room` tokens (None: `num_tokens`), so that a short run and a whole one share it. The models are not called before the
    first `next`; closing the iterator early is allowed at any time. Raises ValueError at the call for arguments that do not go
    together.
    """
    rule = rule or Rule()
    tree = tree or TreePolicy.none()
    _check(target, drafter, num_tokens, method, rule, tree, neighbours, seed, prefix_rows, sampling, room)
    place = torch.device(device)
    fixed = _fixed_models(target, drafter if tree.kind != "none" else None, engine, place)
    rows = prefix_rows or (1 if sampling.cfg_scale == 1 else 2)
    run = _Run(
        target, drafter, condition, num_tokens, sampling, rule, tree, neighbours, seed, place,
        rows, measure_distortion, clock or Clock(device), fixed, engines, room or num_tokens,
    )  # fmt: skip
    return run.events()


def _check(
    target: Target, drafter: Drafter | None, num_tokens: int, method: Method, rule: Rule, tree: TreePolicy,
    neighbours: Tensor | None, seed: int, prefix_rows: int | None, sampling: Sampling, room: int | None,
) -> None:  # fmt: skip
    if num_tokens < 1:
        raise ValueError(f"num_tokens is {num_tokens}; it must be at least 1")
    if room is not None and room < num_tokens:
        raise ValueError(f"room is {room}; it must be at least num_tokens, which is {num_tokens}")
    if not 0 <= seed < 2**32:  # a CPU's generator takes 32 bits and would drop the others
        raise ValueError(f"seed is {seed}; it must be between 0 and {2**32 - 1}")
    if prefix_rows not in (None, 1, 2):
        raise ValueError(f"prefix_rows is {prefix_rows}; allowed are 1 (no guidance) and 2 (guidance)")
    if prefix_rows == 1 and sampling.cfg_scale != 1:
        raise ValueError(f"prefix_rows is 1; with cfg_scale {sampling.cfg_scale} there must be 2 (guidance needs both rows)")
    if tree.kind != method.tree:
        raise ValueError(f"tree is of kind {tree.kind!r}; method {method.id} needs {method.tree!r}")
    wanted = "exact" if method.rule == "none" else method.rule
    if rule.kind != wanted:
        raise ValueError(f"rule is of kind {rule.kind!r}; method {method.id} needs {wanted!r}")
    if tree.kind != "none" and drafter is None:
        raise ValueError(f"drafter is None; method {method.id} needs one")
    width = tree.top_k if tree.kind == "dynamic" else max((path[-1] + 1 for path in tree.paths), default=0)
    if width > target.vocab_size:
        raise ValueError(f"tree has {width} children per node; allowed are at most the {target.vocab_size} tokens")
    if rule.relaxes:
        if neighbours is None:
            raise ValueError(f"neighbours is None; method {method.id} needs a neighbour table")
        least = min(rule.columns, target.vocab_size - 1)
        if neighbours.dim() != 2 or neighbours.shape[0] != target.vocab_size or neighbours.shape[1] < least:
            raise ValueError(
                f"neighbours has shape {list(neighbours.shape)}; with k = {rule.k} it must be "
                f"[{target.vocab_size}, {least} or more]"
            )


def _fixed_models(
    target: Target, drafter: Drafter | None, engine: EngineKind, device: torch.device
) -> tuple[FixedTarget, FixedDrafter | None] | None:
    """The models as the fixed engine needs them; None for the plain engine."""
    if engine not in ("auto", "plain", "fixed"):
        raise ValueError(f"engine is {engine!r}; allowed are auto, plain, fixed")
    if engine == "plain" or (engine == "auto" and device.type != "cuda"):
        return None
    if isinstance(target, FixedTarget) and (drafter is None or isinstance(drafter, FixedDrafter)):
        return target, drafter
    if engine == "fixed":
        raise ValueError("engine is 'fixed'; target and drafter must implement FixedTarget and FixedDrafter")
    return None


Given = ParamSpec("Given")
Found = TypeVar("Found")
# cuDNN would build a plan for every shape. These take any mask, and a step's numbers do not hang on which of several is chosen.
ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _device_work(part: Callable[Concatenate[_Run, Given], Found]) -> Callable[Concatenate[_Run, Given], Found]:
    """A method of a run as work on its device: without gradients, on a GPU with that one current and one kind of attention."""

    @wraps(part)
    @torch.inference_mode()
    def work(run: _Run, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        if run.device.type != "cuda":
            return part(run, *args, **kwargs)
        with torch.cuda.device(run.device), sdpa_kernel(ATTENTION):
            return part(run, *args, **kwargs)

    return work


class _Run:
    """The state of one run. Device work happens in `_prefill`, `_step` and `_distortion`, each under
    inference mode: a mode entered around a yield would leak into the consumer."""

    def __init__(
        self, target: Target, drafter: Drafter | None, condition: Any, num_tokens: int, sampling: Sampling,
        rule: Rule, policy: TreePolicy, neighbours: Tensor | None, seed: int, device: torch.device, rows: int,
        measured: bool, clock: Clock, models: tuple[FixedTarget, FixedDrafter | None] | None, engines: Engines | None, room: int,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.condition = target, drafter, condition
        self.num_tokens, self.sampling, self.rule, self.policy = num_tokens, sampling, rule, policy
        self.neighbours, self.seed, self.rows, self.clock = neighbours, seed, rows, clock
        self.walk = walk_levels if device.type == "cpu" else walk_nodes
        self.bare = static_tree((), device)
        self.fixed = static_tree(policy.paths, device) if policy.kind == "static" else None
        width = policy.top_k if self.fixed is None else self.fixed.width
        drawn = 0 if self.fixed is None else self.fixed.draws
        self.uniforms = Uniforms(seed, device, num_tokens, policy.nodes, min(width, policy.nodes - 1), drawn)
        self.sample = RootSample() if measured else None
        self.drafter_cache: KVCache | None = None
        self.device = device
        self.models = models  # for the fixed engine
        self.engines, self.room = engines, room
        self.lent: Engine | None = None  # what the fixed engine works with
        self.engine = "plain"  # what ran the steps
        self.ahead: Ahead | None = None  # the fixed engine, once it runs
        self.tokens: list[int] = []
        self.accepted_lengths: list[int] = []

    def events(self) -> Iterator[Step | Decoded]:
        whole = False
        try:
            self._prefill()
            yield Step(0, list(self.tokens), 1, 1, self.clock.decode_seconds, ["target"])
            yield from self._steps()
            whole = True
        except GeneratorExit:
            whole = True  # given up by the consumer, not by a fault
            raise
        finally:
            self._close(whole)
        try:
            distortion = self._distortion()
        except RuntimeError:  # such as a device that a fault elsewhere took along: what was decoded stands
            distortion = None
        yield self._decoded(distortion)

    def _steps(self) -> Iterator[Step]:
        if self.lent is not None and self.num_tokens > 1:
            self.ahead = self._fixed(self.lent)
        while len(self.tokens) < self.num_tokens:
            walk = self._step() if self.ahead is None else self._next(self.ahead)
            before = len(self.tokens)
            self.accepted_lengths.append(len(walk.tokens))
            self.tokens.extend(walk.tokens[: self.num_tokens - before])
            kinds: list[AcceptKind] = ["relaxed" if loose else "exact" for loose in walk.relaxed]
            kinds.append("target")
            committed = len(self.tokens)
            if committed == self.num_tokens:
                self._close(True)  # so that the last step has all of the run's seconds, however late the result is asked for
            yield Step(
                len(self.accepted_lengths), self.tokens[before:], len(walk.tokens), committed,
                self.clock.decode_seconds, kinds[: committed - before],
                walk.tree_tokens, walk.tree_parents, walk.path, list(walk.judged),
            )  # fmt: skip

    @_device_work
    def _prefill(self) -> None:
        """Prefix, then image token 0."""
        with self.clock.measure("prefill"):
            # A step starts with at most num_tokens - 1 positions committed behind the prefix and writes a
            # whole tree.
            if self.models is None:
                self.cache = self.target.new_cache(self.rows, self.num_tokens + self.policy.nodes)
            else:
                self.lent = self._engine(*self.models)
                self.cache = self.lent.cache
            hidden = self.target.prefill(self.condition, self.cache)
            if hidden.shape[0] != self.rows:
                raise ValueError(f"condition gave {hidden.shape[0]} rows; this run needs {self.rows}")
            logits = guide(self.target.head(hidden[:, -1:]), self.sampling.cfg_scale)
            p = probabilities(logits, self.sampling)
            if not bool(p.sum() > 0):  # the one host read of the prefill that is not a token
                raise FloatingPointError(NO_LAW)
            self.root = p.argmax(-1) if self.sampling.greedy else draw(p, self.uniforms.walk(0, 1)[0])
            # what the drafter has not seen yet: target states and the tokens that follow them
            self.unseen_hidden, self.unseen_tokens = self._for_drafter(hidden), self.root
            self.tokens.append(int(self.root))

    @_device_work
    def _step(self) -> Walk:
        """Draft, verify, accept and commit."""
        with self.clock.measure("draft"):
            draft = self._draft()
        tree = draft.tree
        with self.clock.measure("verify"):
            hidden = self.target.forward(draft.tokens, tree.depths, tree.mask, self.cache)
            logits = guide(self.target.head(hidden), self.sampling.cfg_scale)
        with self.clock.measure("commit"):
            uniforms = self.uniforms.walk(1 + len(self.accepted_lengths), tree.size)
            walk = self.walk(self.rule, draft, logits, self.sampling, self.neighbours, uniforms)
            if walk.path == list(range(len(walk.path))):
                self.cache.advance(len(walk.path))  # already where it belongs
            else:
                self.cache.commit(walk.nodes)
            self.unseen_hidden, self.unseen_tokens = self._for_drafter(hidden.index_select(1, walk.nodes)), walk.next_tokens
            self.root = walk.next_tokens[-1:]
        if self.sample is not None and self.sample.wants(len(self.accepted_lengths)):
            self.sample.add(draft, walk.root_law, walk.tokens[0])
        return walk

    def _engine(self, target: FixedTarget, drafter: FixedDrafter | None) -> Engine:
        """A kept engine for runs like this one, or a new one."""

        def make() -> Engine:
            slots = Fixed.room(self.room, self.policy)
            small = None if drafter is None else drafter.new_cache(1 if drafter.guided else self.rows, slots)
            return Engine(target.new_cache(self.rows, slots), small)

        return make() if self.engines is None else self.engines.take(self._key(), make)

    def _key(self) -> tuple[object, ...]:
        """All that an engine's steps depend on, but for what a run fills in. How long the prefix is they read from the device."""
        shape = (self.device, self.rows, self.room, self.policy, self.sampling, self.rule)
        return (*shape, id(self.target), id(self.drafter), id(self.neighbours))  # of things that a kept engine holds on to

    @_device_work
    def _fixed(self, engine: Engine) -> Ahead:
        """The fixed engine behind the prefill, the drafter having read the prefix."""
        assert self.models is not None
        target, drafter = self.models
        bare_last = not self.rule.released
        hidden, token, small = self.unseen_hidden, self.unseen_tokens, engine.drafter_cache
        if drafter is not None and not (bare_last and self.num_tokens == 2):
            with self.clock.measure("draft"):
                # a step's stable pass takes the last of these slots again, with the output that it needs
                drafter.start(hidden, token, small, self.condition)
        if engine.fixed is None or engine.steps is None:
            fixed = engine.fixed = Fixed(
                target, drafter, self.cache, small, hidden[:, -1:], token, num_tokens=self.room, sampling=self.sampling,
                rule=self.rule, policy=self.policy, neighbours=self.neighbours, uniforms=self.uniforms,
            )  # fmt: skip
            free = (lambda: False) if self.engines is None else self.engines.clear
            cuda = self.device.type == "cuda"
            engine.steps = Graphs(fixed, self.clock, self.device, free) if cuda else Eager(fixed, self.clock)
        else:
            engine.fixed.begin(hidden[:, -1:], token, self.uniforms)
            engine.steps.begin(self.clock)
        if self.engines is not None:  # the next run is to find everything in place
            engine.steps.prepare(engine.fixed.shapes(bare_last))
        return Ahead(engine.fixed, engine.steps, self.num_tokens, bare_last, self.sample)

    @_device_work
    def _close(self, whole: bool) -> None:
        """Hand the engine back; graphs may be in flight when the consumer gave up. After a fault nobody shall have it again."""
        engine, self.lent = self.lent, None
        if engine is None:
            return
        if engine.steps is not None:
            engine.steps.close()
            self.engine = engine.steps.engine
        if whole and self.engines is not None:
            self.engines.give(self._key(), engine)

    @_device_work
    def _next(self, ahead: Ahead) -> Outcome:
        return ahead.step(len(self.tokens))

    def _for_drafter(self, hidden: Tensor) -> Tensor:
        """Target states [R, m, H] as the drafter reads them."""
        if self.drafter is None or not self.drafter.guided:
            return hidden
        return guide(hidden, self.sampling.cfg_scale)[None].to(hidden.dtype)

    def _draft(self) -> Draft:
        # The last token is the root's own successor: nothing to draft for. The released code drafts, and may relax, there too.
        last = self.num_tokens - len(self.tokens) == 1 and not self.rule.released
        if self.drafter is None or self.policy.kind == "none" or last:
            return bare_draft(self.bare, self.root)
        cache = self.drafter_cache
        if cache is None:
            room = self.num_tokens + self.policy.nodes + self.policy.expanded
            cache = self.drafter_cache = self.drafter.new_cache(1 if self.drafter.guided else self.rows, room)
            output = self.drafter.start(self.unseen_hidden, self.unseen_tokens, cache, self.condition)
        else:
            output = self.drafter.extend(self.unseen_tokens, self.unseen_hidden, cache)
        if self.fixed is not None:
            drawn = self.uniforms.draws(1 + len(self.accepted_lengths))
            return static_draft(self.fixed, self.root, output, self.drafter, self.target, cache, self.sampling, drawn)
        return dynamic_draft(self.policy, self.root, output, self.drafter, self.target, cache, self.sampling)

    @_device_work
    def _distortion(self) -> Distortion | None:
        if self.sample is None:
            return None
        # not the run's own stream: the roots came about through that one
        seed = self.seed ^ 1
        return measure(self.rule, self.sample.roots, self.neighbours, self.sampling.greedy, seed)

    def _decoded(self, distortion: Distortion | None) -> Decoded:
        steps, seconds = len(self.accepted_lengths), self.clock.decode_seconds
        return Decoded(
            tokens=self.tokens,
            steps=steps,
            accepted_lengths=self.accepted_lengths,
            mean_accepted_length=(len(self.tokens) - 1) / steps if steps else 0.0,
            seconds=dict(self.clock.seconds),
            decode_seconds=seconds,
            waited_seconds=self.clock.waited_seconds,
            tokens_per_second=len(self.tokens) / seconds if seconds > 0 else 0.0,
            one_step_tvd=None if distortion is None else distortion.tvd,
            one_step_tvd_method=None if distortion is None else distortion.method,
            nodes=self.policy.nodes,
            engine=self.engine,
        )
