"""Published checkpoints: every format loads and draws, and each fault gets a sentence."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from published import ANOLE, ANOLE_ID, DRAFTER, TEXT_ID
from tiny import Evil

from lantern_demo import Result, load
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import checkpoints
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.registry import REGISTRY
from lantern_demo.models.tensors import CheckpointError
from lantern_demo.runs import images

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over a lake"


@pytest.mark.parametrize(
    ("model", "written"), [(TEXT_ID, published.networks), (ANOLE_ID, published.anole_networks)]
)
def test_conversions_of_the_hub_are_read_where_they_lie(
    model: str, written: Callable[[], Any], folder_of: dict[str, Path], published_cache: Path
) -> None:
    """Eps and theta are the files'. Only queries and keys that turn in pairs are copied."""
    found = checkpoints.load(REGISTRY[model], CPU, torch.float32, folder_of[model])
    target, drafter, tokenizer = written()
    for ours, theirs in ((found.target, target), (found.drafter, drafter)):
        assert ours.config == theirs.config
        published.assert_same(ours, theirs)
    published.same_weights(found.tokenizer, tokenizer)
    place = re.escape(str(folder_of[model].resolve()))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    mapped = re.findall(rf"^(\w+)-(\w+) .* {place}", maps, re.MULTILINE)
    spans = [(int(first, 16), int(end, 16)) for first, end in mapped]
    for part in (found.target, found.drafter, found.tokenizer):
        paired = isinstance(part, (LlamaGen, Drafter))
        for name, weight in part.named_parameters():
            assert not weight.requires_grad
            if not (paired and re.search("[qk]_proj", name)):
                assert any(first <= weight.data_ptr() < end for first, end in spans), name
    files = [path for path in published_cache.rglob("*") if path.is_file()]
    assert all(path.parent.name == ".locks" for path in files)


@pytest.mark.parametrize("config", [{"bias": False}, None])
def test_drafters_without_bias_or_config(config: dict[str, Any] | None, tmp_path: Path) -> None:
    folder, bias = published.write_text_model(tmp_path / "m") / "drafter", config is None
    small = Drafter(replace(DRAFTER, bias=bias, eps=1e-6)).requires_grad_(False).eval()
    torch.save(small.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").unlink()
    if config is not None:
        published.write_json(folder / "config.json", config)
    found = checkpoints.load(REGISTRY[TEXT_ID], CPU, torch.float32, folder.parent).drafter
    assert found is not None and (found.config.eps, found.config.bias) == (1e-6, bias)
    published.assert_same(found, small)


@pytest.mark.parametrize("model", [TEXT_ID, ANOLE_ID])
def test_on_a_processor_networks_are_in_16_bits(model: str, folder_of: dict[str, Path]) -> None:
    pipe = load(model, device="cpu", folder=folder_of[model])
    found = pipe.networks
    assert pipe.dtype == "bfloat16" and pipe.target is found.target
    assert len(pipe.generate(PROMPT, "lantern++").tokens) == 16
    for part in (found.target, found.drafter):
        assert {p.dtype for p in part.parameters()} == {torch.bfloat16}
        assert part.rope.dtype == torch.float32 and not part.rope.is_meta
    assert {p.dtype for p in found.tokenizer.parameters()} == {torch.float32}


def test_a_prompt_is_the_vocabularys_tokens_between_marks(anole_model: Path) -> None:
    pipe, most = load(ANOLE_ID, device="cpu", folder=anole_model), ANOLE.prefix - 3
    encoded = pipe.networks.text.encode("a red gong over the lake")
    # the file's own start mark is not there twice
    assert encoded.features.tolist() == [[0, 8712, 8713, 3, 8715, 8717, 8716, 8710, 8197]]
    assert encoded.mask is None and encoded.unknown == ["gong"]
    both = pipe.networks.target.condition(encoded.features, None, True)
    assert both.features.tolist()[1] == [1] * 7 + [0, 8197]
    assert both.mask is not None and both.mask.tolist() == [[True] * 9, [False] * 7 + [True] * 2]
    for mark in ("<s>", "<racm3:break>", "IMGIMGFDZ"):
        with pytest.raises(ValueError, match=rf"prompt must be plain text, and {re.escape(mark)}"):
            pipe.generate(f"a red {mark} lantern")
    words = " ".join(["red"] * most)
    assert len(pipe.generate(words).tokens) == 16
    with pytest.raises(ValueError, match=rf"prompt has {most + 1} tokens of the model's"):
        pipe.generate(f"{words} red")


@pytest.mark.parametrize("model", [TEXT_ID, ANOLE_ID])
def test_every_method_draws_and_records_its_sources(model: str, folder_of: dict[str, Path]) -> None:
    pipe = load(model, device="cpu", dtype="float32", folder=folder_of[model])
    assert pipe.available_methods == list(METHODS)
    runs = pipe.compare(PROMPT, list(METHODS), seed=1, window=4)
    done = {method: event for method, event in runs if isinstance(event, Result)}
    vanilla = done["vanilla"]
    assert set(done) == set(METHODS) and vanilla.image.size == (64, 64)
    for method, made in done.items():
        assert len(made.tokens) == 16 and {*made.tokens} <= {*range(published.VOCAB)}
        exact = made.tokens == vanilla.tokens and made.changed == 0
        assert exact or not METHODS[method].lossless, method
    assert pipe.generate("blue night", "vanilla", seed=1).tokens != vanilla.tokens
    sources = json.loads(json.dumps(vanilla.record))["model"]["sources"]
    asked = {part: of[0].weights for part, of in REGISTRY[model].published.sources.items()}
    assert {part: of["file"] for part, of in sources.items()} == asked
    assert str(Path.home()) not in json.dumps(sources)
    if model == ANOLE_ID:  # the decoder sees the vectors as they are stored
        assert torch.equal(pipe.images.neighbours("decoder"), pipe.images.neighbours("raw"))


def test_neighbours_are_kept_on_disk(
    text_model: Path, published_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = load(TEXT_ID, device="cpu", folder=text_model)
    made = {kind: pipe.images.neighbours(kind) for kind in ("raw", "decoder")}
    with monkeypatch.context() as patch:
        patch.setattr(images, "neighbour_table", lambda *_: pytest.fail("made again"))
        for kind, table in made.items():
            pipe.images._neighbours.clear()
            assert torch.equal(pipe.images.neighbours(kind), table)
    for path in published_cache.glob("tables/*"):
        path.write_bytes(b"damaged")
    pipe.images._neighbours.clear()
    assert torch.equal(pipe.images.neighbours("raw"), made["raw"])


def test_without_a_drafter_vanilla_and_sjd_run(llamagen_model: Path) -> None:
    pipe = load(TEXT_ID, device="cpu", dtype="float32", folder=llamagen_model)
    assert pipe.available_methods == pipe.default_methods == ["vanilla", "sjd"]
    made = {m: e for m, e in pipe.compare(PROMPT) if isinstance(e, Result)}
    assert made["vanilla"].tokens == made["sjd"].tokens == pipe.generate(PROMPT).tokens
    says = "must be one of vanilla, sjd where the model has no drafter, got 'eagle2'"
    with pytest.raises(ValueError, match=says):
        pipe.stream(PROMPT, "eagle2")


File = tuple[str, Callable[[Path], Path], str]  # of a model, written by a function: its name
Spoil = Callable[[Path], Any]


def of_bytes(content: bytes) -> Spoil:
    return lambda path: path.write_bytes(content)


def saying(**more: Any) -> Spoil:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_bytes()) | more))


def having(**tensors: torch.Tensor | None) -> Spoil:
    def spoil(path: Path) -> None:
        found = torch.load(path, weights_only=False)["model"] | tensors
        torch.save({name: one for name, one in found.items() if one is not None}, path)

    return spoil


def marked_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'("IMGIMGBCZ": ?)16', r"\g<1>17", text), encoding="utf-8")


OWN_FORM = TEXT_ID, published.write_llamagen, "t2i_XL_stage1_256.pt"
CONFIG = TEXT_ID, published.write_text_model, "target/config.json"
WORDS = TEXT_ID, published.write_text_model, "text/tokenizer.json"
SHARD = ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf/model-00002-of-00002.safetensors"
ANOLE_CONFIG = ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf/config.json"
ANOLE_WORDS = ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf/tokenizer.json"

# A file of a model, what spoils it -> words of the sentence that names it.
FAULTS: list[tuple[File, Spoil, str]] = [
    (OWN_FORM, of_bytes(b"<html>"), "cannot be read .*; download it again"),
    (OWN_FORM, partial(torch.save, [1, 2]), "no tensors are in it"),
    (OWN_FORM, partial(torch.save, {"model": {}, "more": Evil()}), "download it again"),
    (OWN_FORM, having(extra=torch.zeros(2)), 'Unexpected key.* "extra"'),
    (OWN_FORM, having(**{"norm.weight": None}), 'Missing key.* "norm.weight"'),
    (OWN_FORM, having(**{"norm.weight": torch.zeros(65)}), r"norm.weight.*\[65\].*\[64\]"),
    (CONFIG, Path.unlink, "cannot be read.*download it again"),
    (CONFIG, of_bytes(b"[]"), "it is no JSON object.; download it again"),
    (CONFIG, saying(block_size=1024), "says block_size 1024, but this model has .*another"),
    (WORDS, saying(post_processor=None), "must know <pad> and end a text with </s>"),
    (ANOLE_CONFIG, saying(swin_norm=True), "says swin_norm True, but this model has .*another"),
    (ANOLE_WORDS, marked_elsewhere, "IMGIMGBCZ must be 16 in it, and is 17"),
    (SHARD, Path.unlink, "must hold all files, and has only model-00001-of-00002.safetensors"),
]


@pytest.mark.parametrize(("file", "spoil", "says"), FAULTS, ids=[says for *_, says in FAULTS])
def test_a_spoilt_file_is_named_with_its_fault(
    file: File, spoil: Spoil, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code in a pickle is not run."""
    monkeypatch.chdir(tmp_path)
    model, write, name = file
    path = write(tmp_path / "m") / name
    spoil(path)
    named = path.parent if spoil is Path.unlink and path.suffix != ".json" else path
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(named))}.*{says}"):
        load(model, device="cpu", folder=tmp_path / "m")
    assert not (tmp_path / "ran").exists()
