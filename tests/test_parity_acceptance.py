"""Acceptance rules against the released code's recorded decisions, by scripted draws and greedy."""

from collections.abc import Iterator

import pytest
import torch
from released import Golden, cases, lantern_probabilities, listed_paths
from released_rule import as_released, released_rule
from runs import walked
from tables import decide
from torch import Tensor

from lantern_demo.decoding import sampling as sampled_by
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Draft, static_tree


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_by, "probabilities", lantern_probabilities)
    as_released(monkeypatch)


def rules(file: Golden) -> list[str]:
    return list(file.about["rules"])


def drafts(case: Golden, sampled: bool) -> Iterator[tuple[int, Draft]]:
    """The number and the draft of each trial; `sampled`: with what the drafts were drawn from."""
    golden = case.tensors
    tree = static_tree(case.about["tree_choices"])
    paths = listed_paths(tree.parents.tolist(), ordered=True)
    assert torch.equal(paths, golden["retrieve_indices"])
    children = tree.children[tree.inner]
    for trial, tokens in enumerate(golden["node_tokens"]):
        drawn = tokens[children.clamp(min=0)].masked_fill(children < 0, -1)
        q = None
        if sampled:
            q = torch.cat([golden[f"static_dist_level{at}"][trial] for at in range(tree.depth)])
        yield trial, Draft(tree, tokens, drawn, q)


def scripted_uniforms(draft: Draft, script: list[float]) -> Tensor:
    """[n, width + 1]: the draws of a script by node and draw; a walk uses one for each child."""
    parents, children = draft.tree.parents.tolist(), draft.tree.children.tolist()
    used, table = [0] * len(parents), []  # those used when the walk gets to a node
    for node, row in enumerate(children):
        if node > 0:
            tried = [child for child in children[parents[node]] if 0 <= child <= node]
            used[node] = used[parents[node]] + len(tried)
        # What lies past the end of the script is the bonus token's, which is not drawn here.
        table.append([script[min(used[node] + at, len(script) - 1)] for at in range(len(row) + 1)])
    return torch.tensor(table, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize(("case", "name"), cases("sampled acceptance", rules))
def test_sampled_decisions(case: Golden, name: str, kind: str) -> None:
    golden, sampling = case.tensors, Sampling(**case.about["processor"])
    rule, neighbours = released_rule(case.about["rules"][name]), golden["nearest"]
    wanted = {key.removeprefix(f"{kind}.{name}."): value for key, value in golden.items()}
    for trial, draft in drafts(case, sampled=kind == "static"):
        uniforms = scripted_uniforms(draft, golden["u"][trial].tolist())
        logits = golden["node_logits"][trial]
        found = walked(rule, draft, logits, sampling, neighbours, uniforms)
        length, best = int(wanted["accept_length"][trial]), int(wanted["best_candidate"][trial])
        assert len(found.path) - 1 == length
        if length:  # else the recorded candidate means nothing
            assert found.path == golden["retrieve_indices"][best, : length + 1].tolist()
        last = found.path[-1:]  # behind it comes the bonus token
        p, row = lantern_probabilities(logits, sampling)[last], draft.tree.rows[last]
        if last[0] in draft.tree.inner:
            q = None if draft.q is None else draft.q[row]
            p = decide(rule, p, draft.drawn[row], q, neighbours, uniforms[last]).residual
        probs = p[0] / p.sum()
        torch.testing.assert_close(probs, wanted["sample_p"][trial], atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize(("case", "name"), cases("greedy acceptance", rules))
def test_greedy_decisions(case: Golden, name: str) -> None:
    golden, sampling = case.tensors, Sampling(temperature=0)
    rule, neighbours = released_rule(case.about["rules"][name]), golden["nearest"]
    wanted = {key.removeprefix(f"{name}."): value for key, value in golden.items()}
    for trial, draft in drafts(case, sampled=False):
        uniforms = torch.zeros(draft.tree.size, draft.tree.width + 1)
        logits = golden["node_logits"][trial]
        length, best = int(wanted["accept_length"][trial]), int(wanted["best_candidate"][trial])
        found = walked(rule, draft, logits, sampling, neighbours, uniforms)
        assert found.path == golden["retrieve_indices"][best, : length + 1].tolist()
        assert found.path[-1] == int(wanted["node_of_returned_row"][trial])
        assert found.tokens[-1] == int(wanted["next_token"][trial])
