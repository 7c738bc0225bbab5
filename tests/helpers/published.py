"""Small models with random weights in the files, and by the names, that others publish."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tiny import strong
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram, WordLevel
from torch import Tensor, nn

from examples.make_bundled_model.folder import published_tensors
from lantern_demo.models import registry as known
from lantern_demo.models.anole import Anole, AnoleDrafter, ChameleonTokenizer
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.tokenizer import ImageTokenizer

# whose files the small models imitate
TEXT_ID, ANOLE_ID = "llamagen-t2i-256", "anole-7b"
GRID, VOCAB, DIM, WIDTH = 4, 64, 64, 32
EPS = 3e-5  # of the target, and what its config.json says; no default anywhere
SIZES: dict[str, Any] = {"dim": DIM, "heads": 2, "ffn": 96, "vocab": VOCAB, "grid": GRID}
SIZES["eps"] = EPS
TARGET = known.LlamaGenConfig(**SIZES, layers=2, prefix=120, caption_dim=WIDTH, padding="released")
# as LlamaGen's own files are read, which say nothing of eps
OWN = replace(TARGET, eps=1e-5)
DRAFTER = known.DrafterConfig(**{**SIZES, "eps": 2e-6}, prefix=120)
PICTURES: dict[str, Any] = {"base_channels": 32, "channel_multiplier": [1] * 5}
PICTURES |= {"num_res_blocks": 1, "latent_channels": 32, "num_embeddings": VOCAB}
# Anole's marks have the ids they have, so that its vocabulary is never small.
ANOLE_SIZES: dict[str, Any] = {**SIZES, "embeddings": 8730, "prefix": 40, "rope_base": 5000.0}
ANOLE = known.AnoleConfig(**ANOLE_SIZES, layers=2)
ANOLE_DRAFTER = known.AnoleDrafterConfig(**{**ANOLE_SIZES, "eps": 2e-6})
ANOLE_PICTURES = PICTURES | {"embed_dim": 24}
# ids from 8712
ANOLE_WORDS = ("a", "red", "lantern", "over", "lake", "the", "at", "dusk", "blue", "night")
# What the registry knows of them: not what the files say of eps and theta.
PARTS: dict[str, dict[str, Any]] = {
    TEXT_ID: {"target": replace(TARGET, eps=1e-5), "drafter": replace(DRAFTER, eps=1e-6)},
    ANOLE_ID: {
        "target": replace(ANOLE, eps=1e-5, rope_base=10000.0),
        "drafter": replace(ANOLE_DRAFTER, eps=1e-5, rope_base=10000.0),
        "tokenizer": ANOLE_PICTURES,
    },
}


def tiny_info(model: str) -> known.ModelInfo:
    """The registry's entry, with its sources, for what the functions below write of a model."""
    info, parts = known.REGISTRY[model], {"tokenizer": PICTURES, **PARTS[model]}
    needs = {"download": 2**24, "memory": 2**30}
    published = known.Published(sources=info.published.sources, **needs, **parts)
    preset = {**info.preset, "lantern_k": 20, "tree": "small", "top_k": 0}
    return replace(info, image_size=16 * GRID, grid=GRID, preset=preset, published=published)


def networks(config: Any = TARGET) -> tuple[LlamaGen, Drafter, ImageTokenizer]:
    """Random networks, always the same, strong enough that prompts and tokens matter."""
    torch.manual_seed(0)
    pictures = transformers.JanusVQVAEConfig(**PICTURES, num_patches=GRID)
    return _ready(LlamaGen(config), Drafter(DRAFTER), ImageTokenizer(pictures))


def anole_networks() -> tuple[Anole, AnoleDrafter, ChameleonTokenizer]:
    """The same of Anole's family."""
    torch.manual_seed(0)
    pictures = transformers.JanusVQVAEConfig(**ANOLE_PICTURES, num_patches=GRID)
    return _ready(Anole(ANOLE), AnoleDrafter(ANOLE_DRAFTER), ChameleonTokenizer(pictures))


def _ready(target: Any, drafter: Any, tokenizer: Any) -> tuple[Any, Any, Any]:
    return strong(target), strong(drafter), tokenizer.requires_grad_(False).eval()


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def tensors_of(network: nn.Module, form: str) -> dict[str, Tensor]:
    """A network under the names of a published format; golden files tell whether they are right."""
    return published_tensors(network, LAYOUTS[form])


def write_vq(folder: Path, tokenizer: ImageTokenizer) -> None:
    """LlamaGen's image tokenizer, with the buffer that its files carry along."""
    tensors = tensors_of(tokenizer, "vq") | {"quantize.codebook_used": torch.zeros(65536)}
    torch.save({"model": tensors}, folder / "vq_ds16_t2i.pt")


# What is read of the config.json of both targets.
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": EPS}


def write_text_model(folder: Path, drafter: bool = True) -> Path:
    """A local folder with LANTERN's target and drafter, LlamaGen's tokenizer and a T5."""
    target, small, tokenizer = networks()
    for part in ("target", "drafter", "text"):
        (folder / part).mkdir(parents=True)
    weights = folder / "target" / "model.safetensors"
    save_file(tensors_of(target, "lantern"), weights, {"format": "pt"})
    sizes = {"block_size": GRID**2, "cls_token_num": 120}
    write_json(weights.with_name("config.json"), HEADS | sizes)
    if drafter:
        torch.save(small.state_dict(), folder / "drafter" / "pytorch_model.bin")
        own = {"rms_norm_eps": DRAFTER.eps, "num_attention_heads": 2}
        write_json(folder / "drafter" / "config.json", own)
    write_vq(folder, tokenizer)
    write_t5(folder / "text")
    return folder


def write_shards(tensors: dict[str, Tensor], folder: Path, count: int) -> None:
    """Tensors in the files of a sharded Hub repository, and their index."""
    names, where = sorted(tensors), {}
    for i in range(count):
        file = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
        some = {name: tensors[name].contiguous() for name in names[i::count]}
        save_file(some, folder / file, {"format": "pt"})
        where |= dict.fromkeys(names[i::count], file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": where})


def write_anole(folder: Path) -> Path:
    """A local folder with Anole's conversion in two shards, and LANTERN's drafter."""
    target, small, tokenizer = anole_networks()
    hub = folder / "Anole-7b-v0.1-hf"
    hub.mkdir(parents=True)
    tensors = tensors_of(target, "anole") | tensors_of(tokenizer, "anole-vq")
    head = torch.randn(ANOLE.embeddings, ANOLE.dim)  # with rows for the whole vocabulary
    head[4 : 4 + ANOLE.vocab] = tensors["lm_head.weight"]
    write_shards(tensors | {"lm_head.weight": head}, hub, 2)
    more = {"swin_norm": False, "vocab_size": ANOLE.embeddings}
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    write_json(hub / "config.json", HEADS | more | theta)
    write_vocabulary(hub / "tokenizer.json")
    (folder / "anole_drafter").mkdir()
    torch.save(small.state_dict(), folder / "anole_drafter" / "pytorch_model.bin")
    config = {"rms_norm_eps": ANOLE_DRAFTER.eps, "rope_theta": 5000.0, "num_attention_heads": 2}
    write_json(folder / "anole_drafter" / "config.json", config)
    return folder


def write_vocabulary(path: Path) -> None:
    """A tokenizer of a few words with Chameleon's marks, which puts a start mark before a text."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {"<eoss>": 8196, "<racm3:break>": 8197, "<reserved08706>": 8710}
    letters = str.maketrans("0123456789", "ABCDEFGHIJ")
    vocabulary |= {f"IMGIMG{str(code).translate(letters)}Z": 4 + code for code in range(VOCAB)}
    vocabulary |= {word: 8712 + i for i, word in enumerate(ANOLE_WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    start = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.post_processor = start
    tokenizer.save(str(path))


def write_llamagen(folder: Path) -> Path:
    """The same without a drafter in LlamaGen's own files, with the leavings of its training."""
    target, _, tokenizer = networks(OWN)
    write_t5(folder / "t5-ckpt" / "flan-t5-xl")
    state = {**tensors_of(target, "llamagen"), "freqs_cis": torch.zeros(3)}
    leavings = {"steps": 7, "args": Namespace(cfg=4.0), "optimizer": {"state": {}}}
    torch.save({"model": state, **leavings}, folder / "t2i_XL_stage1_256.pt")
    write_vq(folder, tokenizer)
    return folder


def write_t5(folder: Path) -> transformers.T5ForConditionalGeneration:
    """A whole T5 with a small tokenizer.json, as on the Hub, its weights in two shards."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    sizes = {"d_model": WIDTH, "num_layers": 1, "num_heads": 2, "d_kv": 16, "d_ff": 48}
    sizes |= {"vocab_size": 40, "decoder_start_token_id": 0}
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu")
    model = transformers.T5ForConditionalGeneration(config).eval()
    config.save_pretrained(folder)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    del state["encoder.embed_tokens.weight"]  # one tensor of several names
    write_shards(state, folder, 2)
    write_tokenizer(folder / "tokenizer.json")
    return model


def write_tokenizer(path: Path) -> None:
    """A tokenizer of letters and a few words, of the kind that T5 has."""
    words = ["▁", "▁red", "▁lantern", "▁lake", *ascii_lowercase]
    marks = [(mark, 0.0) for mark in ("<pad>", "</s>", "<unk>")]
    vocabulary = marks + [(word, -float(place)) for place, word in enumerate(words, 1)]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    marked = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])
    end = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.post_processor = end
    tokenizer.save(str(path))


def assert_same(found: Any, wanted: Any) -> None:
    """A network of the same class with the same weights and rotary table, bit for bit."""
    assert type(found) is type(wanted) and torch.equal(found.rope, wanted.rope)
    same_weights(found, wanted)


def same_weights(found: nn.Module, wanted: nn.Module) -> None:
    own, weights = found.state_dict(), wanted.state_dict()
    assert own.keys() == weights.keys()
    assert all(torch.equal(own[name], weight) for name, weight in weights.items())
