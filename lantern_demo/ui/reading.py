"""What the foot of the page links: the papers, the code, the docs and the licence. Off a Space the program serves its own files
as plain text, since it knows no other place where they are."""

from __future__ import annotations

import os
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from lantern_demo.ui import texts

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent
FILES = "files"  # the address of the list, and of what is under it
PAPERS = {"LANTERN": "https://arxiv.org/abs/2410.03355", "LANTERN++": "https://arxiv.org/abs/2502.06352"}


@cache
def docs() -> tuple[Path, ...]:
    """The documentation and the licence; none where the package is installed, which does not bring them."""
    if not (ROOT / "pyproject.toml").is_file():
        return ()
    return (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "LICENSE")


@cache
def code() -> tuple[Path, ...]:
    """The program's own sources."""
    return tuple(path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".js", ".css"))


@cache
def served() -> dict[str, Path]:
    """All files that are served, by name. A request can only ever name one of these."""
    return {path.relative_to(ROOT).as_posix(): path for path in (*docs(), *code())}


def links() -> dict[str, dict[str, str]]:
    """The links at the foot of the page: names and addresses, by what they have in common."""
    space = os.environ.get("SPACE_ID")
    if space:
        files = f"https://huggingface.co/spaces/{space}"
        own = {
            texts.CODE: f"{files}/tree/main",
            texts.DOCS: f"{files}/tree/main/docs",
            texts.LICENCE: f"{files}/blob/main/LICENSE",
        }
    else:
        own = {texts.CODE: f"{FILES}#code"}
        if docs():
            own |= {texts.DOCS: f"{FILES}#docs", texts.LICENCE: f"{FILES}/LICENSE"}
    return {texts.PAPERS: PAPERS, texts.PROGRAM: own}


def foot() -> str:
    """HTML of the foot. Links open beside the page, so that none ends a race."""
    beside = ' target="_blank" rel="noopener"'
    groups = "".join(
        f"<span>{escape(name)}: {', '.join(_link(address, text, beside) for text, address in found.items())}</span>"
        for name, found in links().items()
    )
    return f'<nav aria-label="{escape(texts.FOOT)}">{groups}</nav>'


def listed(_: Request) -> HTMLResponse:
    """GET /files: what can be read."""
    parts = "".join(
        f'<h2 id="{name}">{escape(title)}</h2><ul>{"".join(f"<li>{_own(path)}</li>" for path in paths)}</ul>'
        for name, title, paths in (("docs", texts.DOCS, docs()), ("code", texts.CODE, code()))
        if paths
    )
    style = (
        ":root{color-scheme:light dark}body{font:1rem/1.6 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}"
    )
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(texts.FILES_TITLE)}</title><style>{style}</style></head>"
        f"<body><h1>{escape(texts.FILES_TITLE)}</h1>{parts}</body></html>"
    )


def file(request: Request) -> Response:
    """GET /files/NAME: one of them."""
    found = served().get(request.path_params["name"])
    if found is None:
        return JSONResponse({"error": texts.NO_SUCH_FILE}, status_code=404)
    return FileResponse(found, media_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})


def _own(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return _link(f"{FILES}/{quote(name)}", name)


def _link(address: str, text: str, more: str = "") -> str:
    return f'<a href="{escape(address)}"{more}>{escape(text)}</a>'
