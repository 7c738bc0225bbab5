"""What the tab of numbers copies, and what its map of look-alikes is drawn from."""

import copy
import re
from html import unescape
from typing import Any

import pytest

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.record import Record
from lantern_demo.settings.settings import Settings
from lantern_demo.ui.decisions import decision_of
from lantern_demo.ui.numbers import bibtex, numbers_html, tsv
from lantern_demo.ui.recorded import recorded_runs

EVIL = '=1+1\t"><img src=x>\n{{7*7}}'
CHAIN = {"tokens": [1, 2, 3], "parents": [0, 0, 1]}


def made_record() -> Record:
    """A record of vanilla and LANTERN++, whose numbers are easy to follow."""
    record: Any = recorded_runs()[0].record
    parts = {"draft_seconds": 0.2, "verify_seconds": 0.6, "commit_seconds": 0.2}
    vanilla, fast = (record["methods"][name] | parts for name in ("vanilla", "lantern++"))
    vanilla |= {"steps": 100, "decode_seconds": 1.2}
    first, second = [1, 0.5, 0.5, 0.2], [2, 0.1, 0.5, 0.4]
    third, fourth = [1, 0.1, 0.2, 0.3], [1, 0.4, 0.6, 0.5]
    trials = [[], [first, second], [third], [fourth, [2, 0.1, 0.2, 0.3]]]
    trees = [CHAIN | {"path": path} for path in ([0, 1, 2], [0], [0, 1])]
    events = {"committed": [1, 4, 5, 7], "kinds": "terttrt", "trials": trials}
    events["trees"] = [{"tokens": [], "parents": [], "path": []}, *trees]
    fast |= {"events": events, "steps": 50, "decode_seconds": 0.8, "mean_accepted_length": 2.125}
    return record | {"methods": {"vanilla": vanilla, "lantern++": fast}, "prompt": EVIL}


def test_the_table_is_copied_a_number_a_cell() -> None:
    record = made_record()
    head, *rows = [line.split("\t") for line in tsv(record).splitlines()]
    vanilla, fast = (dict(zip(head, row, strict=True)) for row in rows)
    assert fast.pop("tree, rule and noise").startswith("static chain of 4, k 10, ")
    facts = str(record["settings"]["seed"]), "lantern-scenes", record["device"]
    numbers = ("LANTERN++", "50", "2.125", "0.8", "1.5", "", "", "2", "4", "8", "4", "1.333")
    assert tuple(fast.values()) == (*numbers, *facts, "0.6667", "0.5")
    assert [vanilla[name] for name in ("speedup", "c", *head[-2:])] == ["1", "1", "", ""]
    alone = record | {"methods": {"lantern++": record["methods"]["lantern++"]}}
    assert dict(zip(head, tsv(alone).splitlines()[1].split("\t"), strict=True))["speedup"] == ""


def test_repeats_are_copied_with_their_range() -> None:
    record = made_record()
    vanilla, fast = record["methods"]["vanilla"], record["methods"]["lantern++"]
    again: list[Any] = []
    for seed, s, n in ((5, 0.6, 50), (6, 1.2, 60), (7, 0.4, 41)):
        methods = {"vanilla": vanilla, "lantern++": fast | {"decode_seconds": s, "steps": n}}
        again.append(record | {"methods": methods, "settings": record["settings"] | {"seed": seed}})
    head, _, row = (line.split("\t") for line in tsv(record, again).splitlines())
    assert (row[1], row[3:7]) == ("50", ["0.6", "2", "1", "3"])
    assert row[8:12] == ["4", "4", "4", "1"], "the parts of a step, and its cost"
    assert row[head.index("seed")] == "5 6 7"
    assert "2.00\u00d7 (1.00\u20133.00)" in numbers_html(record, again)
    refused = copy.deepcopy(fast)
    refused["events"]["committed"] = [1, 2, 3, 4]
    for tree in refused["events"]["trees"]:
        tree["path"] = tree["path"][:1]
    again[0]["methods"]["lantern++"] = refused
    chances = tsv(record, again).splitlines()[2].split("\t")[-2:]
    assert chances == ["0.4444", "0.5"], "4 of 9 guesses in three races"


def test_what_is_copied_travels_as_text() -> None:
    """No cell has the prompt; what a machine is called breaks neither a row nor a field."""
    record = made_record() | {"device": EVIL}
    lines = tsv(record).splitlines()
    assert len(lines) == 3 and len({line.count("\t") for line in lines}) == 1
    html = numbers_html(record)
    assert "<img" not in html
    copied = [unescape(text) for text in re.findall(r'data-(?:tsv|bib)="([^"]*)"', html)]
    assert copied == [tsv(record), bibtex(record)]
    cited = bibtex(record)
    assert cited.count("{") == cited.count("}")
    assert "{{" not in cited, "Gradio might read it as a template"
    assert f"seed {record['settings']['seed']}, {record['created'][:10]}, on" in cited


def test_how_much_a_look_alike_was_lent() -> None:
    """Of 0.4 that it had to reach, 0.1 was its own; of 0.5, 0.4."""
    entry = made_record()["methods"]["lantern++"]
    rules = decision_of(Settings(), METHODS["lantern++"])
    assert rules.lent(entry) == pytest.approx([0.75, 0.2])
    assert decision_of(Settings(), METHODS["eagle1"]).lent(entry) == []
    entry["events"]["trials"] = [[], [], [], []]
    assert rules.lent(entry) == [], "a captured step keeps no numbers"
