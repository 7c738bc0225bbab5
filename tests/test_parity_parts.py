"""Parts that stand alone, as the released code has them; and that no golden file is passed over in
silence.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from released import (
    GOLDEN,
    NAMED,
    Golden,
    cases,
    chameleon_tokenizer,
    close,
    image_tokenizer,
    lantern_probabilities,
    listed_paths,
    parts_like,
    same_neighbours,
)
from torch import Tensor

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.text import clean
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.settings.named_trees import STATIC_TREES


def test_every_file_is_tested() -> None:
    """`state_dict_shapes` is that of test_needs.py."""
    there = {path.stem for path in GOLDEN.iterdir()}
    assert there == {*NAMED, "state_dict_shapes"}


@pytest.mark.parametrize("file", cases("cleaned prompts"))
def test_plain_captions_are_cleaned_as_published(file: Golden) -> None:
    for row in file.about["rows"]:
        assert clean(row["in"]) == row["out"], row["in"]


ORDERS = {"llamagen": probabilities, "lantern": lantern_probabilities}


def same_probs(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=1e-5)
    assert torch.equal(got > 0, wanted > 0)


@pytest.mark.parametrize(
    ("case", "key"), cases("sampling filters", parts_like(r"(\w+?_probs_t[\d.]+_k\d+_p[\d.]+)"))
)
def test_filters(case: Golden, key: str) -> None:
    code, temperature, top_k, top_p = re.fullmatch(r"(\w+)_probs_t(.+)_k(.+)_p(.+)", key).groups()  # type: ignore[union-attr]
    got = ORDERS[code](
        case.tensors["logits"], Sampling(float(temperature), int(top_k), float(top_p))
    )
    same_probs(got, case.tensors[key])


@pytest.mark.parametrize(
    ("case", "key"), cases("sampling filters", parts_like(r"(tie_\w+_probs_k\d+)"))
)
def test_ties_at_the_top_k_boundary_stay(case: Golden, key: str) -> None:
    code, top_k = re.fullmatch(r"tie_(\w+)_probs_k(\d+)", key).groups()  # type: ignore[union-attr]
    same_probs(
        ORDERS[code](case.tensors["tie_logits"], Sampling(top_k=int(top_k))), case.tensors[key]
    )


@pytest.mark.parametrize(
    ("case", "name"), cases("tables of static trees", lambda file: list(file.about["trees"]))
)
def test_static_trees(case: Golden, name: str) -> None:
    """What the target is given, and the order in which its verdicts are read.

    A tree that is not on offer by that name has the file's own paths.
    """
    wanted = case.about["trees"][name]
    drafts = StaticTree(STATIC_TREES.get(name, wanted["choices"]))
    tree, tables = static_tree(drafts.paths), wanted["target_side"]
    assert [list(path) for path in drafts.paths] == wanted["sorted_choices"]
    assert tree.size == drafts.nodes == wanted["num_nodes_without_root"] + 1
    assert tree.depth == wanted["depth"]
    assert tree.depths.bincount()[1:].tolist() == wanted["nodes_per_depth"]
    assert tree.depths.tolist() == tables["tree_position_ids"]
    assert [row.nonzero()[:, 0].tolist() for row in tree.mask] == tables[
        "ancestors_or_self_per_node"
    ]
    assert listed_paths(tree.parents.tolist(), ordered=True).tolist() == tables["retrieve_indices"]
    siblings = [[node for node in row if node >= 0] for row in tree.children[tree.inner].tolist()]
    earlier = {node: row[:place] for row in siblings for place, node in enumerate(row)}
    assert [earlier[node] for node in range(1, tree.size)] == tables["earlier_siblings_of_node"]


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
    close(model.vq.decoder(model.vq.post_quant_conv(vectors)), golden["decoded"])
    close(
        model.decode_latent(model.vectors(golden["codes"])),
        (golden["decoded"].clamp(-1, 1) + 1) / 2,
    )


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
    close(model.vq.decoder(model.vq.post_quant_conv(quant)), golden["decoded_of_quant"])


@pytest.mark.parametrize("case", TOKENIZERS)
def test_neighbours_of_codes(case: Golden) -> None:
    """The released table compares the vectors as stored, not scaled to unit length."""
    same_neighbours(
        tokenizer_of(case).vq.quantize.embedding.weight, case.tensors["neighbours_raw_codebook"]
    )


# -- Chameleon's, against the released code and transformers' own


@pytest.mark.parametrize("case", cases("chameleon tokenizer"))
@torch.no_grad()
def test_tokenizer_of_chameleon(case: Golden) -> None:
    model, golden = chameleon_tokenizer(case), case.tensors
    close(
        model.decode_latent(model.vectors(golden["codes"])),
        (golden["decoded"].clamp(-1, 1) + 1) / 2,
    )
    image = (golden["image"] + 1) / 2
    close(model.latent(image), golden["encoder_latent"])
    assert torch.equal(model.codebook, model.vq.quantize.embedding.weight), (
        "of any length, and the decoder sees them so"
    )
    assert model.encode(image).flatten().tolist() == golden["indices"].tolist()
