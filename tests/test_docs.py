"""README and docs: their numbers are measured ones, their links lead somewhere, and their sentences
stay short.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_package import DOCS, ROOT

from lantern_demo.decoding.methods import METHODS

LONGEST = 40  # words of a sentence
# of a measurement: times, speedups, shares
NAMES = "ms|µs|s|seconds|minutes|%|percent|dB|nats|tokens/s|tokens a second"
UNITS = rf"\d(?:[\d.,]*\d)?(?:x\b| (?:{NAMES})(?![\w/]))"
# what stands beside a number that was not measured here: a paper's, a calculated one, or a limit
# that the code sets
QUOTED = r"arXiv|[Cc]alculated|[Ee]stimate|at most|limit|default|confidence|interval"


@pytest.fixture(scope="module")
def fill() -> SimpleNamespace:
    """The script that fills numbers into documents."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "fill.py")))


def prose(path: Path) -> list[str]:
    """The paragraphs of a document, without code, tables, filled-in blocks, headings and front
    matter.
    """
    left_out = r"\A---\n.*?\n---\n|^```.*?^```|^<!-- numbers.*?^<!-- end -->"
    text = re.sub(left_out, "\n", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?:\||#|!\[|<!-- ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\s*(?:[-*]|\d+\.) )", r"\n\1", text, flags=re.MULTILINE)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_numbers_are_those_of_the_last_measurement(path: Path, fill: SimpleNamespace) -> None:
    """`python docs/fill.py` would change nothing."""
    text = path.read_text(encoding="utf-8")
    assert fill.filled(text, fill.kept()) == text


def test_a_number_that_was_not_measured_is_refused(fill: SimpleNamespace) -> None:
    assert (
        fill.filled("<!--n a.speedup-->?<!--/n-->", {"a": {"speedup": 1.234}})
        == "<!--n a.speedup-->1.23x<!--/n-->"
    )
    with pytest.raises(KeyError):
        fill.filled("<!--n a.seconds-->?<!--/n-->", {"a": {"speedup": 1.234}})


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_sentences_are_short_and_bring_no_loose_numbers(path: Path) -> None:
    for paragraph in prose(path):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z*`\[])", paragraph):
            assert len(sentence.split()) <= LONGEST, sentence
            bare = re.sub(r"<!--n .*?<!--/n-->|`[^`]*`", "", sentence)
            assert not re.search(UNITS, bare) or re.search(QUOTED, bare), sentence


def test_they_are_short_enough_to_be_read() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    words = [
        re.findall(r"[A-Za-z][\w'/-]*", path.read_text(encoding="utf-8"))
        for path in (ROOT / "docs").glob("*.md")
    ]
    assert sum(map(len, words)) <= 10_800
    assert all(f"](docs/{path.name}" in readme for path in (ROOT / "docs").glob("*.md"))


def test_the_readme_starts_the_program_and_has_every_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    install = "pip install -r requirements.txt && python"
    assert f"{install} app.py\n" in text and f"{install} -m pytest" in text
    assert f"{install} -m pytest\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|.*?\| (yes|no) \|", text, re.MULTILINE)
    assert rows == [(method.id, "yes" if method.lossless else "no") for method in METHODS.values()]


def test_the_table_of_modules_has_every_module() -> None:
    rows = re.findall(
        r"^\| (?:(\w+): )?(`.*?) \|",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Modules")[2],
        re.M,
    )
    for folder in ("", "decoding", "settings", "runs", "bench", "ui", "models"):
        here = ROOT / "lantern_demo" / folder
        named = {
            name for at, names in rows if at == folder for name in re.findall(r"`(\w+)/?`", names)
        }
        there = {path.stem for path in here.glob("*.py")} - {"__init__", "__main__"}
        assert there <= named, f"{folder}: {there - named}"
        assert all(name in there or (here / name).is_dir() for name in named), (
            f"{folder}: {named - there}"
        )


@pytest.mark.parametrize("path", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_classes_that_a_guide_names_exist(path: str) -> None:
    code = "\n".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "lantern_demo").rglob("*.py")
    )
    names = re.findall(r"`((?:[A-Z][a-z]+)+)`", (ROOT / path).read_text(encoding="utf-8"))
    assert (
        names
        and [name for name in names if not re.search(rf"^class {name}\b", code, re.MULTILINE)] == []
    )
