"""The package as a whole: its papers, the numbers of its documents, and what its rooms know."""

import ast
import json
import re
import runpy
import shutil
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
from lantern_demo.bench.audit import judged, rows_of
from lantern_demo.bench.toy import CASES
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import families
from lantern_demo.settings.named_trees import TREES
from lantern_demo.settings.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
CARD = ROOT / "lantern_demo" / "bundled" / "lantern-scenes" / "README.md"


def front_matter() -> dict[str, Any]:
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
    listed = ran("git", "ls-files", "-z", cwd=ROOT).stdout if shutil.which("git") else ""
    names = [name for name in listed.split("\0") if name]
    if not names:
        pytest.skip("git knows no files here, as in a downloaded archive")
    return [path for path in map(ROOT.joinpath, names) if path.is_file()]


def test_facts_are_the_same_wherever_they_stand() -> None:
    head = front_matter()
    assert head["sdk"] == "gradio" and pins()["gradio"] == f"=={head['sdk_version']}"
    assert (ROOT / head["app_file"]).is_file()
    assert head["python_version"] in ("3.10", "3.12"), "one of those that ZeroGPU has"
    assert 0 < len(head["short_description"]) <= 60, "or the Hub refuses it"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{lantern_demo.__version__}"' in project


def anchors(path: Path) -> set[str]:
    """What GitHub calls links to a Markdown file's headings, each of which has its own name."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]
    assert len(set(names)) == len(names), f"{path.name} has two headings of one name"
    return set(names)


@pytest.mark.parametrize("path", [*DOCS, CARD], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links and pictures name files of the repository, and anchors name headings."""
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
        "README.md": [name for name, method in METHODS.items() if method.default],
        "docs/operations.md": re.findall(r"\"(LANTERN_[A-Z_]+)\"", code),
        "docs/api.md": Settings().as_dict(),
        "docs/methods.md": [*METHODS, *TREES],
    }
    for document, names in described.items():
        text = (ROOT / document).read_text(encoding="utf-8")
        rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
        assert not [name for name in names if f"`{name}`" not in rows], document


@pytest.mark.slow
def test_what_imports_bring_along(tmp_path: Path) -> None:
    """Decoding stands on PyTorch alone, models run without Gradio, and importing the app prints,
    launches and leaves nothing.
    """
    files = (ROOT / "lantern_demo" / "decoding").glob("[!_]*.py")
    rooms = ", ".join(f"lantern_demo.decoding.{file.stem}" for file in files)
    lines = [f"import sys, threading; sys.path.insert(0, {str(ROOT)!r})"]
    loaded = "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    for names in (rooms, "lantern_demo.runs.load", "app, lantern_demo.ui.page"):
        lines += [f"import {names}", loaded]  # in one process, since each would import PyTorch
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
    """What each module imports, within functions too; a package's own file has its bare name."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "lantern_demo").rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        found = imports[name] = set[str]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), package)
                names = {f"{source}.{alias.name}" for alias in node.names}
                found |= {name if name in modules else source for name in names}
    return imports


# what imports -> what of the project it may import
ROOMS = {
    "decoding": "decoding",
    "kernels": "kernels decoding",
    "models": "models kernels decoding disk_cache faults paths shutdown",
}
KNOWN = {"ui": {"gradio"}, "kernels": {"triton"}}  # of others
FAMILIES = {family.__name__ for family in families.FAMILIES.values()}


def room_of(module: str) -> str:
    """A folder or file of the package; of the package itself, and of others, its own name."""
    return module.removeprefix("lantern_demo.").partition(".")[0]


def test_rooms_know_only_what_they_stand_on() -> None:
    """Nothing imports itself by way of others; only the page knows Gradio, and only kernels know
    Triton. Only the table of families knows a family, but for model folders, which are LlamaGen's:
    their format, and their networks on a CPU. The registry is data.
    """
    imports = all_imports()
    own = {name: found & imports.keys() for name, found in imports.items()}
    assert own["lantern_demo.models.registry"] == set()
    assert "lantern_demo.decoding.verify" in own["lantern_demo.decoding.loop"]
    TopologicalSorter(own).prepare()  # raises CycleError, which tells the circle
    for name, found in own.items():
        room, part = room_of(name), name.removeprefix("lantern_demo.models.")
        if room in ROOMS:
            assert {*map(room_of, found)} <= {*ROOMS[room].split()}, (name, found)
        if part != name and part not in ("families", "bundled", "prepare"):
            assert not FAMILIES & found, (name, found)
        unknown = {"examples", "tests", "gradio", "triton"} - KNOWN.get(room, set())
        assert not unknown & {room_of(other) for other in imports[name] - found}, name


def test_an_installed_package_has_its_files() -> None:
    package = ROOT / "lantern_demo"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (told,) = re.findall(r"^lantern_demo = (\[.*\])$", project, re.MULTILINE)
    packed = {path for pattern in ast.literal_eval(told) for path in package.glob(pattern)}
    inside = {path for path in tracked_files() if package in path.parents}
    assert {path for path in inside if path.suffix != ".py"} <= packed and inside


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
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "fill.py")))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_numbers_are_those_of_the_last_measurement(path: Path, fill: SimpleNamespace) -> None:
    """`python docs/fill.py` would change nothing."""
    text = path.read_text(encoding="utf-8")
    assert fill.filled(text, fill.kept()) == text


def test_results_are_small_files_named_after_machine_model_and_day(fill: SimpleNamespace) -> None:
    """The page tells the spread of the speedups of their rounds."""
    for file in (ROOT / "docs" / "results").iterdir():
        report = json.loads(file.read_text(encoding="utf-8"))
        seconds = [dict.fromkeys(report["methods"], s) | {"vanilla": 1} for s in (0.5, 0.8, 0.4)]
        few = [
            {"runs": {name: {"decode_seconds": s} for name, s in one.items()}} for one in seconds
        ]
        for wrong in ({"rounds": few}, {"rounds": 4 * few, "commit": "0848eb58+"}):
            with pytest.raises(SystemExit, match=r"it must be"):
                fill.result(report | wrong)
        name, text = fill.result(report | {"rounds": 4 * few})
        assert file.name == name and file.stat().st_size < 40_000, "it has no rounds"
        kept = json.loads(text)
        assert kept["rounds"] == 12 and kept["methods"]["eagle1"]["gain"]["spread"] == [1.25, 2.5]
    assert fill.TYPICAL.read_text(encoding="utf-8") == fill.typical()


def test_the_figure_of_nodes_shows_the_last_measurement(fill: SimpleNamespace) -> None:
    found = fill.kept()["nodes"]
    drawn = (ROOT / "docs" / "nodes.svg").read_text(encoding="utf-8")
    assert f"{found['model']} on {found['device']}, {found['date']}" in drawn
    for row in found["rows"]:
        assert not row["shape"] or f"{METHODS[row['method']].label}, {row['shape']}" in drawn


def test_the_audits_report_is_whole() -> None:
    """Every method and noise in it was run in every case, and is judged as the command judges."""
    shipped = json.loads((ROOT / "docs" / "audit.json").read_text(encoding="utf-8"))
    rows = rows_of(shipped)
    cells = [row.cell for row in rows]
    assert {name for name in METHODS if METHODS[name].default} <= {cell.method for cell in cells}
    assert len(cells) == len(CASES) * len({cell[:2] for cell in cells})
    assert all(row.lossless == METHODS[row.method].lossless for row in rows)
    assert judged(shipped, rows) == shipped
