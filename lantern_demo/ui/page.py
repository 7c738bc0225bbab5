"""The page: its layout and its events."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from lantern_demo.models.files.disk_cache import root
from lantern_demo.settings.knobs import ON_THE_FORM
from lantern_demo.ui import log, texts
from lantern_demo.ui.api import add_endpoints
from lantern_demo.ui.compare import again, begin, draw, refused, settle, stop
from lantern_demo.ui.components import (
    STYLES,
    Updates,
    Widgets,
    answer,
    component,
    sent,
    shared_scripts,
    status_html,
)
from lantern_demo.ui.form import (
    choices,
    drawer_foot,
    drawer_head,
    first_knobs,
    folds,
    in_repository,
    other_knobs,
    published,
    reset,
)
from lantern_demo.ui.gradio_patches import calm_queue, drop_lost_messages
from lantern_demo.ui.limits import ON_DEVICE, SESSIONS, WAITING, SmallRequests
from lantern_demo.ui.look_alikes import LookAlikes
from lantern_demo.ui.method_panel import method_chooser
from lantern_demo.ui.model_choice import Form, choose, choose_another, class_box
from lantern_demo.ui.recorded import MEGABYTES, FinishedRuns, cards, recorded_runs
from lantern_demo.ui.restore import first_view, from_link, load_record, show_example, show_first
from lantern_demo.ui.routes import routes
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.service import Service, on_zero_gpu
from lantern_demo.ui.sweep import Explorer, explore, rest
from lantern_demo.version import __version__

CACHE_SECONDS = 3600  # how long pictures are kept

# events of the page alone
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# events that are answered even when the queue is full
AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}
# The server does not know the page's address, so the browser adds the link's first part.
WHOLE_LINK = "(link) => link.startsWith('?') ? location.origin + location.pathname + link : link"
# The same, and the link becomes the page's address, so that a reload or Back shows the run again.
# The theme stays.
OWN_LINK = """(link) => {
  if (!link.startsWith("?")) return link;
  const [asked, theme] = [new URLSearchParams(link), new URLSearchParams(location.search).get("__theme")];
  if (theme) asked.set("__theme", theme);
  history.replaceState(history.state, "", `?${asked}`);
  return location.origin + location.pathname + link;
}"""
EXPLORER_IN_VIEW = "() => document.getElementById('explorer').scrollIntoView({ block: 'nearest' })"
# Draw sends the values that the page shows at that moment: Gradio's own copy of a field may lag.
AS_SHOWN = """(...asked) => {
  const prompt = document.querySelector("#prompt :is(textarea, input)"), boxes = [...document.querySelectorAll(".method input")];
  if (prompt) asked[0] = prompt.value;
  if (boxes.length) asked[2] = JSON.stringify({ chosen: boxes.filter((box) => box.checked).map((box) => box.value) });
  return asked;
}"""
# The examples follow every change of the prompt: an example stays marked only with its own prompt.
PROMPTED = "(text) => { document.dispatchEvent(new CustomEvent('prompted', { detail: text })); }"
# see web/stage.js
STARTED = "() => { document.dispatchEvent(new CustomEvent('lantern-started')); }"


def build(
    model: str | Path = "lantern-scenes",
    device: str = "auto",
    threads: int | None = None,
    folder: str | Path | None = None,
) -> gr.Blocks:
    """Build the page and the API of a model (a registry id or a folder), which starts to load; see
    `wait_for_model`.

    `folder` has the files of a published model. Raise ValueError for an unknown model or device, an
    invalid number of threads, and a folder that is none or not needed.
    """
    service = Service(model, device, threads, folder)
    if on_zero_gpu():
        service.wait()  # there a model must be on the device before the page is launched
    with gr.Blocks(
        title=texts.TITLE, analytics_enabled=False, delete_cache=(CACHE_SECONDS, CACHE_SECONDS)
    ) as page:
        gr.HTML(texts.TOP, elem_id="top")
        gr.HTML(texts.HEADLINE, elem_id="headline")
        prompt, label, draw_button, stop_button = _ask()
        with gr.Column(elem_id="notice"):
            examples = component("cards", ["cards"], cards(), elem_id="examples")
            with gr.Column(elem_id="told"):
                ready = texts.READY_RECORDED if recorded_runs() else texts.READY
                status = answer("status", status_html(ready, "ready"))
                arriving = gr.HTML("", elem_id="arriving")
        with gr.Column(elem_id="settings"):
            drawer_head()
            knobs = first_knobs(service)
            model_box, model_note, seed, locked = choices(service)
            methods = method_chooser(True)
            knobs |= other_knobs(service)
            knobs = {name: knobs[name] for name in ON_THE_FORM}
            filled, paper_button, reset_button = drawer_foot()
        first, page.lantern_look = first_view()
        looking = [looking_at(LookAlikes(service))]
        stage = component(
            "stage",
            ("mosaic", "clock", "lanes", "explain", "stage"),
            first,
            elem_id="stage",
            server_functions=looking,
        )
        results, searching, others, upload, uploaded = folds()
        gr.HTML(_foot(), elem_id="foot")
        states = FinishedRuns(), gr.State(Shown()), gr.State(False), gr.State(Shown())
        w = Widgets(
            status, seed, draw_button, stop_button, searching.start, stage, *results, *states
        )
        by_kind = prompt, label, examples
        form = Form(
            model_box,
            gr.State(service.default),
            model_note,
            *by_kind,
            (methods, others),
            knobs,
            seed,
            locked,
        )
        _wire_runs(service, w, form, searching)
        _wire_restoring(service, w, form, upload, uploaded)
        _wire_arrival(page, service, w, form, arriving)
        for button, fill in ((paper_button, published), (reset_button, reset)):
            button.click(
                partial(fill, service, filled, knobs),
                [form.model],
                [filled, *knobs.values()],
                **AT_ONCE,
            )
        label.input(lambda title: title, [label], [prompt], **AT_ONCE)
        add_endpoints(service)
    # Without `api_open=False` a client could bypass the queue.
    page.queue(max_size=WAITING, default_concurrency_limit=1, api_open=False)
    calm_queue(page)
    drop_lost_messages(page)
    page.lantern_service = service
    return page


def _ask() -> tuple[gr.Textbox, gr.Dropdown, gr.Button, gr.Button]:
    """Add the prompt, the class box that replaces it, and the buttons."""
    with gr.Row(elem_id="ask"):
        prompt = gr.Textbox(
            texts.EXAMPLES[0][0],
            label=texts.PROMPT_LABEL,
            placeholder=texts.PROMPT_PLACEHOLDER,
            lines=1,
            max_lines=3,
            scale=5,
            container=False,
            elem_id="prompt",
        )
        label = class_box()
        draw_button = gr.Button(texts.DRAW, variant="primary", min_width=80, elem_id="draw")
        stop_button = gr.Button(
            texts.STOP, variant="stop", min_width=80, interactive=False, elem_id="stop"
        )
        gr.Button(texts.SETTINGS, min_width=80, elem_id="open-settings")  # see web/drawer.js
    return prompt, label, draw_button, stop_button


def _foot() -> str:
    """Return the foot as HTML: links to the papers, and on a Space to its repository.

    They open in a new tab, so that none ends a race.
    """
    links, repository = dict(texts.PAPERS), in_repository()
    if repository:
        links[texts.REPOSITORY] = repository
    shown = "".join(
        f'<a href="{escape(to)}" target="_blank" rel="noopener">{escape(name)}</a>'
        for name, to in links.items()
    )
    return f'<nav aria-label="{escape(texts.FOOT)}">{shown}</nav>'


def wait_for_model(page: gr.Blocks) -> None:
    """Wait until the model of a page is loaded.

    Raise ValueError, as `lantern_demo.load` does, if it cannot be loaded.
    """
    page.lantern_service.wait()


def launch(page: gr.Blocks, **options: Any) -> Any:
    """Serve a page that `build` made.

    `options` are those of `gr.Blocks.launch`; GRADIO_* variables may set the others.
    """
    log.set_up()
    if page.lantern_service.unused_gpu:
        logging.getLogger(__name__).warning(page.lantern_service.unused_gpu)
    # Gradio uses matplotlib if installed, which would write to the home folder.
    os.environ.setdefault("MPLCONFIGDIR", str(root() / "matplotlib"))
    return page.launch(
        theme=theme(),
        css="\n".join(map(sent, STYLES)),
        # it runs before the page's components are there
        head=f"<script>{shared_scripts()}</script>",
        footer_links=["api", "gradio"],
        ssr_mode=False,
        show_error=False,
        run_history=False,
        enable_monitoring=False,
        max_file_size=f"{MEGABYTES}mb",  # a run record; nothing else is uploaded
        state_session_capacity=SESSIONS,
        app_kwargs={
            "title": texts.TITLE,  # of /openapi.json
            "version": __version__,
            "middleware": [
                Middleware(SmallRequests),
                Middleware(GZipMiddleware, minimum_size=1000),
            ],
            "routes": routes(page, page.lantern_service),
        },
        **options,
    )


def theme() -> gr.themes.Base:
    """Return Gradio's own theme in the colours of a lantern at dusk, with the system's fonts and
    small print dark enough to read.
    """
    fonts = ("ui-sans-serif", "system-ui", "sans-serif")
    base = gr.themes.Default(
        primary_hue="orange",
        secondary_hue="orange",
        neutral_hue="slate",
        font=fonts,
        font_mono=("ui-monospace", "monospace"),
    )
    return base.set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
    )


def _wire_runs(service: Service, w: Widgets, form: Form, searching: Explorer) -> None:
    """Wire Draw, Run again, Explore and Stop."""
    knobs = list(form.knobs.values())

    def wire(
        triggers: list[Any],
        run: Any,
        inputs: list[Any],
        outputs: list[Any],
        end: Any,
        told: gr.HTML,
        js: str | None = None,
    ) -> Any:
        """Wire one run, whose words go to `told`. `outputs` are the components that it changes."""
        pressed = gr.on(
            triggers,
            partial(begin, w, told),
            [w.waits, w.shown],
            [told, w.waits, *w.buttons()],
            **AT_ONCE,
        )
        running = pressed.then(
            run,
            inputs,
            list(dict.fromkeys([told, w.waits, *outputs])),
            js=js,
            trigger_mode="once",
            **QUIET,
            **ON_DEVICE,
        )
        running.failure(partial(refused, w, told), [w.waits], [told, w.waits], **AT_ONCE)
        # `then` also follows Stop and a failure.
        settled = running.then(end, [w.shown], list(dict.fromkeys([told, *w.all()])), **AT_ONCE)
        settled.then(None, [w.link], [w.link], js=OWN_LINK, **QUIET)
        return running

    asked = [form.prompt, form.model, form.methods[0], form.seed, form.locked, w.result, *knobs]
    end = partial(settle, service, w)
    drawing = wire(
        [w.draw.click, form.prompt.submit],
        partial(draw, service, w),
        asked,
        w.of_a_frame(),
        end,
        w.status,
        AS_SHOWN,
    )
    w.again.click(None, js="() => raceInView()", **QUIET)  # see web/race.js
    repeating = wire(
        [w.again.click], partial(again, service, w), [w.result], w.of_a_frame(), end, w.status
    )
    w.explore.click(None, js=EXPLORER_IN_VIEW, **QUIET)
    trying = wire(
        [w.explore.click],
        partial(explore, service, w, searching),
        [w.shown, searching.knob, form.prompt, form.model, form.seed, *knobs],
        [w.shown, searching.plot],
        partial(rest, w, searching),
        searching.told,
    )
    w.stop.click(
        partial(stop, w),
        None,
        [w.status, w.waits],
        cancels=[drawing, repeating, trying],
        **AT_ONCE,
    )


def looking_at(alikes: LookAlikes) -> Callable[[Any], dict[str, Any]]:
    """Return the function that the stage's script calls for a look at a token.

    It is no method: Gradio sets attributes on it.
    """

    def look(asked: Any) -> dict[str, Any]:
        return alikes.look(asked)

    return look


def _wire_restoring(
    service: Service, w: Widgets, form: Form, upload: gr.UploadButton, told: gr.HTML
) -> None:
    """Wire examples, records, whose upload `told` reports, and the choice of a model."""
    outputs = list(dict.fromkeys([*w.all(), *form.all()]))

    def picked(shown: Shown, event: gr.EventData) -> Updates:
        return show_example(service, w, form, shown, getattr(event, "index", None))

    shown = form.examples.pick(picked, [w.shown], outputs, **AT_ONCE)
    shown.then(None, [w.link], [w.link], js=OWN_LINK, **QUIET)
    form.prompt.change(None, [form.prompt], None, js=PROMPTED, **QUIET)
    loaded = upload.upload(
        partial(load_record, service, w, form, told),
        [w.shown, upload],
        [told, *outputs],
        **QUIET,
        **ON_DEVICE,
    )
    loaded.then(None, [w.link], [w.link], js=WHOLE_LINK, **QUIET)
    loaded.then(None, [told], None, js="(refusal) => loadedInView(refusal)", **QUIET)
    form.model.input(
        partial(choose_another, service, form),
        [form.model, form.set_for],
        form.of_model(),
        **AT_ONCE,
    )


def _wire_arrival(
    page: gr.Blocks, service: Service, w: Widgets, form: Form, arriving: gr.HTML
) -> None:
    """Wire the first view: a link's run, or a recording, and the progress of the model."""
    outputs = list(dict.fromkeys([*w.all(), *form.all()]))

    def first(request: gr.Request) -> Updates:
        linked = from_link(service, w, form, dict(request.query_params))
        if linked is not None:
            return linked
        updates = show_first(service, w) if recorded_runs() else {w.status: gr.update()}
        info = service.offered()[service.default]
        if info.kind == "class" or service.unavailable(info):
            updates |= choose(service, form, info.id)
        return updates

    def arrive() -> Iterator[str]:
        if service.state == "loading":
            yield status_html(texts.LOADING_FIRST, "busy")
        try:
            service.wait()
            yield status_html(service.warning) if service.warning else ""
        except ValueError as error:
            yield status_html(str(error), "error")

    answered = page.load(first, None, outputs, **AT_ONCE).then(
        None, [w.link], [w.link], js=WHOLE_LINK, **QUIET
    )
    answered.then(None, js=STARTED, **QUIET)
    page.load(None, js="() => settingsDrawer()", **QUIET)
    page.load(arrive, None, [arriving], concurrency_limit=None, **QUIET)
