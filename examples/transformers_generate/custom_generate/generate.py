"""Speculative decoding inside transformers' `generate`, by this folder's name or by the function:

    where = "examples/transformers_generate"
    model.generate(**inputs, custom_generate=where, trust_remote_code=True, lantern_method="sjd")
    model.generate(**inputs, custom_generate=decode_with, lantern_method="sjd")

transformers copies the folder and runs the copy. It imports lantern_demo, which must be installed
or on the path. Cache, logits processors and stopping criteria are prepared as for transformers' own
sampling. Every draft goes through the processors with the tokens before it. All methods but
LANTERN's two are exact. Each call decodes one prompt, with eager or sdpa attention. Arguments in
addition to transformers' own:

- lantern_method: vanilla; sjd, whose drafts are a chain of the model's own guesses; eagle1, lantern
  and lantern++, whose drafts are a static tree of a drafter.
- lantern_window: number of tokens that a forward pass of sjd reads.
- lantern_drafter: path of a drafter, see `drafter`. Every call reads it again.
- lantern_tree: a static tree by name or as paths, "0 1 00".
- lantern_k, lantern_delta, lantern_lambda: the rules of LANTERN and LANTERN++. lantern_neighbours:
  a tensor [V, k or more] of each token's nearest others. By default they come from the codebook of
  a Chameleon or a Janus.
- lantern_noise: "shared" fixes the noise of every position, so that exact methods draw the same
  tokens, up to rounding; "independent" is the papers' rejection sampling, which LANTERN's two
  always use.
- lantern_seed: 0 to 2**32 - 1. None: drawn from PyTorch's own generator.
- lantern_image: draw a picture. Janus uses the embeddings and the head of its image tokens.
  Chameleon (Anole) draws from its image tokens alone. lantern_guidance: the scale of Janus's
  guidance, 5 by default. Emu3 needs neither. It takes `prefix_allowed_tokens_fn`,
  `negative_prompt_ids` and `guidance_scale`, as with transformers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lantern_demo.decoding.config import Config, Method
from lantern_demo.decoding.drafting import DraftConfig, Proposer, StaticTree
from lantern_demo.decoding.interfaces import Verifier
from lantern_demo.decoding.loop import Decoded, decode, parts_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule, columns
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.window import Window
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.runs.metrics import acceptance
from lantern_demo.settings.settings import describe_drafts
from lantern_demo.settings.trees import STATIC_TREES, read_paths

from .adapter import ModelTarget, Prompt, TextReader, reader_of
from .drafter import EagleDrafter, read_weights

ROWS: dict[str, Method] = {
    name: METHODS[name] for name in ("vanilla", "sjd", "eagle1", "lantern++")
}
ROWS["lantern"] = replace(METHODS["lantern"], drafts=StaticTree)
TREE = "mc_sim_7b_63"


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """The result of `return_dict_in_generate=True`: `sequences`, and counts of drafts under vLLM's
    names, with `steps`.
    """

    speculative_decoding: dict[str, Any] | None = None


def generate(
    model: Any, lantern_image: bool = False, lantern_guidance: float | None = None, **arguments: Any
) -> Any:
    """Entry point that transformers calls for the folder's name, with the arguments of `generate`
    and `decode_with`.
    """
    # Janus's text mode passes it only in its configuration
    if lantern_image and lantern_guidance is None:
        lantern_guidance = getattr(arguments.get("generation_config"), "guidance_scale", None)
    given = {"lantern_image": lantern_image, "lantern_guidance": lantern_guidance, **arguments}
    # the class's method, since a model may override `generate` and call this function from there
    return GenerationMixin.generate(model, custom_generate=decode_with, **given)


def decode_with(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: Any,
    lantern_method: str = "sjd",
    lantern_window: int = 8,
    lantern_noise: str = "shared",
    lantern_seed: int | None = None,
    lantern_image: bool = False,
    lantern_guidance: float | None = None,
    lantern_drafter: str | Path | None = None,
    lantern_tree: str = TREE,
    lantern_k: int = 100,
    lantern_delta: float = 0.2,
    lantern_lambda: float = 3.0,
    lantern_neighbours: Tensor | None = None,
    **model_kwargs: Any,
) -> Tensor | SpeculativeOutput:
    """Continue the prompt input_ids [1, T] int64. The module documents the other arguments.

    Return ids [1, T + n] int64, or only the n image tokens [1, n] of a Janus picture. With
    `return_dict_in_generate`, return a `SpeculativeOutput`. Raises ValueError for invalid
    arguments.
    """
    if lantern_method not in ROWS:
        raise ValueError(f"lantern_method is {lantern_method!r}; allowed are {', '.join(ROWS)}")
    row = ROWS[lantern_method]
    if row.needs_drafter and lantern_drafter is None:
        raise ValueError(
            f"lantern_drafter is None; lantern_method {lantern_method!r} needs the path of a "
            "drafter"
        )
    if input_ids.shape[0] != 1:
        raise ValueError(
            f"input_ids has {input_ids.shape[0]} rows; allowed is one prompt, and one sequence for "
            "it"
        )
    rules = (
        Rule(),
        Lantern(k=lantern_k, bound=lantern_delta),
        LanternPlusPlus(k=lantern_k, bound=lantern_lambda),
    )
    rule = next(rule for rule in rules if type(rule) is type(row.rule))
    reader, processors = reader_of(
        model, input_ids, logits_processor, model_kwargs, lantern_image, lantern_guidance
    )
    tree = drafts_of(row, lantern_window, lantern_tree)
    config = Config(
        row,
        reader.tokens or generation_config.max_length - input_ids.shape[1],
        Sampling(temperature=1.0 if generation_config.do_sample else 0.0),
        rule,
        tree,
        neighbours(reader, columns(rule), lantern_neighbours),
        seed=int(torch.randint(2**32, (1,))) if lantern_seed is None else lantern_seed,
        device=input_ids.device,
        noise=lantern_noise if row.lossless else "independent",
    )
    target, drafter = ModelTarget(reader, input_ids, processors), None
    if row.needs_drafter and lantern_drafter is not None:
        positions = reader.prompt.shape[1] + config.num_tokens + 2 * tree.nodes
        drafter = EagleDrafter(read_weights(lantern_drafter, reader), reader, positions)
        reader.drafting, target.drafted = True, len(reader.prompt) * drafter.dim
    drawn, drafted, accepted = list[int](), list[int](), list[int]()
    prompt = Prompt(reader.prompt, reader.mask.bool() if reader.padded else None)
    events = decode(target, drafter, prompt, config, make_parts=uncaptured)
    for event in events:
        if isinstance(event, Decoded):
            break
        if event.tree_tokens:
            drafted.append(len(event.tree_tokens) - 1)
            accepted.append(event.accepted_length - 1)
        if kept(drawn, reader, event.tokens, input_ids, stopping_criteria):
            break
    ids = input_ids.new_tensor([drawn])
    sequences = ids if reader.alone else torch.cat([input_ids, ids], 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    counts = acceptance(drafted, accepted, tree.deepest) | {
        "steps": len(drafted),
        "method": lantern_method,
        "seed": config.seed,
        "drafts": describe_drafts(tree),
    }
    return SpeculativeOutput(sequences=sequences, speculative_decoding=counts)


def kept(
    drawn: list[int], reader: TextReader, tokens: list[int], prompt: Tensor, stopping_criteria: Any
) -> bool:
    """Append a step's tokens to `drawn` until a stopping criterion holds, and return whether one
    did.
    """
    for token in reader.ids(tokens):
        drawn.append(token)
        if reader.ends:
            whole = torch.cat([prompt, prompt.new_tensor([drawn])], 1)
            if bool(stopping_criteria(whole, None).all()):
                return True
    return False


def uncaptured(config: Config, vocabulary: int) -> tuple[Proposer, Verifier]:
    """Return the parts of a run whose steps no GPU captures: transformers' cache has no fixed
    slots.
    """
    proposer, verifier = parts_of(config, vocabulary)
    proposer.needs_host_sync = True
    return proposer, verifier


def drafts_of(row: Method, window: int, tree: str) -> DraftConfig:
    """Return the drafts of a method. Raises ValueError for an invalid window or tree."""
    if row.drafts is not StaticTree:
        return Window(window) if row.drafts is Window else DraftConfig()
    try:
        return StaticTree(STATIC_TREES.get(tree) or read_paths(tree))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"lantern_tree is {tree!r}; allowed are {', '.join(STATIC_TREES)}, or paths such as '0 "
            "1 00'"
        ) from error


def neighbours(reader: TextReader, columns: int, table: Tensor | None) -> Tensor | None:
    """Return each token's nearest others [V, k] int64, nearest first, from a table or the model's
    own codebook.

    Raises ValueError without either."""
    if columns == 0:
        return None
    if table is not None:
        return table.long().to(reader.prompt.device)
    if (found := reader.codes()) is None:
        raise ValueError(
            "lantern_neighbours is None, and what is drawn has no codebook that is known here; "
            "allowed are a table "
            "[vocabulary, lantern_k or more], or lantern_image=True with a Chameleon or a Janus"
        )
    vectors, code = found
    made = neighbour_table(vectors[code], min(columns, reader.vocabulary - 1))
    return made.long().to(reader.prompt.device)
