"""Load a model, and draw a prompt with one method or compare several: the public Python API."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS, Method, default_methods
from lantern_demo.faults import in_words, unreadable
from lantern_demo.models import bundled, checkpoints, families
from lantern_demo.models.files.needs import requirements_unmet
from lantern_demo.models.machine.device import DTYPES, pick_device
from lantern_demo.models.registry import REGISTRY, ModelInfo, model_info
from lantern_demo.paths import user_path
from lantern_demo.prompt_words import USUAL
from lantern_demo.runs.race import Event, Request, RunEvents, race
from lantern_demo.runs.session import Session, as_image
from lantern_demo.runs.stats import Generation, MethodFailed, Stats
from lantern_demo.settings.knobs import KNOBS, lists_settings
from lantern_demo.settings.settings import Settings, method_of, methods_of

__all__ = ["Generation", "MethodFailed", "Pipeline", "Stats", "Step", "load"]


class Pipeline(Session):
    """A session that checks input, draws prompts and compares methods."""

    # -- inputs

    def settings(self, **changes: Any) -> Settings:
        """Return the model's preset with some values changed.

        Raises ValueError for an unknown name or a value not allowed.
        """
        return self.defaults.with_changes(**changes)

    def check_prompt(self, prompt: Any) -> str:
        """Return the prompt, stripped.

        Raises ValueError when it is empty, too long or not text that can be written down.
        """
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
    def unavailable(self) -> dict[str, bundled.NoDrafter]:
        """The methods that cannot decode with this model, by id, each with the reason and the
        remedy.
        """
        return _without_drafter(self.networks.no_drafter)

    @property
    def available_methods(self) -> list[str]:
        """The ids of the methods that can decode with this model: without a drafter, those that
        need none.
        """
        return [name for name in METHODS if name not in self.unavailable]

    @property
    def default_methods(self) -> list[str]:
        """The available methods for a comparison that names no methods."""
        return default_methods(METHODS[name] for name in self.available_methods)

    def check_methods(self, methods: list[Method]) -> list[Method]:
        """Return the methods.

        Raises ValueError when this model cannot be decoded with one of them.
        """
        for method in methods:
            if method.id in self.unavailable:
                raise ValueError(
                    f"method {method.id} needs a drafter, and {self.unavailable[method.id]}"
                )
        return methods

    def request(
        self,
        prompt: Any,
        methods: Any = None,
        trees: dict[str, dict[str, Any]] | None = None,
        **settings: Any,
    ) -> Request:
        """Check the values of a comparison. methods None means the default ones.

        `trees` are settings of some methods' draft trees that differ from the others'. Raises
        ValueError with a sentence for a value that is not allowed.
        """
        chosen = methods_of(self.default_methods if methods is None else methods)
        common = self.settings(**settings)
        own = {
            method.id: common.with_changes(**(trees or {}).get(method.id, {})) for method in chosen
        }
        self.check_methods(chosen)
        return Request(self.info.id, self.check_prompt(prompt), own)

    # -- runs

    @lists_settings
    def generate(self, prompt: str, method: str = "vanilla", **settings: Any) -> Generation:
        """Draw a prompt with one method.

        Raises ValueError with a sentence for a value that is not allowed.
        """
        *_, last = self.stream(prompt, method, **settings)
        assert isinstance(last, Generation)
        return last

    def twin(self, record: dict[str, Any], method: str) -> Generation:
        """Draw a relaxed method's run of a record again by the exact rule, with the same tree and
        random numbers. The tokens equal the method's up to the first draft to which neighbours lent
        probability. Raises ValueError for a method without such a bound, or that the record does
        not have.
        """
        settings, trees = twin_settings(record, method)
        return self.generate(record["prompt"], method, **settings, **trees[method])

    def stream(
        self, prompt: str, method: str = "vanilla", **settings: Any
    ) -> Iterator[Step | Generation]:
        """As `generate`, but yield a Step per step and the Generation last.

        Closing it stops within a step, on a GPU within the few that are in flight.
        """
        events = self.compare(prompt, [method], **settings)

        def of_the_method() -> Iterator[Step | Generation]:
            with closing(events):
                for _, event in events:
                    if isinstance(event, MethodFailed):
                        raise RuntimeError(event.message)
                    yield event

        return of_the_method()

    @lists_settings
    def compare(
        self, prompt: str, methods: list[str] | None = None, **settings: Any
    ) -> Generator[tuple[str, Event], None, None]:
        """Race methods on this device, each warmed up before the first is timed; see `runs.race`.

        Yields (method id, event): a Step per step, and last its Generation; or MethodFailed when it
        raised. Without methods the available default ones run. Raises ValueError at the call for
        bad input. If memory does not hold all methods at once, they start again one after the
        other, with steps counted from 0. A method that runs out of memory alone starts again with a
        smaller tree.
        """
        events = self.race(self.request(prompt, methods, **settings))

        def without_warm_up() -> Generator[tuple[str, Event], None, None]:
            with closing(events):
                for method, event in events:
                    if event is not None:
                        yield method, event

        return without_warm_up()

    def race(self, request: Request, seconds: float | None = None) -> RunEvents:
        """As `compare`, but also yield None for an event after every step of the warm-up, so that a
        caller may stop in between. Methods that are not done after `seconds` fail.
        """
        return race(self, request, seconds)

    def prepare(self) -> Generator[None, None, None]:
        """Warm up every method before any visitor's run. Yields between steps.

        It depends on no request: the prompt is always the same, and the settings are the preset's.
        """
        with self.turn():
            read = self.read(self.own_prompt)
            for name in self.available_methods:
                try:
                    for _ in self.warm_up(METHODS[name], self.defaults, read):
                        yield
                # such as too little memory: a run with the method reports it
                except Exception as error:
                    in_words(error, name)

    @torch.inference_mode()
    def preview(
        self, tokens: dict[int, int], empty: tuple[int, int, int] = (128, 128, 128)
    ) -> Image.Image:
        """Decode an unfinished picture, with tokens by position; the rest of each row has the
        colour `empty`.

        The image tokenizer decodes it, in its size: a picture decoder takes longer, and a preview
        is visible only briefly.
        """
        grid, last, filled, lengths = self.info.grid, 0, list[int](), [0] * self.info.grid
        for index in range(self.info.tokens):
            last = tokens.get(index, last)
            filled.append(last)
            lengths[index // grid] += index in tokens
        image = as_image(
            self.networks.tokenizer.decode(torch.tensor([filled], device=self.device))[0]
        )
        cell = image.width // grid
        for row, length in enumerate(lengths):
            if length < grid:
                image.paste(empty, (length * cell, row * cell, image.width, (row + 1) * cell))
        return image


def load(
    model: str | Path = "lantern-scenes",
    device: str = "auto",
    dtype: str = "auto",
    folder: str | Path | None = None,
    drafter: str | Path | None = None,
    threads: int | None = None,
) -> Pipeline:
    """Load a model by its registry id, or from a folder in the format of the bundled one.

    device: "auto", "cpu", "cuda", "cuda:N". dtype, of target and drafter: "float32", "bfloat16",
    "float16", or "auto". "auto" is float32 for the bundled model, and 16 bits for a published one:
    bfloat16, or float16 where that is faster or a GPU lacks bfloat16. A published model is fetched
    from the Hub at its first start. `folder` is a local folder with its files instead (see
    `models.checkpoints`). `drafter` is a folder with a drafter that replaces the published one,
    trained here or by LANTERN's code. threads: how many threads of a CPU compute; None: see
    `models.machine.device.pick_threads`. Raises ValueError for an unknown model, device or dtype,
    an impossible number of threads and an unreadable folder; also for a published model that does
    not fit this machine, or whose files cannot be fetched or are wrong.
    """
    chosen = pick_device(device)
    info = info_of(model)
    name = info.dtype(dtype, chosen)
    files = checkpoints.files_folder(info, folder)
    if info.folder is not None:
        if drafter is not None:
            got = f"got {str(drafter)!r}"
            raise ValueError(f"drafter is for published models; {info.id} has its own, {got}")
        networks: bundled.Networks[Any] = bundled.load(info.folder, chosen, DTYPES[name])
        sized = replace(info, image_size=networks.image_size, grid=networks.tokenizer.grid)
        return Pipeline(sized, networks, chosen, name, threads)
    reason = requirements_unmet(info, chosen, name, files)
    if reason:
        raise ValueError(f"{info.id} cannot run here: {reason}")
    # fused models for a CPU derive their weights from those in the files
    kept = None if families.runs_fused(info, chosen) else DTYPES[name]
    given = None if drafter is None else user_path(drafter)
    networks = checkpoints.load(info, chosen, kept, files, given)
    return Pipeline(info, networks, chosen, name, threads)


def info_of(model: str | Path) -> ModelInfo:
    """Return the facts of a model without loading it; those of a folder lack sizes.

    Raises ValueError for an unknown id.
    """
    named = isinstance(model, str) and model not in REGISTRY and user_path(model).is_dir()
    if named or isinstance(model, Path):
        folder = user_path(model)
        told = "A model from a local folder."
        return ModelInfo(
            folder.name, folder.name, told, image_size=0, grid=0, max_prompt=200, folder=folder
        )
    return model_info(model)


def unavailable_methods(
    info: ModelInfo,
    folder: Path | None = None,
) -> dict[str, bundled.NoDrafter]:
    """As `Pipeline.unavailable`, for a model on offer that is not loaded; `folder` as in `load`."""
    there = checkpoints.has_drafter(info, folder)
    return _without_drafter(None if there else checkpoints.why_no_drafter(info, folder))


def _without_drafter(missing: bundled.NoDrafter | None) -> dict[str, bundled.NoDrafter]:
    return (
        {}
        if missing is None
        else {method.id: missing for method in METHODS.values() if method.needs_drafter}
    )


def twin_settings(
    record: dict[str, Any], method: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings of a relaxed method's exact twin, and the tree that it runs with, by
    method. Raise ValueError for a method without a bound, or that the record does not have.
    """
    bounds = [name for name, knob in KNOBS.items() if knob.bounds and knob.reads(method_of(method))]
    if not bounds:
        raise ValueError(f"method must be a relaxed one, got {method!r}")
    if method not in record["methods"]:
        known = ", ".join(record["methods"])
        raise ValueError(f"method must be one of the record's, {known}, got {method!r}")
    limit = KNOBS[bounds[0]].limit
    assert limit is not None
    tree = record["methods"][method]["tree_settings"]
    settings = {name: value for name, value in record["settings"].items() if name not in tree}
    return settings | {bounds[0]: limit.low, "noise": "independent"}, {method: tree}
