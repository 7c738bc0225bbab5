"""The models by id, as data: sizes, presets, the sources of published files, their needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

BUNDLED = Path(__file__).resolve().parent.parent / "bundled"
VOCAB = 16384  # image tokens of every published LlamaGen model

Part = Literal["target", "drafter", "tokenizer", "text"]
DRAFTER_FILES = ("pytorch_model.bin", "model.safetensors")  # published, and of LANTERN's training


# -- sizes of networks


@dataclass(frozen=True)
class Sizes:
    """The configuration of a target or of its drafter, a class per family.

    The defaults are about those of the bundled model.
    """

    dim: int = 256
    layers: int = 12
    heads: int = 4
    ffn: int = 768  # width of the SwiGLU; published: 2/3 of 4 dim, rounded up to a multiple of 256
    vocab: int = 2048  # image tokens
    grid: int = 16  # image tokens a side
    prefix: int = 24  # positions before the image tokens
    rope_base: float = 10000.0
    eps: float = 1e-5  # of the norms

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def tokens(self) -> int:
        """Image tokens of one picture."""
        return self.grid * self.grid


@dataclass(frozen=True)
class LlamaGenConfig(Sizes):
    """Sizes of a LlamaGen."""

    caption_dim: int = 256  # width of the text features
    # Positions that padded prompt positions attend to. The published classes differ, and drafters
    # read these rows: "self" LlamaGen; "released" LANTERN's target, where it depends on the dtype.
    padding: Literal["self", "released"] = "self"


@dataclass(frozen=True)
class DrafterConfig(Sizes):
    """Sizes of LlamaGen's drafter."""

    layers: int = 1
    eps: float = 1e-6
    bias: bool = True  # of fc, the layer that joins a token and a hidden state
    # Whether it drafts one row, from guided states `uncond + scale (cond - uncond)`, instead of the
    # two published rows. The head is linear, so the logits of such a state are the guided ones.
    # Half the work, but it must be trained so.
    guided: bool = False
    # Blocks of the target, counted from 1, whose normalised outputs it reads with the final states;
    # published: empty. The target has not seen a node of a draft tree, which therefore reads its
    # parent's output again instead.
    feature_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # JSON only has lists
        object.__setattr__(self, "feature_layers", tuple(self.feature_layers))


@dataclass(frozen=True)
class AnoleConfig(Sizes):
    """Sizes of an Anole; the defaults are the published ones."""

    dim: int = 4096
    layers: int = 32
    heads: int = 32
    ffn: int = 11008
    vocab: int = 8192  # the image tokens in its vocabulary
    grid: int = 32
    prefix: int = 256  # positions of the longest prompt, its marks included
    embeddings: int = 65536  # the whole vocabulary


@dataclass(frozen=True)
class AnoleDrafterConfig(AnoleConfig):
    """Sizes of Anole's drafter."""

    layers: int = 1
    bias: bool = True  # of fc
    feature_layers: ClassVar[tuple[int, ...]] = ()  # this family has no such drafters


DrafterSizes = DrafterConfig | AnoleDrafterConfig  # of all families


def check_feature_layers(feature_layers: Sequence[int], layers: int) -> None:
    """Raise ValueError unless these are increasing numbers of a target's blocks, 1 to `layers`."""
    named = all(type(layer) is int and 1 <= layer <= layers for layer in feature_layers)
    if not named or list(feature_layers) != sorted(set(feature_layers)):
        raise ValueError(
            f"feature layers are {list(feature_layers)}; they must be numbers of the target's "
            f"blocks, from 1 to {layers}, each above the one before"
        )


def check_drafter(drafter: DrafterSizes, target: Sizes) -> None:
    """Raise ValueError with the first difference unless a drafter was made for a target."""
    for name in ("dim", "vocab", "grid", "prefix"):
        own, wanted = getattr(drafter, name), getattr(target, name)
        if own != wanted:
            raise ValueError(
                f"says {name} {own}, but the target has {wanted}: it is another model's drafter"
            )
    try:
        check_feature_layers(drafter.feature_layers, target.layers)
    except ValueError as error:
        raise ValueError(f"is another model's drafter: its {error}") from None


# -- sources and needs of published models


@dataclass(frozen=True)
class Source:
    """Published files: a Hub repository, its files to take, and their format.

    The format names a layout of `families.LAYOUTS`; a tokenizer.json alone needs none.
    """

    repo: str
    weights: str  # a file name; for several files a pattern with one *
    format: str
    beside: tuple[str, ...] = ()  # further files, such as config.json


@dataclass(frozen=True)
class Published:
    """The parts of a published model, and their sources.

    A part's first source is downloaded; the others are accepted in a local folder. Bytes are
    estimated from the shapes of the tensors.
    """

    target: Sizes
    drafter: DrafterSizes
    sources: Mapping[Part, tuple[Source, ...]]
    download: int  # bytes
    memory: int  # bytes of a loaded and running model in 16 bits, with room for one run
    # fields of the image tokenizer's JanusVQVAEConfig that differ from LlamaGen's VQ-16
    tokenizer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelInfo:
    """One model on offer.

    `preset` holds the settings that differ from the defaults. A model either lies in a folder of
    the bundled model's format or is `published` in files of its authors'.
    """

    id: str
    title: str
    description: str
    image_size: int  # pixels a side
    grid: int  # tokens a side
    max_prompt: int  # characters
    folder: Path | None = None
    preset: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None

    @property
    def tokens(self) -> int:
        return self.grid * self.grid

    @property
    def vocabulary(self) -> frozenset[str] | None:
        """The words of a prompt that the model knows.

        None for a model of any text, and for a folder without a readable list of
        words: loading the model reports the fault."""
        return None if self.folder is None else _words_of(self.folder / "words.json")


def _drafter(repo: str) -> tuple[Source, ...]:
    """Return the sources of a drafter of LANTERN's."""
    return tuple(Source(repo, file, "drafter", ("config.json",)) for file in DRAFTER_FILES)


# sizes of LlamaGen-XL and of its drafter
XL: dict[str, Any] = {"dim": 1280, "heads": 20, "ffn": 3584, "vocab": VOCAB, "prefix": 120}
# the papers' settings
PAPER: dict[str, Any] = {
    "lantern_k": 1000,
    "lantern_delta": 0.2,
    "lanternpp_k": 10,
    "lanternpp_lambda": 3.0,
}
ANOLE, ANOLE_SHARDS = "leloy/Anole-7b-v0.1-hf", "model-*.safetensors"


def _text_to_image(
    stage: str, size: int, target: str, original: str, drafter: str, memory: int
) -> ModelInfo:
    """Return a text-to-image model of LlamaGen, with LANTERN's drafter, as in both papers."""
    grid = size // 16
    return ModelInfo(
        id=f"llamagen-t2i-{size}",
        title=f"LlamaGen-XL, text to image, {size} px",
        description=(
            f"LlamaGen-XL (stage {stage}) as LANTERN runs it, with LANTERN's drafter and the "
            f"flan-t5-xl text encoder. It draws {size} x {size} pixels from any English text."
        ),
        image_size=size,
        grid=grid,
        max_prompt=1000,
        # The published neighbour table compares the stored vectors.
        preset={"cfg_scale": 7.5, "top_k": 1000, "neighbours": "raw", **PAPER},
        published=Published(
            target=LlamaGenConfig(**XL, layers=36, grid=grid, caption_dim=2048, padding="released"),
            drafter=DrafterConfig(**XL, grid=grid),
            download=14_976_525_868,
            memory=memory,
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


_ROWS = (
    ModelInfo(
        id="lantern-scenes",
        title="lantern-scenes (bundled)",
        description=(
            "A small model of the LlamaGen family that ships with this code. It draws one to four "
            "paper lanterns, in six colours and three kinds, or one of fifty everyday things, such "
            "as a cat, a car or a guitar, on a lake, hills or a plain, at dusk, night or dawn."
        ),
        folder=BUNDLED / "lantern-scenes",
        image_size=256,
        grid=16,
        max_prompt=200,
        # These lie in the papers' ranges, and make both methods change about 1 in 10 tokens.
        # The target has learnt guidance: it reads one row where others read two.
        preset={
            "cfg_scale": 1.0,
            "lantern_k": 100,
            "lantern_delta": 0.2,
            "lanternpp_k": 10,
            "lanternpp_lambda": 3.0,
        },
    ),
    _text_to_image(
        "I", 256, "LlamaGen-T2I", "t2i_XL_stage1_256.pt", "llamagen_drafter", 5_879_373_868
    ),
    _text_to_image(
        "II", 512, "LlamaGen-T2I-2", "t2i_XL_stage2_512.pt", "llamagen2_drafter", 6_170_746_924
    ),
    # the second family of both papers, with LANTERN's drafter
    ModelInfo(
        id="anole-7b",
        title="Anole-7B, text to image, 512 px",
        description=(
            "Anole-7B, a Chameleon transformer whose image tokens are words of its vocabulary, "
            "with LANTERN's drafter. It draws 512 x 512 pixels from any English text, which it "
            "reads itself."
        ),
        image_size=512,
        grid=32,
        max_prompt=1000,
        preset={"cfg_scale": 3.0, "top_k": 2000, **PAPER},
        published=Published(
            target=AnoleConfig(),
            drafter=AnoleDrafterConfig(),
            tokenizer={"embed_dim": 256, "num_embeddings": 8192},
            download=16_182_345_478,
            memory=17_641_061_900,
            sources={
                "target": (Source(ANOLE, ANOLE_SHARDS, "anole", ("config.json",)),),
                "drafter": _drafter("jadohu/anole_drafter"),
                "tokenizer": (
                    Source(ANOLE, ANOLE_SHARDS, "anole-vq", ("config.json",)),
                    Source("GAIR/Anole-7b-v0.1", "tokenizer/vqgan.ckpt", "chameleon-vq"),
                    Source("facebookresearch/chameleon", "tokenizer/vqgan.ckpt", "chameleon-vq"),
                ),
                "text": (
                    Source(ANOLE, "tokenizer.json", "words"),
                    Source("GAIR/Anole-7b-v0.1", "tokenizer/text_tokenizer.json", "words"),
                    Source("facebookresearch/chameleon", "tokenizer/text_tokenizer.json", "words"),
                ),
            },
        ),
    ),
)

REGISTRY: dict[str, ModelInfo] = {info.id: info for info in _ROWS}


@cache
def _words_of(path: Path) -> frozenset[str] | None:
    try:
        return frozenset(json.loads(path.read_bytes())["model"]["vocab"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def model_info(model: Any) -> ModelInfo:
    """Return the model of an id. Raise ValueError naming the value and the allowed ones."""
    if not isinstance(model, str) or model not in REGISTRY:
        raise ValueError(f"model must be one of {', '.join(REGISTRY)}, got {str(model)[:80]!r}")
    return REGISTRY[model]
