"""The decoding loop: prefill, then draft, verify, accept and commit until all tokens are there. One for every method; vanilla is
the tree of the root alone, and a wavefront has no tree: `engines.waves` has its steps.

There are two engines. "plain" waits for the host in every step: it suits CPUs and is the reference. "fixed" runs steps of fixed
shapes without waiting, on a CUDA device as captured graphs. With the same seed both give the same tokens, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .config import Config
from .engines.plain import Plain, Run
from .engines.pool import Engines, FixedRun
from .protocols import Drafter, FixedDrafter, FixedTarget, Target
from .sampling import NO_PROBS, uniforms_of, warp
from .timing import Clock
from .trees import Source
from .verify import RejectionVerifier, SharedNoiseVerifier, Verifier
from .verify import Step as Step


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
    able = isinstance(target, FixedTarget) and isinstance(drafter, FixedDrafter | None)
    if config.engine == "fixed" and config.tree.reads_back:
        raise ValueError(f"engine is 'fixed'; method {config.method.id} reads numbers back in every step: 'plain' or 'auto'")
    if config.engine == "fixed" and not able:
        raise ValueError("engine is 'fixed'; target and drafter must implement FixedTarget and FixedDrafter")
    wave = config.tree.side_by_side
    if wave and not isinstance(target, FixedTarget):
        raise ValueError(f"target must implement FixedTarget; method {config.method.id} reads places out of order")
    on_fixed = (
        able
        and not config.tree.reads_back
        and (config.engine == "fixed" or (config.engine == "auto" and config.torch_device.type == "cuda"))
    )
    parts = target, drafter, condition, config, clock

    def start(*more: Any) -> Run:
        if on_fixed or wave:
            return FixedRun(*parts, *more, engines=engines if on_fixed else None, exact=not on_fixed)
        return Plain(*parts, *more)

    return _events(target, condition, config, clock, start, make_parts)


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


def _events(
    target: Target,
    condition: Any,
    config: Config,
    clock: Clock,
    start: Callable[[Source, Verifier, Tensor], Run],
    make_parts: Callable[[Config, int], tuple[Source, Verifier]],
) -> Iterator[Step | Decoded]:
    """The steps and the result of a run that `start` begins with its draft source, verifier and uniforms."""
    run: Run | None = None
    whole, tokens, lengths, places = False, list[int](), list[int](), [0]
    try:
        with _device_work(config.torch_device):
            with clock.measure("prefill"):
                source, verifier = make_parts(config, target.vocab_size)
                uniforms = uniforms_of(config.seed, config.torch_device, config.num_tokens, verifier.draws + source.draws)
                run = start(source, verifier, uniforms)
                hidden = target.prefill(condition, run.cache)
                if hidden.shape[0] != config.rows:
                    raise ValueError(f"condition gave {hidden.shape[0]} rows; this run needs {config.rows}")
                run.verifier.begin(config.seed)
                scores = warp(target.head(hidden[:, -1:]), config.sampling)
                root = run.verifier.sample(scores, torch.zeros(1, dtype=torch.int64, device=config.torch_device), uniforms[0])
                if not 0 <= int(root) < target.vocab_size:
                    raise FloatingPointError(NO_PROBS)
                tokens.append(int(root))
            if config.num_tokens > 1:
                run.begin(hidden, root)
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
        engine=run.name,
        engine_reason=run.reason,
    )
