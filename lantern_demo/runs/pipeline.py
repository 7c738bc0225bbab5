"""From a prompt to a picture: load a model, decode with a method, and compare methods on one device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.graphs import Engines
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.loop import Step as StepEvent
from lantern_demo.decoding.methods import METHODS, Method, default_methods
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.timing import Clock
from lantern_demo.faults import in_words, release_memory, unreadable
from lantern_demo.models import bundled, checkpoints, families
from lantern_demo.models.common import Condition
from lantern_demo.models.files import disk_cache
from lantern_demo.models.files.needs import requirements_unmet
from lantern_demo.models.machine.device import DTYPES, device_name, pick_device, pick_threads
from lantern_demo.models.machine.matmul import KINDS
from lantern_demo.models.machine.tuning import CACHED, Tuning, small_on_cpu
from lantern_demo.models.neighbours import neighbour_table
from lantern_demo.models.palette import token_colours
from lantern_demo.models.registry import BUNDLED, REGISTRY, ModelInfo, model_info
from lantern_demo.models.text import Encoded
from lantern_demo.prompt_words import USUAL, warning
from lantern_demo.runs.changed import marked, share_changed
from lantern_demo.runs.fitting import (
    FIT_ROUNDS,
    Calibration,
    Choice,
    StepCosts,
    TreeFitting,
    calibration_folder,
    read_calibration,
)
from lantern_demo.runs.race import Race, Read, Request, Run, RunEvents, smaller_choice
from lantern_demo.runs.record import Entry, events_of, run_record
from lantern_demo.runs.stats import Generation, MethodFailed, Schedule, Stats
from lantern_demo.settings.knobs import MAX_LANTERN_K, lists_settings
from lantern_demo.settings.settings import Settings, methods_of

__all__ = ["Generation", "MethodFailed", "Pipeline", "Stats", "StepEvent", "load"]

WARM_UP_TOKENS = 12
IMAGES_KEPT = 8
BORROWED = "lantern-scenes"  # whose calibration stands in for that of a published model
FIT_TOKENS = 20  # of a run that measures what a step with a tree costs
FIT_PASSES = 8  # of one that measures what a pass of a wavefront or a step of a large model costs


@dataclass(frozen=True)
class DrafterMissing:
    """A model cannot be decoded with a method, since that drafts and the model has no drafter."""

    method: str
    missing: bundled.NoDrafter

    def sentence(self) -> str:
        return f"method {self.method} needs a drafter, and {self.missing}"


class Pipeline:
    """One loaded model on one device. Runs take turns: a caller in another thread waits for the one before, and one in the same
    thread, which could wait for ever, gets a RuntimeError."""

    def __init__(
        self,
        info: ModelInfo,
        networks: bundled.Networks[Any],
        device: torch.device,
        dtype: str,
        threads: int | None = None,
        fit_trees: bool = True,
    ) -> None:
        self.info, self.networks, self.device, self.dtype = info, networks, device, dtype
        self.defaults = Settings(**info.preset)
        self.threads = pick_threads(threads, device, small_on_cpu(networks, device, CACHED))
        self.threads.use()
        tuning = Tuning(info.id, device, dtype)
        runners = tuning.runners(networks)
        self.target, self.drafter = runners.target, runners.drafter
        self.products = KINDS[runners.kind] if runners.kind else f"{dtype} products, as PyTorch chooses"
        if runners.drafter_kind not in (None, runners.kind):
            self.products += f"; the drafter: {KINDS[runners.drafter_kind]}"
        if device.type == "cpu":
            # The bundled model's picture takes 90 ms instead of 112 so, on one core of an EPYC.
            decoders: list[Any] = [networks.tokenizer.vq.decoder, networks.picture]
            for decoder in filter(None, decoders):
                decoder.to(memory_format=torch.channels_last)
        self._neighbours: dict[str, Tensor] = {}
        self._palette = networks.palette
        calibration = read_calibration(calibration_folder(info.id, info.folder)) if fit_trees else Calibration()
        fast = device.type == "cuda" or runners.kind is not None
        self._borrowed = calibration is None and info.published is not None and fast
        if self._borrowed:
            # What a tree costs differs more from machine to machine than what it lands differs from model to model.
            calibration = replace(read_calibration(BUNDLED / BORROWED) or Calibration(), wavefronts={})
        # A GPU's steps take the same time over and over, and each short run there begins with a capture; a large model's are
        # long.
        rounds = 1 if device.type == "cuda" or info.published is not None else FIT_ROUNDS
        self._trees = TreeFitting(tuning, calibration or Calibration(), StepCosts(self._step_seconds, rounds))
        self._no_fit = "this model has no calibration" if fit_trees else "nothing is measured on a device that is only lent"
        # by method, tree, guidance and noise, what they run with
        self._warm: dict[tuple[str, Drafts, bool, str], Choice] = {}
        self._engines = Engines()
        self._images: dict[tuple[int, ...], Image.Image] = {}  # see `decode_image`
        self._read: Read | None = None  # see `read`
        self._turn = threading.Lock()
        self._at_work: int | None = None  # the thread that went on last with the run whose turn it is

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
            raise ValueError(f"prompt is empty; say what to draw, for example: {USUAL}")
        self.info.check_length(text)
        if bad := unreadable(text):
            raise ValueError(f"prompt must be text without control characters, got {bad}")
        self.networks.text.check(text)
        return text

    @property
    def unavailable(self) -> dict[str, DrafterMissing]:
        """The methods that this model cannot be decoded with, by id, each with why and what to do about it."""
        missing = self.networks.no_drafter
        return {} if missing is None else _need_a_drafter(missing)

    @property
    def available_methods(self) -> list[str]:
        """The ids of the methods that this model can be decoded with: without a drafter, those that draft are left out."""
        return [name for name in METHODS if name not in self.unavailable]

    @property
    def default_methods(self) -> list[str]:
        """Of those the ones that a comparison has which names none."""
        return default_methods(METHODS[name] for name in self.available_methods)

    def check_methods(self, methods: list[Method]) -> list[Method]:
        """The methods as they are. Raises ValueError when this model cannot be decoded with one of them."""
        for method in methods:
            if method.id in self.unavailable:
                raise ValueError(self.unavailable[method.id].sentence())
        return methods

    # -- runs

    @lists_settings
    def generate(self, prompt: str, method: str = "vanilla", **settings: Any) -> Generation:
        """Draw a prompt with one method. Raises ValueError with a sentence for anything not allowed."""
        *_, last = self.stream(prompt, method, **settings)
        assert isinstance(last, Generation)
        return last

    def stream(self, prompt: str, method: str = "vanilla", **settings: Any) -> Iterator[StepEvent | Generation]:
        """As `generate`, yielding a StepEvent per step and the Generation last. Closing it stops within a step; on a GPU
        within the few that are in flight."""
        request = self.request(prompt, [method], **settings)

        def events() -> Iterator[StepEvent | Generation]:
            with closing(self.race(request)) as found:
                for _, event in found:
                    if isinstance(event, MethodFailed):
                        raise RuntimeError(event.message)
                    if isinstance(event, (StepEvent, Generation)):
                        yield event

        return events()

    @lists_settings
    def compare(
        self, prompt: str, methods: list[str] | None = None, **settings: Any
    ) -> Generator[tuple[str, StepEvent | Generation | MethodFailed], None, None]:
        """Race methods on this device, each warmed up before the first is timed; see `race`.

        Yields (method id, event): a StepEvent per step, and at last its Generation; or MethodFailed when it raised. Methods are
        the default ones that are available when left out. Raises ValueError at the call for bad input. Where memory does not
        hold all methods at once they start again one after the other, their steps counted from 0; so does a method that runs out
        of memory by itself, with a smaller tree.
        """
        request = self.request(prompt, methods, **settings)

        def events() -> Generator[tuple[str, StepEvent | Generation | MethodFailed], None, None]:
            with closing(self.race(request)) as found:
                for method, event in found:
                    if event is not None:
                        yield method, event

        return events()

    def request(
        self, prompt: Any, methods: Any = None, trees: dict[str, dict[str, Any]] | None = None, **settings: Any
    ) -> Request:
        """Check what a comparison is asked for; no methods are the default ones, and `trees` are settings of some methods' draft
        trees that differ from the others'. Raises ValueError with a sentence for what is not allowed."""
        chosen = methods_of(self.default_methods if methods is None else methods)
        common = self.settings(**settings)
        own = {method.id: common.with_changes(**(trees or {}).get(method.id, {})) for method in chosen}
        self.check_methods(chosen)
        return Request(self.info.id, self.check_prompt(prompt), own)

    def race(self, request: Request, seconds: float | None = None) -> RunEvents:
        """As `compare`, with None for an event after every step of the warm-up too: whoever steps through can stop in between.
        What is not drawn after `seconds` fails."""
        return Race(self, request, seconds).events()

    def prepare(self) -> Generator[None, None, None]:
        """Choose the trees that fit this machine and warm up every method, so that no visitor's run has to; yields between steps.

        It depends on nothing that anybody asked for: the prompt is always the same, the settings are the preset's.
        """
        with self.turn():
            read = self.read(self._own_prompt)
            for name in self.available_methods:
                try:
                    for _ in self.warm_up(METHODS[name], self.defaults, read):
                        yield
                except Exception as error:  # such as memory that does not suffice: whoever asks for the method gets to know
                    in_words(error, name)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """No other run is open meanwhile. Raises RuntimeError in a thread that would wait for itself."""
        if self._at_work == threading.get_ident():
            raise RuntimeError(
                "a run of this pipeline is still open in this thread; go through its events to the end, or close it"
            )
        with self._turn:
            try:
                self.go_on()
                yield
            finally:
                self._at_work = None

    def go_on(self) -> None:
        """Whichever thread goes on with a run computes with the chosen number of its own, whatever it did in between."""
        self._at_work = threading.get_ident()
        self.threads.use()

    @property
    def idle_engines(self) -> int:
        """For how many runs there is memory set aside."""
        return len(self._engines)

    def make_room(self) -> None:
        """Give back all memory that no run needs just now."""
        self._engines.clear()
        release_memory()

    def warm_up(
        self, method: Method, settings: Settings, read: Read, tree: Choice | None = None
    ) -> Generator[tuple[str, None], None, Choice]:
        """A few uncounted tokens with a method, once for each tree, yielding between steps -> the tree to run it with, a smaller
        one than asked where memory does not suffice. Raises what the method raises."""
        asked = self.tree_of(method, settings) if tree is None else tree
        key = (method.id, asked.policy, settings.cfg_scale != 1, settings.noise)
        if key in self._warm:
            known = self._warm[key]
            return asked if known.policy == asked.policy else known  # the reason is that of whoever asks
        choice = asked
        while True:
            try:
                clock, tokens = Clock(self.device), min(WARM_UP_TOKENS, self.info.tokens)
                for _ in self._decode(method, settings, read.encoded, tokens, clock, tree=choice.policy):
                    yield method.id, None
                    self.go_on()
                self.decode_image([0] * self.info.tokens)
                self._warm[key] = choice
                return choice
            except Exception as error:
                smaller = smaller_choice(method, choice, error)
                if smaller is None:
                    raise
            self.make_room()
            choice = smaller

    def run(self, method: Method, settings: Settings, read: Read, tree: Choice, schedule: Schedule, schedule_reason: str) -> Run:
        """One run of a method: a StepEvent per step, then its Generation."""
        clock, encoded = Clock(self.device), read.encoded
        clock.seconds["text"] = read.seconds
        outcome: Decoded | None = None
        steps: list[StepEvent] = []
        config, condition = self.asked_for(method, settings, encoded, self.info.tokens, tree.policy)
        for event in decode(self.target, self.drafter, condition, config, clock, self._engines):
            if isinstance(event, Decoded):
                outcome = event
            else:
                steps.append(event)
                yield event
        assert outcome is not None
        with clock.measure("image"):
            image = self.decode_image(outcome.tokens)
        if config.tree.side_by_side:
            steps = marked(self.target, condition, config, steps)
        stats = self._stats(config, tree, outcome, share_changed(steps), clock, schedule, schedule_reason)
        entry = Entry.of(stats, outcome.tokens, image, events_of(steps))
        told = encoded.unknown, warning(self.info, read.prompt)
        record = run_record(self.info, self.networks.trained, self.networks.sources, read.prompt, *told, settings, entry)
        yield Generation(method.id, image, outcome.tokens, stats, record)

    @torch.inference_mode()
    def read(self, prompt: str) -> Read:
        """A prompt that passed `check_prompt`, as the target's condition. A published model reads the same prompt once for all
        comparisons that follow each other."""
        if self._read is not None and self._read.prompt == prompt:
            return self._read
        clock = Clock(self.device)
        with clock.measure("text"):
            encoded = self.networks.text.encode(prompt)
        found = Read(prompt, encoded, clock.seconds["text"])
        if self.info.published is not None:
            self._read = found
        return found

    def asked_for(
        self, method: Method, knobs: Settings, encoded: Encoded, tokens: int, tree: Drafts, kept: bool = True
    ) -> tuple[Config, Condition]:
        """What a run is asked to do, and from which condition."""
        with torch.inference_mode():
            condition = self.networks.target.condition(encoded.features, encoded.mask, knobs.cfg_scale != 1)
        config = Config(
            method,
            tokens,
            knobs.sampling(),
            knobs.rule(method),
            tree,
            self.neighbours(knobs.neighbours),
            knobs.seed,
            self.device,
            room=self.info.tokens if kept else None,
            row=self.info.grid,
            noise=knobs.noise,
        )
        return config, condition

    def _decode(
        self, method: Method, knobs: Settings, encoded: Encoded, tokens: int, clock: Clock, tree: Drafts, kept: bool = True
    ) -> Iterator[StepEvent | Decoded]:
        config, condition = self.asked_for(method, knobs, encoded, tokens, tree, kept)
        return decode(self.target, self.drafter, condition, config, clock, self._engines if kept else None)

    def tree_of(self, method: Method, knobs: Settings) -> Choice:
        """The draft tree that a method runs with, and why. One that is to fit is chosen for all methods with drafts of its kind
        when first asked for, which takes seconds; of these settings only `zipar_changed` plays a part in it."""
        kind = method.drafts
        if not kind.fits(knobs):
            return Choice(kind.of(knobs), kind.asked(knobs))
        fitted = self._trees.fitted(kind, knobs.zipar_changed)
        if fitted is not None and self._borrowed:
            return replace(fitted, reason=f"{fitted.reason}; what it lands was measured of {BORROWED}, not of this model")
        named = "small" if method.needs_drafter else kind.of(knobs).words()
        return fitted or Choice(kind.of(knobs), f"{named}: {self._no_fit}")

    def _step_seconds(self, policy: Drafts) -> list[float]:
        """Seconds of the steps of a short run, but the first, which starts the drafter, and a last one without drafts."""
        clock, encoded = Clock(self.device), self.read(self._own_prompt).encoded
        plain = next(m for m in METHODS.values() if m.drafts is type(policy) and type(m.rule) is Rule)
        wave = policy.side_by_side
        tokens = self.info.tokens if wave else min(FIT_TOKENS, self.info.tokens)
        events = self._decode(plain, self.defaults, encoded, tokens, clock, tree=policy, kept=False)
        if wave:  # as many rows are open as ever once the first one is done
            events = islice(events, self.info.grid, self.info.grid + FIT_PASSES)
        elif self.info.published is not None:  # whose steps are long
            events = islice(events, FIT_PASSES)
        pairs = list(pairwise(event for event in events if isinstance(event, StepEvent)))
        whole = [b.seconds - a.seconds for a, b in pairs[1:] if wave or len(b.tree_tokens) == policy.nodes]
        return whole or [b.seconds - a.seconds for a, b in pairs]  # of a picture of a few tokens nothing better can be had

    @property
    def _own_prompt(self) -> str:
        """What is drawn to choose trees and to warm up."""
        return "0" if self.info.kind == "class" else "two red round lanterns over a lake at dusk"

    def _stats(
        self,
        config: Config,
        choice: Choice,
        outcome: Decoded,
        changed: float,
        clock: Clock,
        schedule: Schedule,
        schedule_reason: str,
    ) -> Stats:
        parts = ("text", "prefill", "draft", "verify", "commit", "image", "capture")
        return Stats(
            method=config.method.id,
            tokens=len(outcome.tokens),
            steps=outcome.steps,
            mean_accepted_length=outcome.mean_accepted_length,
            accepted_lengths=outcome.accepted_lengths,
            decode_seconds=outcome.decode_seconds,
            **{f"{part}_seconds": clock.seconds[part] for part in parts},
            changed=changed,
            nodes=outcome.nodes,
            tree=choice.reason,
            tree_settings=choice.policy.asking(),
            device=device_name(self.device),
            dtype=self.dtype,
            products=self.products,
            engine=outcome.engine,
            engine_reason=outcome.engine_reason,
            threads=self.threads.count,
            threads_reason=self.threads.reason,
            schedule=schedule,
            schedule_reason=schedule_reason,
            waited_seconds=outcome.waited_seconds,
            noise=config.noise_used,
        )

    # -- pictures and tables

    @torch.inference_mode()
    def decode_image(self, tokens: list[int]) -> Image.Image:
        """All tokens of a picture -> RGB image. The latest are kept, since with shared noise all exact methods draw the same."""
        key = tuple(tokens)
        if key not in self._images:
            self._images[key] = _image(self.networks.draw(torch.tensor([tokens], device=self.device))[0])
            while len(self._images) > IMAGES_KEPT:
                del self._images[next(iter(self._images))]
        return self._images[key]

    @torch.inference_mode()
    def preview(self, tokens: dict[int, int], empty: tuple[int, int, int] = (128, 128, 128)) -> Image.Image:
        """A picture of which only some tokens are there, by place; the rest of each row is filled with the colour `empty`.

        It is the image tokenizer's, in its size: a picture decoder takes longer, and a preview is looked at for a moment.
        """
        grid, last, filled, lengths = self.info.grid, 0, list[int](), [0] * self.info.grid
        for index in range(self.info.tokens):
            last = tokens.get(index, last)
            filled.append(last)
            lengths[index // grid] += index in tokens
        image = _image(self.networks.tokenizer.decode(torch.tensor([filled], device=self.device))[0])
        cell = image.width // grid
        for row, length in enumerate(lengths):
            if length < grid:
                image.paste(empty, (length * cell, row * cell, image.width, (row + 1) * cell))
        return image

    def palette(self) -> Tensor:
        """The colour of each token of the codebook [V, 3] uint8 on the CPU: what a picture is painted with before it is
        decoded."""
        if self._palette is None:
            tokenizer = self.networks.tokenizer
            made = self._kept("palette", tokenizer.codebook, lambda: token_colours(tokenizer))
            self._palette = made.to("cpu", torch.uint8)
        return self._palette

    @torch.inference_mode()
    def neighbours(self, vectors: str = "decoder") -> Tensor:
        """The neighbour table [V, k] int32 where drafts are judged, from the vectors the decoder sees or the "raw" ones."""
        if vectors not in self._neighbours:
            tokenizer = self.networks.tokenizer
            book = tokenizer.codebook if vectors == "decoder" else tokenizer.vq.quantize.embedding.weight
            columns = min(MAX_LANTERN_K, len(book) - 1)
            table = self._kept(f"neighbours-{columns}", book, lambda: neighbour_table(book, columns))
            self._neighbours[vectors] = table.to(self.device)
        return self._neighbours[vectors]

    def _kept(self, name: str, codebook: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Make a table of a codebook; a published model's takes seconds to minutes, and is kept on disk."""
        return make() if self.info.published is None else disk_cache.table(name, codebook, make)


def _image(pixels: Tensor) -> Image.Image:
    """Pixels [3, H, W] in [0, 1] as an RGB image."""
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).cpu().numpy())


def load(
    model: str | Path = "lantern-scenes",
    device: str = "auto",
    dtype: str = "auto",
    folder: str | Path | None = None,
    drafter: str | Path | None = None,
    threads: int | None = None,
    fit_trees: bool = True,
) -> Pipeline:
    """Load a model by its registry id, or from a folder in the format of the bundled one.

    device: "auto", "cpu", "cuda", "cuda:N". dtype, of target and drafter: "float32", "bfloat16", "float16", or "auto", which is
    float32 for the bundled model, and 16 bits for a published one: bfloat16, or float16 where that is faster or a GPU lacks the
    other. A published model is fetched from the Hub at its first start; `folder` is a local folder to take its files from
    instead (see `models.checkpoints`), `drafter` one with a drafter of one's own to use in place of the published one. threads
    is how many threads of a CPU compute; None: see `models.machine.device.pick_threads`. fit_trees=False: trees are not
    measured on this machine, "fit" means "small", and a window that was to fit has 8 places.
    Raises ValueError for an unknown model, device or dtype, an impossible number of threads, a folder that cannot be read, and
    a published model that does not fit this machine or whose files cannot be fetched or are wrong.
    """
    chosen = pick_device(device)
    info = info_of(model)
    name = info.dtype(dtype, chosen)
    if info.folder is not None:
        for option, value in (("folder", folder), ("drafter", drafter)):
            if value is not None:
                raise ValueError(f"{option} is for published models; {info.id} has its own, got {str(value)!r}")
        networks: bundled.Networks[Any] = bundled.load(info.folder, chosen, DTYPES[name])
        sized = replace(info, image_size=networks.image_size, grid=networks.tokenizer.grid)
        return Pipeline(sized, networks, chosen, name, threads, fit_trees)
    files = None if folder is None else Path(folder)
    if files is not None and not files.is_dir():
        raise ValueError(f"folder must be a folder with the published files, got {str(folder)!r}")
    reason = requirements_unmet(info, chosen, name, files)
    if reason:
        raise ValueError(f"{info.id} cannot run here: {reason}")
    # fused models for a CPU make their own weights of those in the files
    kept = None if families.runs_fused(info, chosen) else DTYPES[name]
    networks = checkpoints.load(info, chosen, kept, files, None if drafter is None else Path(drafter))
    return Pipeline(info, networks, chosen, name, threads, fit_trees)


def info_of(model: str | Path) -> ModelInfo:
    """What is known of a model without loading it: a folder's sizes are not. Raises ValueError for an unknown id."""
    local = isinstance(model, Path) or (isinstance(model, str) and model not in REGISTRY and Path(model).is_dir())
    return _local_info(Path(model)) if local else model_info(model)


def unavailable_methods(info: ModelInfo) -> dict[str, DrafterMissing]:
    """As `Pipeline.unavailable`, of a model on offer that is not loaded."""
    return {} if checkpoints.has_drafter(info) else _need_a_drafter(checkpoints.why_no_drafter(info))


def _need_a_drafter(missing: bundled.NoDrafter) -> dict[str, DrafterMissing]:
    return {method.id: DrafterMissing(method.id, missing) for method in METHODS.values() if method.needs_drafter}


def _local_info(folder: Path) -> ModelInfo:
    """A model folder as one on offer; its sizes are read with it."""
    return ModelInfo(folder.name, folder.name, "A model from a local folder.", folder, image_size=0, grid=0, max_prompt=200)
