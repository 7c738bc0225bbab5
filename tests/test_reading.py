"""The foot of the page: the papers, and the program's own files, of a fixed list alone."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from lantern_demo.ui import reading, texts

ROOT = Path(__file__).parent.parent


def test_docs_licence_and_code_can_be_read(server: str) -> None:
    listed = httpx.get(f"{server}files")
    assert listed.headers["content-type"] == "text/html; charset=utf-8"
    names = re.findall(r'<a href="files/([^"]+)">', listed.text)
    assert {"README.md", "LICENSE", "docs/api.md", "lantern_demo/decoding/rules.py", "lantern_demo/ui/web/stage.js"} <= set(names)
    assert names == list(reading.served()) and 'id="docs"' in listed.text and 'id="code"' in listed.text
    for name in ("LICENSE", "docs/methods.md", "lantern_demo/__init__.py"):
        answer = httpx.get(f"{server}files/{name}").raise_for_status()
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text == (ROOT / name).read_text()


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "pyproject.toml",
        "tests/conftest.py",
        "../pyproject.toml",
        "%2e%2e/pyproject.toml",
        "docs/../pyproject.toml",
        "/etc/passwd",
        "docs",
        "",
        "lantern_demo/bundled/lantern-scenes/config.json",
    ],
)
def test_nothing_else_can(server: str, name: str) -> None:
    answer = httpx.get(f"{server}files/{name}", follow_redirects=False)
    assert answer.status_code in (307, 404) and "[project]" not in answer.text and "root:" not in answer.text
    if answer.status_code == 404 and answer.headers["content-type"] == "application/json" and "error" in answer.json():
        assert answer.json() == {"error": texts.NO_SUCH_FILE}


def test_every_link_of_the_foot_leads_somewhere(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reading.links()
    assert set(found[texts.PAPERS].values()) == {"https://arxiv.org/abs/2410.03355", "https://arxiv.org/abs/2502.06352"}
    assert set(found[texts.PROGRAM]) == {texts.CODE, texts.DOCS, texts.LICENCE}
    for address in found[texts.PROGRAM].values():
        assert httpx.get(f"{server}{address}").status_code == 200
    assert all(f'href="{address}"' in reading.foot() for group in found.values() for address in group.values())
    monkeypatch.setenv("SPACE_ID", "someone/lanterns")
    space = "https://huggingface.co/spaces/someone/lanterns"
    assert reading.links()[texts.PROGRAM] == {
        texts.CODE: f"{space}/tree/main",
        texts.DOCS: f"{space}/tree/main/docs",
        texts.LICENCE: f"{space}/blob/main/LICENSE",
    }


def test_an_installed_package_links_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside it lie other packages, whose files are not the program's."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "another.md").write_text("of another package")
    monkeypatch.setattr(reading, "ROOT", tmp_path)
    monkeypatch.setattr(reading, "docs", reading.docs.__wrapped__)
    assert reading.docs() == ()
    assert reading.links()[texts.PROGRAM] == {texts.CODE: "files#code"}
