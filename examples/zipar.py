"""ZipAR (arXiv 2412.04062): rows of a picture drawn in parallel, as a loop on any `Target`.

Run `python examples/zipar.py --window 4 --out zipar.png`. It prints the passes, and the share of
tokens that the model itself draws otherwise, with the same picture before them and the same noise.

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

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lantern_demo import Pipeline, load
from lantern_demo.decoding.interfaces import Target
from lantern_demo.decoding.noise import gumbel_
from lantern_demo.decoding.sampling import Sampling, warp

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
        hidden = target.forward(tokens[source], at, at, visible, cache)
        scores = warp(target.head(hidden), sampling)
        tokens[drawn] = (scores + noise[drawn.clamp(max=count - 1)]).argmax(-1)
    return tokens[:count].tolist(), number


@torch.inference_mode()
def changed(
    target: Target, condition: Any, sampling: Sampling, noise: Tensor, tokens: list[int]
) -> float:
    """Return the share of tokens that the target draws otherwise, by one pass over the finished
    picture.
    """
    cache = target.new_cache(1 if sampling.cfg_scale == 1 else 2, len(tokens))
    hidden = target.prefill(condition, cache)[:, -1:]
    slots = torch.arange(cache.length + len(tokens))
    at = slots[cache.length :]
    picture = torch.tensor(tokens)
    hidden = torch.cat(
        [hidden, target.forward(picture, at, at, slots <= at.unsqueeze(1), cache)[:, :-1]], 1
    )
    own = (warp(target.head(hidden), sampling) + noise).argmax(-1)
    return float((own != picture).float().mean())


def run(pipe: Pipeline, prompt: str, seed: int, window: int) -> tuple[list[int], int, float]:
    """Return tokens, passes and the changed share of a prompt.

    Raises ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window is {window}; it must be at least 1")
    sampling = pipe.defaults.sampling()
    encoded = pipe.read(prompt).encoded
    with torch.inference_mode():
        condition = pipe.networks.target.condition(
            encoded.features, encoded.mask, sampling.cfg_scale != 1
        )
    noise = gumbel_(torch.empty(pipe.info.tokens, pipe.target.vocab_size), seed)
    tokens, passes = draw(pipe.target, condition, sampling, noise, pipe.info.grid, window)
    return tokens, passes, changed(pipe.target, condition, sampling, noise, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", default="three red round lanterns over a lake at dusk")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--window", type=int, default=4, help="tokens that a row is ahead when the next one begins"
    )
    parser.add_argument("--out", type=Path, help="the picture's file")
    args = parser.parse_args()
    pipe = load("lantern-scenes", device="cpu")
    tokens, passes, share = run(pipe, pipe.check_prompt(args.prompt), args.seed, args.window)
    print(
        f"{len(tokens)} tokens in {passes} passes after the prefill; the model draws {share:.0%} "
        "of them otherwise"
    )
    if args.out:
        pipe.decode_image(tokens).save(args.out)


if __name__ == "__main__":
    main()
