"""Prompts of LlamaGen's models: captions and what a T5 makes of them, and class labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published import WIDTH, write_t5, write_tokenizer
from torch import Tensor
from transformers import T5ForConditionalGeneration

from lantern_demo.models import text as texts
from lantern_demo.models.hub import Located, find
from lantern_demo.models.registry import REGISTRY
from lantern_demo.models.tensors import CheckpointError
from lantern_demo.models.text import (
    LENGTH,
    CaptionEncoder,
    ClassLabels,
    label_of,
    labels,
    load_text,
    read_tokenizer,
    search,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Located, T5ForConditionalGeneration]:
    """A small T5 in the files of a Hub repository, where they lie, and the network they were
    written from.
    """
    folder = tmp_path_factory.mktemp("model")
    model = write_t5(folder / "flan-t5-xl")
    return find(REGISTRY["llamagen-t2i-256"].published, "text", folder), model


@pytest.fixture(scope="module")
def encoder(t5: tuple[Located, T5ForConditionalGeneration]) -> CaptionEncoder:
    return load_text(t5[0], WIDTH, CPU, torch.float32)


@torch.inference_mode()
def test_features_are_the_encoders_and_padded_on_the_left(
    t5: tuple[Located, T5ForConditionalGeneration], encoder: CaptionEncoder
) -> None:
    encoded = encoder.encode("Red  Lantern <b>lake</b>")
    ids = torch.tensor([[4, 5, 6, 1]])  # three words and the end mark
    wanted: Tensor = t5[1].encoder(input_ids=ids).last_hidden_state
    assert encoded.features.shape == (1, LENGTH, WIDTH) and encoded.features.dtype == torch.float32
    assert encoded.mask.dtype == torch.bool
    assert encoded.mask[0].tolist() == [False] * (LENGTH - 4) + [True] * 4
    torch.testing.assert_close(encoded.features[:, -4:], wanted, atol=1e-5, rtol=0)
    assert encoded.features[:, :-4].abs().max() == 0
    assert encoded.unknown == []


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(
    dtype: torch.dtype, t5: tuple[Located, T5ForConditionalGeneration], encoder: CaptionEncoder
) -> None:
    half = load_text(t5[0], WIDTH, CPU, dtype)
    kept = {name for name, p in half.encoder.named_parameters() if p.dtype == torch.float32}
    assert all(name.endswith("wo.weight") for name in kept) and bool(kept) == (
        dtype == torch.float16
    )
    features = half.encode("a red lantern").features
    assert features.dtype == torch.float32
    torch.testing.assert_close(
        features, encoder.encode("a red lantern").features, atol=0.1, rtol=0.1
    )


@torch.inference_mode()
def test_on_a_processor_it_is_packed_for_a_prompt_and_let_go_where_memory_is_short(
    t5: tuple[Located, T5ForConditionalGeneration],
    encoder: CaptionEncoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = encoder.encode("a red lantern").features
    config = REGISTRY["llamagen-t2i-256"].published
    lazy = CaptionEncoder.of(replace(config.target, caption_dim=WIDTH), t5[0], CPU)
    assert lazy.made is None, "nothing is packed before there is a prompt"
    monkeypatch.setattr(texts, "free_memory", lambda device: texts.LEAST_FREE)
    first = lazy.encode("a red lantern").features
    assert lazy.made is not None and first.dtype == torch.float32
    torch.testing.assert_close(first, whole, atol=0.1, rtol=0.1)
    kept = lazy.encoder
    assert lazy.encode("a blue lantern").features.shape == first.shape and lazy.encoder is kept
    linear = [part for part in kept.modules() if isinstance(part, torch.nn.Linear)]
    mapped = {part.weight.dtype for part in kept.modules() if isinstance(part, torch.nn.Embedding)}
    assert not linear and mapped == {torch.float32}, "the files' own"
    monkeypatch.setattr(texts, "free_memory", lambda device: texts.LEAST_FREE - 1)
    assert torch.equal(lazy.encode("a red lantern").features, first) and lazy.made is None
    monkeypatch.setattr(texts, "free_memory", lambda device: None)
    assert torch.equal(lazy.encode("a red lantern").features, first)
    assert lazy.made is not None, "where the system does not say, it is kept"


@torch.inference_mode()
def test_what_was_not_read_is_told(encoder: CaptionEncoder) -> None:
    assert encoder.encode("red 7 lantern").unknown == ["7"]
    words = ["red"] * 125
    words[122] = "lake"
    encoded = encoder.encode(" ".join(words))
    assert encoded.mask is not None and bool(encoded.mask.all())
    # 119 words and the end mark fit
    assert encoded.unknown == ["red", "red", "red", "lake", "red", "red"]


def test_a_prompt_of_which_nothing_is_left(encoder: CaptionEncoder) -> None:
    encoder.check("a red lantern")
    with pytest.raises(ValueError, match=r"prompt '灯笼' is empty once it is cleaned"):
        encoder.check("灯笼")


def test_what_is_no_text_encoder_of_this_model(
    t5: tuple[Located, T5ForConditionalGeneration], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer.json is no tokenizer .*download it"):
        read_tokenizer(path)
    write_tokenizer(path)
    content = json.loads(path.read_text(encoding="utf-8")) | {"post_processor": None}
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"must know <pad> and end a text with </s>"):
        read_tokenizer(path)
    with pytest.raises(CheckpointError, match=r"says d_model 32, but this model reads features"):
        load_text(t5[0], 48, CPU, torch.float32)
    first = t5[0].weights[:1]
    with pytest.raises(CheckpointError, match=r"tensor '.*' is missing"):
        load_text(Located(t5[0].source, first, {}), WIDTH, CPU, torch.float32)


def test_every_class_goes_by_its_number_and_its_names() -> None:
    found = labels()
    assert [label.id for label in found] == list(range(1000))
    # the order of the dataset, at its ends and at the two cranes
    names = [found[i].names[0] for i in (0, 134, 517, 999)]
    assert names == ["tench", "crane", "crane", "toilet tissue"]
    assert all(
        label_of(label.title) == label and label_of(str(label.id)) == label and all(label.names)
        for label in found
    )
    for text in ("  GoldFish ", "carassius auratus", "goldfish (1)", "goldfish, Carassius auratus"):
        encoded = ClassLabels().encode(text)
        assert label_of(text).id == 1 and encoded.features.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crane", r"names several classes; choose crane \(134\) or crane \(517\)"),
        ("goldfsh", r"got 'goldfsh'; near it are goldfish \(1\)"),
        ("1000", r"from 0 to 999, got '1000'"),
    ],
)
def test_what_is_no_class_gets_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        label_of(text)
    with pytest.raises(ValueError, match=says):
        ClassLabels().check(text)


def test_search_puts_the_likeliest_first() -> None:
    assert [label.id for label in search("Crane")[:2]] == [134, 517]
    assert search("goldfsh")[0].id == 1
    assert [label.id for label in search("99", 3)] == [99, 990, 991]
    assert search("qqqq") == [] and len(search("a")) == 20
