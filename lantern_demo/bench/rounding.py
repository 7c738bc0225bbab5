"""How far rounded products move the laws that are sampled from: `python -m lantern_demo.bench.rounding --prompts 2`.

A small model's pictures are drawn in float32 on the CPU. At every token the law of each other kind of products is compared with it, for
the token alone and for the nodes of a small tree, as total variation distance: 0 is the same law, 1 another one altogether.
"""

from __future__ import annotations

import argparse
from statistics import mean

import torch
from torch import Tensor
from tqdm import tqdm

from lantern_demo.bench.prompts import prompts_for
from lantern_demo.decoding.sampling import draw, guide, probabilities
from lantern_demo.decoding.trees import static_tree
from lantern_demo.knobs import SMALL_STATIC
from lantern_demo.models.llamagen.cpu import LeanTarget
from lantern_demo.models.products import KINDS, supported
from lantern_demo.models.tuning import LARGEST, small_on_cpu
from lantern_demo.pipeline import Pipeline, load

EVERY = 8  # tokens between two trees


def distance(law: Tensor, other: Tensor) -> float:
    """Mean total variation distance of laws [..., V]."""
    return float((law - other).abs().sum(-1).mean() / 2)


@torch.inference_mode()
def drift(pipe: Pipeline, prompt: str, seed: int, kinds: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Distances to plain float32 along one picture, by kind: of the next token's law, and of the laws of a tree's nodes."""
    original, knobs = pipe.networks.target, pipe.defaults
    sampling = knobs.sampling()
    encoded = pipe.networks.text.encode(prompt)
    condition = original.condition(encoded.features, encoded.mask, True)
    targets = [LeanTarget(original, kind) for kind in ("plain", *kinds)]
    alone, tree = static_tree(()), static_tree(SMALL_STATIC)
    caches = [target.new_cache(2, pipe.info.tokens + tree.size) for target in targets]
    states = [target.prefill(condition, cache)[:, -1:] for target, cache in zip(targets, caches, strict=True)]
    uniforms = torch.rand(pipe.info.tokens, generator=torch.Generator().manual_seed(seed))
    found: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in kinds}
    for index in range(pipe.info.tokens):
        laws = [probabilities(guide(t.head(s), sampling.cfg_scale), sampling)[0] for t, s in zip(targets, states, strict=True)]
        for kind, law in zip(kinds, laws[1:], strict=True):
            found[kind][0].append(distance(law, laws[0]))
        token = draw(laws[0][None], uniforms[index : index + 1])
        if index % EVERY == 0:
            nodes = torch.cat((token, laws[0].topk(tree.size - 1).indices))
            runs = zip(targets, caches, strict=True)
            logits = [guide(t.head(t.forward(nodes, tree.depths, tree.mask, c)), sampling.cfg_scale) for t, c in runs]
            of_nodes = [probabilities(row, sampling) for row in logits]
            for kind, law in zip(kinds, of_nodes[1:], strict=True):
                found[kind][1].append(distance(law, of_nodes[0]))
        states = [t.forward(token, alone.depths, alone.mask, c) for t, c in zip(targets, caches, strict=True)]
        for cache in caches:
            cache.advance(1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lantern-scenes", help="registry id or a model folder (default: lantern-scenes)")
    parser.add_argument("--prompts", type=int, default=2, help="how many pictures (default: 2)")
    args = parser.parse_args()
    pipe = load(args.model, "cpu", "float32")
    if not small_on_cpu(pipe.networks, pipe.device, LARGEST):
        parser.error(f"{args.model} is too large: only small models run with other kinds of products")
    kinds = [kind for kind in KINDS if kind != "plain" and supported(kind)]
    runs = [
        drift(pipe, prompt, seed, kinds)
        for seed, prompt in enumerate(tqdm(prompts_for(pipe.info, args.prompts), desc="pictures"))
    ]
    print("| products | TVD of a token's law, mean | 95th percentile | in a tree, mean |\n|---|--:|--:|--:|")
    for kind in kinds:
        tokens, nodes = ([d for run in runs for d in run[kind][part]] for part in (0, 1))
        ordered = sorted(tokens)
        print(f"| {KINDS[kind]} | {mean(tokens):.4f} | {ordered[int(0.95 * len(ordered))]:.4f} | {mean(nodes):.4f} |")


if __name__ == "__main__":
    main()
