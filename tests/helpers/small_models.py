"""Small random models of every family, and runs on them: by modules, joined, and fused."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import published
import tiny
import torch
from runs import decode, small
from torch import Tensor

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.ops import PYTORCH, Ops
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models import registry
from lantern_demo.models.anole import Anole, AnoleDrafter
from lantern_demo.models.bundled import Networks
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.prepare import on_cpu, on_gpu
from lantern_demo.models.registry import LlamaGenConfig
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.settings.settings import settings_of

SEQUENCE: dict[str, Any] = {"dim": 128, "heads": 2, "vocab": 60, "grid": 4, "prefix": 7}
TEXT = LlamaGenConfig(**SEQUENCE, layers=3, ffn=192, caption_dim=32)
ANOLE = registry.AnoleConfig(**SEQUENCE, layers=3, ffn=192, embeddings=70)
ANOLE_DRAFTER = registry.AnoleDrafterConfig(**SEQUENCE, ffn=128, embeddings=70)
STATIC = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
PADDED, FULL = torch.arange(7)[None] >= 3, torch.ones(1, 7, dtype=torch.bool)
# Random weights large enough that every part matters.
strong = partial(tiny.strong, embedding=0.5, gain=1.0, spread=0.2)
FEATURE_LAYERS = (1, 3)  # of three blocks


def networks(config: LlamaGenConfig, **of_drafter: Any) -> tuple[LlamaGen, Drafter]:
    torch.manual_seed(0)
    shared = {name: getattr(config, name) for name in ("dim", "heads", "vocab", "grid", "prefix")}
    sizes = registry.DrafterConfig(**shared, ffn=128, **of_drafter)
    target, drafter = strong(LlamaGen(config)), strong(Drafter(sizes))
    target.feature_layers = sizes.feature_layers
    if sizes.feature_layers:  # beside fc's: a chain of nodes would grow until rounding shows
        drafter.fc_own.weight.mul_(0.3)
    return target, drafter


def stored(of: Any) -> Any:
    """With weights that float16 holds, as in a model folder."""
    for weight in of.parameters():
        weight.copy_(weight.half().float())
    return of


def condition_of(target: LlamaGen, mask: Tensor) -> Any:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, 7, target.config.caption_dim, generator=generator)
    return target.condition(features, mask, True)


def settings(method: str, vocab: int = 60) -> dict[str, Any]:
    """What `decode` takes for a method run small, with neighbours among so many tokens."""
    vectors = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    near = {"neighbours": neighbour_table(vectors[:vocab], 7)}
    return small(method, **settings_of(StaticTree(STATIC))) | near


FIELDS = "index tokens accepted_length committed kinds tree_tokens parents path"


def summary(events: list[Step | Decoded]) -> tuple[Any, ...]:
    """All that runners must agree on: everything but times and the engine's name."""
    *steps, last = events
    assert isinstance(last, Decoded)
    rows = [[getattr(step, name) for name in FIELDS.split()] for step in steps]
    whole = last.tokens, last.steps, last.accepted_lengths, last.mean_accepted_length, last.nodes
    return rows, whole


# a target, a drafter, the operations, and whether steps have the sizes that a GPU captures
Runner = tuple[Any, Any, Ops, bool]


@dataclass(frozen=True)
class Model:
    """A small model, a prompt that it has read, and what runs it."""

    target: Any
    drafter: Any
    condition: Any
    guidance: float = 2.0

    @property
    def modules(self) -> Runner:
        return self.target, self.drafter, PYTORCH, False

    @property
    def lean(self) -> Runner:
        """A processor's fused models."""
        own: Any = deepcopy((self.target, self.drafter))
        ready = on_cpu(Networks(None, *own, None, {}), "plain", "plain")  # type: ignore[arg-type]
        return ready.target, ready.drafter, ready.ops, False

    @property
    def joined(self) -> Runner:
        """Its networks as they run on an accelerator."""
        ready = on_gpu(*deepcopy((self.target, self.drafter)))
        return ready.target, ready.drafter, ready.ops, True

    @property
    def runners(self) -> list[Runner]:
        fused = [self.lean] if isinstance(self.target, LlamaGen) else []
        return [self.modules, self.joined, *fused]

    def run(
        self, runner: Runner, method: str, filters: Any = (1.0, 0, 1.0), **changes: Any
    ) -> list[Any]:
        """The events of a run of 16 tokens with a temperature, a top-k and a top-p."""
        target, drafter, ops, padded = runner
        own = settings(method, self.target.vocab_size)
        sampling = Sampling(*filters, self.guidance)
        knobs = {"num_tokens": 16, "seed": 5, "sampling": sampling, "ops": ops, **own, **changes}
        return list(decode(target, drafter, self.condition, padded=padded, **knobs))


def of_llamagen(
    config: LlamaGenConfig = TEXT, mask: Tensor = PADDED, guidance: float = 2.0, **drafter: Any
) -> Model:
    made = networks(config, **drafter)
    with torch.inference_mode():
        condition = condition_of(made[0], mask)
    if guidance == 1:
        condition.features, condition.mask = condition.features[:1], condition.mask[:1]
    return Model(*made, condition, guidance)


def of_anole(guidance: float = 2.0) -> Model:
    """With a prompt of 7 ids; its unconditional row is padded."""
    torch.manual_seed(0)
    target, drafter = strong(Anole(ANOLE)), strong(AnoleDrafter(ANOLE_DRAFTER))
    with torch.inference_mode():
        ids = torch.tensor([[0, 11, 7, 23, 5, 19, 9]])
        return Model(target, drafter, target.condition(ids, None, guidance != 1), guidance)


def of_published_shape() -> Model:
    """120 prefix positions, padded rows that look at others than themselves."""
    target, drafter, _ = published.networks()
    features = torch.randn(1, 120, published.WIDTH, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(120)[None] >= 90
    with torch.inference_mode():
        return Model(target, drafter, target.condition(features, mask, True))


READING: dict[str, Any] = {"feature_layers": FEATURE_LAYERS}
MODELS: dict[str, Callable[[], Model]] = {
    "llamagen": of_llamagen,
    "full prompt": lambda: of_llamagen(mask=FULL),
    "published shape": of_published_shape,
    "small heads": lambda: of_llamagen(replace(TEXT, heads=4)),
    "no guidance": lambda: of_llamagen(guidance=1.0),
    "guided drafter": lambda: of_llamagen(guided=True),
    "feature layers": lambda: of_llamagen(**READING),
    "guided drafter with feature layers": lambda: of_llamagen(guided=True, **READING),
    "anole": of_anole,
    "anole, no guidance": lambda: of_anole(guidance=1.0),
}


@cache
def model_of(name: str) -> Model:
    return MODELS[name]()
