"""Decode a causal model of transformers: what `custom_generate` loads from a folder that `lantern_demo.export` wrote.

    model.generate(**inputs, custom_generate="FOLDER", trust_remote_code=True, lantern_method="sjd")   # by the folder's name
    model.generate(**inputs, custom_generate=decode_with, lantern_method="sjd")                        # by this function

Both are one: the first calls the second, so that transformers prepares cache, logits processors and stopping criteria as for its
own sampling. Every draft is put through those processors with the tokens before it: the distribution of a token is what
`generate` itself would draw it from. All methods but LANTERN's are exact. At temperature 0 (`do_sample=False`) their tokens are
those of greedy search, and with `lantern_dice="same"` those of this module's vanilla, up to rounding: a model computes eight
tokens at once with other roundings than one.

What draws a picture is told by `lantern_image=True`: Janus reads and draws through the embeddings and the head of its image
tokens, with guidance; Chameleon (Anole) draws from its image tokens alone, which its own `forward` masks. Emu3 needs neither:
give it `prefix_allowed_tokens_fn`, `negative_prompt_ids` and `guidance_scale`, as transformers' documentation of it does.

One picture or text at a time. The arguments, beside transformers' own:

- lantern_method: vanilla, sjd, eagle1, eagle2, lantern or lantern++.
- lantern_window: how many tokens a pass of sjd reads, 2 to 64.
- lantern_dice: "same" draws every token with noise of its place, so that all exact methods draw the same; "own" by the papers'
  rejection sampling, and then the noise of all places takes no memory (float32, places x vocabulary).
- lantern_seed: 0 to 2**32 - 1; None: drawn from PyTorch's own generator.
- lantern_image: draw a picture. lantern_guidance: the scale of its guidance; Janus has 5 by default.
- lantern_streamer hears every token, and `end`; the folder's name hands on the `streamer` of `generate`.
- lantern_drafter: the path of a drafter, see `drafter_file`; every call reads it anew. Its trees are verified in one pass through
  a mask of their own, see `readers`.
- lantern_tree: a static tree (eagle1, lantern++) by name or as paths, "0 1 00"; of a dynamic one (eagle2, lantern) the beam, its
  passes and the nodes.
- lantern_k, lantern_delta, lantern_lambda: the rules of LANTERN and LANTERN++. lantern_neighbours: the path of a table, see
  `look_alikes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.export.asked import Asked, branches
from lantern_demo.export.cached import ModelTarget, Prompt
from lantern_demo.export.drafter_file import read_drafter
from lantern_demo.export.eagle import EagleDrafter
from lantern_demo.export.look_alikes import look_alikes
from lantern_demo.export.readers import TextReader, reader_of
from lantern_demo.metrics import acceptance


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
    lantern_drafter: str | Path | None = None,
    lantern_tree: str | tuple[int, int, int] | None = None,
    lantern_k: int = 100,
    lantern_delta: float = 0.2,
    lantern_lambda: float = 3.0,
    lantern_neighbours: str | Path | None = None,
    **model_kwargs: Any,
) -> Tensor | SpeculativeOutput:
    """Decode behind the prompt input_ids [1, T] int64; the module says what the other arguments mean.

    Returns ids [1, T + n] int64, of a Janus picture its n image tokens alone [1, n]; a `SpeculativeOutput` with
    `return_dict_in_generate`. Raises ValueError for what cannot be decoded.
    """
    asked = Asked(lantern_method, lantern_window, lantern_tree, lantern_drafter, lantern_k, lantern_delta, lantern_lambda)
    if input_ids.shape[0] != 1:
        raise ValueError(
            f"input_ids has {input_ids.shape[0]} rows; allowed is one prompt, and num_return_sequences and num_beams of 1"
        )
    reader, processors = reader_of(model, input_ids, logits_processor, model_kwargs, lantern_image, lantern_guidance)
    places = reader.tokens or generation_config.max_length - input_ids.shape[1]
    greedy, table = not generation_config.do_sample, lantern_neighbours
    config = _config(reader, asked, places, 0.0 if greedy else 1.0, table, lantern_seed, lantern_dice)
    target = ModelTarget(reader, input_ids, processors, generation_config.cache_implementation == "static")
    target.tree, drafter = branches(config.tree), _drafter(reader, asked, config)
    if drafter is not None:
        reader.drafting, target.drafted = True, drafter.config.rows * drafter.config.dim
    drawn, told = _drawn(target, drafter, config, stopping_criteria, lantern_streamer)
    ids = input_ids.new_tensor([drawn])
    sequences = ids if reader.alone else torch.cat([input_ids, ids], 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return SpeculativeOutput(sequences=sequences, speculative_decoding=told)


def _config(
    reader: TextReader,
    asked: Asked,
    places: int,
    temperature: float,
    table: str | Path | None,
    seed: int | None,
    dice: str,
) -> Config:
    """The run that is asked for, of so many places, on the plain engine: transformers' cache is not one of fixed slots."""
    rule = asked.rule()
    return Config(
        asked.row,
        places,
        Sampling(temperature=temperature),
        rule,
        asked.drafts(reader.model.config.get_text_config()._attn_implementation),
        look_alikes(reader, rule.table_columns, table),
        seed=int(torch.randint(2**32, (1,))) if seed is None else seed,
        device=reader.prompt.device,
        engine="plain",
        dice=dice,
    )


def _drafter(reader: TextReader, asked: Asked, config: Config) -> EagleDrafter | None:
    """The drafter that is asked for, where the method needs one."""
    if not config.method.needs_drafter or asked.drafter is None:
        return None
    return read_drafter(asked.drafter, reader, config.num_tokens + config.tree.nodes + config.tree.expanded)


def _drawn(
    target: ModelTarget, drafter: EagleDrafter | None, config: Config, stopping_criteria: Any, streamer: Any
) -> tuple[list[int], dict[str, Any]]:
    """The ids that are drawn, until there are enough or a criterion stops, and what the drafts came to."""
    reader = target.reader
    real = reader.mask.bool() if reader.padded else None
    drawn, drafted, accepted, done = list[int](), list[int](), list[int](), False
    events = decode(target, drafter, Prompt(reader.prompt, real), config)
    for event in events:
        if isinstance(event, Decoded):
            break
        if event.tree_tokens:
            drafted.append(len(event.tree_tokens) - 1)
            accepted.append(event.accepted_length - 1)
        for token in reader.ids(event.tokens):
            drawn.append(token)
            row = torch.cat([target.prompt, target.prompt.new_tensor([drawn])], 1)
            if streamer is not None:
                streamer.put(row[0, -1:].cpu())
            if reader.ends and bool(stopping_criteria(row, None).all()):
                done = True
                break
        if done:
            break
    events.close()  # type: ignore[attr-defined]
    if streamer is not None:
        streamer.end()
    said = {"steps": len(drafted), "method": config.method.id, "seed": config.seed, "drafts": config.tree.words()}
    return drawn, acceptance(drafted, accepted, config.tree.deepest) | said
