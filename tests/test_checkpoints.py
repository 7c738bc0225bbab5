"""Published checkpoints: every format loads to the numbers it was written from, and the program runs on it."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from published import (
    ANOLE,
    ANOLE_ID,
    CLASS_ID,
    CLASSES,
    DRAFTER,
    JANUS,
    JANUS_ID,
    TARGET,
    TEXT_ID,
    assert_same,
    drafted,
    networks,
    pictures,
    write_text_model,
)
from released import cases, lantern_drafter, lantern_target, llamagen, vq_state
from released import weights_of as files_of
from torch import Tensor, nn

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import checkpoints
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.files.blank import blank_network, blank_tokenizer, fill
from lantern_demo.models.files.tensors import weights_of
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.machine.sixteen import sixteen_bits
from lantern_demo.models.neighbours import neighbour_table
from lantern_demo.models.registry import REGISTRY, TokenizerSizes
from lantern_demo.runs.pipeline import Generation, Pipeline, load

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over a lake"


def weights(network: nn.Module, path: Path, form: Any) -> dict[str, Tensor]:
    return dict(weights_of(network, [path], LAYOUTS[form]))


# -- formats


@pytest.mark.parametrize("container", ["model", "module", "state_dict", None])
def test_llamagens_own_files(container: str | None, tmp_path: Path) -> None:
    """With the leavings of training beside the tensors, and the table that some versions of the code wrote among them."""
    target, _, _ = networks(CLASSES)
    state = {**target.state_dict(), "freqs_cis": torch.zeros(3)}
    leavings = {"steps": 7, "args": argparse.Namespace(cfg=4.0), "optimizer": {"state": {}}}
    torch.save({container: state, **leavings} if container else state, tmp_path / "c2i.pt")
    loaded = fill(blank_network(CLASSES), weights(blank_network(CLASSES), tmp_path / "c2i.pt", "llamagen"), CPU, torch.float32)
    assert_same(loaded, target)


def test_files_of_old_versions_of_torch(tmp_path: Path) -> None:
    target, _, _ = networks(CLASSES)
    torch.save({"model": target.state_dict()}, tmp_path / "c2i.pt", _use_new_zipfile_serialization=False)
    loaded = weights(blank_network(CLASSES), tmp_path / "c2i.pt", "llamagen")
    assert all(torch.equal(loaded[k], v) for k, v in target.state_dict().items())


def test_lanterns_conversion_and_its_eps(text_model: Path) -> None:
    target, drafter, tokenizer = networks()
    info = REGISTRY[TEXT_ID]
    found = checkpoints.load(info, CPU, torch.float32, text_model)
    assert found.target.config == TARGET  # eps 3e-5 is the file's; the registry had another
    assert_same(found.target, target)
    assert found.drafter is not None
    assert found.drafter.config == DRAFTER
    assert torch.equal(drafted(found.drafter), drafted(drafter))
    assert torch.equal(pictures(found.tokenizer), pictures(tokenizer))
    assert all(not p.requires_grad for part in (found.target, found.drafter, found.tokenizer) for p in part.parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_drafters_with_and_without_bias(bias: bool, tmp_path: Path) -> None:
    write_text_model(tmp_path / "m")
    small = Drafter(replace(DRAFTER, bias=bias)).requires_grad_(False).eval()
    torch.save(small.state_dict(), tmp_path / "m" / "drafter" / "pytorch_model.bin")
    config = {"rms_norm_eps": DRAFTER.eps} | ({} if bias else {"bias": False})
    (tmp_path / "m" / "drafter" / "config.json").write_text(json.dumps(config))
    found = checkpoints.load(REGISTRY[TEXT_ID], CPU, torch.float32, tmp_path / "m").drafter
    assert found is not None
    assert found.config.bias is bias
    assert torch.equal(drafted(found), drafted(small))


def test_a_drafter_without_config_has_the_templates_values(text_model: Path, tmp_path: Path) -> None:
    copy = write_text_model(tmp_path / "m")
    (copy / "drafter" / "config.json").unlink()
    found = checkpoints.load(REGISTRY[TEXT_ID], CPU, torch.float32, copy).drafter
    assert found is not None
    assert (found.config.eps, found.config.bias) == (1e-6, True)


def test_the_original_text_model_loads_from_a_folder(tmp_path: Path) -> None:
    """In the sub-folders that repositories are named after, and with LlamaGen's file in the place of LANTERN's."""
    folder = write_text_model(tmp_path / "m")
    target, _, _ = networks()
    (folder / "target" / "model.safetensors").unlink()
    torch.save({"model": target.state_dict()}, folder / "t2i_XL_stage1_256.pt")
    (folder / "drafter").rename(folder / "llamagen_drafter")
    (folder / "text").rename(folder / "flan-t5-xl")
    found = checkpoints.load(REGISTRY[TEXT_ID], CPU, torch.float32, folder)
    assert found.target.config.eps == 1e-5
    assert all(torch.equal(p, q) for p, q in zip(found.target.parameters(), target.parameters(), strict=True))
    assert found.drafter is not None


@pytest.fixture
def folder_of(text_model: Path, class_model: Path, anole_model: Path, janus_model: Path) -> dict[str, Path]:
    return {TEXT_ID: text_model, CLASS_ID: class_model, ANOLE_ID: anole_model, JANUS_ID: janus_model}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [TEXT_ID, ANOLE_ID, JANUS_ID])
def test_dtypes(model: str, dtype: torch.dtype, folder_of: dict[str, Path]) -> None:
    """Rotary tables and the image tokenizer stay in float32."""
    found = checkpoints.load(REGISTRY[model], CPU, dtype, folder_of[model])
    for part in (found.target, found.drafter):
        if part is not None:
            assert {p.dtype for p in part.parameters()} == {dtype}
            assert part.rope.dtype == torch.float32 and not part.rope.is_meta
    assert {p.dtype for p in found.tokenizer.parameters()} == {torch.float32}


@pytest.mark.parametrize("model", [TEXT_ID, CLASS_ID, ANOLE_ID, JANUS_ID])
def test_published_files_are_read_where_they_lie(model: str, folder_of: dict[str, Path], published_cache: Path) -> None:
    """No weight is copied or written again, not even some rows of a head or what a PyTorch file holds; but for those that several
    published ones are joined to."""
    found = checkpoints.load(REGISTRY[model], CPU, torch.float32, folder_of[model])
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    place = str(folder_of[model].resolve())
    spans = [[int(end, 16) for end in line[0].split("-")] for line in maps if line[-1].startswith(place)]
    assert spans
    for part in filter(None, (found.target, found.drafter, found.tokenizer)):
        for name, weight in part.named_parameters():
            joined = model == TEXT_ID and part is found.target and "wqkv" in name
            assert any(first <= weight.data_ptr() < last for first, last in spans) != joined, name
    assert not [path for path in published_cache.rglob("*") if path.is_file() and path.parent.name not in (".locks", "fitted")]


# -- prompts between marks


@pytest.mark.parametrize(
    ("model", "marks"),
    [
        (ANOLE_ID, ["<s>", "<pad>", "<racm3:break>", "<eoss>", "<reserved08706>", "<image>", "IMGIMGFDZ"]),
        (JANUS_ID, ["<begin_of_image>", "<image_placeholder>", "<\uff5c\u2581pad\u2581\uff5c>"]),
    ],
)
def test_a_prompt_is_plain_text(model: str, marks: list[str], folder_of: dict[str, Path]) -> None:
    pipe = load(model, device="cpu", folder=folder_of[model])
    for mark in marks:
        with pytest.raises(ValueError, match=rf"prompt must be plain text, and {re.escape(mark)} in it is a mark of the model"):
            pipe.generate(f"a red {mark} lantern")
    letters = "a red \u00f8 lantern < 3 > {0}"  # letters may be words of their own
    assert pipe.check_prompt(letters) == letters


@pytest.mark.parametrize(("model", "most"), [(ANOLE_ID, ANOLE.prefix - 3), (JANUS_ID, JANUS.prefix - 11)])
def test_a_prompt_has_no_more_tokens_than_positions(model: str, most: int, folder_of: dict[str, Path]) -> None:
    pipe, words = load(model, device="cpu", folder=folder_of[model]), " ".join(["red"] * most)
    assert len(pipe.generate(words).tokens) == 16
    with pytest.raises(ValueError, match=rf"prompt has {most + 1} tokens of the model's vocabulary, at most {most} are"):
        pipe.generate(f"{words} red")


# -- files of the authors


@pytest.mark.parametrize(
    ("kind", "form", "released"),
    [
        ("target", "lantern", lantern_target),
        ("dynamic trees", "drafter", lantern_drafter),
        ("llamagen", "llamagen", llamagen),
    ],
)
def test_files_that_the_released_code_wrote(kind: str, form: Any, released: Any) -> None:
    """Golden weights were written by the authors' classes: their names and layout are not ours to make up."""
    for case in (parameter.values[0] for parameter in cases(kind) if parameter.values[0]):
        network = released(case)
        blank = blank_network(network.config)
        files = [f.path for f in files_of(case, f"{'target' if form == 'lantern' else form} weights")]
        found = dict(weights_of(blank, files, LAYOUTS[form]))
        assert all(torch.equal(found[k], v) for k, v in network.state_dict().items())


def test_a_tokenizer_that_the_released_code_wrote() -> None:
    for case in (parameter.values[0] for parameter in cases("image tokenizer") if parameter.values[0]):
        files = files_of(case, "image tokenizer weights")
        c = files[0].about["config"]
        sizes = TokenizerSizes(
            c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"], c["codebook_embed_dim"], c["codebook_size"]
        )
        found = dict(weights_of(blank_tokenizer(sizes, 4), [f.path for f in files], LAYOUTS["vq"]))
        wanted = vq_state({k: v for f in files for k, v in f.tensors.items()})
        assert found.keys() == {f"vq.{k}" for k in wanted}
        assert all(torch.equal(found[f"vq.{k}"], v) for k, v in wanted.items())


# -- the program on published models


@pytest.fixture
def pipe(text_model: Path) -> Pipeline:
    return load(TEXT_ID, device="cpu", folder=text_model)


def test_every_method_draws_and_the_record_says_from_what(pipe: Pipeline) -> None:
    assert pipe.available_methods == list(METHODS)
    assert pipe.dtype == sixteen_bits()
    done = [e for _, e in pipe.compare(PROMPT, seed=1) if isinstance(e, Generation)]
    assert {d.method for d in done} == set(pipe.default_methods)
    assert done[0].image.size == (64, 64)
    sources = json.loads(json.dumps(done[0].record))["model"]["sources"]
    assert set(sources) == {"target", "drafter", "tokenizer", "text"}
    assert sources["target"]["local"] == "target" and sources["target"]["file"] == "model.safetensors"
    assert str(Path.home()) not in json.dumps(sources)
    assert pipe.generate(PROMPT, temperature=0).tokens == pipe.generate(PROMPT, "eagle2", temperature=0).tokens


def test_neighbours_are_kept_on_disk(
    pipe: Pipeline, text_model: Path, published_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {kind: pipe.neighbours(kind) for kind in ("raw", "decoder")}
    monkeypatch.setattr("lantern_demo.runs.pipeline.neighbour_table", lambda *_: pytest.fail("made again"))
    again = load(TEXT_ID, device="cpu", folder=text_model)
    assert all(torch.equal(again.neighbours(kind), table) for kind, table in made.items())
    for path in published_cache.glob("tables/*"):
        path.write_bytes(b"damaged")
    monkeypatch.setattr("lantern_demo.runs.pipeline.neighbour_table", neighbour_table)
    assert torch.equal(load(TEXT_ID, device="cpu", folder=text_model).neighbours("raw"), made["raw"])


def test_class_models_draw_vanilla_and_say_how_to_get_more(class_model: Path) -> None:
    pipe = load(CLASS_ID, device="cpu", folder=class_model)
    alone = [method for method in METHODS.values() if not method.needs_drafter]
    lossless = [method.id for method in alone if method.lossless]
    assert pipe.available_methods == [method.id for method in alone] and pipe.default_methods == lossless
    assert len(pipe.generate("goldfish").tokens) == 16
    assert pipe.generate("1").tokens == pipe.generate("goldfish").tokens != pipe.generate("tench").tokens
    assert {m for m, _ in pipe.compare("goldfish")} == set(lossless)
    command = "python -m lantern_demo.training.drafter --target llamagen-c2i-b-256 --out runs/llamagen-c2i-b-256-drafter"
    for call in (lambda: pipe.stream("goldfish", "eagle2"), lambda: pipe.compare("goldfish", ["vanilla", "lantern"])):
        with pytest.raises(ValueError, match=f"needs a drafter, and no drafter comes with {CLASS_ID}; train one: {command}"):
            call()
    with pytest.raises(ValueError, match="prompt must be an ImageNet class"):
        pipe.generate("a red lantern")


def test_a_drafter_trained_here_is_offered(class_model: Path, tmp_path: Path) -> None:
    info = REGISTRY[CLASS_ID]
    config = replace(DRAFTER, prefix=1)
    drafter = Drafter(config).requires_grad_(False).eval()
    checkpoints.save_drafter(tmp_path / "mine", drafter)
    given = load(CLASS_ID, device="cpu", folder=class_model, drafter=tmp_path / "mine")
    assert given.available_methods == list(METHODS)
    assert torch.equal(drafted(given.networks.drafter), drafted(drafter))
    assert not checkpoints.has_drafter(info)
    checkpoints.save_drafter(checkpoints.trained_folder(info), drafter)
    assert checkpoints.has_drafter(info)
    found = load(CLASS_ID, device="cpu", folder=class_model)
    done = found.generate("goldfish", "lantern++", neighbours="decoder")
    assert done.record["model"]["sources"]["drafter"] == {"local": CLASS_ID, "trained": True}
    checkpoints.save_drafter(tmp_path / "other", Drafter(replace(config, grid=8)))
    with pytest.raises(ValueError, match="says grid 8, but the target has 4: it is another model's drafter"):
        load(CLASS_ID, device="cpu", folder=class_model, drafter=tmp_path / "other")
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        load(CLASS_ID, device="cpu", folder=class_model, drafter=tmp_path / "none")


def test_a_folder_without_drafter_says_where_to_put_it(tmp_path: Path) -> None:
    pipe = load(TEXT_ID, device="cpu", folder=write_text_model(tmp_path / "m", drafter=False))
    with pytest.raises(
        ValueError, match=r"holds no drafter of llamagen-t2i-256: put pytorch_model.bin in one of .*llamagen_drafter"
    ):
        pipe.generate(PROMPT, "eagle1")


def test_a_folder_must_hold_target_and_tokenizer(tmp_path: Path, text_model: Path) -> None:
    with pytest.raises(ValueError, match=r"lacks the target of .*put model.safetensors or t2i_XL_stage1_256.pt in one of"):
        load(TEXT_ID, device="cpu", folder=tmp_path)
    with pytest.raises(ValueError, match="folder must be a folder with the published files, got"):
        load(TEXT_ID, device="cpu", folder=tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"folder is for published models; lantern-scenes has its own"):
        load("lantern-scenes", device="cpu", folder=text_model)
