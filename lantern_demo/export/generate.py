"""Decode a causal model of transformers by vanilla, SJD or SCD: what `custom_generate` loads from a folder that `lantern_demo.export` wrote.

    model.generate(**inputs, custom_generate="FOLDER", trust_remote_code=True, lantern_method="sjd")   # by the folder's name
    model.generate(**inputs, custom_generate=decode_with, lantern_method="sjd")                        # by this function

Both are one: the first calls the second, so that transformers prepares cache, logits processors and stopping criteria as for its own
sampling. Every node of a window is put through those processors with the tokens before it: the law of a token is what `generate` itself
would draw it from. The methods are exact. At temperature 0 (`do_sample=False`) the tokens are those of greedy search, and with
`lantern_dice="same"` those of this module's vanilla, up to rounding: a model computes eight tokens at once with other roundings than one.

What draws a picture is told by `lantern_image=True`: Janus reads and draws through the embeddings and the head of its image tokens, with
guidance; Chameleon (Anole) draws from its image tokens alone, which its own `forward` masks. Emu3 needs neither: give it
`prefix_allowed_tokens_fn`, `negative_prompt_ids` and `guidance_scale`, as transformers' documentation of it does.

One picture or text at a time. A drafter (EAGLE, LANTERN) cannot be given here: those methods are in `lantern_demo` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache, StaticLayer
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.window import CoupledWindow, Window
from lantern_demo.metrics import acceptance

ALLOWED = ("vanilla", "sjd", "scd")


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `return_dict_in_generate=True` returns: `sequences`, and what the drafts came to under vLLM's names, with `steps`."""

    speculative_decoding: dict[str, Any] | None = None


def generate(model: Any, lantern_image: bool = False, lantern_guidance: float | None = None, **arguments: Any) -> Any:
    """What transformers calls for a folder's name; arguments are those of `generate` and of `decode_with`."""
    if lantern_image and lantern_guidance is None:  # Janus's text mode hands it on in its configuration alone
        lantern_guidance = getattr(arguments.get("generation_config"), "guidance_scale", None)
    # of the class itself: a model may have a `generate` of its own, which is where this call comes from
    return GenerationMixin.generate(
        model,
        custom_generate=decode_with,
        lantern_image=lantern_image,
        lantern_guidance=lantern_guidance,
        lantern_streamer=arguments.get("streamer"),  # to a function transformers hands none on
        **arguments,
    )


def decode_with(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: Any,
    lantern_method: str = "sjd",
    lantern_window: int = 8,
    lantern_dice: str = "same",
    lantern_seed: int | None = None,
    lantern_image: bool = False,
    lantern_guidance: float | None = None,
    lantern_streamer: Any = None,
    **model_kwargs: Any,
) -> Tensor | SpeculativeOutput:
    """Decode behind the prompt input_ids [1, T] int64.

    lantern_method: vanilla, sjd or scd. lantern_window: how many tokens a pass reads, 2 to 64. lantern_dice: "same" draws every token
    with noise of its place, so that all methods draw the same; "own" by the papers' rejection sampling, and then the noise of all places
    takes no memory (float32, places x vocabulary). lantern_seed: 0 to 2**32 - 1; None: drawn from PyTorch's own generator.
    lantern_image: draw a picture, see the module. lantern_guidance: the scale of its guidance; Janus has 5 by default. lantern_streamer hears every token, and `end`; the
    folder's name hands on the `streamer` of `generate`.

    Returns ids [1, T + n] int64, of a Janus picture its n image tokens alone [1, n]; a `SpeculativeOutput` with `return_dict_in_generate`.
    Raises ValueError for what cannot be decoded.
    """
    if lantern_method not in ALLOWED:
        raise ValueError(f"lantern_method is {lantern_method!r}; allowed are {', '.join(ALLOWED)}")
    if not isinstance(lantern_window, int) or not 2 <= lantern_window <= 64:
        raise ValueError(f"lantern_window is {lantern_window!r}; it must be a whole number, 2 to 64")
    if input_ids.shape[0] != 1:
        raise ValueError(
            f"input_ids has {input_ids.shape[0]} rows; allowed is one prompt, and num_return_sequences and num_beams of 1"
        )
    reader, processors = _reader(model, input_ids, logits_processor, model_kwargs, lantern_image, lantern_guidance)
    tokens = reader.tokens or generation_config.max_length - input_ids.shape[1]
    target = _Target(model, reader, input_ids, processors, generation_config.cache_implementation == "static")
    seed = int(torch.randint(2**32, (1,))) if lantern_seed is None else lantern_seed
    config = Config(
        METHODS[lantern_method],
        tokens,
        Sampling(temperature=1.0 if generation_config.do_sample else 0.0),
        tree=_policy(lantern_method, lantern_window),
        seed=seed,
        device=input_ids.device,
        engine="plain",
        dice=lantern_dice,
    )
    drawn, drafted, accepted, done = list[int](), list[int](), list[int](), False
    events = decode(target, None, None, config)
    for event in events:
        if isinstance(event, Decoded):
            break
        if event.tree_tokens:
            drafted.append(len(event.tree_tokens) - 1)
            accepted.append(event.accepted_length - 1)
        for token in reader.ids(event.tokens):
            drawn.append(token)
            row = torch.cat([input_ids, input_ids.new_tensor([drawn])], 1)
            if lantern_streamer is not None:
                lantern_streamer.put(row[0, -1:].cpu())
            if reader.ends and bool(stopping_criteria(row, None).all()):
                done = True
                break
        if done:
            break
    events.close()  # type: ignore[attr-defined]
    if lantern_streamer is not None:
        lantern_streamer.end()
    sequences = input_ids.new_tensor([drawn]) if reader.alone else torch.cat([input_ids, input_ids.new_tensor([drawn])], 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    told = acceptance(drafted, accepted, config.tree.deepest) | {"steps": len(drafted), "method": lantern_method, "seed": seed}
    return SpeculativeOutput(sequences=sequences, speculative_decoding=told)


def _policy(method: str, window: int) -> Drafts:
    if method == "vanilla":
        return Drafts()
    return Window(window) if method == "sjd" else CoupledWindow(window)


class _Text:
    """How a causal model reads tokens: its own `forward`, on a row for the prompt and, with guidance, one for the negative prompt."""

    tokens: int | None = None  # how many there are to draw; None: what `generate` was asked for
    alone, ends = False, True  # whether the result is without the prompt; whether stopping criteria apply

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

    def through(self, processors: LogitsProcessorList, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [1, V] behind ids [1, T], processed as `generate` does."""
        return processors(ids, scores)

    def read(self, tokens: Tensor | None, cache: Any, past: int) -> Tensor:
        """Logits [rows, n, V] behind n tokens [n] of the decoding, which stand behind `past` positions; None: behind the prompt."""
        ids = self.prompt if tokens is None else tokens.expand(self.prompt.shape[0], -1)
        return self.logits(ids, tokens is None, **self.around(ids.shape[1], cache, past))

    def around(self, count: int, cache: Any, past: int) -> dict[str, Any]:
        """The cache, and where `count` new tokens stand and what they see behind `past` positions."""
        mask = torch.nn.functional.pad(self.mask, (0, past + count - self.mask.shape[1]), value=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, past:]
        return {
            "past_key_values": cache,
            "use_cache": True,
            "position_ids": positions,
            "attention_mask": mask if self.padded else None,
        }

    def logits(self, ids: Tensor, first: bool, **around: Any) -> Tensor:
        """Logits of ids [rows, n]: of the last one alone where they are the prompt."""
        return self.model(input_ids=ids, logits_to_keep=1 if first else 0, **around).logits


class _Chameleon(_Text):
    """A Chameleon or Anole that draws a picture: it draws from its image tokens alone, which are ids of its vocabulary."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.images = torch.tensor(self.model.model.vocabulary_mapping.image_tokens, device=self.prompt.device)
        self.listed: list[int] = self.images.tolist()
        self.vocabulary = len(self.listed)

    def ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return [self.listed[token] for token in tokens]

    def through(self, processors: LogitsProcessorList, ids: Tensor, scores: Tensor) -> Tensor:
        """Processors know tokens by their ids."""
        whole = scores.new_full((1, self.model.config.get_text_config().vocab_size), -torch.inf)
        return processors(ids, whole.index_copy_(1, self.images, scores)).index_select(1, self.images)

    def logits(self, ids: Tensor, first: bool, **around: Any) -> Tensor:
        states = self.model.model(input_ids=ids if first else self.images[ids], **around).last_hidden_state
        return self.model.lm_head(states[:, -1:] if first else states).index_select(-1, self.images)


class _Janus(_Text):
    """A Janus that draws a picture: image tokens have embeddings and a head of their own."""

    alone, ends = True, False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.vocabulary = self.model.config.vq_config.num_embeddings
        self.tokens = self.model.model.vision_model.config.num_image_tokens

    def logits(self, ids: Tensor, first: bool, **around: Any) -> Tensor:
        embed = self.model.get_input_embeddings() if first else self.model.prepare_embeddings_for_image_generation
        states = self.model.model.language_model(inputs_embeds=embed(ids), **around).last_hidden_state
        return self.model.model.generation_head(states[:, -1:] if first else states)


def _reader(
    model: Any, input_ids: Tensor, processors: LogitsProcessorList, kwargs: dict[str, Any], image: bool, guidance: float | None
) -> tuple[_Text, LogitsProcessorList]:
    """How the model is read, and the logits processors without guidance: transformers' own reads a token at a time."""
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
        return _Janus(model, prompts, [mask] * len(prompts), scale), rest
    if image and kind != "chameleon":
        raise ValueError(f"lantern_image is True for a {kind} model; allowed are janus and chameleon")
    prompts, masks, scale = [input_ids], [mask], 1.0
    if guides:
        context = guides[0].unconditional_context
        # without a negative prompt transformers takes the prompt's last token
        negative = input_ids[:, -1:] if context["input_ids"] is None else context["input_ids"].to(input_ids.device)
        prompts, masks, scale = [input_ids, negative], [mask, context["attention_mask"]], guides[0].guidance_scale
    return (_Chameleon if image else _Text)(model, prompts, masks, scale), rest


def _without_words(model: Any, input_ids: Tensor) -> Tensor:
    """The unconditional row of a Janus: padding for all but what begins the text and what begins the picture."""
    config = model.generation_config
    kept = (input_ids == config.bos_token_id) | (input_ids == config.generation_kwargs["boi_token_id"])
    return input_ids.masked_fill(~kept, config.pad_token_id)


class _Cache:
    """A cache of transformers as the decoding loop sees it: a window's accepted tokens are its first, so that those behind are dropped."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.length, self.written = cache, 0, 0

    def advance(self, count: int) -> None:
        """Keep `count` of the positions that were written last."""
        spare = self.written - count
        for layer in self.cache.layers if spare else ():
            if isinstance(layer, DynamicLayer):
                layer.crop(-spare)
            else:  # what lies behind its length is overwritten, and no earlier token sees it
                layer.cumulative_length.sub_(spare)
        self.length, self.written = self.length + count, 0


class _Target:
    """`decoding.protocols.Target` over a model of transformers. Its states are logits already, guided and processed: one row of them."""

    def __init__(self, model: Any, reader: _Text, prompt: Tensor, processors: LogitsProcessorList, static: bool) -> None:
        self.model, self.reader, self.prompt, self.processors, self.static = model, reader, prompt, processors, static
        self.vocab_size = reader.vocabulary
        self.drawn = list[int]()  # what stands in the cache behind the prompt

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def new_cache(self, rows: int, length: int) -> Any:
        slots, config = self.reader.prompt.shape[1] + length, self.model.config.get_text_config()
        cache = StaticCache(config=config, max_cache_len=slots) if self.static else DynamicCache(config=config)
        if strange := [type(layer).__name__ for layer in cache.layers if type(layer) not in (DynamicLayer, StaticLayer)]:
            raise ValueError(f"the model's cache has a {strange[0]}; allowed are layers that keep all positions")
        return _Cache(cache)

    def prefill(self, condition: None, cache: Any) -> Tensor:
        raw = self.reader.read(None, cache.cache, 0)
        cache.written = self.reader.prompt.shape[1]
        cache.advance(cache.written)
        return self._processed(raw, [])

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: Any) -> Tensor:
        start, listed = self.reader.prompt.shape[1], tokens.tolist()
        before = cache.length - start
        self.drawn[before:] = listed  # a window is a chain, whose first token was committed
        raw = self.reader.read(tokens, cache.cache, cache.length)
        cache.written = len(listed)
        return self._processed(raw, self.drawn)

    def _processed(self, raw: Tensor, drawn: Sequence[int]) -> Tensor:
        """Logits [rows, n, V] behind the last n tokens -> [1, n, V] float32, as `generate` draws from them."""
        raw = raw.float().log_softmax(-1)
        scores = raw[0] if raw.shape[0] == 1 else torch.add(raw[1], raw[0] - raw[1], alpha=self.reader.scale)
        if not self.processors:
            return scores.unsqueeze(0)
        ids = torch.cat([self.prompt, self.prompt.new_tensor([self.reader.ids(drawn)])], 1)
        end = ids.shape[1] - scores.shape[0] + 1
        rows = [self.reader.through(self.processors, ids[:, : end + i], scores[i : i + 1]) for i in range(scores.shape[0])]
        return torch.cat(rows).unsqueeze(0)
