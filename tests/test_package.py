"""The package as a whole: its papers are in order, the numbers of its documents are measured ones,
and its rooms do not lean on what they must not know.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tiny import ran

import lantern_demo
from lantern_demo.bench.audit import glance, judged, rows_of
from lantern_demo.bench.toy import CASES
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import families
from lantern_demo.settings.named_trees import TREES
from lantern_demo.settings.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
CARD = ROOT / "lantern_demo" / "bundled" / "lantern-scenes" / "README.md"
# What the Spaces' builder reads; anything else there is a slip of the pen.
FRONT_MATTER = "title emoji colorFrom colorTo sdk sdk_version python_version app_file license"
FRONT_MATTER += " short_description tags pinned"
FRONT_COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
ZERO_GPU_PYTHONS = {"3.10", "3.12"}


def front_matter() -> dict[str, Any]:
    """The YAML head of the README."""
    head = re.match(r"---\n(.*?)\n---\n", README.read_text(encoding="utf-8"), re.DOTALL)
    assert head, "README.md does not begin with front matter"
    return yaml.safe_load(head[1])


def pins() -> dict[str, str]:
    """Package -> what requirements.txt says of its version."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    found = [re.fullmatch(r"([A-Za-z0-9_.-]+)\s*([=<>!~].*)", line) for line in lines if line]
    assert all(found), lines
    return {match[1].lower(): match[2] for match in found if match}


def tracked_files() -> list[Path]:
    """The repository's files, without what only this clone has, such as a virtual environment."""
    listed = b""
    if shutil.which("git"):
        command = ["git", "ls-files", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    names = [name for name in listed.decode().split("\0") if name]
    if not names:
        pytest.skip("git knows no files here, as in a downloaded archive")
    return [path for path in map(ROOT.joinpath, names) if path.is_file()]


def test_front_matter() -> None:
    head = front_matter()
    assert set(head) == set(FRONT_MATTER.split()) and head["sdk"] == "gradio"
    assert pins()["gradio"] == f"=={head['sdk_version']}"
    assert {head["colorFrom"], head["colorTo"]} <= FRONT_COLOURS
    assert (ROOT / head["app_file"]).is_file()
    assert head["python_version"] in ZERO_GPU_PYTHONS
    assert 0 < len(head["short_description"]) <= 60


def anchors(path: Path) -> set[str]:
    """What a link to a heading of a Markdown file is called: GitHub's way, for headings of which
    each has a name of its own.
    """
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    names = [
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    assert len(set(names)) == len(names), f"{path.name} has two headings of one name"
    return set(names)


@pytest.mark.parametrize("path", [*DOCS, CARD], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links and pictures name files that are part of the repository, and anchors name
    headings.
    """
    tracked = set(tracked_files())
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target in tracked, f"{path.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{path.name}: {link}"


def test_tables_of_the_docs_name_all_settings_methods_trees_models_and_variables() -> None:
    files = [ROOT / "app.py", *ROOT.glob("lantern_demo/**/*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    described: dict[str, Iterable[str]] = {
        "README.md": METHODS,
        "docs/operations.md": re.findall(r"\"(LANTERN_[A-Z_]+)\"", code),
        "docs/api.md": Settings().as_dict(),
        "docs/methods.md": [*METHODS, *TREES],
    }
    for document, names in described.items():
        text = (ROOT / document).read_text(encoding="utf-8")
        rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
        assert not [name for name in names if f"`{name}`" not in rows], document


def test_versions_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{lantern_demo.__version__}"' in project


# tells the packages that are imported so far
LOADED = "print(*sorted({name.split('.')[0] for name in sys.modules}))"


@pytest.mark.slow
def test_what_imports_bring_along(tmp_path: Path) -> None:
    """Decoding stands on PyTorch alone, models run without Gradio, and importing the app prints,
    launches and leaves nothing.
    """
    files = (ROOT / "lantern_demo" / "decoding").glob("[!_]*.py")
    rooms = ", ".join(f"lantern_demo.decoding.{file.stem}" for file in files)
    lines = [f"import sys, threading; sys.path.insert(0, {str(ROOT)!r})"]
    for names in (rooms, "lantern_demo.runs.load", "app, lantern_demo.ui.page"):
        lines += [f"import {names}", LOADED]  # in one process, since each would import PyTorch
    lines.append("print(*(thread.name for thread in threading.enumerate()))")
    done = ran(sys.executable, "-c", "\n".join(lines), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    decoding, models, app, threads = (line.split() for line in done.stdout.splitlines())
    others = "transformers gradio huggingface_hub tokenizers safetensors PIL pandas spaces"
    assert "torch" in decoding and not {*others.split()} & {*decoding}
    assert "transformers" in models and not {"gradio", "gradio_client"} & {*models}
    assert "gradio" in app and not any("uvicorn" in name.lower() for name in threads)
    assert list(tmp_path.iterdir()) == []


def all_imports() -> dict[str, set[str]]:
    """What each module imports of the project, within functions too; a package's own file is what
    its name alone names.
    """
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "lantern_demo").rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in files.items()}
    imports: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        found = set[str]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), package)
                names = {f"{source}.{alias.name}" for alias in node.names}
                found |= {name if name in modules else source for name in names}
        imports[name] = found & modules.keys()
    return imports


ROOMS = {
    # what imports -> what of the project it may import
    "lantern_demo.decoding.": ("lantern_demo.decoding.",),
    "lantern_demo.kernels.": ("lantern_demo.kernels.", "lantern_demo.decoding."),
    "lantern_demo.models.": (
        "lantern_demo.models.",
        "lantern_demo.kernels.",
        "lantern_demo.decoding.",
        "lantern_demo.disk_cache",
        "lantern_demo.faults",
        "lantern_demo.paths",
        "lantern_demo.shutdown",
    ),
}
FAMILIES = {family.__name__ for family in families.FAMILIES.values()}


def test_rooms_know_only_what_they_stand_on() -> None:
    """Nothing imports itself by way of others; only the page knows Gradio, and only kernels know
    Triton. Only the table of families knows a family, but for model folders, which are LlamaGen's:
    their format, and their networks on a CPU. The registry is data.
    """
    imports = all_imports()
    assert imports["lantern_demo.models.registry"] == set()
    assert "lantern_demo.decoding.verify" in imports["lantern_demo.decoding.loop"]
    for name, found in imports.items():
        for room, allowed in ROOMS.items():
            if name.startswith(room):
                assert all(other.startswith(allowed) for other in found), (name, found)
        part = name.removeprefix("lantern_demo.models.")
        if part != name and part not in ("families", "bundled", "prepare"):
            assert not FAMILIES & found, (name, found)
    TopologicalSorter(imports).prepare()  # raises CycleError, which tells the circle
    for path in sorted((ROOT / "lantern_demo").rglob("*.py")):
        other = "examples|tests" if "ui" in path.parts else "examples|tests|gradio"
        other += "" if "kernels" in path.parts else "|triton"
        leans = rf"^\s*(import|from) ({other})\b"
        assert not re.search(leans, path.read_text(encoding="utf-8"), re.MULTILINE), path.name


def test_an_installed_package_has_its_files() -> None:
    package = ROOT / "lantern_demo"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (told,) = re.findall(r"^lantern_demo = (\[.*\])$", project, re.MULTILINE)
    packed = {path for pattern in ast.literal_eval(told) for path in package.glob(pattern)}
    files = [
        path
        for path in tracked_files()
        if package in path.parents and path.suffix != ".py" and path.name != "ruff.toml"
    ]
    assert files and set(files) <= packed


def test_no_path_of_somebodys_machine() -> None:
    # spelt in pieces, or this file would be found
    roots = "|".join(("home/[a-z]", "root" + "/", "Users" + "/", "work" + "/"))
    local = re.compile(rf"""(?<![\w.\-/}}$)])/(?:{roots})""")
    text_files = {".py", ".md", ".toml", ".txt", ".json", ".cfg", ".sh", ".css", ".js", ".html", ""}
    for path in tracked_files():
        if path.suffix in text_files and path.name != "LICENSE":
            found = local.search(path.read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{path.relative_to(ROOT)}: {found and found[0]}"


# -- documents


@pytest.fixture(scope="module")
def fill() -> SimpleNamespace:
    """The script that fills numbers into documents."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "fill.py")))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_numbers_are_those_of_the_last_measurement(path: Path, fill: SimpleNamespace) -> None:
    """`python docs/fill.py` would change nothing."""
    text = path.read_text(encoding="utf-8")
    assert fill.filled(text, fill.kept()) == text


def measured_again(report: dict[str, Any], *seconds: float) -> dict[str, Any]:
    """A result as the report that it was made of: of each round the seconds of all methods but
    vanilla, which takes one.
    """
    rounds = [
        {"runs": {name: {"decode_seconds": took} for name in report["methods"]}} for took in seconds
    ]
    for one in rounds:
        one["runs"]["vanilla"] = {"decode_seconds": 1}
    return report | {"rounds": rounds}


def test_the_table_of_machines_has_a_row_of_each_file(fill: SimpleNamespace) -> None:
    """With the medians of its methods. A file is small, and named after its machine and day."""
    document = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    files = list((ROOT / "docs" / "results").iterdir())
    assert document.count("](results/") == len(files) > 0
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        assert file.name == fill.result(measured_again(found, 1))[0]
        assert file.stat().st_size < 40_000, "it has no rounds"
        (row,) = [line for line in document.splitlines() if f"](results/{file.name})" in line]
        cells = [cell.strip() for cell in row.split("|")[2:-1]]
        methods = found["methods"]
        step = methods["vanilla"]["ms_per_step"]["median"]
        assert cells[:2] == [found["model"]["id"], found["libraries"]["torch"]]
        assert cells[3:5] == [str(found["rounds"]), f"{step:.2f}"]
        gains = [row["gain"]["median"] for name, row in methods.items() if name != "vanilla"]
        assert [cell for cell in cells[5:] if cell] == [f"{gain:.2f}x" for gain in gains]


def test_a_report_becomes_a_row(
    fill: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a GPU, the processor beside it is told too. The page tells the spread of its speedups."""
    (file,) = list((ROOT / "docs" / "results").iterdir())[:1]
    report = measured_again(json.loads(file.read_text(encoding="utf-8")), 0.5, 0.8, 0.4)
    report |= {"commit": "0123abcd", "created": "2027-01-02T03:04:05+00:00"}
    report["machine"] |= {"device": "A GPU", "device_type": "cuda", "processor": "A CPU"}
    name, text = fill.result(report)
    assert name == f"a-gpu-{report['model']['id']}-2027-01-02.json"
    (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setitem(fill.results_table.__globals__, "RESULTS", tmp_path)
    *_, row = fill.results_table({}).splitlines()
    assert row.startswith(f"| [A GPU, A CPU](results/{name}) |") and "| 0123abcd | 3 |" in row
    (typical,) = json.loads(fill.typical())
    assert (typical["model"], typical["device"]) == (report["model"]["id"], "A GPU")
    assert typical["speedups"]["eagle1"] == [1.25, 2.5] and "vanilla" not in typical["speedups"]


def test_the_figure_of_nodes_shows_the_last_measurement(fill: SimpleNamespace) -> None:
    found = fill.kept()["nodes"]
    drawn = (ROOT / "docs" / "nodes.svg").read_text(encoding="utf-8")
    assert f"{found['model']} on {found['device']}, {found['date']}" in drawn
    for row in found["rows"]:
        assert not row["shape"] or f"{METHODS[row['method']].label}, {row['shape']}" in drawn


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
