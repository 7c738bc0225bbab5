"""Prompts of LlamaGen's models: captions and what a T5 makes of them."""

import pytest
import torch
from published import WIDTH, write_t5
from torch import Tensor
from transformers import T5ForConditionalGeneration

from lantern_demo.models.hub import Located, find
from lantern_demo.models.registry import REGISTRY
from lantern_demo.models.text import LENGTH, CaptionEncoder, load_text

CPU = torch.device("cpu")
T5 = tuple[Located, T5ForConditionalGeneration]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> T5:
    """The files of one as a Hub repository has them, and the network they were written from."""
    folder = tmp_path_factory.mktemp("model")
    model = write_t5(folder / "flan-t5-xl")
    return find(REGISTRY["llamagen-t2i-256"].published, "text", folder), model


@pytest.fixture(scope="module")
def encoder(t5: T5) -> CaptionEncoder:
    return load_text(t5[0], WIDTH, CPU, torch.float32)


@torch.inference_mode()
def test_features_are_the_encoders_and_padded_on_the_left(t5: T5, encoder: CaptionEncoder) -> None:
    encoded = encoder.encode("Red  Lantern (lake)")
    ids = torch.tensor([[4, 5, 6, 1]])  # three words and the end mark
    wanted: Tensor = t5[1].encoder(input_ids=ids).last_hidden_state
    assert encoded.features.shape == (1, LENGTH, WIDTH) and encoded.features.dtype == torch.float32
    assert encoded.mask[0].tolist() == [False] * (LENGTH - 4) + [True] * 4
    torch.testing.assert_close(encoded.features[:, -4:], wanted, atol=1e-5, rtol=0)
    assert encoded.features[:, :-4].abs().max() == 0
    assert encoded.unknown == []


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, t5: T5, encoder: CaptionEncoder) -> None:
    half = load_text(t5[0], WIDTH, CPU, dtype)
    kept = {name for name, p in half.encoder.named_parameters() if p.dtype == torch.float32}
    assert bool(kept) == (dtype == torch.float16)
    assert all(name.endswith("wo.weight") for name in kept)
    found, wanted = (of.encode("a red lantern").features for of in (half, encoder))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.1)


@torch.inference_mode()
def test_what_was_not_read_is_told(encoder: CaptionEncoder) -> None:
    assert encoder.encode("red 7 lantern").unknown == ["7"]
    words = ["red"] * 125
    words[122] = "lake"
    encoded = encoder.encode(" ".join(words))
    assert encoded.mask is not None and bool(encoded.mask.all())
    # 119 words and the end mark fit
    assert encoded.unknown == ["red", "red", "red", "lake", "red", "red"]
    with pytest.raises(ValueError, match="prompt must describe the picture in words, got"):
        encoder.check("(..)")
