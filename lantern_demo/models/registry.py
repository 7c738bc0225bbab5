"""The models on offer: their sizes, presets, and the sources of the published ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from lantern_demo.models.anole.drafter import AnoleDrafterConfig
from lantern_demo.models.anole.target import AnoleConfig
from lantern_demo.models.common import DrafterSizes, TargetSizes
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.llamagen.drafter import DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.machine.device import pick_dtype
from lantern_demo.models.machine.matmul import sixteen_bits

BUNDLED = Path(__file__).resolve().parent.parent / "bundled"
VOCAB = 16384  # image tokens of every published LlamaGen model

Part = Literal["target", "drafter", "tokenizer", "text"]
DRAFTER_FILES = ("pytorch_model.bin", "model.safetensors")  # published, and of LANTERN's training


@dataclass(frozen=True)
class Source:
    """Published files: a Hub repository, its files to take, and the naming of their tensors (see
    `families.LAYOUTS`).
    """

    repo: str
    weights: str  # a file name; for several files a pattern with one *
    format: str
    beside: tuple[str, ...] = ()  # further files, such as config.json
    # a branch, tag or commit; LANTERN_REVISIONS overrides it (see `hub.revision_of`)
    revision: str = "main"
    number_bytes: int = 4  # bytes of a number in these files, as far as is known


@dataclass(frozen=True)
class TokenizerSizes:
    """Sizes of a VQ network; the defaults are those of LlamaGen's VQ-16."""

    channels: int = 128
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)
    blocks: int = 2
    latent: int = 256
    dim: int = 8  # of a codebook vector
    codebook: int = VOCAB
    kind: Literal["llamagen", "chameleon"] = "llamagen"


@dataclass(frozen=True)
class TextSizes:
    """Sizes of a T5 text encoder; the defaults are those of flan-t5-xl.

    Loading reads them from its config.json instead.
    """

    width: int = 2048
    layers: int = 24
    heads: int = 32
    head: int = 64
    ffn: int = 5120
    vocab: int = 32128


@dataclass(frozen=True)
class Words:
    """A text vocabulary without an encoder: the target reads the prompt's tokens itself.

    Its file holds no tensors.
    """


@dataclass(frozen=True)
class Published:
    """The parts of a published model, and their sources.

    A part's first source is downloaded; the others are accepted in a local folder.
    """

    target: TargetSizes[Any]
    sources: Mapping[Part, tuple[Source, ...]]
    drafter: DrafterSizes[Any] | None = None
    tokenizer: TokenizerSizes = TokenizerSizes()
    text: TextSizes | Words | None = None
    # Default number format on a CPU of a family without fused models: in the published one weights
    # stay in their files. None: fused models run, in the fastest format in 16 bits.
    on_cpu: str | None = None


@dataclass(frozen=True)
class ModelInfo:
    """One model on offer.

    `preset` holds the settings that differ from the defaults. A model either lies in a folder of
    the bundled model's format or is `published` in files of its authors'. `kind` is the kind of
    prompt: a text, or one of the classes that the model knows.
    """

    id: str
    title: str
    description: str
    image_size: int  # pixels a side
    grid: int  # tokens a side
    max_prompt: int  # characters
    folder: Path | None = None
    preset: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["text", "class"] = "text"
    published: Published | None = None
    prompts: tuple[str, ...] = ()  # prompts that suit it; if empty, the page's
    licence: str | None = None  # licence of its weights, as a sentence, if users have to know it

    @property
    def tokens(self) -> int:
        return self.grid * self.grid

    @property
    def vocabulary(self) -> frozenset[str] | None:
        """The words of a prompt that the model knows.

        None for a model of any text, and for a folder without a readable list of
        words: loading the model reports the fault."""
        return None if self.folder is None else _words_of(self.folder / "words.json")

    def check_length(self, prompt: str) -> None:
        """Raise ValueError for a prompt of more than `max_prompt` characters."""
        if len(prompt) > self.max_prompt:
            raise ValueError(
                f"prompt has {len(prompt)} characters, at most {self.max_prompt} are allowed"
            )

    def dtype(self, asked: str, device: torch.device) -> str:
        """Return the number format of target and drafter on a device, for a name or "auto".

        Raise ValueError as in `pick_dtype`.
        """
        if self.published is None:
            return pick_dtype(asked, device, large=False)
        on_cpu = self.published.on_cpu
        return pick_dtype(asked, device, large=True, on_cpu=on_cpu or sixteen_bits())


def _drafter(repo: str) -> tuple[Source, ...]:
    """Return the sources of a drafter of LANTERN's."""
    return tuple(Source(repo, file, "drafter", ("config.json",)) for file in DRAFTER_FILES)


BASE: dict[str, Any] = {"dim": 768, "layers": 12, "heads": 12, "ffn": 2048}
LARGE: dict[str, Any] = {"dim": 1024, "layers": 24, "heads": 16, "ffn": 2816}
XL: dict[str, Any] = {"dim": 1280, "layers": 36, "heads": 20, "ffn": 3584}
PAPER: dict[str, Any] = {
    "lantern_k": 1000,
    "lantern_delta": 0.2,
    "lanternpp_k": 10,
    "lanternpp_lambda": 3.0,
}


def _text_to_image(stage: str, size: int, target: str, original: str, drafter: str) -> ModelInfo:
    """Return a text-to-image model of LlamaGen with LANTERN's drafter, as in the papers of LANTERN
    and LANTERN++.
    """
    grid = size // 16
    return ModelInfo(
        id=f"llamagen-t2i-{size}",
        title=f"LlamaGen-XL, text to image, {size} px",
        description=(
            f"LlamaGen-XL (stage {stage}) as LANTERN runs it, with LANTERN's drafter and the flan-t5-xl text encoder. "
            f"It draws {size} x {size} pixels from any English text."
        ),
        image_size=size,
        grid=grid,
        max_prompt=1000,
        # The published neighbour table compares the stored vectors.
        preset={"cfg_scale": 7.5, "top_k": 1000, "neighbours": "raw", **PAPER},
        published=Published(
            target=LlamaGenConfig(
                **XL, vocab=VOCAB, grid=grid, prefix=120, caption_dim=2048, padding="released"
            ),
            drafter=DrafterConfig(
                dim=XL["dim"], heads=XL["heads"], ffn=XL["ffn"], vocab=VOCAB, grid=grid, prefix=120
            ),
            text=TextSizes(),
            sources={
                "target": (
                    Source(f"jadohu/{target}", "model.safetensors", "lantern", ("config.json",)),
                    Source("peizesun/llamagen_t2i", original, "llamagen"),
                ),
                "drafter": _drafter(f"jadohu/{drafter}"),
                "tokenizer": (Source("peizesun/llamagen_t2i", "vq_ds16_t2i.pt", "vq"),),
                "text": (
                    Source(
                        "google/flan-t5-xl",
                        "model*.safetensors",
                        "t5",
                        ("config.json", "tokenizer.json"),
                    ),
                ),
            },
        ),
    )


def _class_to_image(letter: str, size: int, sizes: dict[str, Any]) -> ModelInfo:
    """Return a class-conditional model of LlamaGen. No drafter is published for any of them."""
    return ModelInfo(
        id=f"llamagen-c2i-{letter.lower()}-{size}",
        title=f"LlamaGen-{letter}, ImageNet classes, {size} px",
        description=(
            f"LlamaGen-{letter}, which draws {size} x {size} pixels of one of the 1,000 ImageNet classes, named or numbered. "
            "Vanilla only, until a drafter is trained for it."
        ),
        image_size=size,
        grid=size // 16,
        max_prompt=200,
        preset={"cfg_scale": 4.0, **PAPER},
        kind="class",
        published=Published(
            target=LlamaGenConfig(**sizes, vocab=VOCAB, grid=size // 16, prefix=1, classes=1000),
            sources={
                "target": (
                    Source("FoundationVision/LlamaGen", f"c2i_{letter}_{size}.pt", "llamagen"),
                ),
                "tokenizer": (Source("FoundationVision/LlamaGen", "vq_ds16_c2i.pt", "vq"),),
            },
        ),
    )


def _anole() -> ModelInfo:
    """Return Anole-7B with LANTERN's drafter: the second family of the papers of LANTERN and
    LANTERN++.
    """
    hub, shards = "leloy/Anole-7b-v0.1-hf", "model-*.safetensors"
    return ModelInfo(
        id="anole-7b",
        title="Anole-7B, text to image, 512 px",
        description=(
            "Anole-7B, a Chameleon transformer whose image tokens are words of its vocabulary, with LANTERN's drafter. "
            "It draws 512 x 512 pixels from any English text, which it reads itself."
        ),
        image_size=512,
        grid=32,
        max_prompt=1000,
        preset={"cfg_scale": 3.0, "top_k": 2000, **PAPER},
        published=Published(
            target=AnoleConfig(),
            drafter=AnoleDrafterConfig(),
            tokenizer=TokenizerSizes(dim=256, codebook=8192, kind="chameleon"),
            text=Words(),
            sources={
                "target": (Source(hub, shards, "anole", ("config.json",), number_bytes=2),),
                "drafter": _drafter("jadohu/anole_drafter"),
                "tokenizer": (
                    Source(hub, shards, "anole-vq", ("config.json",), number_bytes=2),
                    Source("GAIR/Anole-7b-v0.1", "tokenizer/vqgan.ckpt", "chameleon-vq"),
                    Source("facebookresearch/chameleon", "tokenizer/vqgan.ckpt", "chameleon-vq"),
                ),
                "text": (
                    Source(hub, "tokenizer.json", "words"),
                    Source("GAIR/Anole-7b-v0.1", "tokenizer/text_tokenizer.json", "words"),
                    Source("facebookresearch/chameleon", "tokenizer/text_tokenizer.json", "words"),
                ),
            },
        ),
    )


def _janus(size: str, target: JanusConfig, files: str) -> ModelInfo:
    """Return a Janus-Pro of DeepSeek's.

    Its own files are fetched; transformers' conversion of them may lie in a local folder.
    """
    authors, library, config = (
        f"deepseek-ai/Janus-Pro-{size}",
        f"deepseek-community/Janus-Pro-{size}",
        ("config.json",),
    )
    sources: dict[Part, tuple[Source, ...]] = {
        "target": (
            Source(authors, files, "janus", config, number_bytes=2),
            Source(library, "model*.safetensors", "janus-library", config, number_bytes=2),
        ),
        "tokenizer": (
            Source(authors, files, "janus-vq", config, number_bytes=2),
            Source(library, "model*.safetensors", "janus-library-vq", config, number_bytes=2),
        ),
        "text": (
            Source(authors, "tokenizer.json", "words"),
            Source(library, "tokenizer.json", "words"),
        ),
    }
    return ModelInfo(
        id=f"janus-pro-{size.lower()}",
        title=f"Janus-Pro {size}, text to image, 384 px",
        description=(
            f"DeepSeek's Janus-Pro {size}, a language model that draws 384 x 384 pixels from any text, which it reads itself. "
            "It has no drafter until one is trained. It has not been tried with the published weights."
        ),
        image_size=384,
        grid=24,
        max_prompt=1000,
        preset={"cfg_scale": 5.0, **PAPER},
        published=Published(target=target, sources=sources, text=Words()),
        prompts=(
            "a glass of red wine on a wooden table, warm evening light",
            "a red fox in autumn leaves, close-up photo",
            "an astronaut in a jungle, cold colours, detailed painting",
            "a small harbour town at sunrise, watercolour",
        ),
        licence=(
            "Its weights are under the DeepSeek License Agreement 1.0, which restricts what they may be used for; its code is "
            "under MIT."
        ),
    )


_ROWS = (
    ModelInfo(
        id="lantern-scenes",
        title="lantern-scenes (bundled)",
        description=(
            "A small model of the LlamaGen family that ships with this code. It draws paper lanterns: one to four, in six "
            "colours, round, box or sky lanterns, over a lake, hills or a plain, at dusk, night or dawn."
        ),
        folder=BUNDLED / "lantern-scenes",
        image_size=256,
        grid=16,
        max_prompt=200,
        # These lie in the papers' ranges, and make both methods change about 1 in 10 tokens.
        preset={
            "cfg_scale": 3.0,
            "lantern_k": 100,
            "lantern_delta": 0.2,
            "lanternpp_k": 10,
            "lanternpp_lambda": 4.0,
        },
    ),
    _text_to_image("I", 256, "LlamaGen-T2I", "t2i_XL_stage1_256.pt", "llamagen_drafter"),
    _text_to_image("II", 512, "LlamaGen-T2I-2", "t2i_XL_stage2_512.pt", "llamagen2_drafter"),
    _class_to_image("B", 256, BASE),
    _class_to_image("B", 384, BASE),
    _class_to_image("L", 256, LARGE),
    _class_to_image("L", 384, LARGE),
    _class_to_image("XL", 384, XL),
    _anole(),
    _janus("1B", JanusConfig(dim=2048, heads=16, ffn=5632, layers=24), "pytorch_model.bin"),
    _janus("7B", JanusConfig(), "pytorch_model-*.bin"),
)

REGISTRY: dict[str, ModelInfo] = {info.id: info for info in _ROWS}


@cache
def _words_of(path: Path) -> frozenset[str] | None:
    try:
        return frozenset(json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def model_info(model: Any) -> ModelInfo:
    """Return the model of an id. Raise ValueError naming the value and the allowed ones."""
    if not isinstance(model, str) or model not in REGISTRY:
        raise ValueError(f"model must be one of {', '.join(REGISTRY)}, got {str(model)[:80]!r}")
    return REGISTRY[model]
