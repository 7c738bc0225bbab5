"""Drafters by path inside transformers' `generate`: trees of drafts on tiny models of transformers' own classes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import library_models
import numpy as np
import pytest
import torch
import transformers
from library_models import ASKED, DECODER, PROMPT, VOCABULARY
from safetensors.torch import save_file
from torch import Tensor

from lantern_demo.export.cached import ModelCache, Prompt
from lantern_demo.export.custom_generate import write
from lantern_demo.export.drafter_file import read_drafter
from lantern_demo.export.generate import decode_with
from lantern_demo.export.look_alikes import look_alikes
from lantern_demo.export.readers import reader_of
from lantern_demo.models.neighbours import neighbour_table

EXACT, LOOSE = ("eagle1", "eagle2"), ("lantern", "lantern++")
MODELS = ("llama", "chameleon", "janus")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: getattr(library_models, name)() for name in MODELS}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("drafter")
    save_file(library_models.drafter(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}))
    return str(folder)


def drawn(model: Any, **asked: Any) -> Any:
    """`generate` by the function."""
    return model.generate(PROMPT, return_dict_in_generate=True, **ASKED | {"custom_generate": decode_with} | asked)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("method", EXACT)
def test_greedy_tokens_are_those_of_generate(
    models: dict[str, Any], drafter: str, method: str, cache: str | None, attention: str
) -> None:
    llama = models["llama"]
    plain = llama.generate(PROMPT, do_sample=False, **ASKED)
    llama.set_attn_implementation(attention)
    try:
        out = drawn(llama, do_sample=False, lantern_method=method, lantern_drafter=drafter, cache_implementation=cache)
    finally:
        llama.set_attn_implementation("sdpa")
    assert out.sequences.tolist() == plain.tolist()
    assert out.speculative_decoding["steps"] < 29  # some drafts were kept


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", EXACT)
def test_with_shared_noise_the_tokens_are_vanillas(models: dict[str, Any], drafter: str, model: str, method: str) -> None:
    asked: dict[str, Any] = {"do_sample": True, "lantern_seed": 7, "lantern_image": model != "llama", "top_k": 12}
    if model != "janus":
        asked |= {"guidance_scale": 1.7, "negative_prompt_ids": torch.tensor([[5, 1]]), "repetition_penalty": 1.2}
    vanilla = drawn(models[model], lantern_method="vanilla", **asked)
    out = drawn(models[model], lantern_method=method, lantern_drafter=drafter, **asked)
    assert out.sequences.tolist() == vanilla.sequences.tolist()
    assert out.speculative_decoding["steps"] < vanilla.speculative_decoding["steps"]


@pytest.mark.parametrize("model", ["chameleon", "janus"])
@pytest.mark.parametrize("method", LOOSE)
@pytest.mark.parametrize("dice", ["same", "own"])
def test_lantern_reads_the_models_codebook(models: dict[str, Any], drafter: str, model: str, method: str, dice: str) -> None:
    asked: dict[str, Any] = {"do_sample": True, "lantern_seed": 3, "lantern_image": True, "lantern_dice": dice}
    vanilla = drawn(models[model], lantern_method="vanilla", **asked)
    asked |= {"lantern_method": method, "lantern_drafter": drafter}
    loose = drawn(models[model], lantern_k=10, lantern_delta=0.9, lantern_lambda=30.0, **asked)
    assert loose.sequences.shape == vanilla.sequences.shape
    assert loose.speculative_decoding["steps"] < vanilla.speculative_decoding["steps"]
    if dice == "same":
        assert loose.sequences.tolist() != vanilla.sequences.tolist()
        for nothing in ({"lantern_k": 0}, {"lantern_delta": 0.0, "lantern_lambda": 1.0}):
            assert drawn(models[model], **asked, **nothing).sequences.tolist() == vanilla.sequences.tolist()


def test_which_tokens_are_allowed_may_depend_on_the_place(drafter: str) -> None:
    """Emu3 draws rows of image tokens with a token at the end of each."""
    emu = library_models.emu()

    def rows(_: int, ids: Tensor) -> list[int]:
        return [3] if (len(ids) - PROMPT.shape[1]) % 5 == 4 else list(range(16, 24))

    asked = {"prefix_allowed_tokens_fn": rows, "guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[5, 11]])}
    plain = emu.generate(PROMPT, do_sample=False, **ASKED, **asked)
    vanilla = drawn(emu, do_sample=True, lantern_method="vanilla", lantern_seed=1, **asked)
    for method in EXACT:
        asked |= {"lantern_method": method, "lantern_drafter": drafter}
        assert drawn(emu, do_sample=False, **asked).sequences.tolist() == plain.tolist()
        assert drawn(emu, do_sample=True, lantern_seed=1, **asked).sequences.tolist() == vanilla.sequences.tolist()


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_model_of_sixteen_bits_drafts_in_them(drafter: str, cache: str | None) -> None:
    llama = library_models.llama().bfloat16()
    for method in EXACT:
        out = drawn(llama, do_sample=False, lantern_method=method, lantern_drafter=drafter, cache_implementation=cache)
        assert out.sequences.shape == (1, 34) and out.speculative_decoding["steps"] < 29


def test_neighbours_are_of_tokens(models: dict[str, Any]) -> None:
    reader, _ = reader_of(models["chameleon"], PROMPT, transformers.LogitsProcessorList(), {}, True, None)
    vectors = models["chameleon"].model.vqmodel.quantize.embedding.weight
    assert torch.equal(look_alikes(reader, 5, None), neighbour_table(vectors, 5).long())  # type: ignore[arg-type]
    assert reader.codes()[1].tolist() == list(range(16))  # type: ignore[index]


def test_a_table_by_path(models: dict[str, Any], drafter: str, tmp_path: Path) -> None:
    table = neighbour_table(torch.randn(VOCABULARY, 4), 20)
    np.save(tmp_path / "table.npy", table.numpy().astype("uint16"))
    torch.save(table, tmp_path / "table.pt")
    asked: dict[str, Any] = {"do_sample": True, "lantern_seed": 1, "lantern_method": "lantern", "lantern_drafter": drafter}
    outs = [
        drawn(models["llama"], lantern_neighbours=tmp_path / name, lantern_k=20, **asked) for name in ("table.npy", "table.pt")
    ]
    assert outs[0].sequences.tolist() == outs[1].sequences.tolist()
    bad = {"wide.pt": table.float(), "short.pt": table[:, :3], "far.pt": table + 40}
    for name, content in bad.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(ValueError, match=r"^lantern_neighbours is .*(must be of whole numbers \[40, 20 or|0 to 39)"):
            drawn(models["llama"], lantern_neighbours=tmp_path / name, lantern_k=20, **asked)
    with pytest.raises(ValueError, match=r"^lantern_neighbours is None, and what is drawn has no codebook"):
        drawn(models["llama"], **asked)
    with pytest.raises(ValueError, match=r"^lantern_neighbours is '.*none\.npy', which cannot be read"):
        drawn(models["llama"], lantern_neighbours=tmp_path / "none.npy", **asked)


@pytest.mark.parametrize("kind", [{"norms": True, "own": True}, {"bias": False}])
def test_all_published_kinds_are_read(models: dict[str, Any], tmp_path: Path, kind: dict[str, bool]) -> None:
    torch.save(library_models.drafter(**kind), tmp_path / "pytorch_model.bin")
    asked: dict[str, Any] = {"do_sample": True, "lantern_seed": 2, "lantern_image": True}
    vanilla = drawn(models["chameleon"], lantern_method="vanilla", **asked)
    out = drawn(models["chameleon"], lantern_method="eagle1", lantern_drafter=tmp_path / "pytorch_model.bin", **asked)
    assert out.sequences.tolist() == vanilla.sequences.tolist()


def test_padding_and_processors_are_generates(models: dict[str, Any], drafter: str) -> None:
    prompt, mask = torch.tensor([[0, 0, 5, 9, 3, 11]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    asked = {"attention_mask": mask, "do_sample": False, "repetition_penalty": 1.5, "no_repeat_ngram_size": 3} | ASKED
    plain = models["llama"].generate(prompt, **asked)
    for method in ("vanilla", *EXACT):
        found = models["llama"].generate(
            prompt, custom_generate=decode_with, lantern_method=method, lantern_drafter=drafter, **asked
        )
        assert found.tolist() == plain.tolist()


@torch.inference_mode()
def test_the_layer_is_a_llamas(models: dict[str, Any], tmp_path: Path) -> None:
    """With a norm before attention, and an fc that hands on embeddings, it is a LLaMA of one layer without a last norm."""
    torch.manual_seed(8)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, **DECODER | {"num_hidden_layers": 1})
    other = transformers.LlamaForCausalLM(config).eval().model
    other.norm = torch.nn.Identity()
    weights = {name: x for name, x in other.state_dict().items() if not name.startswith("norm")}
    weights["fc.weight"] = torch.cat((torch.eye(32), torch.zeros(32, 32)), 1)
    save_file(weights, tmp_path / "model.safetensors")
    reader, _ = reader_of(models["llama"], PROMPT, transformers.LogitsProcessorList(), {}, False, None)
    drafter = read_drafter(tmp_path, reader, 20)
    cache, token = drafter.new_cache(1, 20), torch.tensor([7])
    got = drafter.start(PROMPT.new_zeros(0), token, cache, Prompt(PROMPT, None, torch.randn(1, 4, 32)))
    wanted = other(torch.tensor([[9, 3, 11, 7]])).last_hidden_state[:, -1:]
    assert torch.allclose(got, wanted, atol=1e-5)
    got = drafter.extend(torch.tensor([2, 6]), torch.randn(1, 2, 72), cache)
    wanted = other(torch.tensor([[9, 3, 11, 7, 2, 6]])).last_hidden_state[:, -1:]
    assert torch.allclose(got, wanted, atol=1e-5) and cache.length == 6


@pytest.mark.parametrize("static", [True, False])
def test_a_cache_keeps_the_accepted_path_alone(models: dict[str, Any], static: bool) -> None:
    llama = models["llama"]
    reader, _ = reader_of(llama, PROMPT, transformers.LogitsProcessorList(), {}, False, None)
    config = llama.config
    inner = transformers.StaticCache(config, max_cache_len=16) if static else transformers.DynamicCache(config=config)
    cache = ModelCache(inner)
    with torch.inference_mode():
        reader.read(None, inner, 0)
        cache.length = 4
        depths = torch.tensor([0, 1, 1, 2, 2])  # nodes 3 and 4 lie behind 1 and 2
        sees = torch.eye(5, dtype=torch.bool)
        sees[:, 0] = sees[3, 1] = sees[4, 2] = True
        cache.written = [7, 8, 9, 1, 2]
        logits, _ = reader.read(torch.tensor(cache.written), inner, 4, (depths, sees))
        chain = llama(torch.tensor([[5, 9, 3, 11, 7, 9, 2]])).logits[0]
        assert torch.allclose(logits[0, [0, 2, 4]], chain[4:], atol=1e-5)
        cache.commit(torch.tensor([0, 2, 4]))
        assert cache.drawn == [7, 9, 2] and cache.length == 7 and int(inner.get_seq_length()) == 7
        logits, _ = reader.read(torch.tensor([6]), inner, 7)
        assert torch.allclose(logits[0, 0], llama(torch.tensor([[5, 9, 3, 11, 7, 9, 2, 6]])).logits[0, -1], atol=1e-5)


@pytest.mark.parametrize("method", EXACT)
def test_without_a_mask_of_trees_drafts_are_a_chain(
    models: dict[str, Any], drafter: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = models["llama"]
    plain = llama.generate(PROMPT, do_sample=False, **ASKED)
    monkeypatch.setattr("lantern_demo.export.asked.BRANCHING", ("eager",))
    with pytest.warns(UserWarning, match="takes no mask of a tree: drafts are a chain, one token at each depth"):
        out = drawn(llama, do_sample=False, lantern_method=method, lantern_drafter=drafter)
    assert out.sequences.tolist() == plain.tolist()
    assert out.speculative_decoding["drafts"].startswith("6 nodes") and "5 deep" in out.speculative_decoding["drafts"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"lantern_drafter": None}, "lantern_drafter is None; lantern_method 'eagle1' needs the path of a drafter, and without"),
        (
            {"lantern_drafter": "nowhere"},
            "lantern_drafter is 'nowhere'; it must be a file of tensors, or a folder with model.saf",
        ),
        ({"lantern_tree": "0 00 1x"}, "lantern_tree is '0 00 1x'; allowed are mc_sim_7b_63"),
        ({"lantern_tree": (10, 4, 59)}, "lantern_tree is (10, 4, 59); with eagle1 it must be a text of paths"),
        ({"lantern_method": "eagle2", "lantern_tree": "0"}, "lantern_tree is '0'; with eagle2 it must be three whole numbers"),
        ({"lantern_method": "eagle2", "lantern_tree": (2, 1, 99)}, "lantern_tree is (2, 1, 99): tree nodes is 99"),
        ({"lantern_method": "lantern", "lantern_k": -1}, "lantern_k is -1; it must be a whole number, 0 or more"),
        ({"lantern_method": "lantern", "lantern_delta": 2}, "lantern_delta is 2; it must be a number, 0 to 1"),
    ],
)
def test_what_cannot_be_drafted_is_refused_by_a_sentence(
    models: dict[str, Any], drafter: str, asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        drawn(models["llama"], **{"lantern_method": "eagle1", "lantern_drafter": drafter} | asked)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fc.weight": None}, r"lantern_drafter is .*, which has no tensor fc\.weight; allowed are drafters of EAGLE-1"),
        ({"fc.weight": torch.zeros(32, 60)}, r"lantern_drafter is .* shape \[32, 60\]; for this model it must be \[32, 64\]"),
        (
            {"layers.0.self_attn.k_proj.weight": None},
            r"lantern_drafter is .* no tensor layers\.0\.self_attn\.k_proj\.weight; it must",
        ),
        ({"d2t": torch.zeros(3)}, r"lantern_drafter is .*, which has a tensor d2t; allowed are fc\.bias"),
    ],
)
def test_another_models_drafter_is_refused(
    models: dict[str, Any], tmp_path: Path, change: dict[str, Tensor | None], sentence: str
) -> None:
    weights = {name: x for name, x in (library_models.drafter() | change).items() if x is not None}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"^{sentence}"):
        drawn(models["llama"], lantern_method="eagle2", lantern_drafter=tmp_path)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"num_attention_heads": "many"},
            "lantern_drafter has num_attention_heads 'many' in its config.json; it must be a whole",
        ),
        ({"num_key_value_heads": 3}, "lantern_drafter has 4 heads and 3 of keys; the first must be a multiple of the second"),
        ({"rms_norm_eps": 0}, "lantern_drafter has rms_norm_eps 0 in its config.json; it must be a number above 0"),
    ],
)
def test_sizes_that_are_none_are_refused(models: dict[str, Any], tmp_path: Path, said: dict[str, Any], sentence: str) -> None:
    save_file(library_models.drafter(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        drawn(models["llama"], lantern_method="eagle2", lantern_drafter=tmp_path)


def test_a_file_that_is_no_drafter_is_refused(models: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"^lantern_drafter is .*, which cannot be read as \.safetensors"):
        drawn(models["llama"], lantern_method="eagle2", lantern_drafter=tmp_path)


def test_by_the_folders_name(models: dict[str, Any], drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "copies"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "copies")])
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)  # the copies of another test
    write(tmp_path / "out")
    plain = models["llama"].generate(PROMPT, do_sample=False, **ASKED)
    out = drawn(
        models["llama"],
        do_sample=False,
        lantern_method="eagle2",
        lantern_drafter=drafter,
        lantern_tree=(4, 2, 12),
        custom_generate=str(tmp_path / "out"),
        trust_remote_code=True,
    )
    assert out.sequences.tolist() == plain.tolist()
    assert type(out).__module__.startswith("transformers_modules")
