"""Parts that stand alone, as the released code has them; and that no golden file is passed over in silence."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from released import (
    Golden,
    cases,
    close,
    files,
    image_tokenizer,
    lantern_probabilities,
    listed_paths,
    parts_like,
    same_neighbours,
)
from torch import Tensor

from lantern_demo.decoding.drafting import DraftConfig, StaticProposer, StaticTree
from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.llamagen.captions import clean, clean_once
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.static_trees import STATIC_TREES


@pytest.mark.parametrize("file", files(), ids=lambda file: file.path.name)
def test_file_is_tested(file: Golden) -> None:
    if file.about is None:
        pytest.fail(f"{file.path} could not be read: {file.problem}")
    if file.kind is None:
        pytest.skip(f"{file.path.name} is of no kind that the parity tests know")


@pytest.mark.parametrize("file", cases("cleaned prompts"))
def test_cleaning_is_the_published_one(file: Golden) -> None:
    for row in file.about["rows"]:
        assert (clean_once(row["in"]), clean(row["in"])) == (row["once"], row["out"]), row["in"]


ORDERS = {"llamagen": probabilities, "lantern": lantern_probabilities}


def same_probs(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=1e-5)
    assert torch.equal(got > 0, wanted > 0)


@pytest.mark.parametrize(("case", "key"), cases("sampling filters", parts_like(r"(\w+?_probs_t[\d.]+_k\d+_p[\d.]+)")))
def test_filters(case: Golden, key: str) -> None:
    code, temperature, top_k, top_p = re.fullmatch(r"(\w+)_probs_t(.+)_k(.+)_p(.+)", key).groups()  # type: ignore[union-attr]
    got = ORDERS[code](case.tensors["logits"], Sampling(float(temperature), int(top_k), float(top_p)))
    same_probs(got, case.tensors[key])


@pytest.mark.parametrize(("case", "key"), cases("sampling filters", parts_like(r"(tie_\w+_probs_k\d+)")))
def test_ties_at_the_top_k_boundary_stay(case: Golden, key: str) -> None:
    code, top_k = re.fullmatch(r"tie_(\w+)_probs_k(\d+)", key).groups()  # type: ignore[union-attr]
    same_probs(ORDERS[code](case.tensors["tie_logits"], Sampling(top_k=int(top_k))), case.tensors[key])


TREES = cases("tables of static trees", lambda file: list(file.about["trees"]))


def policy_of(case: Golden, name: str) -> tuple[DraftConfig, dict[str, Any]]:
    """The tree of that name, or of the file's own list of paths where no tree on offer is called so; and the tables."""
    wanted = case.about["trees"][name]
    return StaticTree(STATIC_TREES.get(name, wanted["choices"])), wanted


@pytest.mark.parametrize(("case", "name"), TREES)
def test_trees_of_the_target(case: Golden, name: str) -> None:
    """What the target is given, and the order in which its verdicts are read."""
    policy, wanted = policy_of(case, name)
    tree, tables = static_tree(policy.paths), wanted["target_side"]
    assert [list(path) for path in policy.paths] == wanted["sorted_choices"]
    assert tree.size == policy.nodes == wanted["num_nodes_without_root"] + 1
    assert tree.depth == wanted["depth"]
    assert tree.depths.bincount()[1:].tolist() == wanted["nodes_per_depth"]
    assert tree.depths.tolist() == tables["tree_position_ids"]
    assert [row.nonzero()[:, 0].tolist() for row in tree.mask] == tables["ancestors_or_self_per_node"]
    assert listed_paths(tree.parents.tolist(), ordered=True).tolist() == tables["retrieve_indices"]
    siblings = [[node for node in row if node >= 0] for row in tree.children[tree.inner].tolist()]
    earlier = {node: row[:place] for row in siblings for place, node in enumerate(row)}
    assert [earlier[node] for node in range(1, tree.size)] == tables["earlier_siblings_of_node"]


@pytest.mark.parametrize(("case", "name"), TREES)
def test_trees_of_the_drafter(case: Golden, name: str) -> None:
    """What the drafter expands, pass by pass, and where its proposals go."""
    policy, wanted = policy_of(case, name)
    tree, passes = static_tree(policy.paths), wanted["drafter_side"]["levels"]
    group = case.about["topk_per_group"]
    assert [level.mask.int().tolist() for level in tree.levels[1:]] == [level["attn_mask"] for level in passes]
    assert StaticProposer(tree, Sampling()).slots == sum(len(level.nodes) for level in tree.levels[1:])
    places, rows = [0], []
    drawn_as = {}  # node -> row of its parent in its level, and draw number
    for level in tree.levels:
        for row, node in enumerate(level.nodes.tolist()):
            drawn_as |= {child: (row, draw) for draw, child in enumerate(tree.children[node].tolist()) if child >= 0}
        for row, draw in [at for node, at in sorted(drawn_as.items()) if int(tree.parents[node]) in level.nodes]:
            rows.append(row)
            places.append(1 + (int(tree.inner_rows[level.nodes[0]]) + row) * group + draw)
    assert rows == wanted["target_side"]["parent_group_of_node"]
    assert places == wanted["target_side"]["tree_indices"]
    for level, tables in zip(tree.levels[1:], passes, strict=False):
        at = [drawn_as[node] for node in level.nodes.tolist()]
        assert [row * group + draw for row, draw in at] == tables["tree_indices"]
        # One after the other: each parent as often as it has children that are expanded.
        assert level.parent_rows.tolist() == sorted(level.parent_rows.tolist())
        assert level.parent_rows.unique(return_counts=True)[1].tolist() == tables["repeat_nums"]
        assert set(tables["position_ids"]) == {0}


TOKENIZERS = cases("image tokenizer")


def tokenizer_of(case: Golden) -> ImageTokenizer:
    return image_tokenizer(case, case.tensors["quant"].shape[-1])


def looked_up(model: ImageTokenizer, ids: Tensor, like: Tensor) -> Tensor:
    """Codebook vectors of ids [B, G * G] in the shape of `like` [B, e, G, G]."""
    return F.embedding(ids, model.codebook).transpose(1, 2).view(like.shape)


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokens_to_pixels(case: Golden) -> None:
    model, golden = tokenizer_of(case), case.tensors
    vectors = looked_up(model, golden["codes"], golden["quantized_of_codes"])
    close(vectors, golden["quantized_of_codes"])
    close(model.decode_raw(vectors), golden["decoded"])
    close(model.decode_latent(model.vectors(golden["codes"])), (golden["decoded"].clamp(-1, 1) + 1) / 2)


@pytest.mark.parametrize("case", TOKENIZERS)
def test_pixels_to_tokens(case: Golden) -> None:
    model, golden = tokenizer_of(case), case.tensors
    image = (golden["image"] + 1) / 2
    close(model.vq.quant_conv(model.vq.encoder(golden["image"])), golden["encoder_latent"])
    close(model.latent(image), F.normalize(golden["encoder_latent"], dim=1))
    ids = model.encode(image)
    assert ids.shape == (len(image), golden["quant"].shape[-1] ** 2)
    assert ids.flatten().tolist() == golden["indices"].flatten().tolist()
    quant = looked_up(model, ids, golden["quant"])
    close(quant, golden["quant"])
    close(model.decode_raw(quant), golden["decoded_of_quant"])


@pytest.mark.parametrize("case", TOKENIZERS)
def test_neighbours_of_codes(case: Golden) -> None:
    """The released table compares the vectors as stored, not scaled to unit length."""
    same_neighbours(tokenizer_of(case).vq.quantize.embedding.weight, case.tensors["neighbours_raw_codebook"])
