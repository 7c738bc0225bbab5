"""The needs of published models: constants that match the networks, refusals, and the dry run."""

import re
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from published import ANOLE_ID, TEXT_ID, write_text_model
from released import golden as golden_file
from tiny import command

from examples.make_bundled_model.folder import published_tensors
from lantern_demo.models import checkpoints, hub
from lantern_demo.models.checkpoints import GIB
from lantern_demo.models.families import LAYOUTS, blank_network, blank_tokenizer
from lantern_demo.models.registry import REGISTRY
from lantern_demo.models.tensors import shapes_of
from lantern_demo.runs.load import load

pytestmark = pytest.mark.usefixtures("published_cache")
FULL = dict(REGISTRY)  # as it is, before tests put small models in the place of some
GPU = torch.device("cuda")
T5_XL = 2_849_757_184  # numbers of flan-t5-xl, of which the encoder stays in memory:
T5_ENCODER = 1_223_527_424


def golden(name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a released class, with names of layers, `x.{i}.y  [i=0..3]`, written out."""
    models = golden_file("state_dict_shapes").about["models"]
    (listed,) = (found for full, found in models.items() if full.startswith(name))
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor, shape in listed["tensors"].items():
        pattern, *layers = re.split(r"\s+\[i=(\d+)\.\.(\d+)\]", tensor)
        numbers = range(int(layers[0]), int(layers[1]) + 1) if layers else range(1)
        shapes |= {pattern.replace("{i}", str(i)): tuple(shape) for i in numbers}
    assert sum(map(prod, shapes.values())) == listed["numel"]
    return shapes


@pytest.mark.parametrize(
    ("model", "part", "form", "released"),
    [
        ("llamagen-t2i-512", "target", "llamagen", "llamagen/GPT-XL/t2i"),
        ("llamagen-t2i-512", "drafter", "drafter", "lantern/llamagen_drafter, llamagen2_drafter"),
        ("llamagen-t2i-512", "tokenizer", "vq", "llamagen/VQ-16"),
        ("anole-7b", "drafter", "drafter", "lantern/anole_drafter"),
        ("anole-7b", "tokenizer", "chameleon-vq", "chameleon/vqgan"),
    ],
)
def test_full_sizes_are_the_released_ones(model: str, part: str, form: str, released: str) -> None:
    of = FULL[model].published
    own = blank_tokenizer(of) if part == "tokenizer" else blank_network(getattr(of, part))
    wanted = golden(released)
    wanted.pop("quantize.codebook_used", None)
    found = published_tensors(own, LAYOUTS[form])
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == wanted


def test_anoles_target_is_the_librarys() -> None:
    """The Hub's files hold transformers' Chameleon, and Chameleon's image tokenizer beside it."""
    config = transformers.ChameleonConfig(vocabulary_map={"<image>": 8711})
    with torch.device("meta"):
        shapes = shapes_of(transformers.ChameleonForConditionalGeneration(config))
    pictures, c = "model.vqmodel.", FULL[ANOLE_ID].published.target
    own = shapes_of(blank_network(c)) | {"lm_head.weight": (c.embeddings, c.dim)}
    wanted = {name: shape for name, shape in shapes.items() if not name.startswith(pictures)}
    assert {LAYOUTS["anole"].published(name, {}): of for name, of in own.items()} == wanted
    encoder = {name for name in shapes if name.startswith(f"{pictures}encoder")}
    vqgan = {f"{pictures}{name}": shape for name, shape in golden("chameleon/vqgan").items()}
    assert encoder and all(shapes[name] == vqgan[name] for name in encoder)


@pytest.mark.parametrize("model", [name for name, info in FULL.items() if info.published])
def test_needs_match_the_networks(model: str) -> None:
    """They are the weights of each part, a race's run, tables and a GiB for all the rest."""
    published = FULL[model].published
    c = published.target
    target = sum(map(prod, shapes_of(blank_network(c)).values()))
    drafter = sum(map(prod, shapes_of(blank_network(published.drafter)).values()))
    pictures = sum(map(prod, shapes_of(blank_tokenizer(published)).values()))
    reads_words = published.sources["text"][0].format != "t5"
    if reads_words:  # the published head has a row for each word
        more = (c.embeddings - c.vocab) * c.dim
        download = 2 * (target + more + pictures) + 4 * drafter
    else:
        download = 4 * (target + drafter + pictures + T5_XL)
    assert published.download == download
    tables = blank_tokenizer(published).codebook_size * 1001 * 4
    rest = 4 * pictures + tables + GIB + (0 if reads_words else 2 * T5_ENCODER)
    run = checkpoints.run_bytes(published, "bfloat16")
    assert published.memory == 2 * (target + drafter) + run + rest


def test_too_little_memory_or_disk_is_said_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: 2**20)
    with pytest.raises(ValueError, match=r"5\.7 GiB of memory in float32, and 1 MiB are free"):
        load("llamagen-t2i-512", device="cpu", dtype="float32")
    anole = FULL[ANOLE_ID].published
    for free, short in ((anole.memory - 1, True), (anole.memory, False), (None, False)):
        monkeypatch.setattr(checkpoints, "free_memory", lambda _, free=free: free)
        assert bool(checkpoints.short_of_memory(anole, GPU, "bfloat16")) == short
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"it needs about 13.9 GiB of disk space at .*, and 0 MiB"):
        load("llamagen-t2i-512", device="cpu")


def test_files_that_are_here_are_not_downloaded_again(
    text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = REGISTRY[TEXT_ID]
    assert checkpoints.to_fetch(info, text_model) == ([], 0)
    folder = write_text_model(tmp_path / "m")
    (folder / "text").rename(tmp_path / "text")
    here = sum(path.stat().st_size for path in folder.rglob("*.*") if path.suffix != ".json")
    assert checkpoints.to_fetch(info, folder) == (["text"], info.published.download - here)
    cached = tmp_path / "vq.pt"
    cached.write_bytes(b"x" * 1000)
    monkeypatch.setattr(hub, "cached", lambda of: (cached,) if of.format == "vq" else ())
    parts, left = checkpoints.to_fetch(info)
    assert parts == ["target", "drafter", "text"] and left == info.published.download - 1000


def test_the_command_says_what_is_here_and_whether_it_fits(
    text_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check(model: str, *options: object) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as left:
            command(checkpoints, "--model", model, "--check", *options)
        return left.value.code, capsys.readouterr().out

    code, out = check(TEXT_ID, "--folder", text_model)
    assert code == 0 and out.count(f": {text_model}") == 4 and "It fits." in out
    folder = write_text_model(tmp_path / "m", drafter=False)
    (folder / "vq_ds16_t2i.pt").unlink()
    code, out = check(TEXT_ID, "--folder", folder)
    assert code == 1
    for part in ("tokenizer", "drafter"):
        assert f"{part}: the folder m holds no {part} of {TEXT_ID}: none of " in out

    monkeypatch.setattr(hub, "cached", lambda _: ())
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: 2**30)
    code, out = check("llamagen-t2i-512")
    assert code == 1 and "Not enough: it needs about" in out and out.count("to download") == 4


def test_the_table_of_models_is_that_of_the_estimates() -> None:
    """docs/models.md has the memory of every published model."""
    text = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    named = [(re.findall(r"`([^`]+)`", row[0]), row) for row in rows if len(row) == 10]
    table = {name: row for names, row in named for name in names}
    assert set(table) == set(FULL)
    for name, info in FULL.items():
        if info.published:
            assert abs(float(table[name][7]) - info.published.memory / GIB) < 0.06, name
