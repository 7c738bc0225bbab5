"""A model of transformers and its cache as the decoding loop sees them.

The loop has one row. States of the target are laid side by side in it, [1, n, V + rows * H]: the scores [V] that tokens are drawn
from, guided and processed already, then the model's states of each row [H], which a drafter reads. Where there is no drafter the
scores are all. A drafter's outputs are [rows, n, H]; which of the two is meant is told by the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache, StaticLayer
from transformers.generation import logits_process

from lantern_demo.export.readers import TextReader

# Processors that look at the scores alone. A draft's scores go through them, so that its distribution is like the target's.
_WARPERS = ("Temperature", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta")
WARPERS = tuple(getattr(logits_process, f"{name}LogitsWarper") for name in _WARPERS)


@dataclass
class Prompt:
    """What a run is drawn from. The target writes the states of the prompt's positions, and the drafter reads them."""

    ids: Tensor  # [rows, T] int64, padded on the left
    real: Tensor | None  # [rows, T] bool, which of them are no padding; None: all
    states: Tensor | None = None  # [rows, T, H] in the model's dtype


class ModelCache:
    """A cache of transformers: the nodes of a step are written behind the committed positions, and those accepted are kept."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.length = cache, 0
        self.drawn = list[int]()  # tokens that stand in it behind the prompt
        self.written = list[int]()  # tokens of the step

    def advance(self, count: int) -> None:
        """Keep the first `count` of the positions that were written last."""
        spare = len(self.written) - count
        for layer in self.cache.layers if spare else ():
            if isinstance(layer, DynamicLayer):
                layer.crop(-spare)
            else:  # what lies behind its length is overwritten, and no earlier token sees it
                layer.cumulative_length.sub_(spare)
        self.drawn += self.written[:count]
        self.length, self.written = self.length + count, []

    def commit(self, nodes: Tensor) -> None:
        """Keep the positions `nodes` [m] int64, increasing, of those written last: they move up, the others are dropped."""
        end = self.length + len(nodes)
        for layer in self.cache.layers:
            for stored in (layer.keys, layer.values):
                # index_select copies first, so that source and destination may overlap
                stored[:, :, self.length : end] = stored.index_select(2, nodes.to(stored.device) + self.length)
        chosen = nodes.tolist()
        self.written = [*(self.written[node] for node in chosen), *self.written[len(chosen) :]]
        self.advance(len(chosen))


class ModelTarget:
    """`decoding.protocols.Target` over a model of transformers, see the module."""

    def __init__(self, reader: TextReader, prompt: Tensor, processors: LogitsProcessorList, static: bool) -> None:
        """prompt [1, T] int64: the ids that processors see."""
        self.reader, self.prompt, self.processors, self.static = reader, prompt, processors, static
        self.warpers = LogitsProcessorList(p for p in processors if isinstance(p, WARPERS))
        self.vocab_size = reader.vocabulary
        self.tree = False  # whether nodes may branch
        self.drafted = 0  # the width of the states that a drafter reads beside the scores

    def head(self, hidden: Tensor) -> Tensor:
        """Scores [1, n, V] of its own states, and of a drafter's outputs [rows, n, H]."""
        if hidden.shape[-1] == self.vocab_size + self.drafted:
            return hidden[..., : self.vocab_size]
        scores = self._guided(self.reader.head(hidden))
        return self.reader.through(self.warpers, self.prompt.expand(len(scores), -1), scores).unsqueeze(0)

    def new_cache(self, rows: int, length: int) -> Any:
        """As `decoding.protocols.Target.new_cache`. Raises ValueError where a layer forgets positions."""
        slots, config = self.reader.prompt.shape[1] + length, self.reader.model.config.get_text_config()
        cache = StaticCache(config=config, max_cache_len=slots) if self.static else DynamicCache(config=config)
        if strange := [type(layer).__name__ for layer in cache.layers if type(layer) not in (DynamicLayer, StaticLayer)]:
            raise ValueError(f"the model's cache has a {strange[0]}; allowed are layers that keep all positions")
        return ModelCache(cache)

    def prefill(self, condition: Prompt, cache: Any) -> Tensor:
        """The last position's state, [1, 1, width]; those of all go to the condition."""
        raw, states = self.reader.read(None, cache.cache, 0)
        cache.length = self.reader.prompt.shape[1]
        condition.states = states
        return self._side_by_side(self._processed(raw, [[]]), None if states is None else states[:, -1:])

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """As `decoding.protocols.Target.forward`."""
        cache.written = tokens.tolist()
        raw, states = self.reader.read(tokens, cache.cache, cache.length, (depths, mask) if self.tree else None)
        paths: list[list[int]] = []
        if self.processors:  # nodes are numbered level by level, so that a node's ancestors come in the order of its path
            for row in mask.tolist():
                paths.append(cache.drawn + [token for token, seen in zip(cache.written, row, strict=True) if seen])
        return self._side_by_side(self._processed(raw, paths), states)

    def _side_by_side(self, scores: Tensor, states: Tensor | None) -> Tensor:
        """Scores [n, V] and states [rows, n, H] -> [1, n, width] float32."""
        if states is not None and self.drafted:
            scores = torch.cat([scores, states.transpose(0, 1).flatten(1).to(scores.device, scores.dtype)], -1)
        return scores.unsqueeze(0)

    def _guided(self, raw: Tensor) -> Tensor:
        """Logits [rows, n, V] -> scores [n, V] float32: as they are, since some processors look at their signs, or guided."""
        if raw.shape[0] == 1:
            return raw[0].float()
        told, untold = raw.float().log_softmax(-1).unbind()
        return torch.add(untold, told - untold, alpha=self.reader.scale)

    def _processed(self, raw: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Logits [rows, n, V] behind n rows of drawn tokens -> [n, V] float32, as `generate` draws from them."""
        scores = self._guided(raw)
        if not self.processors:
            return scores
        rows = []
        for path, row in zip(paths, scores.split(1), strict=True):
            ids = torch.cat([self.prompt, self.prompt.new_tensor([self.reader.ids(path)])], 1)
            rows.append(self.reader.through(self.processors, ids, row))
        return torch.cat(rows)
