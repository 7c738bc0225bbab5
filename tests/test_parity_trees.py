"""Static trees: the index tables that the released code makes of its lists of paths."""

from __future__ import annotations

from typing import Any

import pytest
from released import Golden, cases, listed_paths

from lantern_demo.decoding.drafting import Drafts, StaticTree
from lantern_demo.decoding.trees import static_tree
from lantern_demo.static_trees import STATIC_TREES

CASES = cases("tables of static trees", lambda file: list(file.about["trees"]))


def policy_of(case: Golden, name: str) -> tuple[Drafts, dict[str, Any]]:
    """The tree of that name, or of the file's own list of paths where no tree on offer is called so; and the tables."""
    wanted = case.about["trees"][name]
    return StaticTree(STATIC_TREES.get(name, wanted["choices"])), wanted


@pytest.mark.parametrize(("case", "name"), CASES)
def test_verification(case: Golden, name: str) -> None:
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


@pytest.mark.parametrize(("case", "name"), CASES)
def test_drafting(case: Golden, name: str) -> None:
    """What the drafter expands, pass by pass, and where its proposals go."""
    policy, wanted = policy_of(case, name)
    tree, passes = static_tree(policy.paths), wanted["drafter_side"]["levels"]
    group = case.about["topk_per_group"]
    assert [level.mask.int().tolist() for level in tree.levels[1:]] == [level["attn_mask"] for level in passes]
    assert policy.expanded == sum(len(level.nodes) for level in tree.levels[1:])
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
