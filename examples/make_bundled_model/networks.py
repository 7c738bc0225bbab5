"""The networks of the bundled model in training, how they begin, and how they become a model
folder.

python examples/make_bundled_model/networks.py --run runs/model --out FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import T5Config

from examples.make_bundled_model.folder import save, save_part
from examples.make_bundled_model.world import LONGEST, vocabulary
from examples.quality.classifier import AttributeClassifier
from examples.train_drafter.teaching import drafter_sizes
from lantern_demo.bench.report import parser_of
from lantern_demo.models import bundled
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.registry import LlamaGenConfig, model_info
from lantern_demo.models.text import END, PAD, UNKNOWN, TextEncoder
from lantern_demo.scenes import ATTRIBUTES

BUNDLED = Path(__file__).resolve().parents[2] / "lantern_demo" / "bundled" / "lantern-scenes"
PREFIX = LONGEST + 1  # positions of a caption: its words and an end mark


def word_tokenizer(words: list[str]) -> Tokenizer:
    """Return a vocabulary of whole words; any other word is unknown.

    Text is put in lower case, and split at white space and punctuation.
    """
    vocabulary = {w: i for i, w in enumerate((PAD, UNKNOWN, END, *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def small_t5(vocabulary: int, width: int = 256, layers: int = 2) -> T5Config:
    """Return the configuration of the bundled text encoder."""
    return T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=64,
        num_heads=width // 64,
        d_ff=2 * width,
        num_layers=layers,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        pad_token_id=0,
        eos_token_id=2,
    )


class Model(nn.Module):
    """All networks, and two heads that only training needs."""

    def __init__(self, layers: int, ffn: int, begin: Path = BUNDLED) -> None:
        """layers: of the target. ffn: width of the drafter's feed-forward half.

        begin: the model folder whose weights the networks begin with.
        """
        super().__init__()
        old = bundled.load(begin, torch.device("cpu"))
        self.tokenizer, self.picture = old.tokenizer, old.picture
        words = word_tokenizer(vocabulary())
        self.text = TextEncoder(words, small_t5(words.get_vocab_size()), PREFIX)
        _start_text(self.text, old.text)
        self.target = grown(old.target, layers, PREFIX)
        taps = (layers // 3, 2 * layers // 3)
        sizes = self.target.config
        self.drafter = Drafter(drafter_sizes(sizes, ffn, guided=True, feature_layers=taps))
        self.drafter.embed_tokens.weight.data.copy_(self.target.embed_tokens.weight)
        self.classifier = AttributeClassifier(ATTRIBUTES)
        self.words_head = nn.Linear(sizes.dim, sizes.vocab)
        self.names_head = nn.Linear(sizes.dim, len(ATTRIBUTES["thing"]))
        self.requires_grad_(True)

    @torch.no_grad()
    def drawn(self, ids: Tensor) -> Tensor:
        """Draw token ids [B, 256] as pictures [B, 3, 256, 256] in [0, 1]."""
        assert self.picture is not None
        pictures: Tensor = self.picture(self.tokenizer.vectors(ids))
        return pictures

    def shipped(self) -> dict[str, Tensor]:
        """Return the tensors that decoding and its checks need, by name."""
        heads = ("words_head", "names_head", "tokenizer.vq.decoder")
        return {k: v for k, v in self.state_dict().items() if not k.startswith(heads)}


def _start_text(text: TextEncoder, old: TextEncoder) -> None:
    """Give the text encoder the trained layers of an older one, and the words that both know."""
    state = old.encoder.state_dict()
    table = 0.1 * torch.randn_like(text.encoder.shared.weight)
    known = old.tokenizer.get_vocab()
    for word, row in text.tokenizer.get_vocab().items():
        if word in known:
            table[row] = state["shared.weight"][known[word]]
    state |= {
        name: table for name in state if name in ("shared.weight", "encoder.embed_tokens.weight")
    }
    text.encoder.load_state_dict(state)


def grown(target: LlamaGen, layers: int, prefix: int) -> LlamaGen:
    """Return a target of more layers that computes nearly the same, for captions of `prefix`
    positions.

    Its blocks are those of the target, in order. All but the first and the last are written
    several times, each time with a part of their output projections: finer steps of the same
    flow (arXiv 1710.10348). Raise SystemExit if the target has more layers already.
    """
    before = target.config
    if layers < before.layers:
        raise SystemExit(f"--layers must be at least {before.layers}, got {layers}")
    deep = LlamaGen(LlamaGenConfig(**{**vars(before), "layers": layers, "prefix": prefix}))
    old = target.state_dict()
    weights = {k: w for k, w in old.items() if not k.startswith("layers.")}
    nothing = weights["cls_embedding.uncond_embedding"]
    missing = nothing[-1:].expand(max(0, prefix - len(nothing)), -1)
    weights["cls_embedding.uncond_embedding"] = torch.cat((nothing, missing))[:prefix]
    origins = origins_of(before.layers, layers)
    for block, origin in enumerate(origins):
        start = f"layers.{origin}."
        for name in (n for n in old if n.startswith(start)):
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            part = old[name] / origins.count(origin) if adds else old[name].clone()
            weights[f"layers.{block}.{name.removeprefix(start)}"] = part
    deep.load_state_dict(weights)
    return deep


def origins_of(before: int, layers: int) -> list[int]:
    """Return the old block, counted from 0, that each of `layers` blocks is written from."""
    inner, new = before - 2, layers - 2
    return [0, *(1 + block * inner // new for block in range(new)), before - 1]


@contextmanager
def left_out(target: LlamaGen, block: int | None) -> Iterator[None]:
    """Let a target run without one of its blocks, counted from 0, or whole for None."""
    layers = target.layers
    target.layers = nn.ModuleList(b for i, b in enumerate(layers) if i != block)
    try:
        yield
    finally:
        target.layers = layers


def read(folder: Path, model: Model) -> bool:
    """Read the weights that a run has written. Return False if it has written none.

    Raise SystemExit with a sentence if they are of other sizes.
    """
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("weights-*.pt")):
        found |= torch.load(path, map_location="cpu", weights_only=True)
    if found:
        try:
            model.load_state_dict(model.state_dict() | found)
        except RuntimeError:
            told = f"{folder} has a model of other sizes; give --layers and --ffn of that run"
            raise SystemExit(told) from None
    return bool(found)


def assemble(model: Model, facts: dict[str, Any]) -> bundled.Networks:
    """Return the networks of a model folder."""
    return bundled.Networks(
        model.text,
        model.target,
        model.drafter,
        model.tokenizer,
        facts,
        picture=model.picture,
        preset=dict(model_info("lantern-scenes").preset),  # as its target has learnt guidance
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the --out of train.py")
    parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
    parser.add_argument("--begin", type=Path, default=BUNDLED, help="as train.py was given it")
    args = parser.parse_args()
    facts = json.loads((args.run / "facts.json").read_text(encoding="utf-8"))
    model = Model(facts["layers"], facts["ffn"], args.begin)
    read(args.run, model)
    save(args.out, assemble(model, facts), eight_bits=True)
    save_part(args.out / "classifier", model.classifier, torch.float16)


if __name__ == "__main__":
    main()
