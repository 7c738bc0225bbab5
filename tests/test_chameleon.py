"""Anole against transformers' Chameleon with small random weights: the target's states and logits, cached and over a tree, what
the cut head gives, and the image tokenizer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from released import Golden, cases, chameleon_tokenizer, close, same_neighbours
from runs import decode, small
from torch import Tensor
from transformers import ChameleonConfig, ChameleonModel, ChameleonVQVAE, ChameleonVQVAEConfig, DynamicCache

from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.anole.drafter import AnoleDrafter, AnoleDrafterConfig
from lantern_demo.models.anole.target import FIRST, Anole, AnoleConfig
from lantern_demo.models.files.blank import blank_tokenizer, fill
from lantern_demo.models.registry import TokenizerSizes

SIZES = AnoleConfig(dim=64, layers=3, heads=4, ffn=96, embeddings=120, vocab=80, grid=4, prefix=16, rope_base=500.0, eps=3e-5)
PROMPT = torch.tensor([[0, 97, 91, 113, 98, 105, 118, 119]])
CPU = torch.device("cpu")


@lru_cache(maxsize=1)
@torch.no_grad()
def pair() -> tuple[ChameleonModel, Tensor, Anole]:
    """The library's model with random weights, a head for its whole vocabulary [E, H], and ours with the same."""
    config = ChameleonConfig(
        vocab_size=SIZES.embeddings,
        hidden_size=SIZES.dim,
        intermediate_size=SIZES.ffn,
        num_hidden_layers=SIZES.layers,
        num_attention_heads=SIZES.heads,
        num_key_value_heads=SIZES.heads,
        max_position_embeddings=256,
        rms_norm_eps=SIZES.eps,
        rope_parameters={"rope_type": "default", "rope_theta": SIZES.rope_base},
        swin_norm=False,
        attn_implementation="eager",
        vocabulary_map={"<image>": 99, "IMGIMGAZ": 4},
        vq_config=ChameleonVQVAEConfig(
            base_channels=32, channel_multiplier=[1], num_res_blocks=1, latent_channels=8, embed_dim=8, num_embeddings=8
        ),
    )
    torch.manual_seed(0)
    theirs = ChameleonModel(config).eval()
    for name, weight in theirs.named_parameters():
        wide = weight.dim() > 1 and "_norm." not in name
        torch.nn.init.normal_(weight, std=1.5 * weight.shape[1] ** -0.5) if wide else torch.nn.init.normal_(weight, 1.0, 0.2)
    head = torch.randn(SIZES.embeddings, SIZES.dim)
    state = {name: w for name, w in theirs.state_dict().items() if not name.startswith("vqmodel.")}
    ours = Anole(SIZES)
    ours.load_state_dict({**state, "lm_head.weight": head[FIRST : FIRST + SIZES.vocab]}, strict=True)
    return theirs, head, ours.requires_grad_(False).eval()


@torch.no_grad()
def theirs_of(ids: Tensor, positions: Tensor, seen: Tensor, cache: Any = None) -> Tensor:
    """The library's states [R, n, H] of ids [R, n] at positions [R, n], seen [R, n, all] bool."""
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
    theirs = pair()[0]
    return theirs(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache).last_hidden_state


@pytest.mark.parametrize("guided", [False, True])
def test_prompt_steps_and_tree(guided: bool) -> None:
    """A prompt, a cached step, a tree, its accepted path moved up, a step behind it; states to 1e-4 and logits too."""
    _, head, ours = pair()
    condition = ours.condition(PROMPT, None, guided)
    rows, t = 1 + guided, PROMPT.shape[1]
    cache = ours.new_cache(rows, 32)
    hidden = ours.prefill(condition, cache)
    real = torch.ones(rows, t, dtype=torch.bool) if condition.mask is None else condition.mask
    shift = (~real).sum(1, keepdim=True)
    places = torch.arange(t)
    library = DynamicCache()
    seen = torch.ones(t, t, dtype=torch.bool).tril() & real[:, None]
    wanted = theirs_of(condition.features, (places - shift).clamp(min=0), seen, library)
    close(hidden[real], wanted[real])
    image = slice(FIRST, FIRST + SIZES.vocab)
    close(ours.head(hidden)[real], (wanted @ head.t())[real][:, image])

    def step(token: int) -> None:
        hidden = ours.forward(torch.tensor([token]), torch.zeros(1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool), cache)
        visible = torch.nn.functional.pad(real, (0, cache.length + 1 - t), value=True)
        ids = torch.full((rows, 1), token + FIRST)
        wanted = theirs_of(ids, cache.length - shift, visible[:, None], library)
        close(hidden, wanted)
        close(ours.head(hidden), (wanted @ head.t())[..., image])
        cache.advance(1)

    step(41)
    tree = static_tree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    tokens = torch.arange(7, 7 + 9 * tree.size, 9) % SIZES.vocab
    hidden = ours.forward(tokens, tree.depths, tree.mask, cache)
    visible = torch.nn.functional.pad(real, (0, cache.length - t), value=True)[:, None].expand(-1, tree.size, -1)
    seen = torch.cat((visible, tree.mask.expand(rows, -1, -1)), 2)
    wanted = theirs_of((tokens + FIRST).expand(rows, -1), cache.length + tree.depths - shift, seen, library)
    close(hidden, wanted)
    close(ours.head(hidden), (wanted @ head.t())[..., image])
    path = torch.tensor([0, 1, 4])
    assert tree.mask[4].nonzero().flatten().tolist() == path.tolist()
    length = cache.length
    cache.commit(path)
    for layer in library.layers:
        kept = torch.cat((torch.arange(length), length + path))
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    step(66)


def test_the_cut_head_is_the_whole_one_with_everything_else_masked() -> None:
    """Probabilities, bit for bit of the logits: softmax over 80 rows is softmax over 120 of which 40 are masked, at any
    guidance."""
    _, head, ours = pair()
    cache = ours.new_cache(2, 1)
    hidden = ours.prefill(ours.condition(PROMPT, None, True), cache)[:, -1:]
    cond, uncond = torch.nn.functional.linear(hidden, head)
    whole = uncond + 3.0 * (cond - uncond)
    others = [i for i in range(SIZES.embeddings) if not FIRST <= i < FIRST + SIZES.vocab]
    whole[:, others] = torch.finfo(whole.dtype).min
    probs = whole.softmax(-1)
    assert float(probs[:, others].sum()) == 0.0
    cond, uncond = ours.head(hidden)
    cut = uncond + 3.0 * (cond - uncond)
    close(cut, whole[:, FIRST : FIRST + SIZES.vocab], atol=1e-5)
    close(cut.softmax(-1), probs[:, FIRST : FIRST + SIZES.vocab], atol=1e-6)
    assert cut.topk(10).indices.tolist() == (whole.topk(10).indices - FIRST).tolist()


@pytest.mark.parametrize("method", [method.id for method in METHODS.values() if method.lossless])
def test_greedy_tokens_are_those_of_the_library(method: str) -> None:
    """Twelve tokens under guidance: the library runs the whole sequence for each, with the whole head, and takes the likeliest
    image token; here a step at a time, with drafts of a drafter that knows nothing, and so is right now and then by accident
    alone."""
    _, head, ours = pair()
    condition = ours.condition(PROMPT, None, True)
    assert condition.mask is not None
    ids, wanted = condition.features, list[int]()
    for _ in range(12):
        n = ids.shape[1]
        real = torch.nn.functional.pad(condition.mask, (0, n - PROMPT.shape[1]), value=True)
        positions = (torch.arange(n) - (~condition.mask).sum(1, keepdim=True)).clamp(min=0)
        states = theirs_of(ids, positions, torch.ones(n, n, dtype=torch.bool).tril() & real[:, None])[:, -1]
        cond, uncond = states @ head.t()
        guided = uncond + 3.0 * (cond - uncond)
        wanted.append(int(guided[FIRST : FIRST + SIZES.vocab].argmax()))
        ids = torch.cat((ids, torch.full((2, 1), wanted[-1] + FIRST)), 1)
    torch.manual_seed(1)
    drafter = AnoleDrafter(
        AnoleDrafterConfig(dim=64, heads=4, ffn=96, embeddings=120, vocab=80, grid=4, prefix=16, rope_base=500.0, eps=3e-5)
    ).requires_grad_(False)
    *_, last = decode(ours, drafter, condition, num_tokens=12, sampling=Sampling(temperature=0, cfg_scale=3.0), **small(method))
    assert isinstance(last, Decoded) and last.tokens == wanted
    assert len(set(wanted)) > 3


# -- the image tokenizer

TOKENIZERS = cases("chameleon tokenizer")


@pytest.mark.parametrize("case", TOKENIZERS)
@torch.no_grad()
def test_tokenizer_of_the_released_code(case: Golden) -> None:
    model, golden = chameleon_tokenizer(case), case.tensors
    close(model.decode(golden["codes"]), (golden["decoded"].clamp(-1, 1) + 1) / 2)
    image = (golden["image"] + 1) / 2
    close(model.latent(image), golden["encoder_latent"])
    assert model.encode(image).flatten().tolist() == golden["indices"].tolist()


@torch.no_grad()
def test_encoder_of_the_library() -> None:
    """Sizes as published but narrower; the library reads pictures in [-1, 1]."""
    sizes = TokenizerSizes(channels=32, multipliers=(1, 2, 4), latent=24, dim=24, codebook=90, kind="chameleon")
    theirs = ChameleonVQVAE(
        ChameleonVQVAEConfig(
            base_channels=32,
            channel_multiplier=[1, 2, 4],
            num_res_blocks=2,
            latent_channels=24,
            embed_dim=24,
            num_embeddings=90,
            resolution=32,
        )
    ).eval()
    torch.manual_seed(3)
    images = torch.rand(2, 3, 32, 32)
    # Codes that these very pictures use: every other of their vectors, at random a little off.
    vectors = theirs.quant_conv(theirs.encoder(images * 2 - 1)).permute(0, 2, 3, 1).flatten(0, 2)
    theirs.quantize.embedding.weight.copy_(vectors[torch.randperm(len(vectors))[:90]] + 0.001 * torch.randn(90, 24))
    blank = blank_tokenizer(sizes, 8)
    state = {f"vq.{name}": w for name, w in theirs.state_dict().items()}
    rest = {name: torch.zeros(w.shape) for name, w in blank.state_dict().items() if name not in state}
    assert all(name.startswith(("vq.decoder.", "vq.post_quant_conv.")) for name in rest)
    ours = fill(blank, state | rest, CPU, torch.float32)
    for module in ours.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.num_groups = 32  # as the library has at any width
    found = theirs.encode(images * 2 - 1, return_dict=True)
    assert ours.encode(images).flatten().tolist() == found.image_tokens.flatten().tolist()
    assert len(set(found.image_tokens.flatten().tolist())) > 50


@pytest.mark.parametrize("case", TOKENIZERS)
def test_neighbours_are_measured_on_the_vectors_as_stored(case: Golden) -> None:
    """Chameleon's vectors are of any length, and the decoder sees them so."""
    model = chameleon_tokenizer(case)
    book = model.vq.quantize.embedding.weight
    assert torch.equal(model.codebook, book)
    assert float(book.norm(dim=1).std()) > 0.01
    apart = (book[:, None] - book[None]).double().norm(dim=-1).fill_diagonal_(torch.inf)
    same_neighbours(model.codebook, apart.argsort(1)[:, : len(book) - 1])
