"""ZipAR (arXiv 2412.04062): rows of a picture drawn in parallel, as a loop on any `Target`.

Run `python examples/zipar.py` to race it against vanilla on the bundled model. It prints tokens a
step, the share of look-alikes and the speedup. Look-alikes are the tokens that the model itself
draws otherwise, with the same picture before them and the same noise. A step is one pass.

A row begins once the row above is `window` tokens ahead, and one pass draws the next token of every
open row. A node reads a token at its own position in the picture and draws the one after it. It
sees the tokens read so far at earlier positions, those of this pass included. It does not see the
tokens that the open rows above have yet to draw, so the method is lossy. The first node of a row
should read the last token of the row above, which is not drawn yet. The newest token of that row
stands in for it, until the true token is read at its position. The released code leaves unread
slots zeroed and visible; here they are hidden. With a window as long as a row each pass has one
node, in raster order: vanilla.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import json
from functools import partial
from statistics import mean, median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lantern_demo import Pipeline, disk_cache, load
from lantern_demo.bench.report import at_least, json_file, machine_of, now, parser_of
from lantern_demo.bench.speed import Row, measure, play, prompts_for
from lantern_demo.bench.summary import interval
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.evidence import own_logits
from lantern_demo.decoding.interfaces import Pass, Target
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.noise import gumbel_
from lantern_demo.decoding.sampling import Sampling, warp
from lantern_demo.paths import user_path

Node = tuple[int, int, int]  # positions: whose token it reads, that it stands at, that it draws


def nodes_of(number: int, tokens: int, row: int, window: int) -> list[Node]:
    """Return the nodes of pass `number`, from 1, over `tokens` tokens in rows of `row`, the
    uppermost row first.

    A node that draws nothing comes last, if there is one: it draws position `tokens`, which is none
    of the picture. Pass 0 is the prefill, which draws position 0.
    """
    lag = min(window, row)
    drawing = []
    finishing = []
    for r in range(-(-tokens // row)):
        column = number - r * lag
        first = r * row
        end = min(first + row, tokens)
        if 0 <= column < end - first and (r or column):
            index = first + column
            stands_in = column == 0 and lag < row
            read = first - row + lag - 1 if stands_in else index - 1
            drawing.append((read, index - 1, index))
        elif column == row and lag < row and end < tokens:  # its last token replaces the stand-in
            finishing.append((end - 1, end - 1, tokens))
    return drawing + finishing


@torch.inference_mode()
def draw(
    target: Target, condition: Any, sampling: Sampling, noise: Tensor, row: int, window: int
) -> tuple[list[int], int]:
    """Return the tokens of a picture in raster order, and the number of passes after the prefill.

    noise [tokens, V]: the Gumbel noise of each position, as every method of this program shares it.
    """
    count = len(noise)
    cache = target.new_cache(1 if sampling.cfg_scale == 1 else 2, count)
    hidden = target.prefill(condition, cache)
    first = cache.length
    slots = torch.arange(first + count)
    read = slots < first  # slots whose token was read
    # the last one is for nodes that draw nothing
    tokens = torch.zeros(count + 1, dtype=torch.int64)
    tokens[0] = (warp(target.head(hidden[:, -1:]), sampling) + noise[:1]).argmax(-1)
    number = 0
    while nodes := nodes_of(number + 1, count, row, window):
        number += 1
        source, place, drawn = torch.tensor(nodes).unbind(1)
        at = place + first
        read[at] = True
        end = int(at.max()) + 1
        visible = read[:end] & (slots[:end] <= at.unsqueeze(1))
        hidden = target.forward(Pass(tokens[source], at, at, visible), cache)
        scores = warp(target.head(hidden), sampling)
        tokens[drawn] = (scores + noise[drawn.clamp(max=count - 1)]).argmax(-1)
    return tokens[:count].tolist(), number


@torch.inference_mode()
def changed(
    target: Target, condition: Any, config: Config, noise: Tensor, tokens: list[int]
) -> float:
    """Return the share of tokens that the target draws otherwise."""
    logits = torch.cat(list(own_logits(target, condition, tokens, config)), 1)
    own = (warp(logits, config.sampling) + noise).argmax(-1).tolist()
    return sum(a != b for a, b in zip(own, tokens, strict=True)) / len(tokens)


class Drawn(NamedTuple):
    """A picture's tokens, the passes after the prefill, the changed share, and the seconds of
    prefill and passes.
    """

    tokens: list[int]
    passes: int
    changed: float
    seconds: float


def run(pipe: Pipeline, prompt: str, seed: int, window: int) -> Drawn:
    """Draw a picture at the model's preset."""
    plan = pipe.planned(METHODS["vanilla"], pipe.settings(seed=seed))
    config, condition = pipe.prepared(plan, pipe.read(prompt).encoded)
    pipe.threads.use()  # as its runs do
    begun = perf_counter()
    noise = gumbel_(torch.empty(pipe.info.tokens, pipe.target.vocab_size), seed)
    tokens, passes = draw(pipe.target, condition, config.sampling, noise, pipe.info.grid, window)
    seconds = perf_counter() - begun
    share = changed(pipe.target, condition, config, noise, tokens)
    return Drawn(tokens, passes, share, seconds)


def race(pipe: Pipeline, window: int, count: int) -> dict[str, Any]:
    """Race ZipAR against vanilla on `count` prompts, as `python -m lantern_demo.bench speed` does.

    Return the mean tokens a step and share of look-alikes, the median speedup and its interval.
    """
    contestants = {
        "vanilla": partial(play, pipe, Row("vanilla", "vanilla", {})),
        "zipar": lambda prompt, seed: run(pipe, prompt, seed, window)._asdict(),
    }
    rounds = [entry["runs"] for entry in measure(contestants, prompts_for(count))]
    drawn = [runs["zipar"] for runs in rounds]
    ratios = [runs["vanilla"]["decode_seconds"] / runs["zipar"]["seconds"] for runs in rounds]
    return {
        "created": now(),
        "machine": machine_of(pipe.device),
        "window": window,
        "rounds": count,
        "mean_accepted_length": mean((len(one["tokens"]) - 1) / one["passes"] for one in drawn),
        "changed": mean(one["changed"] for one in drawn),
        "speedup": median(ratios),
        "interval": interval(ratios),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--window",
        type=at_least(1),
        default=4,
        help="tokens that a row is ahead when the next one begins",
    )
    parser.add_argument(
        "--prompts", type=at_least(1), default=1, help="how many to draw (default: 1)"
    )
    parser.add_argument("--out", type=json_file, help="FILE.json: write the numbers")
    parser.add_argument("--picture", type=user_path, help="FILE.png: write one picture")
    args = parser.parse_args()
    pipe = load("lantern-scenes", device="cpu")  # a GPU's kernels refuse slots with gaps
    found = race(pipe, args.window, args.prompts)
    print(
        f"{found['mean_accepted_length']:.2f} tokens a step, {found['changed']:.0%} look-alikes, "
        f"{found['speedup']:.2f}x"
    )
    if args.out:
        disk_cache.put(args.out, json.dumps(found, indent=1) + "\n")
    if args.picture:
        prompt = "three red round lanterns over a lake at dusk"
        args.picture.parent.mkdir(parents=True, exist_ok=True)
        pipe.images.decode(run(pipe, prompt, 7, args.window).tokens).save(args.picture)


if __name__ == "__main__":
    main()
