"""Adapt models of transformers to the decoding loop: for text, or for pictures of a Chameleon or a
Janus, guided or not.

Tokens are numbers from 0 to `vocabulary` - 1. Ids belong to the model's own vocabulary. The loop
has one row. Its states of the target are [1, n, V + rows * H]. The first V are the scores that
tokens are drawn from, after guidance and processors. The others are the model's states [H] of each
row, which a drafter reads, and are absent without a drafter. A drafter's outputs are [rows, n, H].
The width distinguishes the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import logits_process
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from lantern_demo.decoding.interfaces import Pass

Outputs = tuple[Tensor, Tensor | None]
Table = Callable[[Tensor], Tensor]  # ids [...] -> their vectors [..., H]


class TextReader:
    """Runs a causal model through its own `forward`, on a row for the prompt and, with guidance, a
    negative one.
    """

    tokens: int | None = None  # how many to draw; None: as many as `generate` requests
    # whether the result excludes the prompt; whether stopping criteria apply
    alone, ends = False, True
    drafting = False  # whether a drafter reads the states

    def __init__(
        self, model: Any, prompts: Sequence[Tensor], masks: Sequence[Tensor | None], scale: float
    ) -> None:
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
        """Return drawn tokens as ids of the model's vocabulary."""
        return tokens

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """Return codebook vectors [C, e], as the picture decoder compares them, and tokens' codes
        [V] int64; None for text.
        """
        return None

    def through(
        self, processors: Callable[[Tensor, Tensor], Tensor], ids: Tensor, scores: Tensor
    ) -> Tensor:
        """Process the scores [n, V] after ids [n, T] as `generate` does."""
        return processors(ids, scores)

    def prefill(self, cache: Any) -> Outputs:
        """Return the last logits [rows, 1, V] of the prompt, and the states [rows, T, H] of all its
        positions.
        """
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        mask = self.mask if self.padded else None
        return self.outputs(
            self.prompt,
            True,
            past_key_values=cache,
            use_cache=True,
            position_ids=positions,
            attention_mask=mask,
        )

    def read(self, tokens: Tensor, depths: Tensor, sees: Tensor, cache: Any, past: int) -> Outputs:
        """Return logits [rows, n, V] and states [rows, n, H] of a tree's nodes after `past`
        positions.

        Tokens and depths are [n] int64, the mask `sees` [n, n] bool. Eager and SDPA use a 4-D
        additive mask unchanged.
        """
        seen = torch.nn.functional.pad(self.mask, (0, past - self.mask.shape[1]), value=1).bool()
        behind = [
            seen[:, None, None].expand(-1, -1, len(sees), -1),
            sees.expand(len(seen), 1, -1, -1),
        ]
        allowed, dtype = torch.cat(behind, -1), self.model.dtype
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
            ~allowed, torch.finfo(dtype).min
        )
        around = {"position_ids": seen.sum(-1, keepdim=True) + depths, "attention_mask": bias}
        return self.outputs(
            tokens.expand(len(seen), -1), False, past_key_values=cache, use_cache=True, **around
        )

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        """Return logits of ids [rows, n] and states [rows, n, H] after the last norm.

        A prompt has only the last logits.
        """
        out = self.model(
            input_ids=ids,
            logits_to_keep=1 if first else 0,
            output_hidden_states=self.drafting,
            **around,
        )
        return out.logits, out.hidden_states[-1] if self.drafting else None

    def head(self, states: Tensor) -> Tensor:
        """Return logits [rows, n, V] of states [rows, n, H]."""
        return self.model.get_output_embeddings()(states)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        """Return vectors [n, H] of drawn tokens [n], from the vocabulary's table unless image
        tokens have another.
        """
        return table(tokens)


class ChameleonReader(TextReader):
    """A Chameleon or Anole that draws a picture from its image tokens alone, which are ids of its
    vocabulary.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.images = torch.tensor(
            self.model.model.vocabulary_mapping.image_tokens, device=self.prompt.device
        )
        self.listed: list[int] = self.images.tolist()
        self.vocabulary = len(self.listed)

    def ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return [self.listed[token] for token in tokens]

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """Return codes as in `TextReader.codes`. Its decoder takes the stored vectors."""
        code = self.model.model.vocabulary_mapping.bpe2img
        vectors = self.model.model.vqmodel.quantize.embedding.weight
        return vectors, torch.tensor([code[token] for token in self.listed], device=vectors.device)

    def through(
        self, processors: Callable[[Tensor, Tensor], Tensor], ids: Tensor, scores: Tensor
    ) -> Tensor:
        width = self.model.config.get_text_config().vocab_size
        whole = scores.new_full((len(scores), width), -torch.inf)
        whole.index_copy_(1, self.images, scores)
        return processors(ids, whole).index_select(1, self.images)

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        states = self.model.model(
            input_ids=ids if first else self.images[ids], **around
        ).last_hidden_state
        return self.head(states[:, -1:] if first else states), states

    def head(self, states: Tensor) -> Tensor:
        return self.model.lm_head(states).index_select(-1, self.images)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        return table(self.images[tokens])


class JanusReader(TextReader):
    """A Janus that draws a picture. Image tokens have separate embeddings and a separate head."""

    alone, ends = True, False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.vocabulary = self.model.config.vq_config.num_embeddings
        self.tokens = self.model.model.vision_model.config.num_image_tokens

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """Return codes as in `TextReader.codes`.

        Its decoder takes vectors of unit length, and tokens are codes.
        """
        vectors = self.model.model.vqmodel.quantize.embedding.weight
        codes = torch.arange(len(vectors), device=vectors.device)
        return torch.nn.functional.normalize(vectors.float(), dim=-1), codes

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        if first:
            vectors = self.model.get_input_embeddings()(ids)
        else:
            vectors = self.model.prepare_embeddings_for_image_generation(ids)
        states = self.model.model.language_model(inputs_embeds=vectors, **around).last_hidden_state
        return self.head(states[:, -1:] if first else states), states

    def head(self, states: Tensor) -> Tensor:
        return self.model.model.generation_head(states)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        return self.model.prepare_embeddings_for_image_generation(tokens)


def reader_of(
    model: Any,
    input_ids: Tensor,
    processors: LogitsProcessorList,
    kwargs: dict[str, Any],
    image: bool,
    guidance: float | None,
) -> tuple[TextReader, LogitsProcessorList]:
    """Return the model's reader, and the logits processors without guidance, since transformers'
    own reads one token at a time.

    input_ids [1, T] int64. Raises ValueError for unsupported models and prompts.
    """
    if model.config.is_encoder_decoder or any(
        kwargs.get(name) is not None for name in ("inputs_embeds", "pixel_values")
    ):
        raise ValueError(
            "the prompt is more than ids; allowed are decoders that read a prompt of input_ids "
            "alone"
        )
    attention = model.config.get_text_config()._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise ValueError(
            f"attn_implementation is {attention!r}; allowed are eager and sdpa, which take a mask "
            "of a tree"
        )
    guides = [
        p for p in processors if isinstance(p, UnbatchedClassifierFreeGuidanceLogitsProcessor)
    ]
    rest = LogitsProcessorList(p for p in processors if p not in guides)
    kind, mask = model.config.model_type, kwargs.get("attention_mask")
    if image and kind == "janus":
        scale = 5.0 if guidance is None else guidance
        # the unconditional row is padding but for the start tokens of text and picture
        told = model.generation_config
        kept = (input_ids == told.bos_token_id) | (
            input_ids == told.generation_kwargs["boi_token_id"]
        )
        prompts = [input_ids]
        if scale != 1:
            prompts.append(input_ids.masked_fill(~kept, told.pad_token_id))
        return JanusReader(model, prompts, [mask] * len(prompts), scale), rest
    if image and kind != "chameleon":
        raise ValueError(
            f"lantern_image is True for a {kind} model; allowed are janus and chameleon"
        )
    prompts, masks, scale = [input_ids], [mask], 1.0
    if guides:
        scale, context = guides[0].guidance_scale, guides[0].unconditional_context
        negative = context["input_ids"]
        if negative is None:  # transformers takes the prompt's last token
            negative = input_ids[:, -1:]
        prompts.append(negative.to(input_ids.device))
        masks.append(context["attention_mask"])
    return (ChameleonReader if image else TextReader)(model, prompts, masks, scale), rest


# Processors that depend on the scores alone. A draft's scores go through them, so that its
# distribution is like the target's.
_WARPERS = ("Temperature", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta")
WARPERS = tuple(getattr(logits_process, f"{name}LogitsWarper") for name in _WARPERS)


@dataclass
class Prompt:
    """The prompt of a run.

    The target writes the states of the prompt's positions, and the drafter reads them.
    """

    ids: Tensor  # [rows, T] int64, padded on the left
    real: Tensor | None  # [rows, T] bool, False at padding; None: no padding
    states: Tensor | None = None  # [rows, T, H] in the model's dtype


class ModelCache:
    """A cache of transformers.

    Before a step writes its nodes, it drops all slots from the first of them on.
    """

    def __init__(self, cache: Any, prefix: int, slots: int) -> None:
        self.cache, self.length, self.slots = cache, prefix, slots
        self.drawn = list[int]()  # its tokens after the prompt

    def drop(self, first: int) -> None:
        """Drop the slots from the first on."""
        if (spare := self.length + len(self.drawn) - first) > 0:
            self.cache.crop(-spare)
        del self.drawn[first - self.length :]

    def move(self, source: Tensor, slots: Tensor) -> None:
        """Implement `decoding.cache.KVCache.move`."""
        for layer in self.cache.layers:
            for stored in (layer.keys, layer.values):
                # index_select copies first, so that source and destination may overlap
                stored[:, :, slots.to(stored.device)] = stored.index_select(
                    2, source.to(stored.device)
                )
        moved = [self.drawn[slot - self.length] for slot in source.tolist()]
        for slot, token in zip(slots.tolist(), moved, strict=True):
            self.drawn[slot - self.length] = token


class ModelTarget:
    """Implements `decoding.interfaces.Target` with a model of transformers, see the module."""

    def __init__(self, reader: TextReader, prompt: Tensor, processors: LogitsProcessorList) -> None:
        """`prompt` [1, T] int64 holds the ids that processors see."""
        self.reader, self.prompt, self.processors = reader, prompt, processors
        self.warpers = LogitsProcessorList(p for p in processors if isinstance(p, WARPERS))
        self.vocab_size = reader.vocabulary
        self.drafted = 0  # width of the states after the scores, which a drafter reads

    def head(self, hidden: Tensor) -> Tensor:
        """Return scores [1, n, V] of states, or of a drafter's outputs [rows, n, H]."""
        if hidden.shape[-1] == self.vocab_size + self.drafted:
            return hidden[..., : self.vocab_size]
        scores = self._guided(self.reader.head(hidden))
        return self.reader.through(
            self.warpers, self.prompt.expand(len(scores), -1), scores
        ).unsqueeze(0)

    def new_cache(self, rows: int, length: int) -> Any:
        """Implement `decoding.interfaces.Target.new_cache`.

        Raises ValueError if a layer discards positions.
        """
        cache = DynamicCache(config=self.reader.model.config.get_text_config())
        if strange := [
            type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer
        ]:
            raise ValueError(
                f"the model's cache has a {strange[0]}; allowed are layers that keep all positions"
            )
        prefix = self.reader.prompt.shape[1]
        return ModelCache(cache, prefix, prefix + length)

    def prefill(self, condition: Prompt, cache: Any) -> Tensor:
        """Return the last position's state [1, 1, width], and store the states of all positions in
        the condition.
        """
        raw, states = self.reader.prefill(cache.cache)
        condition.states = states
        return self._side_by_side(
            self._processed(raw, [[]]), None if states is None else states[:, -1:]
        )

    def forward(self, nodes: Pass, cache: Any) -> Tensor:
        """Implement `decoding.interfaces.Target.forward` for nodes after all committed tokens."""
        tokens, positions, slots, visible = nodes
        first = int(slots[0])
        cache.drop(first)
        if visible is None:
            mask = tokens.new_ones(1, 1, dtype=torch.bool)
        else:
            mask = visible[:, first : first + len(tokens)]
        raw, states = self.reader.read(tokens, positions - first, mask, cache.cache, first)
        paths, before, written = list[list[int]](), list(cache.drawn), tokens.tolist()
        cache.drawn += written
        # nodes are numbered level by level, so a node's ancestors come in path order
        if self.processors:
            for row in mask.tolist():
                paths.append(before + list(compress(written, row)))
        return self._side_by_side(self._processed(raw, paths), states)

    def _side_by_side(self, scores: Tensor, states: Tensor | None) -> Tensor:
        """Concatenate scores [n, V] and states [rows, n, H] -> [1, n, width] float32."""
        if states is not None and self.drafted:
            scores = torch.cat(
                [scores, states.transpose(0, 1).flatten(1).to(scores.device, scores.dtype)], -1
            )
        return scores.unsqueeze(0)

    def _guided(self, raw: Tensor) -> Tensor:
        """Guide logits [rows, n, V] -> scores [n, V] float32.

        A single row is unchanged, as some processors need its signs.
        """
        if raw.shape[0] == 1:
            return raw[0].float()
        told, untold = raw.float().log_softmax(-1).unbind()
        return torch.add(untold, told - untold, alpha=self.reader.scale)

    def _processed(self, raw: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Guide and process logits [rows, n, V] after n rows of drawn tokens -> [n, V] float32, as
        in `generate`.
        """
        scores = self._guided(raw)
        if not self.processors:
            return scores
        rows = []
        for path, row in zip(paths, scores.split(1), strict=True):
            ids = torch.cat([self.prompt, self.prompt.new_tensor([self.reader.ids(path)])], 1)
            rows.append(self.reader.through(self.processors, ids, row))
        return torch.cat(rows)
