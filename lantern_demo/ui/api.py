"""The public API: /draw, /compare and /models. Gradio documents each from its signature and docstring."""

# No `from __future__ import annotations` here: Gradio reads the return annotations as they stand.

import functools
import inspect
import logging
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_type_hints

import gradio as gr
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from lantern_demo.decoding.methods import METHODS
from lantern_demo.faults import writable
from lantern_demo.models.files.needs import describe as describe_needs
from lantern_demo.models.machine.device import device_name
from lantern_demo.runs.record import merge_records
from lantern_demo.runs.stats import MethodFailed
from lantern_demo.settings.knobs import KNOBS
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.files import saved, write_picture
from lantern_demo.ui.gradio_patches import CALL_PATHS, document
from lantern_demo.ui.service import Frame, Service

DEVICE: dict[str, Any] = {"concurrency_id": "device", "concurrency_limit": 1}  # whatever decodes waits for its turn


def _draw(service: Service) -> Callable[..., Any]:
    """The endpoint /draw."""

    def draw(
        prompt: str, model: str | None = None, method: str | None = None, seed: int | None = None, with_vanilla: bool = False
    ) -> Iterator[tuple[dict | None, dict]]:
        """Draw a picture of a prompt: the one call that most programs want.

        {can_draw}

        Args:
            prompt: What to draw. Required.
            model: A model id of /models; the one that the server was started with when left out.
            method: A method id of /models; LANTERN++ when left out, or SJD for a model without a drafter.
            seed: The same seed draws the same picture on the same machine; the preset's when left out.
            with_vanilla: Whether vanilla draws it too, which takes its time as well, so that the speedup is known.

        Returns:
            The picture, a PNG file.
            Numbers: seconds of decoding; speedup over vanilla (null unless it ran); passes of the model; tokens_a_pass; changed, the share of tokens that only the relaxation accepted, 0 where the method is lossless. Beside them method, model, seed, and unknown_words of the prompt that the model does not know.
        """
        yield from drawn(service, prompt, model, method, seed, with_vanilla)

    draw.__doc__ = (draw.__doc__ or "").replace("{can_draw}", can_draw(service))
    draw.__annotations__["return"] = tuple[dict | None, dict]  # of one answer, which is what Gradio takes for a generator's type

    return draw


def _compare(service: Service) -> Callable[..., Any]:
    """The endpoint /compare."""

    def compare(
        prompt: str, model: str | None = None, methods: list[str] | None = None, **knobs: Any
    ) -> Iterator[tuple[dict, dict]]:
        """Draw a prompt with several methods that race on one device, and time them.

        Answers now and then while it runs; the last answer is the whole result, the ones before it have no pictures and in place
        of the record a `progress`: by method that went on since the last one its tokens, steps and seconds so far. A picture is a
        file: {"path", "url", ...}. Settings left out are the model's preset, which /models tells.

        Args:
            prompt: What to draw. Required.
            model: A model id of /models; the one that the server was started with when left out.
            methods: Method ids of /models, in the order of the list there whatever theirs; those that it calls default when left out.

        Returns:
            The pictures (PNG files) by method id.
            The run record: prompt, settings, device, and for each method its stats, token ids and, where vanilla ran, its speedup.
        """
        yield from answers(service, prompt, model, methods, knobs)

    return spelt_out(compare)


def _models(service: Service) -> Callable[..., Any]:
    """The endpoint /models."""

    def models() -> dict:
        """What is on offer and what is loaded.

        Returns:
            Models with their sizes, what their presets change, what they need, why they cannot run here and which methods they lack; the loaded ones with device and number format; methods.
        """
        return describe(service)

    return models


def add_endpoints(page: gr.Blocks, service: Service) -> None:
    """Add the API to the page being built."""
    # Gradio makes an MCP tool of every endpoint that it documents, and a run record is too long for a language model.
    by_mcp = os.environ.get("GRADIO_MCP_SERVER", "False").lower() == "true"
    for endpoint, name, queue in (
        (_draw(service), "draw", DEVICE),
        (_compare(service), "compare", DEVICE),
        (_models(service), "models", {"concurrency_limit": None}),
    ):
        seen: Literal["undocumented", "public"] = "undocumented" if by_mcp and name == "compare" else "public"
        dependency = gr.api(endpoint, api_name=name, api_visibility=seen, **queue)
        document(page, dependency, endpoint)


def can_draw(service: Service) -> str:
    """What the model that the server was started with draws, for whoever is about to write a prompt."""
    info = service.offered()[service.default]
    prompts = info.prompts or tuple(prompt for prompt, _ in texts.EXAMPLES)
    return f"What there is to draw here: {info.description} Prompts that suit it: {'; '.join(prompts[:2])}."


def method_for(service: Service, model: Any, method: Any) -> Any:
    """The method of a call that names none: LANTERN++, or SJD where the model has no drafter."""
    if method is not None:
        return method
    info = service.offered().get(service.default if model is None else str(model))
    return "sjd" if info is not None and "lantern++" in service.unavailable(info) else "lantern++"


def drawn(
    service: Service, prompt: Any, model: Any, method: Any, seed: Any, with_vanilla: Any
) -> Generator[tuple[dict | None, dict], None, None]:
    """What /draw answers: progress without a picture now and then, and at last the picture and its numbers."""
    if not isinstance(with_vanilla, bool):
        raise gr.Error(f"with_vanilla must be true or false, got {writable(repr(with_vanilla))}", print_exception=False)
    chosen = method_for(service, model, method)
    methods = ["vanilla", chosen] if with_vanilla and chosen != "vanilla" else [chosen]
    with closing(answers(service, prompt, model, methods, {"seed": seed})) as found:
        for pictures, record in found:
            if "progress" in record:
                yield None, record
            elif chosen not in record["methods"]:
                raise gr.Error(f"{chosen} failed: {record['failed'][chosen]}", print_exception=False)
            else:
                yield pictures.get(chosen), numbers(record, chosen)


def numbers(record: dict[str, Any], method: str) -> dict[str, Any]:
    """What is worth knowing of one picture, out of the record of its run."""
    entry = record["methods"][method]
    return {
        "seconds": entry["decode_seconds"],
        "speedup": entry.get("speedup") if method != "vanilla" else 1.0,
        "passes": entry["steps"],
        "tokens_a_pass": entry["mean_accepted_length"],
        "changed": entry["changed"],
        "method": method,
        "model": record["model"]["id"],
        "seed": record["settings"]["seed"],
        "unknown_words": record["unknown_words"],
    }


def describe(service: Service) -> dict[str, Any]:
    """What /models answers."""
    return {
        "default_model": service.default,
        "warning": service.warning,
        "models": [
            {
                "id": info.id,
                "description": info.description,
                "image_size": info.image_size,
                "tokens": info.tokens,
                "max_prompt": info.max_prompt,
                "preset": dict(info.preset),
                "kind": info.kind,
                "prompts": list(info.prompts),
                "licence": info.licence,
                "needs": (needs := describe_needs(info)) and {key: needs[key] for key in ("download_bytes", "memory_bytes")},
                "unmet": service.unmet(info),
                "unavailable_methods": list(service.unavailable(info)),
            }
            for info in service.offered().values()
        ],
        "loaded": [
            {
                "id": pipe.info.id,
                "device": device_name(pipe.device),
                "dtype": pipe.dtype,
                "products": pipe.products,
                "threads": pipe.threads.count,
                "threads_reason": pipe.threads.reason,
            }
            for pipe in service.loaded()
        ],
        "methods": [
            {
                "id": m.id,
                "label": m.label,
                "lossless": m.lossless,
                "summary": m.summary,
                "default": m.default,
            }
            for m in METHODS.values()
        ],
    }


def refuse_call(request: HttpRequest, error: Exception) -> JSONResponse:
    """Answer one of MISCALLS by a sentence instead of a bare 500."""
    if not any(place in request.url.path for place in CALL_PATHS):
        raise error
    if isinstance(error, TypeError):
        return JSONResponse({"error": writable(str(error))}, status_code=400)
    if "/component_server" in request.url.path:
        return JSONResponse({"error": texts.NO_SUCH_EVENT}, status_code=404)
    name = writable(request.url.path.rstrip("/").rsplit("/", 1)[-1])
    return JSONResponse({"error": f"there is no endpoint {name!r}; there are /draw, /compare and /models"}, status_code=404)


def answers(
    service: Service, prompt: Any, model: Any, methods: Any, knobs: dict[str, Any]
) -> Generator[tuple[dict, dict], None, None]:
    """The answers of a comparison; faults become sentences for the caller."""
    try:
        request = service.request(prompt, model, methods, knobs)
    except ValueError as error:
        raise gr.Error(str(error), print_exception=False) from None
    images: dict[str, Any] = {}
    records: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    unsaved: dict[str, str] = {}
    try:
        with TemporaryDirectory(prefix="lantern-demo-") as folder, closing(service.frames(request, False)) as events:
            for event in events:
                if isinstance(event, Frame):
                    # Every time: only between two answers does Gradio see that its client is gone. Pictures come with the last
                    # answer: Gradio would handle them anew for each.
                    yield (
                        {},
                        {
                            "progress": {
                                name: {"tokens": at.committed, "steps": at.steps, "seconds": at.seconds}
                                for name, at in event.lanes.items()
                            }
                        },
                    )
                elif isinstance(event, MethodFailed):
                    failed[event.method] = event.message
                else:
                    path = saved(write_picture, Path(folder), event)
                    if path is None:
                        unsaved[event.method] = texts.not_saved(event.method)
                    else:
                        images[event.method] = gr.FileData(path=path, mime_type="image/png").model_dump()
                    records.append(event.record)
            if not records:
                raise gr.Error("; ".join(f"{method} failed: {why}" for method, why in failed.items()), print_exception=False)
            record, notes = merge_records(records), {"failed": failed, "not_saved": unsaved}
            found = {name: images[name] for name in record["order"] if name in images}
            yield found, record | {name: note for name, note in notes.items() if note}
    except gr.Error:  # also the Space's own refusals, such as a spent quota
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("an API call failed")
        raise gr.Error(texts.internal_error(error), print_exception=False) from error


def spelt_out(endpoint: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Spell out an endpoint's `**knobs` as parameters of their own, typed and documented, each None unless given."""
    answer = tuple[dict, dict]  # the type of one answer, which is what Gradio takes for a generator's return type
    hints = get_type_hints(Settings)
    named = [p for p in inspect.signature(endpoint).parameters.values() if p.kind is not p.VAR_KEYWORD]
    knobs = [
        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=hints[n] | None) for n in KNOBS
    ]
    signature = inspect.Signature([*named, *knobs], return_annotation=answer)
    lines = "".join(f"    {name}: {knob.sentence}{f' {knob.range}.' if knob.range else ''}\n" for name, knob in KNOBS.items())
    head, _, returns = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\nReturns:")

    @functools.wraps(endpoint)
    def spelt(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from endpoint(**signature.bind(*args, **kwargs).arguments)

    spelt.__signature__ = signature  # type: ignore[attr-defined]
    spelt.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": answer}
    spelt.__doc__ = f"{head}\n{lines}\nReturns:{returns}"
    return spelt
