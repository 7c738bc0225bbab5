"""A tiny random model, and the whole demo served on it."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from lantern_demo.ui.environment import reach_itself

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from lantern_demo.runs.pipeline import Pipeline
    from lantern_demo.ui.service import Service

# Before Gradio and the Hub are imported: no test may go to the network.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
# Servers of tests are on this machine, which no proxy may stand before.
reach_itself("127.0.0.1")
# Nor may one read or leave anything in the cache of who runs it.
CACHE = TemporaryDirectory(prefix="lantern-tests-")
os.environ["LANTERN_CACHE"] = CACHE.name


LONG = 5.0  # seconds of a test in the fast set
PROCESSES = 4  # at most; each loads PyTorch and the models anew


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give a run that names no files a process per processor, where pytest-xdist is there and `-n`
    says nothing else. With `-s` all stays in this process, which alone shows it.
    """
    options = config.option
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and options.capture != "no"
    splits = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")
    if whole and splits and options.numprocesses is None and options.dist == "no":
        options.numprocesses, options.dist = "logical", "loadfile"
        options.maxprocesses = options.maxprocesses or PROCESSES
        options.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of pytest-xdist share the processors: threads that wait are slow."""
    if hasattr(config, "workerinput"):
        import torch  # not in the process that only hands out the tests

        torch.set_num_threads(max(1, torch.get_num_threads() // config.workerinput["workercount"]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep half a million objects of imported libraries out of the garbage collector's rounds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files with the most slow tests begin first. `slow(3)` counts as three."""
    slow = Counter[Path]()
    for item in items:
        if mark := item.get_closest_marker("slow"):
            slow[item.path] += mark.args[0] if mark.args else 1
    items.sort(key=lambda item: -slow[item.path])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what takes long in the fast set, so that it stays fast."""
    passed = terminalreporter.stats.get("passed", [])  # of calls alone
    long = [report for report in passed if report.duration > LONG and "slow" not in report.keywords]
    if long:
        terminalreporter.section(f"more than {LONG:g} s, and not marked slow")
        for report in sorted(long, key=lambda report: -report.duration):
            terminalreporter.line(f"{report.duration:7.1f} s  {report.nodeid}")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of 16x16 tokens with a picture decoder; its pictures are noise, 256 wide."""
    from tiny import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", grid=16, scale=2)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of 4x4 tokens without a picture decoder, for tests that need no page."""
    from tiny import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", grid=4)


@pytest.fixture(scope="session")
def judged_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a classifier of random weights, by which its pictures can be judged."""
    import torch

    from examples.make_bundled_model.folder import save_part
    from examples.quality.classifier import AttributeClassifier

    judged = shutil.copytree(folder, tmp_path_factory.mktemp("judged") / "tiny")
    torch.manual_seed(0)
    save_part(judged / "classifier", AttributeClassifier(), torch.float32)
    return judged


@pytest.fixture(scope="session")
def sprites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of sprites: a grey square for every thing."""
    import torch

    from examples.make_bundled_model import emoji
    from lantern_demo.scenes import THINGS

    file = tmp_path_factory.mktemp("sprites") / "sprites.npz"
    shape = len(THINGS), 4, emoji.SPRITE, emoji.SPRITE
    emoji.write(file, torch.full(shape, 200, dtype=torch.uint8))
    return file


@pytest.fixture(scope="session")
def pipe(folder: Path) -> Pipeline:
    from lantern_demo import load

    return load(folder, device="cpu")


@pytest.fixture(scope="session")
def tiny_service(tiny_model: Path) -> Service:
    """The service of `tiny_model`, ready, for tests that leave it as it is."""
    from lantern_demo.ui.service import Service

    service = Service(tiny_model, "cpu")
    service.wait()
    return service


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the demo, served from this process."""
    from tiny import served

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        with served(tiny_model) as (url, _):
            yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of the page: see `pages`."""
    from pages import CHROMIUM, FLAGS, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab with nothing in it, for tests that open an address of their own."""
    from pages import new_tab

    with new_tab(browser) as page:
        yield page


@pytest.fixture
def page(tab: Page, server: str) -> Page:
    from pages import open_page

    open_page(tab, server)
    return tab


@pytest.fixture
def same_threads() -> Iterator[None]:
    """PyTorch's number of threads comes back behind a test."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def published_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and small models in the place of published ones (see `published`)."""
    from published import ANOLE_ID, TEXT_ID, tiny_info

    from lantern_demo.models.registry import REGISTRY

    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path / "cache"))
    for model in (TEXT_ID, ANOLE_ID):
        monkeypatch.setitem(REGISTRY, model, tiny_info(model))
    return tmp_path / "cache"


def files_of(write: str) -> Any:
    """A fixture: the folder of a small model's files, by the function that writes them."""

    @pytest.fixture(scope="session")
    def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
        import published

        return getattr(published, write)(tmp_path_factory.mktemp("published") / "files")

    return files


text_model, llamagen_model = files_of("write_text_model"), files_of("write_llamagen")
anole_model = files_of("write_anole")


@pytest.fixture
def folder_of(text_model: Path, anole_model: Path) -> dict[str, Path]:
    from published import ANOLE_ID, TEXT_ID

    return {TEXT_ID: text_model, ANOLE_ID: anole_model}
