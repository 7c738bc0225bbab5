"""Parts that stand alone, as the released code has them; and that every golden file is tested."""

import re
from functools import partial

import pytest
import released
import torch
import torch.nn.functional as F
from released import Golden, cases, close, golden, image_tokenizer, parts_like

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.text import clean
from lantern_demo.settings.named_trees import STATIC_TREES


def test_every_file_is_tested() -> None:
    """`state_dict_shapes` is that of test_needs.py."""
    there = {path.stem for path in released.GOLDEN.iterdir()}
    assert there == {*released.NAMED, "state_dict_shapes"}


@pytest.mark.parametrize("file", cases("cleaned prompts"))
def test_plain_captions_are_cleaned_as_published(file: Golden) -> None:
    for row in file.about["rows"]:
        assert clean(row["in"]) == row["out"], row["in"]


ORDERS = {"llamagen": probabilities, "lantern": released.lantern_probabilities}


@pytest.mark.parametrize(("case", "key"), cases("sampling filters", parts_like("(.*_probs_.*)")))
def test_filters(case: Golden, key: str) -> None:
    """Ties at the top-k boundary stay."""
    parts = re.fullmatch(r"(tie_)?(.+)_probs(?:_t(.+))?_k(.+?)(?:_p(.+))?", key)
    tie, code, temperature, top_k, top_p = parts.groups()  # type: ignore[union-attr]
    sampling = Sampling(float(temperature or 1), int(top_k), float(top_p or 1))
    got, wanted = ORDERS[code](case.tensors[f"{tie or ''}logits"], sampling), case.tensors[key]
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=1e-5)
    assert torch.equal(got > 0, wanted > 0)


@pytest.mark.parametrize(
    ("case", "name"), cases("tables of static trees", lambda file: list(file.about["trees"]))
)
def test_static_trees(case: Golden, name: str) -> None:
    """The target's side. A tree that is not on offer has the file's own paths."""
    wanted = case.about["trees"][name]
    drafts = StaticTree(STATIC_TREES.get(name, wanted["choices"]))
    tree, tables = static_tree(drafts.paths), wanted["target_side"]
    assert [list(path) for path in drafts.paths] == wanted["sorted_choices"]
    assert tree.depths.tolist() == tables["tree_position_ids"]
    seen = [row.nonzero()[:, 0].tolist() for row in tree.mask]
    assert seen == tables["ancestors_or_self_per_node"]
    paths = released.listed_paths(tree.parents.tolist(), ordered=True)
    assert paths.tolist() == tables["retrieve_indices"]
    siblings = [[node for node in row if node >= 0] for row in tree.children[tree.inner].tolist()]
    earlier = {node: row[:place] for row in siblings for place, node in enumerate(row)}
    assert [earlier[node] for node in range(1, tree.size)] == tables["earlier_siblings_of_node"]


# LlamaGen's compares and decodes vectors of unit length, Chameleon's those of any.
TOKENIZERS = {
    "vq_a": (image_tokenizer, partial(F.normalize, dim=1)),
    "chameleon_vqgan_a": (released.chameleon_tokenizer, torch.clone),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@torch.no_grad()
def test_tokenizers(name: str) -> None:
    made, scaled = TOKENIZERS[name]
    model, recorded = made(), golden(name).tensors
    found = model.decode_latent(model.vectors(recorded["codes"]))
    close(found, (recorded["decoded"].clamp(-1, 1) + 1) / 2)
    image = (recorded["image"] + 1) / 2
    close(model.latent(image), scaled(recorded["encoder_latent"]))
    ids = model.encode(image)
    assert ids.shape == (len(image), 4 * 4)
    assert ids.flatten().tolist() == recorded["indices"].tolist()


def test_codes_and_their_neighbours() -> None:
    """The released table compares the vectors as stored, not scaled to unit length."""
    model, recorded = image_tokenizer(), golden("vq_a").tensors
    close(model.vectors(recorded["codes"]), recorded["quantized_of_codes"])
    stored = model.vq.quantize.embedding.weight
    released.same_neighbours(stored, recorded["neighbours_raw_codebook"])
