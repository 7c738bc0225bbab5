"""Hold one loaded model on one device, and run it with one method at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import DraftConfig
from lantern_demo.decoding.evidence import with_evidence
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Decoded, Step, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.timing import Clock
from lantern_demo.faults import out_of_memory, release_memory
from lantern_demo.models import bundled
from lantern_demo.models.common import Condition
from lantern_demo.models.files import disk_cache
from lantern_demo.models.machine.device import device_name, pick_threads
from lantern_demo.models.machine.matmul import KINDS
from lantern_demo.models.machine.tuning import CACHED, Tuning, small_on_cpu
from lantern_demo.models.neighbours import neighbour_table
from lantern_demo.models.palette import token_colours
from lantern_demo.models.registry import BUNDLED, ModelInfo
from lantern_demo.models.text import Encoded
from lantern_demo.prompt_words import warning
from lantern_demo.runs.fitting import (
    FIT_ROUNDS,
    Calibration,
    Choice,
    StepCosts,
    TreeFitting,
    calibration_folder,
    read_calibration,
)
from lantern_demo.runs.record import Entry, Model, events_of, image_hash, run_record
from lantern_demo.runs.stats import Generation, Schedule
from lantern_demo.settings.drafts import are_fitted, describe_drafts, drafts_of, settings_of, why_these_drafts
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.settings.settings import Settings

WARM_UP_TOKENS = 12
IMAGES_KEPT = 8
BORROWED = "lantern-scenes"  # its calibration substitutes for that of a published model
FIT_TOKENS = 20  # tokens of a run that times the steps with a tree
FIT_PASSES = 8  # passes of a run that times a large model
TIMED = ("text", "prefill", "draft", "verify", "commit", "image", "capture")  # parts of a run

Run = Generator[Step | Generation, None, None]  # a run's steps, then its Generation


class Read(NamedTuple):
    """A prompt as the target's condition, and the seconds that this took."""

    prompt: str
    encoded: Encoded
    seconds: float


class Session:
    """One loaded model on one device. Runs take turns: a caller in another thread waits for the previous run. A caller in the
    same thread would wait for ever, and gets a RuntimeError."""

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
            # So the bundled model's picture takes 90 ms instead of 112, on one core of an EPYC.
            decoders: list[Any] = [networks.tokenizer.vq.decoder, networks.picture]
            for decoder in filter(None, decoders):
                decoder.to(memory_format=torch.channels_last)
        self._trees = self._fitting(tuning, runners.kind is not None, fit_trees)
        self._no_fit = "this model has no calibration" if fit_trees else "nothing is measured on a device that is only lent"
        self._neighbours: dict[str, Tensor] = {}
        self._palette = networks.palette
        # the tree to run with, by method, tree, guidance and noise
        self._warm: dict[tuple[str, DraftConfig, bool, str], Choice] = {}
        self._runners = Runners()
        self._images: dict[tuple[int, ...], Image.Image] = {}  # see `decode_image`
        self._read: Read | None = None  # see `read`
        self._turn = threading.Lock()
        self._at_work: int | None = None  # the thread that last advanced the current run

    def _fitting(self, tuning: Tuning, fast: bool, fit_trees: bool) -> TreeFitting:
        """Return the choice of trees by the model's calibration, or for a published model without one by a borrowed one.

        fast: the target's matmuls are of a kind that was chosen for this processor.
        """
        info, calibration = self.info, Calibration()
        found = read_calibration(calibration_folder(info.id, info.folder)) if fit_trees else calibration
        self._borrowed = found is None and info.published is not None and (fast or self.device.type == "cuda")
        if self._borrowed:
            # The cost of a tree differs more between machines than acceptance differs between models.
            found = read_calibration(BUNDLED / BORROWED)
        # A GPU's steps vary little, and each short run there begins with a capture; a large model's are long.
        rounds = 1 if self.device.type == "cuda" or info.published is not None else FIT_ROUNDS
        return TreeFitting(tuning, found or calibration, StepCosts(self._step_seconds, rounds))

    # -- turns and memory

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep other runs of the session waiting. Raises RuntimeError in a thread that would wait for itself."""
        if self._at_work == threading.get_ident():
            raise RuntimeError(
                "a run of this pipeline is still open in this thread; go through its events to the end, or close it"
            )
        with self._turn:
            try:
                self._go_on()
                yield
            finally:
                self._at_work = None

    def _go_on(self) -> None:
        """Make the calling thread compute with the session's number of threads, which it may have changed in between."""
        self._at_work = threading.get_ident()
        self.threads.use()

    @property
    def idle_runners(self) -> int:
        """The number of runs for which memory is set aside."""
        return len(self._runners)

    def make_room(self) -> None:
        """Release all memory that no current run needs."""
        self._runners.clear()
        release_memory()

    # -- runs

    @torch.inference_mode()
    def read(self, prompt: str) -> Read:
        """Encode a checked prompt as the target's condition.

        A published model encodes the same prompt once for consecutive comparisons.
        """
        if self._read is not None and self._read.prompt == prompt:
            return self._read
        clock = Clock(self.device)
        with clock.measure("text"):
            encoded = self.networks.text.encode(prompt)
        found = Read(prompt, encoded, clock.seconds["text"])
        if self.info.published is not None:
            self._read = found
        return found

    def warm_up(
        self, method: Method, settings: Settings, read: Read, tree: Choice | None = None
    ) -> Generator[tuple[str, None], None, Choice]:
        """Draw a few uncounted tokens with a method, once for each tree, and yield between steps.

        Return the tree to run with: a smaller one than requested if memory runs out. Raises the method's errors.
        """
        self._go_on()
        asked = self.tree_of(method, settings) if tree is None else tree
        key = (method.id, asked.policy, settings.cfg_scale != 1, settings.noise)
        if key in self._warm:
            known = self._warm[key]
            return asked if known.policy == asked.policy else known  # with the reason of this request
        choice = asked
        while True:
            try:
                clock, tokens = Clock(self.device), min(WARM_UP_TOKENS, self.info.tokens)
                for _ in self._decode(method, settings, read.encoded, tokens, clock, tree=choice.policy):
                    yield method.id, None
                    self._go_on()
                self.decode_image([0] * self.info.tokens)
                self._warm[key] = choice
                return choice
            except Exception as error:
                smaller = smaller_choice(method, choice, error)
                if smaller is None:
                    raise
            self.make_room()
            choice = smaller

    def run(self, method: Method, settings: Settings, read: Read, tree: Choice, schedule: Schedule, why: str) -> Run:
        """Run a method: yield a Step per step, then its Generation. schedule and why: as in `Stats`."""
        self._go_on()
        clock, encoded = Clock(self.device), read.encoded
        clock.seconds["text"] = read.seconds
        outcome: Decoded | None = None
        steps: list[Step] = []
        config, condition = self.asked_for(method, settings, encoded, self.info.tokens, tree.policy)
        for event in decode(self.target, self.drafter, condition, config, clock, self._runners):
            if isinstance(event, Decoded):
                outcome = event
            else:
                steps.append(with_evidence(event))  # outside the clock
                yield steps[-1]
                self._go_on()
        assert outcome is not None
        with clock.measure("image"):
            image = self.decode_image(outcome.tokens)
        entry = Entry(
            **self._numbers(config, tree, outcome, clock),
            schedule=schedule,
            schedule_reason=why,
            token_ids=outcome.tokens,
            image_sha256=image_hash(image),
            events=events_of(steps),
        )
        model, told = Model(self.info.id, self.networks.trained, self.networks.sources), warning(self.info, read.prompt)
        record = run_record(model, read.prompt, encoded.unknown, told, settings, entry)
        yield Generation(method.id, image, outcome.tokens, entry, record)

    def _numbers(self, config: Config, choice: Choice, outcome: Decoded, clock: Clock) -> dict[str, Any]:
        """Return the fields of `Stats` that come from a finished run and this session."""
        return {
            "method": config.method.id,
            "tokens": len(outcome.tokens),
            "steps": outcome.steps,
            "mean_accepted_length": outcome.mean_accepted_length,
            "accepted_lengths": outcome.accepted_lengths,
            "decode_seconds": outcome.decode_seconds,
            **{f"{part}_seconds": clock.seconds[part] for part in TIMED},
            "nodes": outcome.nodes,
            "tree": choice.reason,
            "tree_settings": settings_of(choice.policy),
            "device": device_name(self.device),
            "dtype": self.dtype,
            "products": self.products,
            "engine": outcome.runner,
            "engine_reason": outcome.runner_reason,
            "threads": self.threads.count,
            "threads_reason": self.threads.reason,
            "waited_seconds": outcome.waited_seconds,
            "noise": config.noise_used,
        }

    def asked_for(
        self, method: Method, knobs: Settings, encoded: Encoded, tokens: int, tree: DraftConfig, kept: bool = True
    ) -> tuple[Config, Condition]:
        """Return the config of a run and its condition. kept: a later run may use its runner."""
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
            noise=knobs.noise,
        )
        return config, condition

    def _decode(
        self, method: Method, knobs: Settings, encoded: Encoded, tokens: int, clock: Clock, tree: DraftConfig, kept: bool = True
    ) -> Iterator[Step | Decoded]:
        config, condition = self.asked_for(method, knobs, encoded, tokens, tree, kept)
        return decode(self.target, self.drafter, condition, config, clock, self._runners if kept else None)

    # -- draft trees

    def tree_of(self, method: Method, knobs: Settings) -> Choice:
        """Return the draft tree that a method runs with, and why. A tree to be fitted is chosen for all methods with drafts of
        its kind at the first request, which takes seconds."""
        kind = method.drafts
        if not are_fitted(kind, knobs):
            return Choice(drafts_of(kind, knobs), why_these_drafts(kind, knobs))
        fitted = self._trees.fitted(kind)
        if fitted is not None and self._borrowed:
            return replace(fitted, reason=f"{fitted.reason}; acceptance was counted with {BORROWED}, not with this model")
        named = "small" if method.needs_drafter else describe_drafts(drafts_of(kind, knobs))
        return fitted or Choice(drafts_of(kind, knobs), f"{named}: {self._no_fit}")

    def _step_seconds(self, policy: DraftConfig) -> list[float]:
        """Time the steps of a short run, in seconds, without the first, which starts the drafter, and a last one without
        drafts."""
        clock, encoded = Clock(self.device), self.read(self.own_prompt).encoded
        plain = next(m for m in METHODS.values() if m.drafts is type(policy) and type(m.rule) is Rule)
        tokens = min(FIT_TOKENS, self.info.tokens)
        events = self._decode(plain, self.defaults, encoded, tokens, clock, tree=policy, kept=False)
        if self.info.published is not None:  # its steps are long
            events = islice(events, FIT_PASSES)
        pairs = list(pairwise(event for event in events if isinstance(event, Step)))
        whole = [b.seconds - a.seconds for a, b in pairs[1:] if len(b.tree_tokens) == policy.nodes]
        return whole or [b.seconds - a.seconds for a, b in pairs]  # a picture of a few tokens has no better steps

    @property
    def own_prompt(self) -> str:
        """The prompt that is drawn to choose trees and to warm up."""
        return "0" if self.info.kind == "class" else "two red round lanterns over a lake at dusk"

    # -- pictures and tables

    @torch.inference_mode()
    def decode_image(self, tokens: list[int]) -> Image.Image:
        """Decode all tokens of a picture to an RGB image. The latest images are kept, since with shared noise all exact methods
        draw the same."""
        key = tuple(tokens)
        if key not in self._images:
            self._images[key] = as_image(self.networks.draw(torch.tensor([tokens], device=self.device))[0])
            while len(self._images) > IMAGES_KEPT:
                del self._images[next(iter(self._images))]
        return self._images[key]

    @torch.inference_mode()
    def neighbours(self, vectors: str = "decoder") -> Tensor:
        """Return the neighbour table [V, k] int32 on the session's device, by the vectors that the decoder reads or the "raw"
        ones."""
        if vectors not in self._neighbours:
            tokenizer = self.networks.tokenizer
            book = tokenizer.codebook if vectors == "decoder" else tokenizer.vq.quantize.embedding.weight
            columns = min(MAX_LANTERN_K, len(book) - 1)
            table = self._kept(f"neighbours-{columns}", book, lambda: neighbour_table(book, columns))
            self._neighbours[vectors] = table.to(self.device)
        return self._neighbours[vectors]

    def palette(self) -> Tensor:
        """Return the colour of each token of the codebook [V, 3] uint8 on the CPU, with which the page paints an unfinished
        picture."""
        if self._palette is None:
            tokenizer = self.networks.tokenizer
            made = self._kept("palette", tokenizer.codebook, lambda: token_colours(tokenizer))
            self._palette = made.to("cpu", torch.uint8)
        return self._palette

    def _kept(self, name: str, codebook: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Make a table of a codebook. For a published model this takes seconds to minutes, and the disk keeps the table."""
        return make() if self.info.published is None else disk_cache.table(name, codebook, make)


def as_image(pixels: Tensor) -> Image.Image:
    """Convert pixels [3, H, W] in [0, 1] to an RGB image."""
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).cpu().numpy())


def smaller_choice(method: Method, tree: Choice, error: Exception) -> Choice | None:
    """Return a smaller tree if the error is a lack of memory. Return None for another error, or if no tree is smaller."""
    policy = drafts_of(method.drafts, Settings(tree="small", window=2))
    if not out_of_memory(error) or method.alone or tree.policy.nodes <= policy.nodes:
        return None
    return Choice(policy, "small: the device ran out of memory with the tree that was asked for")
