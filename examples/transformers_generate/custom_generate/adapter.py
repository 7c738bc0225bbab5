"""Models of transformers as the decoding loop sees them: a text, or a picture of a Chameleon or a Janus, guided or not.

Tokens are the numbers 0 to `vocabulary` - 1 that are drawn; ids are those of the model's own vocabulary. The loop has one row.
States of the target are laid side by side in it, [1, n, V + rows * H]: the scores [V] that tokens are drawn from, guided and
processed already, then the model's states of each row [H], which a drafter reads. Where there is no drafter the scores are all. A
drafter's outputs are [rows, n, H]; the width tells which of the two is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import logits_process
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

Outputs = tuple[Tensor, Tensor | None]
Table = Callable[[Tensor], Tensor]  # ids [...] -> their vectors [..., H]


class TextReader:
    """How a causal model reads tokens: its own `forward`, on a row for the prompt and, with guidance, a negative one."""

    tokens: int | None = None  # how many there are to draw; None: what `generate` was asked for
    alone, ends = False, True  # whether the result is without the prompt; whether stopping criteria apply
    drafting = False  # whether a drafter reads the states

    def __init__(self, model: Any, prompts: Sequence[Tensor], masks: Sequence[Tensor | None], scale: float) -> None:
        self.model, self.scale = model, scale
        length = max(prompt.shape[1] for prompt in prompts)
        self.prompt = prompts[0].new_zeros(len(prompts), length)
        self.mask = torch.zeros_like(self.prompt)  # padding lies on the left
        for row, (prompt, mask) in enumerate(zip(prompts, masks, strict=True)):
            start = length - prompt.shape[1]
            self.prompt[row, start:] = prompt[0]
            self.mask[row, start:] = 1 if mask is None else mask[0]
        self.padded = bool((self.mask == 0).any())
        self.vocabulary: int = model.config.get_text_config().vocab_size

    def ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Drawn tokens as ids of the model's vocabulary."""
        return tokens

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """The vectors [C, e] of the picture's codes, as its decoder compares them, and tokens' codes [V] int64. None: a text."""
        return None

    def through(self, processors: Callable[[Tensor, Tensor], Tensor], ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [n, V] behind ids [n, T], processed as `generate` does."""
        return processors(ids, scores)

    def prefill(self, cache: Any) -> Outputs:
        """The last logits [rows, 1, V] of the prompt, and the states [rows, T, H] of all its positions."""
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        mask = self.mask if self.padded else None
        return self.outputs(self.prompt, True, past_key_values=cache, use_cache=True, position_ids=positions, attention_mask=mask)

    def read(self, tokens: Tensor, depths: Tensor, sees: Tensor, cache: Any, past: int) -> Outputs:
        """Logits [rows, n, V] and states [rows, n, H] of a tree's nodes behind `past` positions: tokens and depths [n] int64, and
        which each sees, [n, n] bool. Eager and SDPA take an additive mask of four dimensions as it is."""
        seen = torch.nn.functional.pad(self.mask, (0, past - self.mask.shape[1]), value=1).bool()
        behind = [seen[:, None, None].expand(-1, -1, len(sees), -1), sees.expand(len(seen), 1, -1, -1)]
        allowed, dtype = torch.cat(behind, -1), self.model.dtype
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)
        around = {"position_ids": seen.sum(-1, keepdim=True) + depths, "attention_mask": bias}
        return self.outputs(tokens.expand(len(seen), -1), False, past_key_values=cache, use_cache=True, **around)

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        """Logits of ids [rows, n], of the last one alone where they are the prompt, and states [rows, n, H] behind the last
        norm."""
        out = self.model(input_ids=ids, logits_to_keep=1 if first else 0, output_hidden_states=self.drafting, **around)
        return out.logits, out.hidden_states[-1] if self.drafting else None

    def head(self, states: Tensor) -> Tensor:
        """Logits [rows, n, V] of states [rows, n, H]."""
        return self.model.get_output_embeddings()(states)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        """Vectors [n, H] of drawn tokens [n], through the table of the vocabulary where they are words of it."""
        return table(tokens)


class ChameleonReader(TextReader):
    """A Chameleon or Anole that draws a picture: it draws from its image tokens alone, which are ids of its vocabulary."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.images = torch.tensor(self.model.model.vocabulary_mapping.image_tokens, device=self.prompt.device)
        self.listed: list[int] = self.images.tolist()
        self.vocabulary = len(self.listed)

    def ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return [self.listed[token] for token in tokens]

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """As `TextReader.codes`: its decoder takes vectors as they are stored."""
        code = self.model.model.vocabulary_mapping.bpe2img
        vectors = self.model.model.vqmodel.quantize.embedding.weight
        return vectors, torch.tensor([code[token] for token in self.listed], device=vectors.device)

    def through(self, processors: Callable[[Tensor, Tensor], Tensor], ids: Tensor, scores: Tensor) -> Tensor:
        whole = scores.new_full((len(scores), self.model.config.get_text_config().vocab_size), -torch.inf)
        return processors(ids, whole.index_copy_(1, self.images, scores)).index_select(1, self.images)

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        states = self.model.model(input_ids=ids if first else self.images[ids], **around).last_hidden_state
        return self.head(states[:, -1:] if first else states), states

    def head(self, states: Tensor) -> Tensor:
        return self.model.lm_head(states).index_select(-1, self.images)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        return table(self.images[tokens])


class JanusReader(TextReader):
    """A Janus that draws a picture: image tokens have embeddings and a head of their own."""

    alone, ends = True, False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.vocabulary = self.model.config.vq_config.num_embeddings
        self.tokens = self.model.model.vision_model.config.num_image_tokens

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """As `TextReader.codes`: its decoder takes vectors of unit length, and tokens are codes."""
        vectors = self.model.model.vqmodel.quantize.embedding.weight
        return torch.nn.functional.normalize(vectors.float(), dim=-1), torch.arange(len(vectors), device=vectors.device)

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        vectors = self.model.get_input_embeddings()(ids) if first else self.embed(ids, torch.nn.Identity())
        states = self.model.model.language_model(inputs_embeds=vectors, **around).last_hidden_state
        return self.head(states[:, -1:] if first else states), states

    def head(self, states: Tensor) -> Tensor:
        return self.model.model.generation_head(states)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        return self.model.prepare_embeddings_for_image_generation(tokens)


def reader_of(
    model: Any, input_ids: Tensor, processors: LogitsProcessorList, kwargs: dict[str, Any], image: bool, guidance: float | None
) -> tuple[TextReader, LogitsProcessorList]:
    """How the model is read, and the logits processors without guidance: transformers' own reads a token at a time.

    input_ids [1, T] int64. Raises ValueError for models and prompts that cannot be read.
    """
    if model.config.is_encoder_decoder or any(kwargs.get(name) is not None for name in ("inputs_embeds", "pixel_values")):
        raise ValueError("the prompt is more than ids; allowed are decoders that read a prompt of input_ids alone")
    attention = model.config.get_text_config()._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise ValueError(f"attn_implementation is {attention!r}; allowed are eager and sdpa, which take a mask of a tree")
    guides = [p for p in processors if isinstance(p, UnbatchedClassifierFreeGuidanceLogitsProcessor)]
    rest = LogitsProcessorList(p for p in processors if p not in guides)
    kind, mask = model.config.model_type, kwargs.get("attention_mask")
    if image and kind == "janus":
        scale = 5.0 if guidance is None else guidance
        told = model.generation_config  # the unconditional row: padding for all but what begins the text and the picture
        kept = (input_ids == told.bos_token_id) | (input_ids == told.generation_kwargs["boi_token_id"])
        prompts = [input_ids] if scale == 1 else [input_ids, input_ids.masked_fill(~kept, told.pad_token_id)]
        return JanusReader(model, prompts, [mask] * len(prompts), scale), rest
    if image and kind != "chameleon":
        raise ValueError(f"lantern_image is True for a {kind} model; allowed are janus and chameleon")
    prompts, masks, scale = [input_ids], [mask], 1.0
    if guides:
        context = guides[0].unconditional_context
        # without a negative prompt transformers takes the prompt's last token
        negative = input_ids[:, -1:] if context["input_ids"] is None else context["input_ids"].to(input_ids.device)
        prompts, masks, scale = [input_ids, negative], [mask, context["attention_mask"]], guides[0].guidance_scale
    return (ChameleonReader if image else TextReader)(model, prompts, masks, scale), rest


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
    """A cache of transformers: what lies behind the nodes of the step at hand is dropped when they are written."""

    def __init__(self, cache: Any, prefix: int, slots: int) -> None:
        self.cache, self.length, self.slots = cache, prefix, slots
        self.drawn = list[int]()  # tokens that stand in it behind the prompt

    def drop(self, first: int) -> None:
        """Forget the slots from the first on."""
        if (spare := self.length + len(self.drawn) - first) > 0:
            self.cache.crop(-spare)
        del self.drawn[first - self.length :]

    def move(self, source: Tensor, slots: Tensor) -> None:
        """As `decoding.cache.KVCache.move`."""
        for layer in self.cache.layers:
            for stored in (layer.keys, layer.values):
                # index_select copies first, so that source and destination may overlap
                stored[:, :, slots.to(stored.device)] = stored.index_select(2, source.to(stored.device))
        moved = [self.drawn[slot - self.length] for slot in source.tolist()]
        for slot, token in zip(slots.tolist(), moved, strict=True):
            self.drawn[slot - self.length] = token


class ModelTarget:
    """`decoding.interfaces.Target` over a model of transformers, see the module."""

    def __init__(self, reader: TextReader, prompt: Tensor, processors: LogitsProcessorList) -> None:
        """prompt [1, T] int64: the ids that processors see."""
        self.reader, self.prompt, self.processors = reader, prompt, processors
        self.warpers = LogitsProcessorList(p for p in processors if isinstance(p, WARPERS))
        self.vocab_size = reader.vocabulary
        self.drafted = 0  # the width of the states that a drafter reads beside the scores

    def head(self, hidden: Tensor) -> Tensor:
        """Scores [1, n, V] of its own states, and of a drafter's outputs [rows, n, H]."""
        if hidden.shape[-1] == self.vocab_size + self.drafted:
            return hidden[..., : self.vocab_size]
        scores = self._guided(self.reader.head(hidden))
        return self.reader.through(self.warpers, self.prompt.expand(len(scores), -1), scores).unsqueeze(0)

    def new_cache(self, rows: int, length: int) -> Any:
        """As `decoding.interfaces.Target.new_cache`. Raises ValueError where a layer forgets positions."""
        cache = DynamicCache(config=self.reader.model.config.get_text_config())
        if strange := [type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer]:
            raise ValueError(f"the model's cache has a {strange[0]}; allowed are layers that keep all positions")
        prefix = self.reader.prompt.shape[1]
        return ModelCache(cache, prefix, prefix + length)

    def prefill(self, condition: Prompt, cache: Any) -> Tensor:
        """The last position's state, [1, 1, width]; those of all go to the condition."""
        raw, states = self.reader.prefill(cache.cache)
        condition.states = states
        return self._side_by_side(self._processed(raw, [[]]), None if states is None else states[:, -1:])

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: Any) -> Tensor:
        """As `decoding.interfaces.Target.forward`, of nodes behind all that is committed."""
        first = int(slots[0])
        cache.drop(first)
        mask = tokens.new_ones(1, 1, dtype=torch.bool) if visible is None else visible[:, first:]
        raw, states = self.reader.read(tokens, positions - first, mask, cache.cache, first)
        paths, before, written = list[list[int]](), list(cache.drawn), tokens.tolist()
        cache.drawn += written
        if self.processors:  # nodes are numbered level by level, so that a node's ancestors come in the order of its path
            for row in mask.tolist():
                paths.append(before + [token for token, seen in zip(written, row, strict=True) if seen])
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
