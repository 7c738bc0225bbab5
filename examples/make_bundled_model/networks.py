"""The networks of the bundled model in training, how they begin, and how they become a model
folder.

python examples/make_bundled_model/networks.py --run runs/model --out FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import shutil
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import T5Config

from examples.make_bundled_model.folder import save
from examples.make_bundled_model.world import LONGEST, vocabulary
from lantern_demo.bench.report import parser_of
from lantern_demo.models import bundled
from lantern_demo.models.text import END, PAD, UNKNOWN, TextEncoder
from lantern_demo.scenes import ATTRIBUTES

BUNDLED = Path(__file__).resolve().parents[2] / "lantern_demo" / "bundled" / "lantern-scenes"
PREFIX = LONGEST + 1  # positions of a caption: its words and an end mark
MARKS = (PAD, UNKNOWN, END)  # of a vocabulary, before its words
AHEAD = (1, 2, 4)  # rows below a token that the plan's heads foretell
SHARP, FOLLOWS = 12.0, 0.05  # of `Directions`: its cosines' factor, its mean's share of a batch


def word_tokenizer(words: list[str]) -> Tokenizer:
    """Return a vocabulary of whole words; any other word is unknown.

    Text is put in lower case, and split at white space and punctuation.
    """
    vocabulary = {w: i for i, w in enumerate((*MARKS, *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


class Model(nn.Module):
    """All networks of a model folder, and the heads that only training needs."""

    def __init__(self, begin: Path = BUNDLED) -> None:
        """begin: the model folder whose weights the networks begin with."""
        super().__init__()
        self.before = bundled.load(begin, torch.device("cpu"))
        self.tokenizer, self.picture = self.before.tokenizer, self.before.picture
        self.target, self.drafter = self.before.target, self.before.drafter
        self.text = with_words(self.before.text, vocabulary())
        sizes = self.target.config
        self.words_head = nn.Linear(sizes.dim, sizes.vocab)
        self.names_head = nn.Linear(sizes.dim, sum(map(len, ATTRIBUTES.values())))
        self.reader_head = Directions(sizes.dim, len(ATTRIBUTES["thing"]))
        self.plan_heads = nn.ModuleList(
            nn.Linear(sizes.dim, sizes.vocab, bias=False) for _ in AHEAD
        )
        for head in self.plan_heads:
            head.weight.data.copy_(self.target.lm_head.weight.data)
        self.requires_grad_(True)

    @torch.no_grad()
    def drawn(self, ids: Tensor) -> Tensor:
        """Draw token ids [B, 256] as pictures [B, 3, 256, 256] in [0, 1]."""
        assert self.picture is not None
        pictures: Tensor = self.picture(self.tokenizer.vectors(ids))
        return pictures

    def kept(self) -> dict[str, Tensor]:
        """Return the tensors that a later run continues with, by name."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("tokenizer.")}


class Directions(nn.Module):
    """Names a vector [B, D] by its direction from the running mean of all."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.names = nn.Parameter(torch.randn(classes, dim))
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes]: SHARP times the cosines."""
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), FOLLOWS if self.mean.any() else 1.0)
        return SHARP * F.normalize(x - self.mean, dim=-1) @ F.normalize(self.names, dim=-1).t()


def with_words(old: TextEncoder, words: list[str]) -> TextEncoder:
    """Return a text encoder with the trained layers of another one, and with other words.

    Words that both know keep their vectors.
    """
    config = T5Config(**{**old.encoder.config.to_dict(), "vocab_size": len(words) + len(MARKS)})
    text = TextEncoder(word_tokenizer(words), config, old.length)
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
    return text


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
            told = f"{folder} has a model of other sizes; give --begin of that run"
            raise SystemExit(told) from None
    return bool(found)


def assemble(model: Model, facts: dict[str, Any]) -> bundled.Networks:
    """Return the networks of a model folder, with the trees and settings that it began with."""
    before = model.before
    return bundled.Networks(
        model.text,
        model.target,
        model.drafter,
        model.tokenizer,
        facts,
        picture=model.picture,
        trees=before.trees,
        preset=before.preset,
        palette=before.palette,
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the --out of train.py")
    parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
    parser.add_argument("--begin", type=Path, default=BUNDLED, help="as train.py was given it")
    args = parser.parse_args()
    facts = json.loads((args.run / "facts.json").read_text(encoding="utf-8"))
    model = Model(args.begin)
    if not read(args.run, model):
        raise SystemExit(f"--run {args.run} has no weights of a run")
    save(args.out, assemble(model, facts), eight_bits=True)
    classifier = args.begin / "classifier"  # of lanterns, which stay unchanged
    if classifier.is_dir() and args.out != args.begin:
        shutil.copytree(classifier, args.out / "classifier", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
