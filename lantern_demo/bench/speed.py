"""Time every method on this machine: `python -m lantern_demo.bench speed --out speed.json`.

Every prompt is a round: all methods draw it in turn with one seed. Half of the rounds run in
reverse order, so that a steady drift of the machine cancels. A warm-up round is discarded. The
table shows medians over the rounds. Gains are ratios within a round. With --out FILE.json the
report is also written as FILE.json and FILE.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from tqdm import tqdm

import lantern_demo
from lantern_demo.bench import report
from lantern_demo.bench.summary import HOW, Round, Run, by_kind, markdown, summarise
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.acceptance import acceptance_of
from lantern_demo.runs.load import load
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import entry_of
from lantern_demo.settings.knobs import KNOBS
from lantern_demo.settings.named_trees import TREES
from lantern_demo.settings.settings import methods_of

Contestant = Callable[[str, int], Run]  # draws a prompt with a seed

# Captions that name every attribute of a scene, by kind. Each kind has every place and every time
# once.
PROMPTS = {
    "lanterns": (
        "three yellow round lanterns over the hills at dawn without a moon",
        "four orange box lanterns over a plain at night with a full moon",
        "two blue round lanterns over a lake at dusk with a full moon",
    ),
    "animals": (
        "a penguin on a lake at dusk without a moon",
        "a fox in the hills at night with a full moon",
        "a horse on a plain at dawn with a full moon",
    ),
    "plants and food": (
        "an apple on a plain at dusk with a full moon",
        "a mushroom in the hills at dawn without a moon",
        "a cake on a lake at night with a full moon",
    ),
    "objects": (
        "a castle in the hills at dusk with a full moon",
        "a boat on a lake at dawn without a moon",
        "a car on a plain at night with a full moon",
    ),
}
KINDS = len(PROMPTS)
KIND_OF = {prompt: kind for kind, prompts in PROMPTS.items() for prompt in prompts}


@dataclass(frozen=True)
class Row:
    """A method under settings: one row of the table."""

    name: str  # the method's id, and the settings that vary between its rows
    method: str
    settings: dict[str, Any]  # those that differ from the pipeline's defaults

    @property
    def label(self) -> str:
        return METHODS[self.method].label + self.name[len(self.method) :]


def prompts_for(count: int) -> list[str]:
    """Return so many of PROMPTS, one of each kind in turn, from the first again after the last.

    A prompt that returns is drawn with another seed.
    """
    in_turn = itertools.chain.from_iterable(zip(*PROMPTS.values(), strict=True))
    return list(itertools.islice(itertools.cycle(in_turn), count))


def rows_of(methods: list[str], values: dict[str, list[Any]]) -> list[Row]:
    """Return each method under every combination of the values that it reads.

    A name has only the values that vary.
    """
    rows = []
    for method in methods:
        read = {key: given for key, given in values.items() if KNOBS[key].reads(METHODS[method])}
        for chosen in itertools.product(*read.values()):
            settings = dict(zip(read, chosen, strict=True))
            said = [f"{key} {value}" for key, value in settings.items() if len(read[key]) > 1]
            rows.append(Row(f"{method} {', '.join(said)}".strip(), method, settings))
    return rows


def play(pipe: Pipeline, row: Row, prompt: str, seed: int) -> Run:
    """Draw a picture and return its entry of the run record, with counts of its events instead of
    them.

    Raises RuntimeError if the method fails.
    """
    entry: Run = dict(entry_of(pipe.generate(prompt, row.method, seed=seed, **row.settings)))
    return entry | acceptance_of(entry.pop("events"))._asdict()


def measure(contestants: dict[str, Contestant], prompts: list[str]) -> list[Round]:
    """Run a round for each prompt, after a warm-up round that is discarded.

    A prompt's number is its seed. Half of the rounds, and of those of a kind, go backwards.
    """
    rounds: list[Round] = []
    with tqdm(total=(1 + len(prompts)) * len(contestants), desc="rounds", unit="run") as bar:
        for number, prompt in ((-1, prompts[0]), *enumerate(prompts)):
            runs = {}
            for name in list(contestants)[:: -1 if (number + number // KINDS) % 2 else 1]:
                runs[name] = contestants[name](prompt, max(0, number))
                bar.update()
            if number >= 0:
                kind = KIND_OF.get(prompt, "")
                rounds.append({"prompt": prompt, "kind": kind, "seed": number, "runs": runs})
    return rounds


def setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE.

    The value is decoded as JSON if possible. Raises ValueError without a "=".
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"a setting is NAME=VALUE, got {text!r}")
    if name == "seed":
        raise ValueError("a seed cannot be set here: a prompt's number is its seed")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def parser() -> argparse.ArgumentParser:
    p = report.parser_of(__doc__, "speed")
    report.add_model(p)
    trees = f"{', '.join(TREES)}, or paths such as '0 1 00'; each is a row"
    positive = report.at_least(1)
    p.add_argument("--prompts", type=positive, default=6, help="how many to draw (default: 6)")
    p.add_argument("--methods", nargs="+", choices=list(METHODS), help="default: all that can run")
    p.add_argument(
        "--set",
        type=setting,
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="settings for all, temperature=0 say",
    )
    p.add_argument("--tree", nargs="+", help=trees)
    p.add_argument("--noise", nargs="+", choices=KNOBS["noise"].choices, help="each is a row")
    depths = "each draft's chance once its parent was kept, and the steps by their tokens"
    p.add_argument("--depths", action="store_true", help=f"also print {depths}")
    p.add_argument("--out", type=report.json_file, help="FILE.json: write FILE.json and FILE.md")
    return p


def described(pipe: Pipeline) -> dict[str, Any]:
    """Return what a report says of the program, the machine, the model and the settings."""
    networks = pipe.networks
    with pipe.threads.used():
        machine = report.machine_of(pipe.device)
    return {
        "created": report.now(),
        "version": lantern_demo.__version__,
        "commit": report.commit(),
        "machine": machine,
        "threads": pipe.threads.count,
        "libraries": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": {"id": pipe.info.id, "trained": networks.trained, "sources": networks.sources},
        "dtype": pipe.dtype,
        "products": pipe.products,
        "settings": pipe.defaults.as_dict(),
        "how": HOW,
    }


def benchmark(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the rows of a command line and return the report.

    Raises ValueError for an invalid value, RuntimeError if a method fails.
    """
    pipe = load(args.model, args.device, args.dtype)
    pipe.defaults = pipe.settings(**dict(args.set))
    chosen = pipe.check_methods(methods_of(args.methods or pipe.available_methods))
    given = {"tree": args.tree, "noise": args.noise}
    values = {key: list(dict.fromkeys(wanted)) for key, wanted in given.items() if wanted}
    rows = rows_of([method.id for method in chosen], values)
    for row in rows:
        pipe.settings(**row.settings)
    contestants: dict[str, Contestant] = {row.name: partial(play, pipe, row) for row in rows}
    rounds = measure(contestants, prompts_for(args.prompts))
    names = {row.name: row.method for row in rows}
    found = summarise(rounds, names)
    return described(pipe) | {
        "methods": {
            row.name: {"label": row.label, "settings": row.settings, **found[row.name]}
            for row in rows
        },
        "kinds": by_kind(rounds, names),
        "rounds": rounds,
    }


def main(argv: Sequence[str]) -> None:
    """Run the command. Raises ValueError for invalid arguments."""
    args = parser().parse_args(argv)
    found = benchmark(args)
    text = markdown(found, args.depths)
    print(text)
    if args.out:
        print(f"wrote {', '.join(map(str, report.write(args.out, found, text)))}")
