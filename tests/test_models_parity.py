"""The models and the greedy decoding against numbers recorded with the authors' own code (see released.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from released import image_tokenizer, lantern_drafter, lantern_target, llamagen, metadata, names, tensors
from torch import Tensor

from lantern_demo.decoding import drafting
from lantern_demo.decoding.acceptance import Rule, without
from lantern_demo.decoding.drafting import Draft, dynamic_draft, static_draft
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.decoding.trees import STATIC_TREES, TreePolicy, static_tree
from lantern_demo.models.drafter import Drafter
from lantern_demo.models.llamagen import Condition, LlamaGen
from lantern_demo.models.text import left_pad
from lantern_demo.models.tokenizer import neighbour_table

pytestmark = pytest.mark.usefixtures("_inference")


@pytest.fixture(scope="module")
def _inference() -> Any:
    with torch.inference_mode():
        yield


def close(got: Tensor, wanted: Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def step(target: LlamaGen, token: Tensor, cache: Any) -> Tensor:
    """Feed one token at the next position and commit it -> hidden [R, 1, H]."""
    hidden = target.forward(token.view(1), torch.zeros(1, dtype=torch.long), causal(1), cache)
    cache.advance(1)
    return hidden


# -- LlamaGen's transformer


@pytest.fixture(scope="module", params=[n.removesuffix("_weights") for n in names("gpt_*_weights")])
def gpt(request: Any) -> tuple[LlamaGen, dict[str, Tensor]]:
    return llamagen(f"{request.param}_weights"), tensors(request.param)


def gpt_condition(model: LlamaGen, golden: dict[str, Tensor], row: int, masked: bool, guided: bool = True) -> Condition:
    mask = golden["emb_masks"][row : row + 1].bool() if masked and "emb_masks" in golden else None
    return model.condition(golden["cond"][row : row + 1], mask, guided)


def test_llamagen_logits(gpt: tuple[LlamaGen, dict[str, Tensor]]) -> None:
    model, golden = gpt
    close(model.rope[: len(golden["freqs_cis"])], golden["freqs_cis"])
    for suffix in ("", "_nomask"):
        if "prefill_logits" + suffix not in golden:
            continue  # a class has no prompt mask
        for row in range(len(golden["cond"])):
            both = slice(row, None, len(golden["cond"]))  # the conditional and the unconditional row of a prompt
            cache = model.new_cache(2, golden["tf_tokens"].shape[1])
            prefill = model.head(model.prefill(gpt_condition(model, golden, row, suffix == ""), cache))
            close(prefill, golden["prefill_logits" + suffix][both])
            logits = [prefill[:, -1:], *(model.head(step(model, token, cache)) for token in golden["tf_tokens"][row, :-1])]
            close(torch.cat(logits, 1), golden["tf_logits" + suffix][both])


def test_llamagen_training_pass(gpt: tuple[LlamaGen, dict[str, Tensor]]) -> None:
    """The pass over whole pictures that training uses gives what the cached steps give."""
    model, golden = gpt
    for row in range(len(golden["cond"])):
        condition = gpt_condition(model, golden, row, True)
        hidden = model.train_hidden(golden["tf_tokens"][row, :-1].expand(2, -1), condition.features, condition.mask)
        close(model.head(hidden[:, model.config.prefix - 1 :]), golden["tf_logits"][row :: len(golden["cond"])])


def test_llamagen_greedy_pictures(gpt: tuple[LlamaGen, dict[str, Tensor]]) -> None:
    model, golden = gpt
    scales = [name for name in golden if name.startswith("greedy_tokens_cfg") and "interval" not in name]
    assert len(scales) == 3
    for name in scales:
        scale = float(name.removeprefix("greedy_tokens_cfg"))
        for row in range(len(golden["cond"])):
            condition = gpt_condition(model, golden, row, True, guided=scale != 1)
            *_, result = decode(
                model,
                None,
                condition,
                num_tokens=golden[name].shape[1],
                method=METHODS["vanilla"],
                sampling=Sampling(temperature=0, cfg_scale=scale),
            )
            assert isinstance(result, Decoded)
            assert result.tokens == golden[name][row].tolist()


# -- LANTERN's target


@pytest.fixture(scope="module")
def target() -> LlamaGen:
    return lantern_target()


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    return lantern_drafter()


TARGETS = names("lantern_target_*")


def text_condition(target: LlamaGen, features: Tensor, mask: Tensor) -> Condition:
    return target.condition(*left_pad(features, mask.bool()), True)


@pytest.mark.parametrize("name", TARGETS)
def test_target_condition(target: LlamaGen, name: str) -> None:
    golden = tensors(name)
    condition = text_condition(target, golden["t5_embeddings"], golden["t5_mask"])
    assert condition.mask is not None
    close(condition.features, golden["cond_combined"])
    assert condition.mask.tolist() == golden["attention_mask"].bool().tolist()
    close(target.rope[: len(golden["freqs_cis"])], golden["freqs_cis"])


@pytest.mark.parametrize("name", TARGETS)
def test_target_steps_and_tree(target: LlamaGen, name: str) -> None:
    """Prefill (padded rows too, which drafters read), a step, a tree, its accepted path moved up, a step behind it."""
    golden = tensors(name)
    cache = target.new_cache(2, 16)
    hidden = target.prefill(Condition(golden["cond_combined"], golden["attention_mask"].bool()), cache)
    close(hidden, golden["prefill_hidden"])
    close(target.head(hidden), golden["prefill_logits"])
    hidden = step(target, golden["single_token"], cache)
    close(hidden, golden["single_hidden"])
    close(target.head(hidden), golden["single_logits"])

    assert cache.length == int(golden["tree_position_base"])
    hidden = tree_pass(target, golden, cache)
    logits = target.head(hidden)
    close(hidden, golden["tree_hidden"])
    close(logits, golden["tree_logits"])
    guided = guide(logits, float(golden["cfg_scale"]))
    close(guided[golden["tree_retrieve_indices"]], golden["tree_cfg_logits_by_path"])

    cache.commit(golden["kept_path_nodes"])
    hidden = step(target, golden["after_token"], cache)
    close(hidden, golden["after_hidden"])
    close(target.head(hidden), golden["after_logits"])


@pytest.mark.parametrize("name", TARGETS)
def test_target_at_the_edge_of_the_grid(target: LlamaGen, name: str) -> None:
    """A tree whose deep nodes lie past the last image position, where the rotary rows are zero."""
    golden = tensors(name)
    tokens = golden["long_tokens"][0]
    cache = target.new_cache(2, len(tokens) + 16)
    target.prefill(Condition(golden["cond_combined"], golden["attention_mask"].bool()), cache)
    hidden = target.forward(tokens, torch.arange(len(tokens)), causal(len(tokens)), cache)
    cache.advance(len(tokens))
    close(target.head(hidden[:, ::16]), golden["long_logits_every16"])
    close(hidden[:, -1], golden["long_hidden_last"])
    assert cache.length + int(golden["tree_position_ids"].max()) >= target.config.prefix + target.config.tokens
    hidden = tree_pass(target, golden, cache)
    close(hidden, golden["edge_tree_hidden"])
    close(target.head(hidden), golden["edge_tree_logits"])


def tree_pass(target: LlamaGen, golden: dict[str, Tensor], cache: Any) -> Tensor:
    return target.forward(golden["tree_tokens"][0], golden["tree_position_ids"], golden["tree_mask"][0, 0].bool(), cache)


@pytest.mark.parametrize("name", TARGETS)
def test_target_prefill_in_bfloat16(name: str) -> None:
    """In bfloat16 padded rows do not see real ones. Loose, as bfloat16 is; padded rows differ by units from float32's."""
    golden = tensors(name)
    target = lantern_target().to(torch.bfloat16)
    target.rope = target.rope.float()
    mask = golden["attention_mask"].bool()
    features = golden["cond_combined"].to(torch.bfloat16)
    hidden = target.prefill(Condition(features, mask), target.new_cache(2, 1)).float()
    close(hidden, golden["prefill_hidden_bf16"], atol=0.25)
    if not mask.all():
        assert (hidden - golden["prefill_hidden"])[~mask].abs().max() > 1
        assert hidden[0][~mask[0]].abs().max() == 0


# -- the drafter and its trees


class Spy:
    """A drafter that writes down its tree passes."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.passes: list[tuple[Tensor, Tensor]] = []  # tokens [m] and outputs [R, m, H]

    def expand(self, tokens: Tensor, *rest: Any) -> Tensor:
        outputs = self.drafter.expand(tokens, *rest)
        self.passes.append((tokens, outputs))
        return outputs


def stable_outputs(drafter: Drafter, call: Any, *args: Any) -> tuple[Tensor, Tensor]:
    """What a stable pass returns, and the outputs of all its slots."""
    seen = []
    handle = drafter.layers[0].register_forward_hook(lambda *hook: seen.append(hook[-1]))
    try:
        return call(*args), seen[-1] if seen else torch.empty(0)
    finally:
        handle.remove()


DYNAMIC = names("drafter_dynamic_*")
STATIC = names("drafter_static_*")


@pytest.mark.parametrize("law", ["greedy", "proc"])
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_trees(target: LlamaGen, drafter: Drafter, name: str, law: str) -> None:
    golden, header = tensors(name), metadata(name)
    close(drafter.rope[: len(golden["drafter_freqs_cis"])], golden["drafter_freqs_cis"])
    sampling = sampling_of(header["processor"] if law == "proc" else None, golden)
    policy = TreePolicy.dynamic(header["top_k"], header["depth"], header["total_tokens_argument"])
    cache = drafter.new_cache(2, 64)
    token = golden["input_ids"][0, -1:]
    output = drafter.start(golden["hidden_states"], token, cache)
    close(output, golden["c1_greedy_out_hidden_0"][:, -1:])
    spy = Spy(drafter)
    same_tree(dynamic_draft(policy, token, output, spy, target, cache, sampling), golden, f"c1_{law}")
    assert cache.length == target.config.prefix
    if law == "greedy":
        assert len(spy.passes) == policy.depth
        for level, (tokens, outputs) in enumerate(spy.passes, start=1):
            assert tokens.tolist() == golden[f"c1_greedy_in_ids_{level}"][0].tolist()
            close(outputs, golden[f"c1_greedy_out_hidden_{level}"])

    hidden = golden[f"c2_{law}_hidden_states"]
    tokens = golden[f"c2_{law}_input_ids"][0, -hidden.shape[1] :]
    output = drafter.extend(tokens, hidden, cache)
    close(output, golden[f"c2_{law}_out_hidden_0"][:, -1:])
    same_tree(dynamic_draft(policy, tokens[-1:], output, spy, target, cache, sampling), golden, f"c2_{law}")


@pytest.mark.parametrize("name", DYNAMIC)
def test_drafter_outputs_of_all_slots(drafter: Drafter, name: str) -> None:
    golden = tensors(name)
    cache = drafter.new_cache(2, 64)
    token = golden["input_ids"][0, -1:]
    last, outputs = stable_outputs(drafter, drafter.start, golden["hidden_states"], token, cache)
    close(outputs, golden["c1_greedy_out_hidden_0"])
    close(last, outputs[:, -1:])
    tokens = golden["c2_greedy_input_ids"][0, -3:]
    last, outputs = stable_outputs(drafter, drafter.extend, tokens, golden["c2_greedy_hidden_states"], cache)
    close(outputs, golden["c2_greedy_out_hidden_0"])
    close(last, outputs[:, -1:])


def same_tree(draft: Draft, golden: dict[str, Tensor], prefix: str) -> None:
    assert draft.tokens.tolist() == golden[f"{prefix}_draft_tokens"][0].tolist()
    assert draft.tree.depths.tolist() == golden[f"{prefix}_tree_position_ids"].tolist()
    assert torch.equal(draft.tree.mask, golden[f"{prefix}_tree_mask"][0, 0].bool())
    leaves = {tuple(row[row >= 0].tolist()) for row in golden[f"{prefix}_retrieve_indices"]}
    assert paths_to_leaves(draft) == leaves


def paths_to_leaves(draft: Draft) -> set[tuple[int, ...]]:
    inner = set(draft.tree.parents[1:].tolist())
    mask = draft.tree.mask
    return {tuple(mask[node].nonzero().flatten().tolist()) for node in range(draft.tree.size) if node not in inner}


def sampling_of(processor: dict[str, Any] | None, golden: dict[str, Tensor]) -> Sampling:
    scale = float(golden["cfg_scale"])
    return Sampling(temperature=0, cfg_scale=scale) if processor is None else Sampling(**processor, cfg_scale=scale)


STATIC_CASES = [(name, tree) for name in STATIC for tree in metadata(name)["trees"]]


@pytest.mark.parametrize(("name", "tree_name"), STATIC_CASES)
def test_static_tree_greedy(target: LlamaGen, drafter: Drafter, name: str, tree_name: str) -> None:
    golden = tensors(name)
    tree = static_tree(STATIC_TREES[tree_name])
    token, spy = golden["input_ids"][0, -1:], Spy(drafter)
    cache = drafter.new_cache(2, 64)
    output = drafter.start(golden["hidden_states"], token, cache)
    sampling, generator = sampling_of(None, golden), torch.Generator()
    draft = static_draft(tree, token, output, spy, target, cache, sampling, generator)
    assert draft.tokens.tolist() == golden[f"{tree_name}_greedy_tree_candidates"][0].tolist()
    candidates = golden[f"{tree_name}_greedy_cart_candidates"]
    assert {tuple(draft.tokens[list(path)].tolist()) for path in paths_to_leaves(draft)} == {
        tuple(row[row >= 0].tolist()) for row in candidates
    }
    assert len(spy.passes) == len(tree.levels) - 1
    for level, (tokens, outputs) in enumerate(spy.passes, start=1):
        assert tokens.tolist() == golden[f"{tree_name}_greedy_level{level}_in_ids"][0].tolist()
        close(outputs, golden[f"{tree_name}_greedy_level{level}_out_hidden"])


SAMPLED_CASES = [(name, tree) for name, tree in STATIC_CASES if f"{tree}_sample_ss_token" in tensors(name)]


@pytest.mark.parametrize(("name", "tree_name"), SAMPLED_CASES)
def test_static_tree_sampled(
    target: LlamaGen, drafter: Drafter, name: str, tree_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the recorded draws in the place of ours: the laws they came from, and each draw's probability given the earlier."""
    golden = tensors(name)
    tree = static_tree(STATIC_TREES[tree_name])
    draws = golden[f"{tree_name}_sample_ss_token"]
    rest = list(draws)

    def recorded(q: Tensor, count: int, generator: torch.Generator) -> Tensor:
        return torch.stack([rest.pop(0)[:count] for _ in range(q.shape[0])])

    monkeypatch.setattr(drafting, "draw_without_replacement", recorded)
    token, cache = golden["input_ids"][0, -1:], drafter.new_cache(2, 64)
    output = drafter.start(golden["hidden_states"], token, cache)
    sampling = sampling_of(metadata(name)["sample_processor"], golden)
    draft = static_draft(tree, token, output, drafter, target, cache, sampling, torch.Generator())
    assert not rest
    assert draft.tokens.tolist() == golden[f"{tree_name}_sample_tree_candidates"][0].tolist()
    for level, law in enumerate(draft.q):
        close(law, golden[f"{tree_name}_sample_level{level}_dist"])
    law = draft.all_q()
    assert law is not None
    for draw in range(tree.width):
        conditional = law.gather(1, draws[:, draw : draw + 1])[:, 0]
        close(conditional, golden[f"{tree_name}_sample_ss_prob"][:, draw])
        law = without(law, draws[:, draw])


# -- whole greedy pictures

E2E = [
    (name, prompt, mode, tree)
    for name in names("e2e_*")
    for key in tensors(name)
    if key.endswith(".tokens") and ".ar." not in key
    # p0.MODE.tokens or p0.MODE.TREE.tokens; a mode's name may hold a point, a tree's does not
    for prompt, rest in [key.removesuffix(".tokens").split(".", 1)]
    for mode, tree in [
        next(((rest.removesuffix("." + t), t) for t in STATIC_TREES if rest.endswith("." + t)), (rest, "")),
    ]
]


def rule_and_method(mode: dict[str, Any]) -> tuple[Rule, str]:
    if not mode["lantern"]:
        return Rule(residual="released"), "eagle1" if mode["static_tree"] else "eagle2"
    k, delta = mode["lantern_k"], mode["lantern_delta"]  # above 1 the released code reads delta as lambda
    if mode["static_tree"]:
        return Rule("multiplicative", k, delta, "released"), "lantern++"
    return Rule("additive", k, delta, "released"), "lantern"


@pytest.mark.parametrize(("name", "prompt", "mode", "tree"), E2E)
def test_greedy_pictures(target: LlamaGen, drafter: Drafter, name: str, prompt: str, mode: str, tree: str) -> None:
    golden, header = tensors(name), metadata(name)
    rule, method = rule_and_method(header["modes"][mode])
    if METHODS[method].tree == "static":
        policy = TreePolicy.static(tree or header.get("default_tree", "naive_extend_57"))
    else:
        policy = TreePolicy.dynamic(header["top_k"], header["depth"], header["total_token"])
    result = greedy_picture(target, drafter, golden, header, prompt, method, rule, policy)
    run = ".".join(part for part in (prompt, mode, tree) if part)
    assert result.tokens == golden[f"{run}.tokens"].tolist()
    # The released code runs on until more than enough tokens are there; and where a single token is left, ours is not drafted for.
    accepted = [length - 1 for length in result.accepted_lengths]
    if 1 + sum(result.accepted_lengths[:-1]) == header["max_length"] - 1:
        accepted.pop()
    assert accepted == golden[f"{run}.accept_length_per_step"][: len(accepted)].tolist()
    assert len(accepted) >= len(golden[f"{run}.accept_length_per_step"]) - 3


@pytest.mark.parametrize(("name", "prompt"), sorted({(name, prompt) for name, prompt, _, _ in E2E}))
def test_greedy_pictures_without_drafts(target: LlamaGen, drafter: Drafter, name: str, prompt: str) -> None:
    golden, header = tensors(name), metadata(name)
    result = greedy_picture(target, drafter, golden, header, prompt, "vanilla", Rule(), TreePolicy.none())
    assert result.tokens == golden[f"{prompt}.ar.tokens"].tolist()
    assert result.steps == header["max_length"] - 1


def greedy_picture(
    target: LlamaGen,
    drafter: Drafter,
    golden: dict[str, Tensor],
    header: dict[str, Any],
    prompt: str,
    method: str,
    rule: Rule,
    policy: TreePolicy,
) -> Decoded:
    *_, result = decode(
        target,
        drafter,
        text_condition(target, golden[f"{prompt}.t5_embeddings"], golden[f"{prompt}.t5_mask"]),
        num_tokens=header["max_length"],
        method=METHODS[method],
        sampling=Sampling(temperature=0, cfg_scale=header["cfg_scale"]),
        rule=rule,
        tree=policy,
        neighbours=golden["nearest"],
        measure_distortion=False,
    )
    assert isinstance(result, Decoded)
    return result


@pytest.mark.parametrize("name", names("e2e_*"))
def test_neighbours_of_the_greedy_pictures(name: str) -> None:
    golden = tensors(name)
    assert neighbour_table(golden["latents"], golden["nearest"].shape[1]).tolist() == golden["nearest"].tolist()


# -- the image tokenizer


@pytest.mark.parametrize("name", [n.removesuffix("_weights_dec") for n in names("vq_*_weights_dec")])
def test_image_tokenizer(name: str) -> None:
    golden = tensors(name)
    grid = golden["quant"].shape[-1]
    model = image_tokenizer(name, grid)
    batch, cells = golden["codes"].shape[0], (grid, grid)

    vectors = F.embedding(golden["codes"], model.codebook).transpose(1, 2).unflatten(2, cells)
    close(vectors, golden["quantized_of_codes"])
    close(model.decode_raw(vectors), golden["decoded"])
    close(model.decode(golden["codes"]), (golden["decoded"].clamp(-1, 1) + 1) / 2)

    image = (golden["image"] + 1) / 2
    close(model.vq.quant_conv(model.vq.encoder(golden["image"])), golden["encoder_latent"])
    close(model.latent(image), F.normalize(golden["encoder_latent"], dim=1))
    ids = model.encode(image)
    assert ids.flatten().tolist() == golden["indices"].tolist()
    quant = F.embedding(ids, model.codebook).transpose(1, 2).unflatten(2, cells)
    close(quant, golden["quant"])
    close(model.decode_raw(quant), golden["decoded_of_quant"])
    assert ids.shape == (batch, grid * grid)

    raw = model.vq.quantize.embedding.weight
    assert neighbour_table(raw, len(raw) - 1).tolist() == golden["neighbours_raw_codebook"].tolist()
