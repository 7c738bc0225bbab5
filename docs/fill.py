"""Fill the measured numbers into README and docs: `python docs/fill.py`.

All of them come from docs/numbers.json, those of the audit from docs/audit.json, and the price of
look-alikes and the film's machine from files that the page reads. A table stands between
`<!-- numbers NAME -->` and `<!-- end -->`, a number in a sentence between
`<!--n SECTION.KEY...-->` and `<!--/n-->`. The page reads typical speedups from `lantern_demo/ui`.
`python docs/fill.py take SECTION FILE.json` copies the measurements of a command into a section,
and fills again. `python docs/fill.py add FILE.json` copies a report of `python -m
lantern_demo.bench speed` to docs/results, from where a table shows it, and fills again. `--check`
writes nothing, and fails if a file is stale.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
KEPT = ROOT / "docs" / "numbers.json"
RESULTS = ROOT / "docs" / "results"
TYPICAL = ROOT / "lantern_demo" / "ui" / "typical.json"
PRICE = ROOT / "lantern_demo" / "ui" / "recorded" / "price.json"
BLOCK = re.compile(r"(<!-- numbers (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
FEWEST = 12  # prompts of a run of the speed benchmark that is shown
INLINE = re.compile(r"(<!--n (\S+?)-->).*?(<!--/n-->)", re.DOTALL)

Numbers = dict[str, Any]


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Return a Markdown table whose columns after the first `left` ones are right-aligned."""
    marks = ["---" if place < left else "--:" for place in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, marks, *rows)) + "\n"


# -- sections, from the file of a command


def speed(report: Numbers) -> Numbers:
    """Keep the medians of every row of `python -m lantern_demo.bench speed`."""
    check_run(report)
    rows = {}
    for name, row in report["methods"].items():
        kept = (
            "nodes",
            "tree",
            "steps",
            "mean_accepted_length",
            "c",
            "ms_draft",
            "ms_verify",
            "ms_commit",
            "changed",
        )
        rows[name] = {key: row[key] for key in kept} | {
            "speedup": row["gain"]["median"],
            "interval": row["gain"]["interval95"],
            "step_ms": row["ms_per_step"]["median"],
            "seconds": row["seconds"]["median"],
            "rate": row["tokens_per_second"]["median"],
        }
    return conditions(report) | {
        "rounds": len(report["rounds"]),
        "model": report["model"]["id"],
        "torch": report["libraries"]["torch"].partition("+")[0],
        "rows": rows,
    }


def spread(report: Numbers, name: str) -> list[float]:
    """Return the lowest and the highest speedup of a method over the rounds of that command."""
    runs = [entry["runs"] for entry in report["rounds"]]
    gains = [one["vanilla"]["decode_seconds"] / one[name]["decode_seconds"] for one in runs]
    return [min(gains), max(gains)]


def kept_drafts(report: Numbers) -> Numbers:
    """Keep the counts of that command: tokens a step by kind of prompt, drafts by their depth, and
    steps by their tokens. No busy machine changes them.
    """
    return {
        "date": report["created"][:10],
        "rounds": len(report["rounds"]),
        "rows": {
            name: {key: row[key] for key in ("depths", "sizes")}
            for name, row in report["methods"].items()
            if row["depths"]
        },
        "kinds": {
            kind: {name: row["mean_accepted_length"] for name, row in found["methods"].items()}
            for kind, found in report["kinds"].items()
        },
    }


def control(report: Numbers) -> Numbers:
    """Keep the same of that command with independent noise for all methods, and the gain of
    LANTERN++ over EAGLE-1 within rounds. Tree and noise are then the same, so that only the rules
    differ.
    """
    from lantern_demo.bench.summary import interval

    runs = [entry["runs"] for entry in report["rounds"]]
    ratios = [one["eagle1"]["decode_seconds"] / one["lantern++"]["decode_seconds"] for one in runs]
    relaxation = {"speedup": median(ratios), "interval": interval(ratios)}
    return speed(report) | {"relaxation": relaxation}


def nodes(report: Numbers) -> Numbers:
    """Keep the rows of `python -m lantern_demo.bench nodes`."""
    kept = {"rounds": len(report["rounds"]), "model": report["model"]["id"]}
    return conditions(report) | kept | {"rows": report["rows"]}


def front(report: Numbers) -> Numbers:
    """Keep the points of `python examples/quality/run.py` that have pictures, each with its
    differences to vanilla's pictures, and the two that they are compared with.
    """
    points = []
    for row in report["rows"]:
        if not row["right"]:
            continue
        less = {
            name: [told["difference"], *told["interval"]] for name, told in row["measures"].items()
        }
        if row["name"] == "vanilla":  # its differences are to the floor
            of_floor = {name: [-d, -high, -low] for name, (d, low, high) in less.items()}
            less = {}
        points.append(
            {
                "point": row["label"],
                "tokens_per_step": row["speed"]["tokens_per_step"],
                "changed": row["speed"]["changed"],
                "found": row["right"]["all"],
                "less": less,
            }
        )
    floor, truth = report["floor"], report["truth"]["again"]
    points.append({"point": floor["label"], "found": floor["right"]["all"], "less": of_floor})
    name = "true scenes through the tokenizer"
    points.append({"point": name, "found": truth["right"]["all"], "less": {}})
    return conditions(report) | {"pictures": report["pictures"], "points": points}


def things(report: Numbers) -> Numbers:
    """Keep the shares of `python examples/quality/things.py`, and how often its methods' pictures
    of a thing got another name.
    """
    methods, rows = list(report["methods"]), []
    for row in report["things"]:
        shares = {method: row[method]["share"] for method in methods}
        wrong = sum((Counter(row[method]["wrong"]) for method in methods), Counter())
        rows.append({"thing": row["thing"], **shares, "instead": dict(wrong.most_common())})
    kept = {key: report[key] for key in ("pictures", "true", "methods")}
    return conditions(report) | kept | {"things": rows}


def premise(report: Numbers) -> Numbers:
    """Keep all of `python examples/quality/premise.py`."""
    return {"date": report["created"][:10], "pictures": report["pictures"], "rows": report["rows"]}


def gpu(report: Numbers) -> Numbers:
    """Keep all steps of `python examples/gpu.py`.

    Count by number format the tokens of eager steps and of vanilla that other runs drew too.
    """
    found: Numbers = {}
    for row in report["identity"]:
        counts = found.setdefault(
            row["format"],
            dict.fromkeys(("eager_same", "eager_of", "vanilla_same", "vanilla_of"), 0),
        )
        for other in ("eager", "vanilla"):
            if f"same as {other}" in row and row["method"] != other:
                same, tokens = map(int, row[f"same as {other}"].split(" of "))
                counts[f"{other}_same"] += same
                counts[f"{other}_of"] += tokens
    return (
        conditions(report)
        | {"torch": report["torch"].partition("+")[0], "rows": report["speed"]}
        | found
    )


def zipar(report: Numbers) -> Numbers:
    """Keep all of `python examples/zipar.py`."""
    return conditions(report) | report


def conditions(report: Numbers) -> Numbers:
    """Return the machine and the day of a report."""
    return {"device": report["machine"]["device"], "date": report["created"][:10]}


SECTIONS: dict[str, Callable[[Numbers], Numbers]] = {
    "speed": speed,
    "kept-drafts": kept_drafts,
    "control": control,
    "nodes": nodes,
    "front": front,
    "things": things,
    "premise": premise,
    "gpu": gpu,
    "page": dict,
    "opt-tree": speed,
    "more-rules": speed,
    "zipar": zipar,
}


def check_run(report: Numbers) -> None:
    """Exit with a sentence for a report of too few prompts, or of a clone that was changed."""
    if len(report["rounds"]) < FEWEST:
        sys.exit(f"--prompts was {len(report['rounds'])}; it must be at least {FEWEST}")
    if not report["commit"] or report["commit"].endswith("+"):
        sys.exit(f"the commit is {report['commit']!r}; it must be of an unchanged clone")


def result(report: Numbers) -> tuple[str, str]:
    """Return a result's file name, of its machine, model and day, and its text: the report of
    `python -m lantern_demo.bench speed`, which keeps of its rounds the spread of the speedups.
    """
    check_run(report)
    kept = {key: value for key, value in report.items() if key != "rounds"}
    kept["rounds"] = len(report["rounds"])
    for name, row in kept["methods"].items():
        row["gain"]["spread"] = spread(report, name)
    told = f"{report['machine']['device']} {report['model']['id']} {report['created'][:10]}"
    name = re.sub(r"[^a-z0-9]+", "-", told.lower())
    return f"{name}.json", json.dumps(kept, indent=1) + "\n"


# -- tables

MORE_RULES = {
    "cool-sd": "COOL-SD",
    "typical": "Typical acceptance",
    "ensemble": "Mixture with the drafter",
    "entropy": "ARsample's acceptance",
    "gsd": "GSD",
}
LEFT_OUT = (8, 32)  # nodes whose steps are not shown: their times lie between those that are
DYNAMIC = ("eagle2", "lantern")  # no tree of these has 16 nodes by default
SURE = 0.95  # of the pictures: a thing that every method draws as surely is not shown


def gpu_table(numbers: Numbers) -> str:
    """Show steps on a GPU: milliseconds, and their cost over a vanilla step's."""
    found = numbers["gpu"]
    by_model: dict[str, list[Numbers]] = {}
    for row in found["rows"]:
        by_model.setdefault(row["model"], []).append(row)
    lines = []
    for rows in zip(*by_model.values(), strict=True):  # one method and tree
        method, count = rows[0]["method"], rows[0]["nodes"]
        if (count in LEFT_OUT and method != "sjd") or (method in DYNAMIC and count == 16):
            continue
        nodes = " to ".join(map(str, sorted({row["nodes"] for row in rows})))
        lines.append(
            [
                f"`{rows[0]['method']}`",
                nodes,
                *(f"{row['ms a step']:.2f} ({row['c']:.2f})" for row in rows),
            ]
        )
    head = ["method", "nodes", *(f"{model}, ms (c)" for model in by_model)]
    return f"{table(head, lines)}\n{found['device']}, PyTorch {found['torch']}, {found['date']}.\n"


def papers_code_table(numbers: Numbers) -> str:
    """Show a step of the papers' own code and of ours, in milliseconds."""
    found = numbers["papers-code"]
    rows = [
        [
            row["method"],
            row["code"],
            str(row["nodes"]),
            f"{row['theirs']:.1f}",
            f"{row['ours']:.2f}",
        ]
        for row in found["rows"].values()
    ]
    head = ["method", "repository", "nodes", "its step, ms", "our step, ms"]
    where = f"{found['device']}, PyTorch {found['torch']}, {found['date']}"
    return f"{table(head, rows)}\n{where}.\n"


def speed_table(numbers: Numbers) -> str:
    """Show the methods in short."""
    found = numbers["speed"]
    rows = []
    for name, row in found["rows"].items():
        measured = f"{row['mean_accepted_length']:.2f}", percent(row["changed"]), gain_of(row)
        rows.append([f"`{name}`", tree_of(row), *rule_of(name), nodes_of(row), *measured])
    head = [
        "method",
        "draft tree",
        "rule",
        "lossless",
        "nodes",
        "tokens a step",
        "look-alikes",
        "speedup (95 %)",
    ]
    vanilla = found["rows"]["vanilla"]["step_ms"]
    where = (
        f"{found['model']} on {found['device']}, PyTorch {found['torch']}, {found['date']}; "
        f"{found['rounds']} prompts. Speedups are medians, tokens a step and look-alikes are means"
    )
    return f"{table(head, rows, 4)}\n{where}. Vanilla takes {vanilla:.1f} ms per token.\n"


def columns_table(numbers: Numbers) -> str:
    """Show the same run, with the parts of a step in milliseconds."""
    rows = []
    for name, row in numbers["speed"]["rows"].items():
        parts = [
            f"{row[key]:.2f}"
            for key in (
                "mean_accepted_length",
                "step_ms",
                "ms_draft",
                "ms_verify",
                "ms_commit",
                "c",
            )
        ]
        rows.append([f"`{name}`", *parts, f"{row['rate']:.0f}"])
    head = ["method", "tokens a step", "step", "draft", "verify", "commit", "c", "tokens/s"]
    return table(head, rows)


def nodes_table(numbers: Numbers) -> str:
    """Show speedups by nodes, a table for each temperature."""
    from lantern_demo.bench.nodes import CELLS, curve

    found = numbers["nodes"]
    where = f"{found['model']} on {found['device']}, {found['date']}; {found['rounds']} prompts"
    return f"{curve(found['rows'])}\n\n{where}. {CELLS}\n"


def results_table(numbers: Numbers) -> str:
    """Show the median speedups of every file of docs/results."""
    from lantern_demo.decoding.methods import METHODS

    drafted = [name for name in METHODS if name != "vanilla"]
    rows = []
    for name, found in results().items():
        machine, methods = found["machine"], found["methods"]
        device = machine["device"]
        if machine["device_type"] != "cpu":
            device += f", {machine['processor']}"
        rows.append(
            [
                f"[{device}](results/{name}.json)",
                found["model"]["id"],
                found["libraries"]["torch"],
                found["commit"] or f"version {found['version']}",
                str(found["rounds"]),
                f"{methods['vanilla']['ms_per_step']['median']:.2f}",
                *(
                    f"{methods[method]['gain']['median']:.2f}x" if method in methods else ""
                    for method in drafted
                ),
            ]
        )
    head = ["machine", "model", "PyTorch", "commit", "prompts", "vanilla, ms a step"]
    return table([*head, *(f"`{method}`" for method in drafted)], sorted(rows), 4)


def kinds_table(numbers: Numbers) -> str:
    """Show tokens a step by kind of prompt."""
    found = numbers["kept-drafts"]
    rows = [
        [kind, *(f"{drawn[name]:.2f}" for name in found["rows"])]
        for kind, drawn in found["kinds"].items()
    ]
    return table(["prompts", *(f"`{name}`" for name in found["rows"])], rows)


def depths_table(numbers: Numbers) -> str:
    """Show a draft's chance by its depth, and of a position with siblings that it kept one."""
    rows = {
        name: [
            percent(kept / tried) + (f" ({percent(kept / places)})" if tried > places else "")
            for tried, places, kept in row["depths"]
        ]
        for name, row in numbers["kept-drafts"]["rows"].items()
    }
    return numbered_table(rows)


def sizes_table(numbers: Numbers) -> str:
    """Show the share of the steps by their tokens."""
    rows = {
        name: [percent(steps / sum(row["sizes"])) for steps in row["sizes"]]
        for name, row in numbers["kept-drafts"]["rows"].items()
    }
    return numbered_table(rows)


def numbered_table(rows: dict[str, list[str]]) -> str:
    """Return a table of methods whose columns are 1, 2, ..."""
    columns = max(map(len, rows.values()))
    lines = [[f"`{name}`", *cells, *[""] * (columns - len(cells))] for name, cells in rows.items()]
    return table(["method", *map(str, range(1, columns + 1))], lines)


def outside_table(numbers: Numbers) -> str:
    """Show the methods that are examples. Each was raced with vanilla."""
    found = [
        ("OPT-Tree", "more_methods", "opt-tree", numbers["opt-tree"]["rows"]["opt-tree"]),
        ("ZipAR", "zipar", "zipar", numbers["zipar"]),
    ]
    found += [
        (MORE_RULES[name], "more_rules", "more-rules", row)
        for name, row in numbers["more-rules"]["rows"].items()
        if name != "vanilla"
    ]
    rows = [
        [
            name,
            f"`python examples/{script}.py --prompts {numbers[section]['rounds']}`",
            f"{row['mean_accepted_length']:.2f}",
            percent(row["changed"]),
            gain_of(row),
        ]
        for name, script, section, row in found
    ]
    return table(["method", "command", "tokens a step", "look-alikes", "speedup (95 %)"], rows, 2)


def front_table(numbers: Numbers) -> str:
    """Show tokens a step, and the loss of the pictures. `speed` has the speedups."""
    rows = []
    for point in numbers["front"]["points"]:
        drawn = ["", ""]
        if "changed" in point:
            drawn = [f"{point['tokens_per_step']:.2f}", f"{100 * point['changed']:.1f} %"]
        nats = "{:+.3f} ({:+.3f} to {:+.3f})".format(*point["less"].get("nll", [0] * 3))
        rows.append(
            [
                point["point"],
                *drawn,
                percent(point["found"]["share"]),
                points_less(point),
                nats if point["less"] else "",
            ]
        )
    head = ["pictures by", "tokens a step", "look-alikes", "prompt found"]
    head += ["less vanilla's, points (98 %)", "nats a token, less vanilla's (98 %)"]
    return table(head, rows)


def premise_table(numbers: Numbers) -> str:
    """Show pictures whose tokens were replaced."""
    rows = [
        [row["tokens"], f"{row['psnr']:.1f}" if row["psnr"] else "", percent(row["share"])]
        for row in numbers["premise"]["rows"]
    ]
    return table(["every token becomes", "PSNR, dB", "prompt found"], rows)


def things_table(numbers: Numbers) -> str:
    """Show the share of pictures that are recognised, by method, of the things that are least
    sure, and of all.
    """
    found = numbers["things"]
    methods = list(found["methods"])
    rows = [
        [
            row["thing"],
            *(percent(row[name]) for name in methods),
            ", ".join(f"{name} {count}" for name, count in row["instead"].items()),
        ]
        for row in found["things"]
        if min(row[name] for name in methods) < SURE
    ]
    for key, name in (("mean_share", "mean of all"), ("least_share", "least")):
        shares = (found["methods"][method][key] for method in methods)
        rows.append([name, *map(percent, shares), ""])
    return table(["thing", *(f"`{name}`" for name in methods), "named instead"], rows)


def price_table(numbers: Numbers) -> str:
    """Show what each value of a bound gains and costs, as `examples/quality/price.py` wrote it."""
    found = json.loads(PRICE.read_text(encoding="utf-8"))
    rows = [
        [
            f"`{told['id']}`",
            f"{told['knob']} {one['value']:g}",
            f"{one['speedup']:.2f}x",
            percent(one["changed"]),
            percent(one["share"]),
            points_of(one["less"]),
        ]
        for told in found["methods"]
        for one in told["points"]
    ]
    head = ["method", "value", "speedup", "look-alikes", "recognised"]
    head += ["less vanilla's, points (98 %)"]
    share = percent(found["vanilla"]["share"])
    where = f"{found['model']} on {found['device']}, {found['created'][:10]}"
    told = f"{found['pictures']} pictures a row; the judge recognises {share} of vanilla's"
    return f"{table(head, rows, 2)}\n{where}. {told}.\n"


def audit_table(numbers: Numbers) -> str:
    """Show the verdicts of docs/audit.json, a copy of the file that `python -m lantern_demo.bench
    audit` writes.
    """
    from lantern_demo.bench.audit import glance

    return glance(json.loads((ROOT / "docs" / "audit.json").read_text(encoding="utf-8"))) + "\n"


TABLES: dict[str, Callable[[Numbers], str]] = {
    "speed": speed_table,
    "columns": columns_table,
    "nodes": nodes_table,
    "results": results_table,
    "kinds": kinds_table,
    "depths": depths_table,
    "sizes": sizes_table,
    "outside": outside_table,
    "front": front_table,
    "things": things_table,
    "premise": premise_table,
    "price": price_table,
    "audit": audit_table,
    "gpu": gpu_table,
    "papers-code": papers_code_table,
}


def tree_of(row: Numbers) -> str:
    """Return the drafts of a row in words."""
    return row["tree"][0].partition(" (")[0]


def rule_of(name: str) -> tuple[str, str]:
    """Return the rule of a method in words, and whether it is lossless."""
    from lantern_demo.decoding.methods import METHODS
    from lantern_demo.settings.knobs import bound_of, short_name

    method = METHODS[name]
    if method.lossless:
        return "-" if method.alone else "exact", "yes"
    bound = bound_of(method)
    return f"relaxed: {short_name(bound)}" if bound else "relaxed", "no"


def nodes_of(row: Numbers) -> str:
    """Return the number of nodes of a draft tree, of the largest one if it varies."""
    nodes = row["nodes"]
    return f"up to {max(nodes)}" if len(nodes) > 1 else str(nodes[0])


def gain_of(row: Numbers) -> str:
    """Format a speedup with its interval."""
    low, high = row["interval"] or (0, 0)
    return f"{row['speedup']:.2f}x" + (f" ({low:.2f} to {high:.2f})" if low != high else "")


def found_by_method(numbers: Numbers) -> Numbers:
    """Return the shares of pictures that show the whole prompt, and their differences to vanilla's,
    by the label of a point in lower case.
    """
    return {
        point["point"].lower(): {"share": point["found"]["share"], "less": points_less(point)}
        for point in numbers.get("front", {"points": []})["points"]
    }


def points_less(point: Numbers) -> str:
    """Format by how many percentage points a share differs from vanilla's, with its interval."""
    if not point["less"]:
        return ""
    return points_of(point["less"]["all"])


def points_of(shares: Sequence[float]) -> str:
    """Format a difference of shares and its interval in percentage points."""
    rounded = (round(100 * share, 1) + 0.0 for share in shares)  # no -0.0
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*rounded)


def percent(share: float) -> str:
    """Format a share of 0 to 1."""
    digits = 1 if 0.99 < share < 1 else 0  # 99.5 % is not 100 %
    return f"{100 * share:.{digits}f} %"


def inline(numbers: Numbers, path: str) -> str:
    """Format the number at a dotted path, as its last name requires.

    Raise KeyError for an unknown path.
    """
    others = {"found": found_by_method(numbers), "results": results(), "recording": recording()}
    value: Any = numbers | others
    *_, last = keys = path.split(".")
    for key in keys:
        value = value[key]
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, dict):  # a speedup and its interval
        return gain_of(value)
    if last.endswith("share"):
        return percent(value)
    forms = {
        "speedup": "{:.2f}x",
        "median": "{:.2f}x",
        "gain": "{:.0%}",
        "seconds": "{:.1f} s",
        "ms": "{:.1f} ms",
        "changed": "{:.0%}",
        "steps": "{:.0f}",
    }
    form = next((form for end, form in forms.items() if last.endswith(end)), "{:.2f}")
    return form.format(value).replace("%", " %")


# -- the files


def filled(text: str, numbers: Numbers) -> str:
    """Return a document with its numbers.

    Raise KeyError for a table or a number that does not exist.
    """
    text = BLOCK.sub(lambda match: match[1] + TABLES[match[2]](numbers) + match[3], text)
    return INLINE.sub(lambda match: match[1] + inline(numbers, match[2]) + match[3], text)


def results() -> dict[str, Numbers]:
    """Return the reports of docs/results by file name without its suffix, which ends in the day."""
    files = sorted(RESULTS.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def recording() -> Numbers:
    """Return the record of the run that the page shows first, which README has a film of."""
    first = min(PRICE.parent.glob("*.json.gz"))
    return json.loads(gzip.decompress(first.read_bytes()))["record"]


def typical() -> str:
    """Return the file from which the page reads the range of speedups on a machine: the spread of
    that machine's last result, with each method's tree.
    """
    machines = {}
    for found in results().values():
        rows = {
            name: {
                "tree": row["tree"][0],
                "range": [round(end, 2) for end in row["gain"]["spread"]],
            }
            for name, row in found["methods"].items()
            if name != "vanilla"
        }
        machines[found["model"]["id"], found["machine"]["device"]] = rows
    rows = [
        {"model": model, "device": device, "methods": methods}
        for (model, device), methods in machines.items()
    ]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def documents() -> list[Path]:
    """Return the paths of README, of docs without the notes, and of the bundled model's card."""
    card = ROOT / "lantern_demo" / "bundled" / "lantern-scenes" / "README.md"
    docs = sorted((ROOT / "docs").glob("*.md"))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", card, *docs]


def kept() -> Numbers:
    """Return the last measurements."""
    found: Numbers = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "copy",
        nargs="*",
        metavar="take SECTION FILE.json, or add FILE.json",
        help="copy measurements first",
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    if args.check and args.copy:
        parser.error("--check writes nothing: it takes no take and no add")
    numbers: Numbers = kept()
    match args.copy:
        case []:
            pass
        case ["take", section, file] if section in SECTIONS:
            numbers[section] = SECTIONS[section](json.loads(Path(file).read_text(encoding="utf-8")))
            KEPT.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        case ["add", file]:
            name, text = result(json.loads(Path(file).read_text(encoding="utf-8")))
            RESULTS.joinpath(name).write_text(text, encoding="utf-8")
        case _:
            parser.error(f"allowed are: take {'|'.join(SECTIONS)} FILE.json, and add FILE.json")
    texts = {path: path.read_text(encoding="utf-8") for path in (*documents(), TYPICAL)}
    right = {path: filled(text, numbers) for path, text in texts.items()}
    right[TYPICAL] = typical()
    stale = [path for path, text in texts.items() if right[path] != text]
    for path in stale:
        print(f"{'stale' if args.check else 'filled'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(right[path], encoding="utf-8")
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
