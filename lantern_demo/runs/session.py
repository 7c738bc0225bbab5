"""Hold one loaded model on one device, and run it with one method at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from lantern_demo import disk_cache
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import DraftConfig
from lantern_demo.decoding.evidence import with_evidence
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Decoded, Step, decode
from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.timing import Clock
from lantern_demo.faults import out_of_memory, release_memory
from lantern_demo.models import bundled, families
from lantern_demo.models.cpu import KINDS
from lantern_demo.models.device import device_name, pick_threads
from lantern_demo.models.llama import Condition
from lantern_demo.models.registry import ModelInfo
from lantern_demo.models.text import Encoded
from lantern_demo.models.tokenizer import neighbour_table, token_colours
from lantern_demo.prompt_words import warning
from lantern_demo.runs.record import Entry, Model, events_of, image_hash, run_record
from lantern_demo.runs.stats import Generation, Schedule
from lantern_demo.settings.drafts import Choice, choice_of, describe_drafts, settings_of
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.settings.settings import Settings
from lantern_demo.settings.trees import DEFAULTS, drafts_by_device

WARM_UP_TOKENS = 12
IMAGES_KEPT = 8
TIMED = ("text", "prefill", "draft", "verify", "commit", "image", "capture")  # parts of a run

Run = Generator[Step | Generation, None, None]  # a run's steps, then its Generation


class Read(NamedTuple):
    """A prompt as the target's condition, and the seconds that this took."""

    prompt: str
    encoded: Encoded
    seconds: float


class Session:
    """One loaded model on one device.

    Runs take turns: a caller in another thread waits for the previous run. A caller in the same
    thread would wait for ever, and gets a RuntimeError.
    """

    def __init__(
        self,
        info: ModelInfo,
        networks: bundled.Networks,
        device: torch.device,
        dtype: str,
        threads: int | None = None,
    ) -> None:
        self.info, self.networks, self.device, self.dtype = info, networks, device, dtype
        self.defaults = Settings(**info.preset)
        self.threads = pick_threads(
            threads, device, families.small_on_cpu(networks, device, families.CACHED)
        )
        self.threads.use()
        runners = families.runners(networks, device, dtype)
        self.target, self.drafter = runners.target, runners.drafter
        self.products = (
            KINDS[runners.kind] if runners.kind else f"{dtype} products, as PyTorch chooses"
        )
        if runners.drafter_kind not in (None, runners.kind):
            self.products += f"; the drafter: {KINDS[runners.drafter_kind]}"
        if device.type == "cpu":
            # So the bundled model's picture takes 90 ms instead of 112, on one core of an EPYC.
            decoders: list[Any] = [networks.tokenizer.vq.decoder, networks.picture]
            for decoder in filter(None, decoders):
                decoder.to(memory_format=torch.channels_last)
        self._drafts = drafts_by_device(networks.trees)[device.type]
        self._neighbours: dict[str, Tensor] = {}
        self._palette = networks.palette
        # the tree to run with, by method, tree, guidance and noise
        self._warm: dict[tuple[str, DraftConfig, bool, str], Choice] = {}
        self._runners = Runners()
        self._images: dict[tuple[int, ...], Image.Image] = {}  # see `decode_image`
        self._read: Read | None = None  # see `read`
        self._turn = threading.Lock()
        self._at_work: int | None = None  # the thread that last advanced the current run

    # -- turns and memory

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep other runs of the session waiting.

        Raises RuntimeError in a thread that would wait for itself.
        """
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
        """Make the calling thread compute with the session's number of threads, which it may have
        changed in between.
        """
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

        Return the tree to run with: a smaller one than requested if memory runs out. Raises the
        method's errors.
        """
        self._go_on()
        asked = self.tree_of(method, settings) if tree is None else tree
        key = (method.id, asked.policy, settings.cfg_scale != 1, settings.noise)
        if key in self._warm:
            known = self._warm[key]
            # with the reason of this request
            return asked if known.policy == asked.policy else known
        choice = asked
        while True:
            try:
                clock, tokens = Clock(self.device), min(WARM_UP_TOKENS, self.info.tokens)
                for _ in self._decode(
                    method, settings, read.encoded, tokens, clock, tree=choice.policy
                ):
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

    def run(
        self,
        method: Method,
        settings: Settings,
        read: Read,
        tree: Choice,
        schedule: Schedule,
        why: str,
    ) -> Run:
        """Run a method: yield a Step per step, then its Generation. schedule and why: as in
        `Stats`.
        """
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
        model, told = (
            Model(self.info.id, self.networks.trained, self.networks.sources),
            warning(self.info, read.prompt),
        )
        record = run_record(model, read.prompt, encoded.unknown, told, settings, entry)
        yield Generation(method.id, image, outcome.tokens, entry, record)

    def _numbers(
        self, config: Config, choice: Choice, outcome: Decoded, clock: Clock
    ) -> dict[str, Any]:
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
        self,
        method: Method,
        knobs: Settings,
        encoded: Encoded,
        tokens: int,
        tree: DraftConfig,
        kept: bool = True,
    ) -> tuple[Config, Condition]:
        """Return the config of a run and its condition. kept: a later run may use its runner."""
        with torch.inference_mode():
            condition = self.networks.target.condition(
                encoded.features, encoded.mask, knobs.cfg_scale != 1
            )
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
        self,
        method: Method,
        knobs: Settings,
        encoded: Encoded,
        tokens: int,
        clock: Clock,
        tree: DraftConfig,
        kept: bool = True,
    ) -> Iterator[Step | Decoded]:
        config, condition = self.asked_for(method, knobs, encoded, tokens, tree, kept)
        return decode(
            self.target, self.drafter, condition, config, clock, self._runners if kept else None
        )

    # -- draft trees

    def tree_of(self, method: Method, knobs: Settings) -> Choice:
        """Return the drafts that a method runs with, and where they come from."""
        return choice_of(method.drafts, knobs, self._drafts)

    @property
    def own_prompt(self) -> str:
        """The prompt that warms up the methods."""
        return "0" if self.info.kind == "class" else "two red round lanterns over a lake at dusk"

    # -- pictures and tables

    @torch.inference_mode()
    def decode_image(self, tokens: list[int]) -> Image.Image:
        """Decode all tokens of a picture to an RGB image.

        The latest images are kept, since with shared noise all exact methods draw the same.
        """
        key = tuple(tokens)
        if key not in self._images:
            self._images[key] = as_image(
                self.networks.draw(torch.tensor([tokens], device=self.device))[0]
            )
            while len(self._images) > IMAGES_KEPT:
                del self._images[next(iter(self._images))]
        return self._images[key]

    @torch.inference_mode()
    def neighbours(self, vectors: str = "decoder") -> Tensor:
        """Return the neighbour table [V, k] int32 on the session's device, by the vectors that the
        decoder reads or the "raw" ones.
        """
        if vectors not in self._neighbours:
            tokenizer = self.networks.tokenizer
            book = (
                tokenizer.codebook
                if vectors == "decoder"
                else tokenizer.vq.quantize.embedding.weight
            )
            columns = min(MAX_LANTERN_K, len(book) - 1)
            table = self._kept(
                f"neighbours-{columns}", book, lambda: neighbour_table(book, columns)
            )
            self._neighbours[vectors] = table.to(self.device)
        return self._neighbours[vectors]

    def palette(self) -> Tensor:
        """Return the colour of each token of the codebook [V, 3] uint8 on the CPU, with which the
        page paints an unfinished picture.
        """
        if self._palette is None:
            tokenizer = self.networks.tokenizer
            made = self._kept("palette", tokenizer.codebook, lambda: token_colours(tokenizer))
            self._palette = made.to("cpu", torch.uint8)
        return self._palette

    def _kept(self, name: str, codebook: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Make a table of a codebook.

        For a published model this takes seconds to minutes, and the disk keeps the table.
        """
        return make() if self.info.published is None else disk_cache.table(name, codebook, make)


def as_image(pixels: Tensor) -> Image.Image:
    """Convert pixels [3, H, W] in [0, 1] to an RGB image."""
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).cpu().numpy())


def smaller_choice(method: Method, tree: Choice, error: Exception) -> Choice | None:
    """Return a smaller tree if the error is a lack of memory.

    Return None for another error, or if no tree is smaller.
    """
    policy = choice_of(method.drafts, Settings(tree="small", window=2), DEFAULTS["cpu"]).policy
    if not out_of_memory(error) or method.alone or tree.policy.nodes <= policy.nodes:
        return None
    why = "small, since the device ran out of memory with the tree that was asked for"
    return Choice(policy, f"{describe_drafts(policy)} ({why})")
