"""How many kernels a step launches, counted without a GPU, and how many it may.

A step in a graph costs about two microseconds a kernel. Kernels are counted on the meta device,
which knows shapes and no values. An operation counts as one, or as two if `TWO` has it. A library
may run more: counts are lower bounds.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lantern_demo.decoding.cache import ALIGNED
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import parts_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.step import Steps
from lantern_demo.models.families import blank_network
from lantern_demo.models.prepare import on_gpu
from lantern_demo.models.registry import REGISTRY, Sizes
from lantern_demo.settings.settings import Settings, planned

META = torch.device("meta")
# The most kernels of a step of LlamaGen-XL with the paper's trees, in bfloat16 at temperature 1.
BUDGETS = {"vanilla": 497, "eagle1": 683, "eagle2": 745, "lantern": 926, "lantern++": 898}
PROMPT = 120  # positions of a prefix

# Operations that launch nothing, those that launch two kernels, and those that read a value.
FREE = "empty new_empty empty_like empty_strided new_empty_strided detach alias lift_fresh"
FREE += " _unsafe_view"
TWO = "masked_fill scatter scatter_add index_copy index_put constant_pad_nd"
READS = "_local_scalar_dense item is_nonzero equal nonzero masked_select _unique2 unique_dim"
READS += " bincount"


class Watch(TorchDispatchMode):
    """Counts the kernels of what runs inside, and notes what no step on an accelerator may do."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.faults = Counter[str](), list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "scaled_dot_product_attention":
            return self._attention(args, kwargs)
        if name in READS.split():
            self.faults.append(f"{name} reads a value")
        if name != "rms_norm" and func._can_decompose():
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        by_places = name in ("index", "index_put", "index_put_")
        if by_places and any(t is not None and t.dtype == torch.bool for t in args[1]):
            self.faults.append(f"{name} by a mask, whose number of places must be read")
        out = func(*args, **kwargs)
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
        places = {t.device.type for t in tensors if t.dim() > 0 or t.device == META}
        if len(places) > 1:
            self.faults.append(f"{name} mixes devices: {', '.join(sorted(places))}")
        if "meta" in places and not func.is_view and name not in FREE.split():
            copies = name == "addmm" and args[0].dim() == 2  # CUDA copies the sum, then multiplies
            self.kernels[name] += 2 if copies or name in TWO.split() else 1
        return out

    def _attention(self, args: Any, kwargs: Any) -> Tensor:
        """One kernel, if its operands lie as the memory-efficient one wants them."""
        q, k, v = args[:3]
        bias = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        for x in (q, k, v, *(() if bias is None else (bias,))):
            places = (*x.stride()[:-1], x.storage_offset())
            if x.stride(-1) != 1 or any(place * x.element_size() % 16 for place in places):
                said = f"attention over {list(x.shape)} that does not lie on 16 bytes"
                self.faults.append(f"{said}: {x.stride()}")
        if bias is not None and (bias.dtype != q.dtype or bias.shape[-1] % ALIGNED):
            self.faults.append(f"attention's mask is {bias.dtype} {list(bias.shape)}")
        self.kernels["attention"] += 1
        return q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


def _placed(sizes: Sizes, dtype: torch.dtype) -> Any:
    """A network of this dtype on the meta device, its rotary table in float32 too."""
    part = blank_network(sizes).to(dtype).requires_grad_(False)
    part.rope = torch.empty_like(part.rope, dtype=torch.float32, device=META)
    return part


def step_of(model: str, method: str, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> Steps:
    """The steps of fixed shape of a published model, behind a prefix, on the meta device."""
    info, chosen = REGISTRY[model], METHODS[method]
    knobs = Settings(**{**info.preset, "tree": "paper", **settings})
    sizes = info.published.drafter
    target, drafter = _placed(info.published.target, dtype), _placed(sizes, dtype)
    layers = target.feature_layers = getattr(sizes, "feature_layers", ())
    ready = on_gpu(target, drafter)
    plan = planned(chosen, knobs)
    rows = 1 if knobs.cfg_scale == 1 else 2
    near = torch.empty(info.published.target.vocab, 1001, dtype=torch.int32, device=META)
    of_run: Any = {"device": META, "noise": knobs.noise, "ops": ready.ops}
    config = Config(info.tokens, knobs.sampling(), plan.rule, plan.drafts, near, **of_run)
    proposer, verifier = parts_of(config, info.published.target.vocab)
    runner = ready.drafter if chosen.needs_drafter else None
    steps = Steps(ready.target, runner, config, proposer, verifier)
    for cache in steps.caches:  # the prompt is there, and of some padding
        cache.length, cache.padded = PROMPT, True
    if ready.drafter is not None:
        ready.drafter.prefill = lambda *_: None  # type: ignore[method-assign]
    width = info.published.target.dim * (1 + len(layers))
    hidden = torch.empty(rows, 1, width, device=META, dtype=dtype)
    root = torch.zeros(1, dtype=torch.int64, device=META)
    steps.begin(hidden, root, torch.empty(info.tokens, steps.draws, device=META), None)
    return steps


@torch.inference_mode()
def count_launches(model: str, method: str, no_draft: bool = False, **settings: Any) -> Watch:
    """Kernels of one whole step in the middle of a picture. no_draft: of that at its end."""
    steps, watch = step_of(model, method, **settings), Watch()
    shape = steps.shapes()[-1 if no_draft else len(steps.shapes()) // 2]
    steps.step(shape)  # as before a capture: what is worked out once is there from then on
    steps.step(shape, lambda _: watch)
    return watch
