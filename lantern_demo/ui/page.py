"""The page: what stands where, and what happens when."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware
from starlette.routing import Route

from lantern_demo.models.store import root
from lantern_demo.ui import door, log, words
from lantern_demo.ui.advice import take
from lantern_demo.ui.api import DEVICE, MISCALLS, add_endpoints, refuse_call
from lantern_demo.ui.compare import WAITING, again, begin, draw, settle
from lantern_demo.ui.engine import Engine, on_zero_gpu
from lantern_demo.ui.form import choices, knob_boxes, results_column
from lantern_demo.ui.health import PATH, health
from lantern_demo.ui.models import ModelWidgets, choose, class_box
from lantern_demo.ui.reading import MEGABYTES
from lantern_demo.ui.recorded import cards, recorded_runs
from lantern_demo.ui.restore import Form, from_link, load_record, show_example, show_first
from lantern_demo.ui.sessions import KEPT, forget_calls
from lantern_demo.ui.sweep import Explorer, explore, explorer, rest
from lantern_demo.ui.view import Shown
from lantern_demo.ui.web import STYLES, component
from lantern_demo.ui.widgets import Updates, Widgets, status_html

CACHE_SECONDS = 3600  # how long pictures are kept

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}  # events that are the page's own business
AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}  # those that are answered even when the queue is full
# On a phone what is drawn is far below the buttons.
SHOW_STATUS = "() => { if (innerWidth < 700) document.getElementById('status').scrollIntoView(); }"
# The server does not know under which address the page is seen; the link's first part is added here.
WHOLE_LINK = "(link) => link.startsWith('?') ? location.origin + location.pathname + link : link"


def build(
    model: str | Path = "lantern-scenes", device: str = "auto", fp16_accumulation: bool = False, threads: int | None = None
) -> gr.Blocks:
    """Build the page and the API of a model (a registry id or a folder), which starts to load; see `wait_for_model`.

    Raises ValueError for an unknown model or device, or a number of threads that is none.
    """
    engine = Engine(model, device, fp16_accumulation, threads)
    if on_zero_gpu():
        engine.wait()  # there a model must be on the device before the page is launched
    with gr.Blocks(title=words.TITLE, analytics_enabled=False, delete_cache=(CACHE_SECONDS, CACHE_SECONDS)) as page:
        gr.Markdown(words.INTRO, elem_id="intro")
        with gr.Row(elem_id="ask"):
            prompt = gr.Textbox(
                words.EXAMPLES[0][0], label=words.PROMPT_LABEL, placeholder=words.PROMPT_PLACEHOLDER, lines=1, max_lines=3, scale=5,
                elem_id="prompt",
            )  # fmt: skip
            label = class_box()
            draw_button = gr.Button(words.DRAW, variant="primary", min_width=110, elem_id="draw")
            stop_button = gr.Button(words.STOP, variant="stop", min_width=110, interactive=False, elem_id="stop")
        examples = component("cards", ["dom", "cards"], cards(), elem_id="examples")
        model_box, model_note, methods, seed, randomise = choices(engine)
        advice, knobs = knob_boxes(engine)
        arriving = gr.HTML("", elem_id="arriving")
        status = gr.HTML(status_html(words.READY), elem_id="status")
        live = component("live", ["dom", "live"], elem_id="lanes")
        results = results_column()
        upload = gr.UploadButton(words.LOAD, file_types=[".json"], type="binary", size="md", elem_id="load")
        gr.Markdown(words.KEEP_NOTE, elem_classes="note")
        searching = explorer()
        with gr.Accordion(words.TIMING_TITLE, open=False, elem_id="timing"):
            gr.Markdown(words.TIMING)

        w = Widgets(status, seed, draw_button, stop_button, searching.start, live, results, gr.State(Shown()), gr.State(Shown()))
        by_model = ModelWidgets(model_note, prompt, label, examples, methods, advice, knobs)
        form = Form(model_box, by_model, seed, randomise)
        _wire_runs(page, engine, w, form, searching)
        _wire_restoring(page, engine, w, form, examples, upload, arriving)
        for kind, button in advice.buttons.items():
            button.click(partial(take, engine, knobs, kind), [model_box], list(knobs.values()), **AT_ONCE)
        label.input(lambda title: title, [label], [prompt], **AT_ONCE)
        add_endpoints(page, engine)
    # The queue is the only way in; without `api_open=False` the endpoints could also be run past it.
    page.queue(max_size=door.WAITING + door.ELSEWHERE, default_concurrency_limit=4, api_open=False)
    door.keep(page, DEVICE["concurrency_id"])
    forget_calls(page)
    page.lantern_engine = engine
    return page


def wait_for_model(page: gr.Blocks) -> None:
    """Until the model of a page is there. Raises ValueError, as `lantern_demo.load` does, when it cannot be loaded."""
    page.lantern_engine.wait()


def launch(page: gr.Blocks, **options: Any) -> Any:
    """Serve a page that `build` made; `options` are those of `gr.Blocks.launch`, and what they leave out GRADIO_* variables may set."""
    log.set_up()
    if page.lantern_engine.warning:
        logging.getLogger(__name__).warning(page.lantern_engine.warning)
    # Gradio uses matplotlib where there is one, which would write to the home folder.
    os.environ.setdefault("MPLCONFIGDIR", str(root() / "matplotlib"))
    return page.launch(
        theme=theme(),
        css_paths=STYLES,
        footer_links=["api", "gradio", "settings"],
        ssr_mode=False,
        show_error=False,
        run_history=False,
        enable_monitoring=False,
        max_file_size=f"{MEGABYTES}mb",  # a run record; nothing else is uploaded
        state_session_capacity=KEPT,
        _frontend=False,  # leaves out a last look at the page that gives up after three seconds, on a busy machine too soon
        app_kwargs={
            "exception_handlers": {
                **dict.fromkeys(MISCALLS, refuse_call),
                door.Refused: door.refuse,
                RequestValidationError: door.refuse_body,
            },
            "middleware": [Middleware(door.SmallRequests)],
            "routes": [Route(PATH, health(page, page.lantern_engine, DEVICE["concurrency_id"]))],
        },
        **options,
    )


def theme() -> gr.themes.Base:
    """Gradio's own theme in the colours of a lantern at dusk, with the system's fonts and small print dark enough to read."""
    fonts = ("ui-sans-serif", "system-ui", "sans-serif")
    base = gr.themes.Default(primary_hue="orange", secondary_hue="orange", neutral_hue="slate", font=fonts)
    return base.set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_600",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
    )


def _wire_runs(page: gr.Blocks, engine: Engine, w: Widgets, form: Form, searching: Explorer) -> None:
    """Draw, Run again, Explore and Stop."""
    prompt, knobs = form.by_model.prompt, list(form.by_model.knobs.values())
    on_device: dict[str, Any] = {
        "api_visibility": "private", "show_progress": "minimal", "show_progress_on": [w.status], "trigger_mode": "once", **DEVICE,
    }  # fmt: skip

    def wire(triggers: list[Any], run: Any, inputs: list[Any], outputs: list[Any], end: Any) -> Any:
        pressed = gr.on(triggers, partial(begin, w), [w.shown], [w.status, *w.buttons()], **AT_ONCE)
        running = pressed.then(run, inputs, outputs, **on_device)
        # The first also after Stop.
        for after, settles, told in ((running.then, end, []), (running.failure, partial(_failed, page, w, end), [w.status])):
            settled = after(settles, [w.shown, *told], w.all(), **AT_ONCE)
            settled.then(None, [w.results.link], [w.results.link], js=WHOLE_LINK, **QUIET)
        return running

    asked = [prompt, form.model, form.by_model.methods, form.seed, form.randomise, *knobs]
    drawing = wire([w.draw.click, prompt.submit], partial(draw, engine, w), asked, w.of_a_frame(), partial(settle, engine, w))
    repeating = wire([w.results.again.click], partial(again, engine, w), [w.result], w.of_a_frame(), partial(settle, engine, w))
    trying = wire(
        [w.explore.click], partial(explore, engine, w, searching), [w.shown, searching.knob, prompt, form.model, form.seed, *knobs],
        [*w.of_a_frame(), searching.plot], partial(rest, w),
    )  # fmt: skip
    w.stop.click(lambda: status_html(words.STOPPED), None, [w.status], cancels=[drawing, repeating, trying], **AT_ONCE)
    for button in (w.draw, w.results.again):
        button.click(None, js=SHOW_STATUS, **QUIET)


def _failed(page: gr.Blocks, w: Widgets, end: Callable[[Shown], Updates], shown: Shown, told: str) -> Updates:
    """After a run that broke off or was refused: settle, and say that it never began. Gradio itself only shows a passing message."""
    updates = end(shown)
    if told == WAITING:
        waiting = door.waiting(page._queue, DEVICE["concurrency_id"])  # Gradio tells in no other way
        updates[w.status] = status_html(words.queue_full(waiting) if waiting >= door.WAITING else words.NOT_STARTED, "error")
    return updates


def _wire_restoring(
    page: gr.Blocks, engine: Engine, w: Widgets, form: Form, examples: gr.HTML, upload: gr.UploadButton, arriving: gr.HTML
) -> None:
    """Examples, records, links, and what the page shows at first."""
    outputs = list(dict.fromkeys([*w.all(), *form.all()]))

    def picked(shown: Shown, event: gr.EventData) -> Updates:
        return show_example(engine, w, form, shown, getattr(event, "index", None))

    def first(request: gr.Request) -> Updates:
        filled = from_link(engine, w, form, dict(request.query_params))
        if filled is not None:
            return filled
        if any(run.record["model"]["id"] == engine.default for run in recorded_runs()[:1]):
            return show_first(engine, w)
        if engine.offered()[engine.default].kind == "class":
            return choose(engine, form.by_model, engine.default)
        return {w.live: gr.update()}  # nothing changes

    def arrive() -> Iterator[str]:
        if not engine.ready:
            yield status_html(words.LOADING_FIRST, "busy")
        try:
            engine.wait()
            yield status_html(engine.warning) if engine.warning else ""
        except ValueError as error:
            yield status_html(str(error), "error")

    shown = examples.pick(picked, [w.shown], outputs, **AT_ONCE)
    shown.then(None, [w.results.link], [w.results.link], js=WHOLE_LINK, **QUIET)
    loaded = upload.upload(partial(load_record, engine, w, form), [w.shown, upload], outputs, **QUIET, **DEVICE)
    loaded.then(None, [w.results.link], [w.results.link], js=WHOLE_LINK, **QUIET)
    form.model.input(partial(choose, engine, form.by_model), [form.model], form.by_model.all(), **AT_ONCE)
    page.load(first, None, outputs, **AT_ONCE).then(None, [w.results.link], [w.results.link], js=WHOLE_LINK, **QUIET)
    page.load(arrive, None, [arriving], concurrency_limit=None, **QUIET)
