"""How models of transformers read tokens: a text, or a picture of a Chameleon or a Janus, with and without guidance.

What a reader calls tokens are the numbers 0 to `vocabulary` - 1 that are drawn; ids are those of the model's own vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
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

    def read(self, tokens: Tensor | None, cache: Any, past: int, tree: tuple[Tensor, Tensor] | None = None) -> Outputs:
        """Logits [rows, n, V] and states [rows, n, H] behind n tokens [n] of the decoding, which stand behind `past` positions.

        tokens None: the prompt, with the last position's logits alone. tree: the tokens' depths [n] int64, and which each sees
        [n, n] bool; None: they are a chain.
        """
        ids = self.prompt if tokens is None else tokens.expand(self.prompt.shape[0], -1)
        around = self.around(ids.shape[1], cache, past) if tree is None else self.around_tree(*tree, cache, past)
        return self.outputs(ids, tokens is None, past_key_values=cache, use_cache=True, **around)

    def seen(self, positions: int) -> Tensor:
        """Which of so many positions are no padding, [rows, positions] int64."""
        return torch.nn.functional.pad(self.mask, (0, positions - self.mask.shape[1]), value=1)

    def around(self, count: int, cache: Any, past: int) -> dict[str, Any]:
        """Where `count` new tokens in a chain stand and what they see behind `past` positions."""
        mask = self.seen(past + count)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, past:]
        return {"position_ids": positions, "attention_mask": mask if self.padded else None}

    def around_tree(self, depths: Tensor, sees: Tensor, cache: Any, past: int) -> dict[str, Any]:
        """As `around`, of the nodes of a tree. An additive mask [rows, 1, n, slots] in the model's dtype is taken as it is by
        transformers, eager or SDPA; a static cache has all its slots in it."""
        mask = self.seen(past).bool()
        behind = [mask[:, None, None].expand(-1, -1, len(sees), -1), sees.expand(len(mask), 1, -1, -1)]
        allowed = torch.cat(behind, -1)
        slots = max(getattr(cache.layers[0], "max_cache_len", -1), allowed.shape[-1])  # -1: it grows
        allowed = torch.nn.functional.pad(allowed, (0, slots - allowed.shape[-1]), value=False)
        dtype = self.model.dtype
        bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)
        return {"position_ids": mask.sum(-1, keepdim=True) + depths, "attention_mask": bias}

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        """Logits of ids [rows, n], of the last one alone where they are the prompt, and states [rows, n, H] behind the last norm.
        Raises ValueError where a drafter reads them and the model gives none."""
        out = self.model(input_ids=ids, logits_to_keep=1 if first else 0, output_hidden_states=self.drafting, **around)
        if not self.drafting:
            return out.logits, None
        if out.hidden_states is None:
            raise ValueError(
                "lantern_drafter is given, but the model gives no hidden states; allowed are methods without a drafter"
            )
        return out.logits, out.hidden_states[-1]

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
        """As `TextReader.ids`."""
        return [self.listed[token] for token in tokens]

    def codes(self) -> tuple[Tensor, Tensor] | None:
        """As `TextReader.codes`: its decoder takes vectors as they are stored."""
        code = self.model.model.vocabulary_mapping.bpe2img
        vectors = self.model.model.vqmodel.quantize.embedding.weight
        return vectors, torch.tensor([code[token] for token in self.listed], device=vectors.device)

    def through(self, processors: Callable[[Tensor, Tensor], Tensor], ids: Tensor, scores: Tensor) -> Tensor:
        """As `TextReader.through`: processors know tokens by their ids."""
        whole = scores.new_full((len(scores), self.model.config.get_text_config().vocab_size), -torch.inf)
        return processors(ids, whole.index_copy_(1, self.images, scores)).index_select(1, self.images)

    def outputs(self, ids: Tensor, first: bool, **around: Any) -> Outputs:
        """As `TextReader.outputs`."""
        states = self.model.model(input_ids=ids if first else self.images[ids], **around).last_hidden_state
        return self.head(states[:, -1:] if first else states), states

    def head(self, states: Tensor) -> Tensor:
        """As `TextReader.head`."""
        return self.model.lm_head(states).index_select(-1, self.images)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        """As `TextReader.embed`."""
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
        """As `TextReader.outputs`."""
        vectors = self.model.get_input_embeddings()(ids) if first else self.embed(ids, torch.nn.Identity())
        states = self.model.model.language_model(inputs_embeds=vectors, **around).last_hidden_state
        return self.head(states[:, -1:] if first else states), states

    def head(self, states: Tensor) -> Tensor:
        """As `TextReader.head`."""
        return self.model.model.generation_head(states)

    def embed(self, tokens: Tensor, table: Table) -> Tensor:
        """As `TextReader.embed`: image tokens are no words of the vocabulary."""
        return self.model.prepare_embeddings_for_image_generation(tokens)


def reader_of(
    model: Any, input_ids: Tensor, processors: LogitsProcessorList, kwargs: dict[str, Any], image: bool, guidance: float | None
) -> tuple[TextReader, LogitsProcessorList]:
    """How the model is read, and the logits processors without guidance: transformers' own reads a token at a time.

    input_ids [1, T] int64. Raises ValueError for models and prompts that cannot be read.
    """
    if model.config.is_encoder_decoder:
        raise ValueError("the model is an encoder and a decoder; allowed are decoders that read their prompt in the sequence")
    extra = sorted(name for name in ("inputs_embeds", "pixel_values") if kwargs.get(name) is not None)
    if extra:
        raise ValueError(f"{extra[0]} is given; allowed is a prompt of input_ids alone")
    guides = [p for p in processors if isinstance(p, UnbatchedClassifierFreeGuidanceLogitsProcessor)]
    rest = LogitsProcessorList(p for p in processors if p not in guides)
    kind, mask = model.config.model_type, kwargs.get("attention_mask")
    if image and kind == "janus":
        scale = 5.0 if guidance is None else guidance
        prompts = [input_ids] if scale == 1 else [input_ids, _without_words(model, input_ids)]
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


def _without_words(model: Any, input_ids: Tensor) -> Tensor:
    """The unconditional row of a Janus: padding for all but what begins the text and what begins the picture."""
    config = model.generation_config
    kept = (input_ids == config.bos_token_id) | (input_ids == config.generation_kwargs["boi_token_id"])
    return input_ids.masked_fill(~kept, config.pad_token_id)
