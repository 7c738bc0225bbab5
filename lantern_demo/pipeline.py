"""From a prompt to a picture: load a model, decode with a method, and compare methods on one device."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lantern_demo.decoding.kept import Engines
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.loop import Step as StepEvent
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.timing import Clock
from lantern_demo.decoding.trees import TreePolicy
from lantern_demo.faults import in_words, out_of_memory, release_memory, unreadable
from lantern_demo.fitting import Choice, read_calibration
from lantern_demo.machine import Machine
from lantern_demo.models import accumulation, bundled, checkpoints, store
from lantern_demo.models.device import DTYPES, INT8, pick_device, pick_dtype
from lantern_demo.models.needs import requirements_unmet
from lantern_demo.models.products import KINDS
from lantern_demo.models.registry import REGISTRY, ModelInfo, model_info
from lantern_demo.models.text import Encoded
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.recommended import read_recommended
from lantern_demo.record import device_name, events_of, image_hash, run_record
from lantern_demo.settings import MAX_LANTERN_K, Settings, asking_for, method_of, methods_of, smaller_tree

__all__ = ["Generation", "MethodFailed", "Pipeline", "Stats", "StepEvent", "load"]

WARM_UP_TOKENS = 12
FIT_TOKENS = 20  # of a run that measures what a step with a tree costs


@dataclass(frozen=True)
class Stats:
    """What a run measured. Seconds are of synchronised device work; `decode_seconds` = prefill + draft + verify + commit.

    With captured graphs the steps' parts are told apart as `decoding.graphs` says, and `capture_seconds` went into capturing them.
    """

    method: str
    tokens: int  # image tokens
    steps: int  # target forwards after the prefill
    mean_accepted_length: float  # tokens committed per step, the bonus token counted
    accepted_lengths: list[int]
    text_seconds: float
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    decode_seconds: float
    image_seconds: float
    tokens_per_second: float
    one_step_tvd: float | None  # None where there was no step to measure
    one_step_tvd_method: str | None
    nodes: int  # of the draft tree, root included
    tree: str  # which draft tree, and why
    tree_settings: dict[str, Any]  # what to ask for to get this very tree
    device: str
    dtype: str
    products: str  # how products with the weights are computed
    capture_seconds: float  # no part of decode_seconds
    engine: str  # what ran the steps: see `decoding.loop.Decoded`


@dataclass(frozen=True)
class Generation:
    """A finished picture, how it came about, and the record that reproduces it."""

    method: str
    image: Image.Image
    tokens: list[int]
    stats: Stats
    record: dict[str, Any]


@dataclass(frozen=True)
class MethodFailed:
    """A method of a comparison that raised; the others go on."""

    method: str
    message: str


# (method id, event) as `Pipeline.compare` has them, None after a step of a warm-up.
Beats = Generator[tuple[str, StepEvent | Generation | MethodFailed | None], None, None]


class Pipeline:
    """One loaded model on one device. Runs take turns: a second caller waits for the first."""

    def __init__(self, info: ModelInfo, networks: bundled.Networks[Any], device: torch.device, dtype: str) -> None:
        self.info, self.networks, self.device, self.dtype = info, networks, device, dtype
        self.defaults = Settings(**info.preset)
        self._machine = Machine(info.id, device, dtype)
        runners = self._machine.runners(networks)
        self.target, self.drafter = runners.target, runners.drafter
        self.products = KINDS[runners.kind] if runners.kind else f"{dtype} products, as PyTorch chooses"
        if runners.drafter_kind not in (None, runners.kind):
            self.products += f"; the drafter: {KINDS[runners.drafter_kind]}"
        self._neighbours: dict[str, Tensor] = {}
        self._calibration = read_calibration(info.folder)
        self.recommended = read_recommended(info.folder)
        self._engines = Engines()
        self._turn = threading.Lock()

    # -- inputs

    def settings(self, **changes: Any) -> Settings:
        """The model's preset with some values changed. Raises ValueError for an unknown name or a value not allowed."""
        return self.defaults.with_changes(**changes)

    def check_prompt(self, prompt: Any) -> str:
        """The prompt, stripped. Raises ValueError when it is empty, too long or not text that can be written down."""
        if not isinstance(prompt, str):
            raise ValueError(f"prompt must be text, got {type(prompt).__name__}")
        text = " ".join(prompt.split())
        if not text:
            raise ValueError("prompt is empty; say what to draw, for example: three red round lanterns over a lake at dusk")
        if len(text) > self.info.max_prompt:
            raise ValueError(f"prompt has {len(text)} characters, at most {self.info.max_prompt} are allowed")
        if bad := unreadable(text):
            raise ValueError(f"prompt must be text without control characters, got {bad}")
        self.networks.text.check(text)
        return text

    @property
    def unavailable(self) -> dict[str, str]:
        """The methods that this model cannot be decoded with, by id, each with why and what to do about it."""
        return {} if self.networks.drafter is not None else _need_a_drafter(self.networks.no_drafter)

    @property
    def available_methods(self) -> list[str]:
        """The ids of the methods that this model can be decoded with: without a drafter, those that draft are left out."""
        return [name for name in METHODS if name not in self.unavailable]

    def check_methods(self, methods: list[Method]) -> list[Method]:
        """The methods as they are. Raises ValueError when this model cannot be decoded with one of them."""
        for method in methods:
            if method.id in self.unavailable:
                raise ValueError(self.unavailable[method.id])
        return methods

    # -- runs

    def generate(self, prompt: str, method: str = "vanilla", **settings: Any) -> Generation:
        """Draw a prompt with one method. Settings are those of `Settings`; ValueError for anything not allowed."""
        *_, last = self.stream(prompt, method, **settings)
        assert isinstance(last, Generation)
        return last

    def stream(self, prompt: str, method: str = "vanilla", **settings: Any) -> Iterator[StepEvent | Generation]:
        """As `generate`, yielding a StepEvent per step and the Generation last. Closing it stops within a step; on a GPU
        within the few that are in flight."""
        (chosen,) = self.check_methods([method_of(method)])
        knobs, text = self.settings(**settings), self.check_prompt(prompt)

        def events() -> Iterator[StepEvent | Generation]:
            for _, event in self._beats([chosen], knobs, text):
                if isinstance(event, MethodFailed):
                    raise RuntimeError(event.message)
                if event is not None:
                    yield event

        return events()

    def compare(
        self, prompt: str, methods: list[str] | None = None, **settings: Any
    ) -> Generator[tuple[str, StepEvent | Generation | MethodFailed], None, None]:
        """Run methods one after the other on this device, each warmed up before the first is timed.

        Yields (method id, event): a StepEvent per step, then its Generation, or MethodFailed when it raised. Methods (all that are
        available when left out) run in the order of the table of methods, so that vanilla comes first. Raises ValueError at the
        call for bad input. A method that runs out of memory starts again with a smaller tree, its steps counted from 0.
        """
        beats = self.beats(prompt, methods, **settings)

        def events() -> Generator[tuple[str, StepEvent | Generation | MethodFailed], None, None]:
            with closing(beats):
                for method, event in beats:
                    if event is not None:
                        yield method, event

        return events()

    def beats(self, prompt: str, methods: list[str] | None = None, **settings: Any) -> Beats:
        """As `compare`, with None for an event after every step of the warm-up too: whoever steps through can stop in between."""
        chosen = self.check_methods(methods_of(self.available_methods if methods is None else methods))
        return self._beats(chosen, self.settings(**settings), self.check_prompt(prompt))

    def _beats(self, methods: list[Method], knobs: Settings, text: str) -> Beats:
        with self._turn:
            trees: dict[str, Choice] = {}
            failed: dict[str, str] = {}
            try:
                encoded = self._encode(text, None)
            except Exception as error:
                why = in_words(error, "the text encoder")
                for method in methods:
                    yield method.id, MethodFailed(method.id, why)
                return
            for method in methods:
                try:
                    trees[method.id] = yield from self._warm_up(method, knobs, encoded)
                except Exception as error:  # one method's fault must not take the others' results with it
                    failed[method.id] = in_words(error, method.id)
            for method in methods:
                if method.id in trees:
                    yield from self._tries(method, knobs, text, encoded, trees[method.id])
                else:
                    yield method.id, MethodFailed(method.id, failed[method.id])

    def _tries(self, method: Method, knobs: Settings, text: str, encoded: Encoded, tree: Choice) -> Beats:
        """Run a method that is warm; where memory does not suffice, once more with a smaller tree."""
        warm = True
        while True:
            try:
                if not warm:
                    tree = yield from self._warm_up(method, knobs, encoded, tree)
                for event in self._run(method, knobs, text, tree):
                    yield method.id, event
                return
            except Exception as error:
                smaller = _smaller(method, tree, error)
                failed = in_words(error, method.id)
            if smaller is None:
                yield method.id, MethodFailed(method.id, failed)
                return
            self._engines.clear()  # out of the handler, which kept what the run had allocated
            release_memory()
            tree, warm = smaller, False

    def _warm_up(
        self, method: Method, knobs: Settings, encoded: Encoded, tree: Choice | None = None
    ) -> Generator[tuple[str, None], None, Choice]:
        """A few uncounted tokens with a method, yielding between steps -> the tree to run it with, a smaller one than asked where
        memory does not suffice. Raises what the method raises."""
        while True:
            try:
                if tree is None:
                    self._fit(method, knobs, encoded)
                    tree = self.tree_of(method, knobs)
                clock, tokens = Clock(self.device), min(WARM_UP_TOKENS, self.info.tokens)
                for _ in self._decode(method, knobs, encoded, tokens, clock, measured=False, tree=tree.policy):
                    yield method.id, None
                self.decode_image([0] * self.info.tokens)
                return tree
            except Exception as error:
                smaller = _smaller(method, tree, error)
                if smaller is None:
                    raise
            self._engines.clear()
            release_memory()
            tree = smaller

    def _run(self, method: Method, knobs: Settings, text: str, tree: Choice) -> Iterator[StepEvent | Generation]:
        clock = Clock(self.device)
        encoded = self._encode(text, clock)
        outcome: Decoded | None = None
        steps: list[StepEvent] = []
        for event in self._decode(method, knobs, encoded, self.info.tokens, clock, measured=True, tree=tree.policy):
            if isinstance(event, Decoded):
                outcome = event
            else:
                steps.append(event)
                yield event
        assert outcome is not None
        with clock.measure("image"):
            image = self.decode_image(outcome.tokens)
        stats = self._stats(method, tree, outcome, clock)
        run = (stats, outcome.tokens, image_hash(image), events_of(steps))
        record = run_record(self.info, self.networks.trained, self.networks.sources, text, encoded.unknown, knobs, [run])
        yield Generation(method.id, image, outcome.tokens, stats, record)

    @torch.inference_mode()
    def _encode(self, text: str, clock: Clock | None) -> Encoded:
        with (clock or Clock(self.device)).measure("text"):
            return self.networks.text.encode(text)

    def _decode(
        self, method: Method, knobs: Settings, encoded: Encoded, tokens: int, clock: Clock, measured: bool, tree: TreePolicy,
        kept: bool = True,
    ) -> Iterator[StepEvent | Decoded]:  # fmt: skip
        guided = knobs.cfg_scale != 1
        with torch.inference_mode():
            condition = self.networks.target.condition(encoded.features, encoded.mask, guided)
        return decode(
            self.target, self.drafter, condition, num_tokens=tokens, method=method, sampling=knobs.sampling(),
            rule=knobs.rule(method), tree=tree, neighbours=self.neighbours(knobs.neighbours),
            seed=knobs.seed, device=self.device, measure_distortion=measured, clock=clock,
            engines=self._engines if kept else None, room=self.info.tokens if kept else None,
        )  # fmt: skip

    def tree_of(self, method: Method, knobs: Settings) -> Choice:
        """The draft tree that a method runs with, and why. One that is to fit stands once the method was warmed up."""
        if method.tree == "none":
            return Choice(TreePolicy.none(), "none")
        fitted = self._machine.fitted(method, knobs.cfg_scale != 1) if knobs.fits(method) else None
        if fitted is not None:
            return fitted
        why = "small: this model has no calibration" if knobs.fits(method) else f"{knobs.tree}: as asked"
        return Choice(knobs.tree_policy(method), why)

    def _fit(self, method: Method, knobs: Settings, encoded: Encoded) -> None:
        """Choose the tree of a method for this machine, once."""
        if self._calibration is None or not knobs.fits(method):
            return

        def times(policy: TreePolicy) -> list[float]:
            """Seconds of the steps of a short run, but the first, which starts the drafter, and a last one without drafts."""
            clock, plain = Clock(self.device), METHODS["eagle1" if policy.kind == "static" else "eagle2"]
            events = self._decode(
                plain, knobs, encoded, min(FIT_TOKENS, self.info.tokens), clock, measured=False, tree=policy, kept=False
            )
            pairs = list(pairwise(event for event in events if isinstance(event, StepEvent)))
            whole = [b.seconds - a.seconds for a, b in pairs[1:] if len(b.tree_tokens) == policy.nodes]
            return whole or [b.seconds - a.seconds for a, b in pairs]  # of a picture of a few tokens nothing better can be had

        self._machine.fit(method, knobs.cfg_scale != 1, self._calibration, times)

    def _stats(self, method: Method, choice: Choice, outcome: Decoded, clock: Clock) -> Stats:
        seconds = clock.seconds
        return Stats(
            method.id, len(outcome.tokens), outcome.steps, outcome.mean_accepted_length, outcome.accepted_lengths,
            seconds["text"], seconds["prefill"], seconds["draft"], seconds["verify"], seconds["commit"],
            outcome.decode_seconds, seconds["image"], outcome.tokens_per_second,
            outcome.one_step_tvd, outcome.one_step_tvd_method, outcome.nodes, choice.reason, asking_for(choice.policy),
            device_name(self.device), self.dtype, self.products, seconds["capture"], outcome.engine,
        )  # fmt: skip

    # -- pictures and tables

    @torch.inference_mode()
    def decode_image(self, tokens: list[int]) -> Image.Image:
        """All tokens of a picture -> RGB image."""
        pixels = self.networks.tokenizer.decode(torch.tensor([tokens], device=self.device))[0]
        return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).cpu().numpy())

    @torch.inference_mode()
    def preview(self, tokens: list[int], empty: tuple[int, int, int] = (128, 128, 128)) -> Image.Image:
        """A picture of which only the first tokens are there; the rest is filled with the colour `empty`."""
        missing = self.info.tokens - len(tokens)
        image = self.decode_image(tokens + [tokens[-1] if tokens else 0] * missing)
        if missing:
            cell = self.info.image_size // self.info.grid
            row, column = divmod(len(tokens), self.info.grid)
            size = self.info.image_size
            image.paste(empty, (column * cell, row * cell, size, (row + 1) * cell))
            image.paste(empty, (0, (row + 1) * cell, size, size))
        return image

    @torch.inference_mode()
    def neighbours(self, vectors: str = "decoder") -> Tensor:
        """The neighbour table [V, k] int32 on the device, from the vectors the decoder sees or the "raw" ones."""
        if vectors not in self._neighbours:
            tokenizer = self.networks.tokenizer
            book = tokenizer.codebook if vectors == "decoder" else tokenizer.vq.quantize.embedding.weight
            # One column more than any rule counts: the released residual reads k + 1.
            columns = min(MAX_LANTERN_K + 1, len(book) - 1)
            name, shape = f"neighbours-{vectors}", (len(book), columns)
            table = store.table(self.networks.tables, name, shape, lambda: neighbour_table(book, columns))
            self._neighbours[vectors] = table.to(self.device)
        return self._neighbours[vectors]


def load(
    model: str | Path = "lantern-scenes", device: str = "auto", dtype: str = "auto", folder: str | Path | None = None,
    drafter: str | Path | None = None, fp16_accumulation: bool = False,
) -> Pipeline:  # fmt: skip
    """Load a model by its registry id, or from a folder in the format of the bundled one.

    device: "auto", "cpu", "cuda", "cuda:N". dtype, of target and drafter: "float32", "bfloat16", "float16", "int8" (8-bit products of
    a small model on a CPU), or "auto", which is float32 but for a published model on a GPU, where it is bfloat16 (float16 where the
    GPU lacks that).
    A published model is fetched from the Hub at its first start; `folder` is a local folder to take its files from instead (see
    `models.checkpoints`), `drafter` one with a drafter of one's own to use in place of the published one.
    fp16_accumulation keeps the sums of float16 products in float16, for this process, if this moves the target's laws little enough
    (see `models.accumulation`); "auto" is then float16 on a GPU.
    Raises ValueError for an unknown model, device or dtype, for a folder that cannot be read, for a published model that does not
    fit this machine, when its files cannot be fetched or are not what they should be, and when fp16_accumulation is refused.
    """
    chosen = pick_device(device)
    info = info_of(model)
    if fp16_accumulation and dtype == "auto" and chosen.type == "cuda":
        dtype = "float16"
    name = pick_dtype(dtype, chosen, large=info.published is not None)
    if info.folder is not None:
        for option, value in (("folder", folder), ("drafter", drafter)):
            if value is not None:
                raise ValueError(f"{option} is for published models; {info.id} has its own, got {str(value)!r}")
        networks: bundled.Networks[Any] = bundled.load(info.folder, chosen, DTYPES["float32" if name == INT8 else name])
        vq = networks.tokenizer.vq.config
        if fp16_accumulation:
            accumulation.allow(networks.target)
        pixels = vq.num_patches * 2 ** (len(vq.channel_multiplier) - 1)
        return Pipeline(replace(info, image_size=pixels, grid=vq.num_patches), networks, chosen, name)
    files = None if folder is None else Path(folder)
    if files is not None and not files.is_dir():
        raise ValueError(f"folder must be a folder with the published files, got {str(folder)!r}")
    reason = requirements_unmet(info, chosen, name, files)
    if reason:
        raise ValueError(f"{info.id} cannot run here: {reason}")
    networks = checkpoints.load(info, chosen, DTYPES[name], files, None if drafter is None else Path(drafter))
    if fp16_accumulation:
        accumulation.allow(networks.target)
    return Pipeline(info, networks, chosen, name)


def info_of(model: str | Path) -> ModelInfo:
    """What is known of a model without loading it: a folder's sizes are not. Raises ValueError for an unknown id."""
    local = isinstance(model, Path) or (isinstance(model, str) and model not in REGISTRY and Path(model).is_dir())
    return _local_info(Path(model)) if local else model_info(model)


def unavailable_methods(info: ModelInfo) -> dict[str, str]:
    """As `Pipeline.unavailable`, of a model on offer that is not loaded."""
    return {} if checkpoints.has_drafter(info) else _need_a_drafter(checkpoints.why_no_drafter(info))


def _need_a_drafter(why: str) -> dict[str, str]:
    return {m.id: f"method {m.id} needs a drafter, and {why}" for m in METHODS.values() if m.tree != "none"}


def _local_info(folder: Path) -> ModelInfo:
    """A model folder as one on offer; its sizes are read with it."""
    return ModelInfo(folder.name, folder.name, "A model from a local folder.", folder, image_size=0, grid=0, max_prompt=200)


def _smaller(method: Method, tree: Choice | None, error: Exception) -> Choice | None:
    """What to draft with instead where a tree was too large for the memory; None for another fault, or where nothing is smaller."""
    policy = smaller_tree(method)
    if not out_of_memory(error) or method.tree == "none" or (tree is not None and tree.policy.nodes <= policy.nodes):
        return None
    return Choice(policy, "small: the device ran out of memory with the tree that was asked for")
