"""The page: its layout and its events."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from lantern_demo.disk_cache import root
from lantern_demo.models.bundled import parameters_of
from lantern_demo.prompt_words import phrasebook
from lantern_demo.ui import log, texts
from lantern_demo.ui.actions import (
    LOADED_SECONDS,
    Action,
    hand_out,
    hand_out_film,
    hand_out_sheet,
    idle,
    record_file,
)
from lantern_demo.ui.api import add_endpoints
from lantern_demo.ui.ask import add_chips, add_prompt
from lantern_demo.ui.compare import draw, repeat, settle, upper_of
from lantern_demo.ui.components import (
    FIRST_STYLES,
    RUNS,
    STYLES,
    WAITS,
    Updates,
    Widgets,
    add_panel,
    add_stage,
    answer,
    sent,
    shared_scripts,
    status_html,
)
from lantern_demo.ui.events import AT_ONCE, ON_DEVICE, QUIET
from lantern_demo.ui.form import Form, Numbers, add_numbers, add_settings, add_strip
from lantern_demo.ui.gradio_patches import (
    calm_queue,
    close_what_is_left,
    drop_lost_messages,
    keep_deleting,
    keep_states,
    preview_links,
    wait_for_first_page,
    waiting,
)
from lantern_demo.ui.guess_pictures import looker
from lantern_demo.ui.limits import SESSIONS, WAITING, SmallRequests
from lantern_demo.ui.price import add_price
from lantern_demo.ui.recorded import Recorded, recorded_runs, strip_of
from lantern_demo.ui.restore import Visits, first_view, from_link, show_first, show_run
from lantern_demo.ui.routes import PREVIEW, bad_call, routes
from lantern_demo.ui.run_state import PageRun
from lantern_demo.ui.service import Service, on_zero_gpu
from lantern_demo.ui.twin import compare_twins
from lantern_demo.ui.unsure import show_unsure
from lantern_demo.version import __version__

HOUR = 3600  # seconds
CACHE_HOURS = 6  # how long pictures are kept


def build(
    model: str | Path = "lantern-scenes",
    device: str = "auto",
    threads: int | None = None,
    folder: str | Path | None = None,
) -> gr.Blocks:
    """Build the page and the API of a model (an id or a folder), and start to load it.

    `page.lantern_service.wait()` waits for that.

    `folder` has the files of a published model. Raise ValueError for an unknown model or device, an
    invalid number of threads, and a folder that is none or not needed.
    """
    service = Service(model, device, threads, folder)
    if on_zero_gpu():
        service.wait()  # there a model must be on the device before the page is launched
    with gr.Blocks(
        title=texts.TITLE, analytics_enabled=False, delete_cache=(HOUR, CACHE_HOURS * HOUR)
    ) as page:
        gr.HTML(_top(service), elem_id="top")
        gr.HTML(texts.HEADLINE, elem_id="headline")
        gr.HTML(texts.INTRODUCTION, elem_id="intro")
        with gr.Row(elem_id="ask"):
            prompt = add_prompt()
            wide: dict[str, Any] = {"min_width": 110, "scale": 0}
            draw_button = gr.Button(texts.DRAW, variant="primary", elem_id="draw", **wide)
            stop_button = gr.Button(
                texts.STOP, variant="stop", interactive=False, elem_id="stop", **wide
            )
            reads_all = phrasebook(service.info) is None
            surprise = gr.Button(
                texts.SURPRISE, visible=not reads_all, elem_id="surprise", min_width=90, scale=0
            )
        add_chips(service.info, prompt, surprise)
        first, panel = first_view()
        shown = recorded_runs()[0].record
        own = shown["model"]["id"] == service.info.id
        words = texts.SOURCES["recorded"] if own else texts.OF_ANOTHER
        status = answer("status", status_html(texts.of_run(words, shown)))
        arriving = gr.HTML("", elem_id="arriving")
        stage = add_stage(first)
        runs, sheet, film, file = add_strip()
        page.lantern_scripts = {"panel.js": panel, **add_price()}
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab(texts.HOW_TAB, elem_id="how"):
                add_panel(looker(service))
            with gr.Tab(texts.NUMBERS_TAB):
                numbers = add_numbers()
            with gr.Tab(texts.SETTINGS, elem_id="settings"):
                form = add_settings(service, prompt)
        w = Widgets(
            status=status,
            seed=form.seed,
            draw=draw_button,
            stop=stop_button,
            surprise=surprise,
            repeat=numbers.repeat,
            seeds=numbers.seeds,
            twin=numbers.twin,
            map=numbers.map,
            stage=stage,
            table=numbers.table,
            unsure=numbers.unsure,
            record=numbers.record,
            sheet=sheet,
            film=film,
            file=file,
            runs=runs,
            repeat_status=numbers.repeat_status,
            twin_status=numbers.twin_status,
            map_status=numbers.map_status,
            slider=numbers.slider,
            go=gr.Textbox(visible=False),
        )
        queued = partial(waiting, page, ON_DEVICE["concurrency_id"])
        _wire_runs(service, queued, w, form, numbers)

        def sheeted(page_run: PageRun, request: gr.Request) -> Updates:
            return hand_out_sheet(w, page_run, request.headers.get("host", ""))

        def filmed(page_run: PageRun, request: gr.Request) -> Updates:
            return hand_out_film(service, w, page_run, request.headers.get("host", ""))

        files = (
            (w.record, partial(hand_out, w, record_file)),
            (w.sheet, sheeted),
            (w.film, filmed),
        )
        for button, give in files:
            taken = button.click(give, w.result, [w.file, w.status], **AT_ONCE)
            taken.then(None, js="takeFile", **QUIET)
        _wire_arrival(page, service, w, form, arriving)
        add_endpoints(page, service)
    # Without `api_open=False` a client could bypass the queue.
    page.queue(max_size=WAITING, default_concurrency_limit=1, api_open=False)
    calm_queue(page)
    drop_lost_messages(page)
    close_what_is_left()
    keep_deleting()
    keep_states()
    wait_for_first_page()
    preview_links(texts.TITLE, texts.PREVIEW, PREVIEW)
    page.lantern_service = service
    return page


def _top(service: Service) -> str:
    """Return the head of the page as HTML: what draws here, and whose work it is.

    Its links open in a new tab, so that none ends a race.
    """
    info = service.info
    count = 0 if info.folder is None else parameters_of(info.folder)
    sized = texts.SIZED.format(millions=round(count / 1e6)) if count >= 1e6 else info.title
    model = texts.MODEL.format(model=sized, device="GPU" if service.on_gpu else "CPU")
    own = dict(texts.API)
    if space := os.environ.get("SPACE_ID"):
        address = f"https://huggingface.co/spaces/{space}"
        own = {name: f"{address}/{path}" for name, path in texts.OF_A_SPACE.items()} | own
    return (
        f'<div class="top"><p><b>{texts.NAME}</b> <span class="wide">{texts.SUBJECT}, </span>'
        f'{texts.OWN} <span>{escape(model)}</span></p><nav aria-label="{escape(texts.LINKS)}">'
        f"{_links(own)} <span>{texts.PAPERS_LABEL}</span> {_links(texts.PAPERS)}</nav></div>"
    )


def _links(addresses: dict[str, str]) -> str:
    return " ".join(
        f'<a href="{escape(to)}" target="_blank" rel="noopener">{escape(name)}</a>'
        for name, to in addresses.items()
    )


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
        # Gradio adds the head before the page's components, and `css` after them
        head=f"<style>{sent(FIRST_STYLES)}</style><script>{shared_scripts()}</script>",
        footer_links=["api", "gradio"],
        ssr_mode=False,
        show_error=False,
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,  # byte: nothing is uploaded
        state_session_capacity=SESSIONS,
        app_kwargs={
            "title": texts.TITLE,  # of /openapi.json
            "version": __version__,
            "middleware": [
                Middleware(SmallRequests),
                Middleware(GZipMiddleware, minimum_size=1000),
            ],
            "routes": routes(page, page.lantern_service),
            "exception_handlers": {TypeError: bad_call},
        },
        **options,
    )


def theme() -> gr.themes.Base:
    """Return Gradio's theme in a lantern's colours, with system fonts and dark small print."""
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
        link_text_color="*primary_700",
        link_text_color_dark="*primary_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
    )


def _wire_runs(
    service: Service, queued: Callable[[], int], w: Widgets, form: Form, numbers: Numbers
) -> None:
    """Wire Draw, also of the rest of a picture, Repeat, the twin, the map and Stop."""

    def about_shown(
        button: gr.Button, run: Callable[..., Any], status: gr.HTML, change: Any, *inputs: Any
    ) -> Action:
        """Return a run about the shown result, which leaves the lanes as they are."""
        handler = partial(run, service, w, status)
        given = [*inputs, w.result]
        return Action(button.click, handler, given, [change], status, partial(idle, w, status))

    actions = [
        Action(
            w.draw.click,
            partial(draw, service, w, w.status, form),
            inputs={*form.all(), w.result, w.keep},
            outputs=[*w.of_a_frame(), w.seed],
            status=w.status,
            end=partial(settle, service, w),
        ),
        about_shown(w.repeat, repeat, w.repeat_status, w.table),
        about_shown(w.seeds, partial(repeat, others=True), w.repeat_status, w.table),
        about_shown(w.map, show_unsure, w.map_status, w.unsure),
        about_shown(w.twin, compare_twins, w.twin_status, w.slider, numbers.twin_of),
    ]
    started = [action.wire(service, w, queued) for action in actions]
    # Enter presses Draw: it does nothing where the button does nothing.
    form.prompt.submit(None, js="() => pressDraw(true)", **QUIET)

    def keep(result: PageRun, event: gr.SelectData) -> Updates:
        upper = upper_of(result, event.value, event.index)
        if not upper:  # Draw would draw all rows
            raise gr.Error(texts.NO_LONGER_KEPT, print_exception=False)
        return {w.keep: upper}

    kept = w.stage.select(keep, [w.result], [w.keep], **AT_ONCE)
    kept.success(None, js="() => pressDraw(true)", **QUIET)

    def stopped(asked: str) -> Updates:
        """Mark a waiting run as stopped, not refused by the queue, and disable Stop.

        Gradio would take the late end of a second press for that of the next run.
        """
        return {w.asked: RUNS if asked == WAITS else asked, w.stop: gr.update(interactive=False)}

    w.stop.click(stopped, w.asked, [w.asked, w.stop], cancels=started, **AT_ONCE)


def _wire_arrival(
    page: gr.Blocks, service: Service, w: Widgets, form: Form, arriving: gr.HTML
) -> None:
    """Wire the strip of runs, and the first view: a link's run or a recording, and the progress of
    the model.
    """
    outputs, visits = {*w.all(), *form.all()}, Visits()
    linked = gr.Button(visible="hidden", elem_id="linked")

    def picked(asked: str, visited: list[Recorded], event: gr.SelectData) -> Updates:
        return show_run(service, w, form, asked, visited, event.value)

    def first(came: str, request: gr.Request) -> Updates:
        visited = visits.of(came.partition(" ")[2])
        updates = {} if request.query_params else show_first(w)
        if visited:
            updates[w.runs] = strip_of([*visited, *recorded_runs()])
        return updates | {w.visited: visited}

    def follow(came: str, request: gr.Request) -> Updates:
        came_by, _, tab = came.partition(" ")
        parameters = dict(request.query_params)
        return from_link(service, w, form, parameters, came_by, visits.of(tab)) or show_first(w)

    async def arrive() -> AsyncIterator[str]:
        if service.state == "loading":
            yield status_html(texts.LOADING, "busy")
        # It waits here without a thread: each tab would hold one of the 40 that answer.
        while service.state == "loading":
            await asyncio.sleep(LOADED_SECONDS)
        try:
            service.wait()
            yield status_html(service.warning) if service.warning else ""
        except ValueError as error:
            yield status_html(str(error), "error")

    w.runs.select(picked, [w.asked, w.visited], outputs, **AT_ONCE)
    # Gradio rebuilds all outputs of an event: a visit without a link has few.
    few = [w.result, w.record, w.sheet, w.film, w.runs, w.visited]
    arrived = page.load(first, [w.go], few, js="cameBy", **AT_ONCE)
    arrived.then(None, js="followLink", **QUIET)
    followed = linked.click(follow, [w.go], outputs, js="cameBy", **AT_ONCE)
    followed.then(None, [w.go], None, js="pressDraw", **QUIET)
    page.load(arrive, None, [arriving], concurrency_limit=None, **QUIET)
