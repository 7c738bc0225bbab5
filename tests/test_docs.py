"""README and docs: their numbers are measured ones, and their tables are whole."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_package import DOCS, ROOT

from lantern_demo.bench.audit import glance, judged, rows_of
from lantern_demo.bench.toy import CASES
from lantern_demo.decoding.methods import METHODS


@pytest.fixture(scope="module")
def fill() -> SimpleNamespace:
    """The script that fills numbers into documents."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "fill.py")))


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


def test_the_readme_has_every_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
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


def test_the_audits_document_shows_its_report() -> None:
    """Every method and kind of noise in it was run in every case, and is judged as the command
    judges.
    """
    document = ROOT / "docs" / "audit.md"
    shipped = json.loads(document.with_suffix(".json").read_text(encoding="utf-8"))
    assert glance(shipped) in document.read_text(encoding="utf-8")
    rows = rows_of(shipped)
    cells = [row.cell for row in rows]
    assert {name for name in METHODS if METHODS[name].default} <= {cell.method for cell in cells}
    assert len(cells) == len(CASES) * len({cell[:2] for cell in cells})
    assert all(row.lossless == METHODS[row.method].lossless for row in rows)
    assert judged(shipped, rows) == shipped
