"""The page: what stands where, and what happens when."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings import LIMITS, MAX_SEED, TREES, Settings
from lantern_demo.ui import words
from lantern_demo.ui.api import DEVICE, MISCALLS, add_endpoints, refuse_call
from lantern_demo.ui.charts import COLOURS, LABELS
from lantern_demo.ui.compare import OF_TREE, Widgets, begin, draw, settle, shown, status_html
from lantern_demo.ui.engine import Engine
from lantern_demo.ui.lanes import Lane, head_html, numbers_html
from lantern_demo.ui.models import ModelWidgets, choose, class_box, note

STYLE = Path(__file__).with_name("style.css")
QUEUE = 20  # visitors that may wait
CACHE_SECONDS = 3600  # how long pictures are kept
STEPS = {"temperature": 0.05, "top_p": 0.01, "cfg_scale": 0.1, "lantern_delta": 0.01, "lanternpp_lambda": 0.1}
CHOICES = {"tree": TREES, "residual": ("set", "released"), "neighbours": ("decoder", "raw")}
SLIDER_TOPS = {"cfg_scale": 10.0, "lanternpp_lambda": 20.0}  # of the range that is allowed, the part worth sliding over

QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}  # events that are the page's own business
# On a phone the lanes are far below the button.
SHOW_LANES = "() => { if (innerWidth < 700) document.getElementById('status').scrollIntoView(); }"


def build(model: str | Path = "lantern-scenes", device: str = "auto", fp16_accumulation: bool = False) -> gr.Blocks:
    """Load a model (a registry id or a folder) and build its page and API. Raises ValueError as `lantern_demo.load` does."""
    engine = Engine(model, device, fp16_accumulation)
    with gr.Blocks(title=words.TITLE, analytics_enabled=False, delete_cache=(CACHE_SECONDS, CACHE_SECONDS)) as page:
        gr.Markdown(words.INTRO, elem_id="intro")
        with gr.Row(elem_id="ask"):
            prompt = gr.Textbox(
                words.EXAMPLES[0], label=words.PROMPT_LABEL, placeholder=words.PROMPT_PLACEHOLDER, lines=1, max_lines=3, scale=5,
                elem_id="prompt",
            )  # fmt: skip
            label = class_box()
            draw_button = gr.Button(words.DRAW, variant="primary", min_width=110, elem_id="draw")
            stop_button = gr.Button(words.STOP, variant="stop", min_width=110, interactive=False, elem_id="stop")
        examples = gr.Examples(
            [[text] for text in words.EXAMPLES], prompt, cache_examples=False, api_visibility="private", elem_id="examples"
        )
        model_box, model_note, methods, seed, randomise = _choices(engine)
        knobs = _knobs(engine.pipeline(engine.default).defaults)
        status = gr.HTML(status_html(words.READY), elem_id="status")
        columns, pictures, numbers = _lanes()
        widgets = Widgets(status, seed, draw_button, stop_button, columns, pictures, numbers, *_results(), gr.State({}))
        with gr.Accordion(words.TIMING_TITLE, open=False, elem_id="timing"):
            gr.Markdown(words.TIMING)

        pressed = gr.on(
            [draw_button.click, prompt.submit], partial(begin, widgets), None, [draw_button, stop_button], queue=False, **QUIET
        )
        run = pressed.then(
            partial(draw, engine, widgets),
            [prompt, model_box, methods, seed, randomise, *knobs.values()],
            widgets.all(),
            api_visibility="private",
            show_progress="minimal",
            show_progress_on=[status],
            trigger_mode="once",
            **DEVICE,
        )
        for after in (run.then, run.failure):  # the first also after Stop
            after(partial(settle, widgets), [widgets.lanes], widgets.all(), queue=False, **QUIET)
        stop_button.click(lambda: status_html(words.STOPPED), None, [status], cancels=[run], queue=False, **QUIET)
        draw_button.click(None, js=SHOW_LANES, **QUIET)
        by_model = ModelWidgets(model_note, prompt, label, examples.dataset, methods, knobs)
        choosing = partial(choose, engine, by_model)
        model_box.change(choosing, [model_box], by_model.all(), **QUIET)
        label.change(lambda title: title, [label], [prompt], queue=False, **QUIET)
        if engine.offered()[engine.default].kind == "class":
            page.load(choosing, [model_box], by_model.all(), **QUIET)
        add_endpoints(page, engine)
    return page.queue(max_size=QUEUE, default_concurrency_limit=4)


def launch(page: gr.Blocks, **options: Any) -> Any:
    """Serve a page that `build` made; `options` are those of `gr.Blocks.launch`, and what they leave out GRADIO_* variables may set."""
    return page.launch(
        theme=theme(),
        css_paths=STYLE,
        footer_links=["api", "gradio", "settings"],
        ssr_mode=False,
        show_error=False,
        run_history=False,
        enable_monitoring=False,
        max_file_size="64kb",  # nothing is uploaded
        app_kwargs={"exception_handlers": dict.fromkeys(MISCALLS, refuse_call)},
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


def _choices(engine: Engine) -> tuple[gr.Dropdown, gr.Markdown, gr.CheckboxGroup, gr.Number, gr.Checkbox]:
    with gr.Row(elem_id="choices"):
        model = gr.Dropdown(
            [(info.title, info.id) for info in engine.offered().values()], value=engine.default, label=words.MODEL_LABEL,
            info=words.MODEL_INFO, min_width=240, scale=1, elem_id="model",
        )  # fmt: skip
        methods = gr.CheckboxGroup(
            [(method.label, method.id) for method in METHODS.values()], value=list(METHODS), label=words.METHODS_LABEL,
            info=words.METHODS_INFO, min_width=280, scale=2, elem_id="methods",
        )  # fmt: skip
        with gr.Column(min_width=220, scale=1):
            seed = gr.Number(
                0, label=words.SEED_LABEL, info=words.SEED_INFO, precision=0, minimum=0, maximum=MAX_SEED, elem_id="seed"
            )
            randomise = gr.Checkbox(True, label=words.RANDOM_LABEL, elem_id="randomise")
    return model, gr.Markdown(note(engine, engine.default), elem_id="model-note", elem_classes="note"), methods, seed, randomise


def _knobs(defaults: Settings) -> dict[str, Any]:
    """The settings' components by name, in the order of `words.KNOBS`."""
    knobs: dict[str, Any] = {}
    with gr.Accordion(words.KNOBS_TITLE, open=False, elem_id="knobs"), gr.Row(elem_id="knob-grid"):
        for name, knob in words.KNOBS.items():
            value = shown(name, defaults)
            common = {"value": value, "label": knob.label, "info": knob.sentence, "elem_id": f"knob-{name}", "min_width": 260}
            if name in CHOICES:
                knobs[name] = gr.Dropdown(list(CHOICES[name]), allow_custom_value=name == "tree", **common)
            elif name in STEPS:
                limit = LIMITS[name]
                top = SLIDER_TOPS.get(name, limit.high)
                knobs[name] = gr.Slider(limit.low, max(top, value), step=STEPS[name], **common)
            else:
                limit = LIMITS[name]
                low = 0 if name in OF_TREE else limit.low
                knobs[name] = gr.Number(precision=0, minimum=low, maximum=limit.high, **common)
    return knobs


def _lanes() -> tuple[dict[str, gr.Column], dict[str, gr.Image], dict[str, gr.HTML]]:
    columns, pictures, numbers = {}, {}, {}
    with gr.Row(elem_id="lanes"):
        for name, method in METHODS.items():
            with gr.Column(min_width=140, elem_classes="lane", elem_id=f"lane-{name.replace('+', 'p')}") as column:
                gr.HTML(head_html(method))
                pictures[name] = gr.Image(
                    label=f"{method.label} picture", show_label=False, format="jpeg", interactive=False, container=False,
                    buttons=["download", "fullscreen"], alt_text=f"The picture drawn with {method.label}", elem_classes="lane-picture",
                )  # fmt: skip
                numbers[name] = gr.HTML(numbers_html(Lane(name)))
            columns[name] = column
    return columns, pictures, numbers


def _results() -> tuple[gr.Column, gr.BarPlot, gr.Markdown, gr.Dataframe, gr.DownloadButton]:
    with gr.Column(visible=False, elem_id="results") as results:
        labels = list(LABELS.values())
        chart = gr.BarPlot(
            x="method", y="speedup", color="method", sort=labels, color_map={LABELS[name]: c for name, c in COLOURS.items()},
            x_title=" ", x_label_angle=-20, y_title="speedup", y_lim=[0, None], label=words.BARS_TITLE, height=300, colors_in_legend=[], buttons=["export"], elem_id="bars",
        )  # fmt: skip
        no_chart = gr.Markdown(words.NO_BARS, visible=False, elem_id="no-bars")
        table = gr.Dataframe(
            headers=list(words.TABLE_HEAD), interactive=False, label=words.TABLE_TITLE, buttons=["copy"], elem_id="table", pinned_columns=1,
        )  # fmt: skip
        gr.Markdown(words.TABLE_NOTE, elem_classes="note")
        record = gr.DownloadButton(words.DOWNLOAD, size="md", elem_id="record")
    return results, chart, no_chart, table, record
