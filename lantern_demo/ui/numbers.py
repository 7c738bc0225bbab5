"""The table of the tab *Numbers* as HTML, with what its buttons copy: the same numbers for a
spreadsheet, and what to cite.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.acceptance import acceptance_of, total
from lantern_demo.runs.record import Record
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import measured, measured_in, table

PAPERS = Path(__file__).with_name("papers.bib")


def numbers_html(record: Record, again: Sequence[Record] = ()) -> str:
    """Return the table of a record, or of further ones of it, as HTML.

    Its element has the texts that the buttons below it copy.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in texts.TABLE_HEAD)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in table(record, again)
    )
    about = f'class="table" role="region" tabindex="0" aria-label="{escape(texts.NUMBERS_TAB)}"'
    copies = f'data-tsv="{escape(tsv(record, again))}" data-bib="{escape(bibtex(record))}"'
    return (
        f"<div {about} {copies}><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def tsv(record: Record, again: Sequence[Record] = ()) -> str:
    """Return a row per method with a number a cell, and a head.

    No cell has a visitor's words, which a spreadsheet might take for a formula.
    """
    methods = measured_in(record, again)
    races = again or [record]
    seeds = dict.fromkeys(str(one["settings"]["seed"]) for one in races)
    depths = {
        name: total(
            acceptance_of(race["methods"][name]["events"])
            for race in races
            if name in race["methods"]
        ).depths
        for name in methods
    }
    deepest = max(map(len, depths.values()))
    chances = [texts.TSV_CHANCE.format(depth=depth + 1) for depth in range(deepest)]
    rows: list[list[object]] = [[*texts.TSV_HEAD, *chances]]
    for name in methods:
        found = measured(record, name, again)
        gain = found.gain or {}
        range_of = gain if again else {}
        rows.append(
            [
                METHODS[name].label,
                found.steps,
                found.pieces,
                found.seconds,
                gain.get("median"),
                *map(range_of.get, ("lowest", "highest")),
                found.changed,
                *found.parts,
                found.cost,
                found.ran,
                " ".join(seeds),
                record["model"]["id"],
                record["device"],
                *(depth.chance for depth in depths[name]),
                *[None] * (deepest - len(depths[name])),
            ]
        )
    return "".join("\t".join(map(_cell, row)) + "\n" for row in rows)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())


def bibtex(record: Record) -> str:
    """Return the papers as BibTeX, and an entry of this demo and of the run."""
    facts = {
        "year": record["created"][:4],
        "version": record["lantern_demo"],
        "model": _latex(record["model"]["id"]),
        "seed": record["settings"]["seed"],
        "date": record["created"][:10],
        "device": _latex(record["device"]),
    }
    return f"{_papers()}\n{texts.CITED % facts}"


@cache
def _papers() -> str:
    return PAPERS.read_text(encoding="utf-8")


def _latex(text: str) -> str:
    """Return a name as LaTeX prints it, without what would open or close a field."""
    return re.sub(r"([%_&#$])", r"\\\1", re.sub(r"[{}\\~^]", "", text))
