"""The public API: /draw, /compare and /model.

Gradio documents each from its signature and docstring.
"""

# No `from __future__ import annotations` here: Gradio reads the return annotations as they stand.

import inspect
import logging
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TypedDict, final, get_args

import gradio as gr

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS, default_method
from lantern_demo.faults import NotAllowed
from lantern_demo.prompt_words import USUAL
from lantern_demo.runs.record import Record, summary_of
from lantern_demo.runs.result import MethodFailed, Result, record_of
from lantern_demo.settings.knobs import KNOBS, MOST_REPEATS, ON_THE_FORM, quoted, repeats_of
from lantern_demo.settings.settings import Settings, by_name, method_of
from lantern_demo.ui import texts
from lantern_demo.ui.events import ON_DEVICE
from lantern_demo.ui.files import saved, scratch, write_picture
from lantern_demo.ui.frames import Frame
from lantern_demo.ui.gradio_patches import unread
from lantern_demo.ui.service import Service, on_space

UNHEARD_SECONDS = 30.0  # that a run goes on without anybody who listens
MOST_ON_A_SPACE = 5  # repeats
_LOG = logging.getLogger(__name__)
# The fields of the model and of a method in the answer of /model.
DESCRIBED = ("id", "description", "image_size", "tokens", "max_prompt")
OF_A_METHOD = ("id", "label", "lossless", "summary", "default")
KEEP = (
    "The token ids of the upper rows of another picture of this model, {row} a row from the top: "
    "only the rest is drawn. They are the first ones of `tokens` of /draw, or of `token_ids`."
)
# The parts of a method's entry that grow with its tokens.
DETAILS = ("events", "token_ids", "accepted_lengths")


@final
class Progress(TypedDict):
    """An answer before the last: tokens, steps and seconds of each method that advanced."""

    progress: dict[str, dict[str, float]]


def _draw(page: gr.Blocks, service: Service) -> Callable[..., Any]:
    def draw(
        prompt: str = USUAL,  # Gradio's ready code has it
        method: str | None = None,
        seed: int | None = None,
        settings: dict[str, Any] | None = None,
        keep: list[int] | None = None,
        caller: gr.Request | None = None,
    ) -> Iterator[tuple[dict | None, dict]]:
        """Draw a picture of a prompt with one method. Most programs need only this call.

        {can_draw}

        Args:
            prompt: What to draw.
            method: A method id of /model; by default LANTERN++, or SJD where the model has no drafter.
            seed: {seed}
            settings: Other settings by name; those left out keep the model's preset: {others}.
            keep: {keep}

        Returns:
            picture: A PNG file.
            numbers: decode_seconds, steps (forward passes), mean_accepted_length (tokens a step),
                changed (the share of tokens that only the relaxation accepted; 0 where the method
                is lossless), tokens (their ids, row by row), method, model, seed, unknown_words,
                completed: the prompt that was drawn where it is another, else null, and warning:
                why the picture does not show all of the prompt, else null.
        """
        chosen = default_method(service.unavailable)
        if method is not None:
            try:
                chosen = method_of(method).id
            except ValueError as error:
                raise gr.Error(str(error), print_exception=False) from None
        left = _left(page, caller)
        found = answers(service, prompt, [chosen], seed, settings, left=left, keep=keep)
        with closing(found):
            for pictures, record in found:
                if "progress" in record:
                    yield None, dict(record)
                    continue
                entry = record["methods"][chosen]
                numbers = {
                    "method": chosen,
                    "decode_seconds": entry["decode_seconds"],
                    "steps": entry["steps"],
                    "mean_accepted_length": entry["mean_accepted_length"],
                    "changed": entry["changed"],
                    "tokens": entry["token_ids"],
                    "model": record["model"]["id"],
                    "seed": record["settings"]["seed"],
                    "unknown_words": record["unknown_words"],
                    "completed": record["completed"],
                    "warning": record["warning"],
                }
                if "not_saved" in record:
                    numbers["not_saved"] = record["not_saved"]
                yield pictures.get(chosen), numbers

    info = service.info
    prompts = "; ".join(texts.EXAMPLES[:2])
    can_draw = f"What there is to draw here: {info.description} Prompts that suit it: {prompts}."
    return _documented(draw, service, can_draw=can_draw)


def _compare(page: gr.Blocks, service: Service) -> Callable[..., Any]:
    def compare(
        prompt: str = USUAL,
        methods: list[str] | None = None,
        seed: int | None = None,
        settings: dict[str, Any] | None = None,
        details: bool | None = None,
        repeats: int | None = None,
        keep: list[int] | None = None,
        caller: gr.Request | None = None,
    ) -> Iterator[tuple[dict, dict]]:
        """Draw a prompt with several methods that race on one device, and time them.

        Answers stream while it runs. The last answer is the result. Earlier ones have no pictures,
        and a `progress` instead of the record: tokens, steps and seconds of each method that
        advanced. A picture is a file: {"path", "url", ...}.

        Args:
            prompt: What to draw.
            methods: Method ids of /model, always run in the order of its list; by default those
                marked default there.
            seed: {seed}
            settings: Other settings by name; those left out keep the model's preset: {others}.
            details: Whether the record has every token and step; by default it has.
            repeats: How often the same race runs, 1 to {most}; by default once, and less often
                where the server's time for a call is over. Pictures and record are the first
                race's, and the record's `repeats` has the seconds of all races and the lowest,
                median and highest speedup of each method.
            keep: {keep} All methods draw on from them.

        Returns:
            pictures: PNG files by method id.
            record: The run record: prompt, completed (the prompt that was drawn, if it is another),
                settings, device, warning (if the picture does not show all of the prompt). Each
                method has its stats, token ids and, where vanilla ran, its speedup.
        """
        if not (details is None or isinstance(details, bool)):
            raise gr.Error(
                f"details must be true or false, got {quoted(details)}", print_exception=False
            )
        left = _left(page, caller)
        found = answers(service, prompt, methods, seed, settings, repeats, left, keep)
        # else Python 3.12 leaves the run open, and the device occupied, when a client has left
        with closing(found):
            for pictures, record in found:
                yield pictures, _brief(record) if details is False else dict(record)

    return _documented(compare, service, most=str(most_repeats()))


def most_repeats() -> int:
    """Return how often a call may repeat a race; less often where strangers wait for the device."""
    return MOST_ON_A_SPACE if on_space() else MOST_REPEATS


def _left(page: gr.Blocks, caller: gr.Request | None) -> Callable[[int], bool]:
    """Return a test, by the count of its answers, whether nobody listens to a call."""
    return lambda count: caller is not None and unread(page, caller.session_hash) >= count


def _brief(record: Record | Progress) -> dict[str, object]:
    """Return a record without its tokens and steps."""
    if "progress" in record:
        return dict(record)
    methods = {
        name: {key: value for key, value in entry.items() if key not in DETAILS}
        for name, entry in record["methods"].items()
    }
    return {**record, "methods": methods}


def _documented(endpoint: Callable[..., Any], service: Service, **words: str) -> Callable[..., Any]:
    """Fill in what Gradio shows of an endpoint: its docstring, and the type of one answer.

    Gradio reads the sentence of a parameter from one line.
    """
    returned = endpoint.__annotations__["return"]
    endpoint.__annotations__["return"] = next(iter(get_args(returned)), returned)
    preset = Settings(**service.info.preset).as_dict()
    helps = {name: KNOBS[name].help_text(preset[name]) for name in ("seed", *ON_THE_FORM)}
    words["seed"] = helps.pop("seed")
    words["keep"] = KEEP.format(row=service.info.grid)
    words["others"] = "; ".join(f"{name} ({said})" for name, said in helps.items())
    told = re.sub(r"\n {16}", " ", endpoint.__doc__ or "")
    for name, said in words.items():
        told = told.replace(f"{{{name}}}", said)
    endpoint.__doc__ = told
    return endpoint


def _model(service: Service) -> Callable[..., Any]:
    def model() -> dict:
        """Describe the model that the server draws with, and the methods.

        Returns:
            offer: `model` with sizes, preset, missing methods and, once it is loaded, device, number
                format and threads; `methods`; and a `warning`, else null.
        """
        info, pipe = service.info, service.loaded
        told = {name: getattr(info, name) for name in DESCRIBED}
        told |= {"preset": dict(info.preset), "unavailable_methods": service.unavailable}
        if pipe is not None:
            threads = pipe.threads
            told |= {"device": pipe.machine.device, "dtype": pipe.dtype}
            told |= {"products": pipe.products, "threads": threads.count}
            told |= {"threads_reason": threads.reason}
        methods = [
            {name: getattr(method, name) for name in OF_A_METHOD} for method in METHODS.values()
        ]
        return {"warning": service.warning, "model": told, "methods": methods}

    return _documented(model, service)


def add_endpoints(page: gr.Blocks, service: Service) -> None:
    """Add the API to the page that is being built."""
    for endpoint, queue in (
        (_draw(page, service), ON_DEVICE),
        (_compare(page, service), ON_DEVICE),
        (_model(service), {"concurrency_limit": None}),
    ):
        # Without this description the documentation would lack these sentences.
        gr.api(endpoint, api_description=inspect.getdoc(endpoint), **queue)


def answers(
    service: Service,
    prompt: object,
    methods: object,
    seed: object = None,
    settings: object = None,
    repeats: object = None,
    left: Callable[[int], bool] = lambda _: False,
    keep: object = None,
) -> Generator[tuple[dict, Record | Progress], None, None]:
    """Yield the answers of a comparison.

    `left` is asked whether nobody has read the answers so far; a run that nobody listens to ends
    after UNHEARD_SECONDS. Raise gr.Error with a sentence for the caller.
    """
    yield {}, {"progress": {}}  # Gradio cannot end a call that has not answered yet
    try:
        given = {} if settings is None else by_name(settings)
        if seed is not None and given.get("seed") is not None:
            raise NotAllowed(
                "seed", "is given twice; it must be a parameter or in settings, not both"
            )
        given = given if seed is None else {**given, "seed": seed}
        request = service.request(prompt, methods, given, keep=keep)
        races = 1 if repeats is None else repeats_of(repeats, most_repeats())
    except ValueError as error:
        raise gr.Error(str(error), print_exception=False) from None
    try:
        began, started, count = perf_counter(), monotonic(), 1
        first: dict[str, Result | MethodFailed] = {}  # the pictures of later races are not kept
        seconds: list[dict[str, float]] = []
        while len(seconds) < races and (not first or perf_counter() - began < service.run_seconds):
            found: dict[str, Result | MethodFailed] = {}
            try:
                with closing(service.frames(request)) as events:
                    for event in events:
                        if isinstance(event, Frame):
                            # Every time: Gradio notices a lost client only between two answers.
                            at = {method: _at(step) for method, step in event.steps.items()}
                            yield {}, {"progress": at}
                            count += 1
                            if monotonic() - started > UNHEARD_SECONDS and left(count):
                                _LOG.warning(texts.UNHEARD)
                                raise gr.Error(texts.UNHEARD, print_exception=False)
                        else:
                            found[event.method] = event
            except gr.Error:  # also the Space's own refusals, such as a spent quota
                if not first:
                    raise
                break  # the caller gets the finished races
            first = first or found
            seconds.append(_seconds(found))
            if not seconds[0]:  # no method works, nor would it again
                break
        with scratch() as folder:
            pictures, record = _whole(first, folder)
            if races > 1:
                record["repeats"] = summary_of(seconds)
            yield pictures, record
    except gr.Error:
        raise
    except Exception as error:
        _LOG.exception("an API call failed")
        raise gr.Error(texts.internal_error(error), print_exception=False) from error


def _at(step: Step) -> dict[str, float]:
    return {"tokens": step.committed, "steps": step.index, "seconds": step.seconds}


def _seconds(outcomes: dict[str, Result | MethodFailed]) -> dict[str, float]:
    return {name: one.decode_seconds for name, one in outcomes.items() if isinstance(one, Result)}


def _whole(
    outcomes: dict[str, Result | MethodFailed], folder: Path
) -> tuple[dict[str, object], Record]:
    """Return pictures and record of a race. Pictures are written into `folder`."""
    failed = {name: one.message for name, one in outcomes.items() if isinstance(one, MethodFailed)}
    done = {name: one for name, one in outcomes.items() if isinstance(one, Result)}
    if not done:
        why = "; ".join(f"{method} failed: {told}" for method, told in failed.items())
        raise gr.Error(why, print_exception=False)
    record = record_of(done.values())
    files = {name: saved(write_picture, folder, done[name]) for name in record["order"]}
    unsaved = {
        name: texts.NOT_SAVED.format(method=name) for name, path in files.items() if not path
    }
    if failed:
        record["failed"] = failed
    if unsaved:
        record["not_saved"] = unsaved
    sent = {
        name: gr.FileData(path=path, mime_type="image/png").model_dump()
        for name, path in files.items()
        if path
    }
    return sent, record
