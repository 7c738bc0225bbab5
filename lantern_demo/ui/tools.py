"""The API as MCP tools, for programs that read every answer with a language model: little JSON, a picture, and the addresses of
the rest."""

# No `from __future__ import annotations` here: Gradio reads the return annotations as they stand.

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.machine.device import device_name
from lantern_demo.ui import texts
from lantern_demo.ui.api import DEVICE, answers, can_draw, drawn, spelt_out
from lantern_demo.ui.files import saved, write_record, write_sheet
from lantern_demo.ui.gradio_patches import as_tool
from lantern_demo.ui.service import Service

COLUMNS = (
    "decode_seconds",
    "steps",
    "mean_accepted_length",
    "speedup",
    "price",
)  # of a method's stats; the address of its picture follows
DECIMALS = 4  # of a number
REASON = 100  # characters of why a method failed; the record has all of it


def mcp_asked_for() -> bool:
    """Whether the program was started with MCP switched on; Gradio reads the same variable."""
    return os.environ.get("GRADIO_MCP_SERVER", "").lower() == "true"


def _draw(service: Service) -> Callable[..., Any]:
    """The tool `draw`."""

    def draw(
        prompt: str, model: str | None = None, method: str | None = None, seed: int | None = None, with_vanilla: bool = False
    ) -> Iterator[dict]:
        """Draw a picture of a prompt: the one tool that is mostly needed.

        {can_draw}

        Answers the picture and JSON: seconds of decoding, speedup over vanilla (null unless vanilla ran), passes of the model,
        tokens a pass, and price (at least this share of the tokens come out differently than the model itself would have drawn
        them; 0 for lossless methods).

        Args:
            prompt: What to draw, in words that the model knows.
            model: A model id that the tool `models` lists; the one that the server was started with when left out.
            method: A method id that the tool `models` lists; LANTERN++ when left out, or SJD for a model without a drafter.
            seed: The same seed draws the same picture on the same machine.
            with_vanilla: Whether vanilla draws it too, so that the speedup is known.
        """
        with closing(drawn(service, prompt, model, method, seed, with_vanilla)) as found:
            for picture, told in found:
                if "progress" in told:
                    yield {}  # between two answers Gradio sees that its client is gone
                else:
                    yield {"told": {key: _short(value) for key, value in told.items()}, "picture": picture}

    draw.__doc__ = (draw.__doc__ or "").replace("{can_draw}", can_draw(service))
    draw.__annotations__["return"] = dict  # as of the other tools

    return draw


def _compare(service: Service) -> Callable[..., Any]:
    """The tool `compare`."""

    def compare(prompt: str, model: str | None = None, methods: list[str] | None = None, **knobs: Any) -> Iterator[dict]:
        """Draw one prompt with several decoding methods that race on one device, and compare their speed and what each gave up
        for it.

        Answers JSON and a sheet of all pictures. Of each method the JSON has, in the order of its `columns`: seconds of decoding,
        steps (passes of the model), tokens a step, speedup over vanilla (null unless vanilla ran), price (at least this share of
        the tokens come out differently than the model itself would have drawn them; 0 for lossless methods), and the address of
        its picture. `record` is the address of the whole run: settings, tokens and every step. Settings left out are the model's
        preset.

        Args:
            prompt: What to draw, such as: three red round lanterns over a lake at dusk. The bundled model knows paper lanterns alone.
            model: A model id that the tool `models` lists; the one that the server was started with when left out.
            methods: Method ids that the tool `models` lists, such as vanilla, eagle1 and lantern++; its default ones when left out.
        """
        yield from _told(answers(service, prompt, model, methods, knobs), _sheet)

    return spelt_out(compare, dict)


def _generate(service: Service) -> Callable[..., Any]:
    """The tool `generate`."""

    def generate(prompt: str, model: str | None = None, method: str = "lantern++", **knobs: Any) -> Iterator[dict]:
        """Draw a picture of a prompt with one decoding method.

        Answers JSON and the picture. The JSON has, in the order of its `columns`: seconds of decoding, steps (passes of the
        model), tokens a step, speedup (null: there was no vanilla run), price (at least this share of the tokens come out
        differently than the model itself would have drawn them), and the picture's address. `record` is the address of the whole
        run. Settings left out are the model's preset.

        Args:
            prompt: What to draw, such as: three red round lanterns over a lake at dusk. The bundled model knows paper lanterns alone.
            model: A model id that the tool `models` lists; the one that the server was started with when left out.
            method: A method id that the tool `models` lists, such as vanilla or lantern++.
        """
        yield from _told(answers(service, prompt, model, [method], knobs), _only_picture)

    return spelt_out(generate, dict)


def _models(service: Service) -> Callable[..., Any]:
    """The tool `models`."""

    def models() -> dict:
        """List the models and the decoding methods on offer, which models can run here, and prompts that suit the default one."""
        return {"told": offer(service), "picture": None}

    return models


def add_tools(service: Service) -> None:
    """Add the tools to the page being built."""
    for endpoint, queue in (
        (_draw(service), DEVICE),
        (_compare(service), DEVICE),
        (_generate(service), DEVICE),
        (_models(service), {"concurrency_limit": None}),
    ):
        name = endpoint.__name__
        # Callable by name, as MCP calls it, but no part of the API: that has these endpoints with all that a program wants to
        # know.
        gr.api(as_tool(endpoint, texts.TOOL_TITLES[name]), api_name=f"tool_{name}", api_visibility="undocumented", **queue)


def offer(service: Service) -> dict[str, Any]:
    """What the tool `models` answers."""
    default = service.offered()[service.default]
    return {
        "default_model": service.default,
        "prompts": list(default.prompts or (prompt for prompt, _ in texts.EXAMPLES))[:3],
        "loaded": {pipe.info.id: device_name(pipe.device) for pipe in service.loaded()},
        "models": {
            info.id: {
                "pixels": info.image_size,
                "tokens": info.tokens,
                "kind": info.kind,
                "runs_here": service.unmet(info) is None,
            }
            for info in service.offered().values()
        },
        "methods": {
            method.id: ("lossless" if method.lossless else "lossy") + (", default" if method.default else "")
            for method in METHODS.values()
        },
    }


def told(record: Mapping[str, Any], pictures: Mapping[str, Any], record_file: Any) -> dict[str, Any]:
    """A run in little JSON; `pictures` and `record_file` are files, which become addresses on the way."""
    failed = {name: why if len(why) <= REASON else f"{why[:REASON]}\u2026" for name, why in record.get("failed", {}).items()}
    notes = {"unknown_words": record["unknown_words"], "failed": failed, "not_saved": record.get("not_saved")}
    return {
        "model": record["model"]["id"],
        "device": record["device"],
        "seed": record["settings"]["seed"],
        "columns": [*COLUMNS, "picture"],
        "methods": {
            name: [*(_short(entry.get(column)) for column in COLUMNS), pictures.get(name)]
            for name, entry in record["methods"].items()
        },
        "record": record_file,
        **{name: note for name, note in notes.items() if note},
    }


def _told(found: Generator[tuple[dict, dict], None, None], show: Callable[[Path, dict, dict[str, str]], str]) -> Iterator[dict]:
    """The answers of a tool for those of a comparison; `show` writes the picture that a client sees, and returns its path."""
    with closing(found):
        for pictures, record in found:
            if "progress" in record:
                yield {}  # between two answers Gradio sees that its client is gone
                continue
            paths = {name: file["path"] for name, file in pictures.items()}
            with TemporaryDirectory(prefix="lantern-demo-") as folder:
                picture = saved(show, Path(folder), record, paths) if paths else None
                written = saved(write_record, Path(folder), record)
                yield {"told": told(record, pictures, _file(written)), "picture": _file(picture)}


def _sheet(folder: Path, record: dict, paths: dict[str, str]) -> str:
    with ExitStack() as files:
        return write_sheet(folder, record, {name: files.enter_context(Image.open(path)) for name, path in paths.items()})


def _only_picture(_: Path, record: dict, paths: dict[str, str]) -> str:
    """The picture of a run of one method, which is there already."""
    return paths[record["order"][0]]


def _file(path: str | None) -> dict | None:
    return None if path is None else gr.FileData(path=path).model_dump()


def _short(number: Any) -> Any:
    return round(number, DECIMALS) if isinstance(number, float) else number
