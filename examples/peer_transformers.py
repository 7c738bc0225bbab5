"""Time Hugging Face `generate` on the same weights: one token per step, a DynamicCache,
transformers' own samplers.

The time covers the whole call of `generate` with the prefill. The prompt is encoded before. The
layers are this project's modules in PyTorch operations, not the fused versions that decode a small
model on a CPU.

Run `python examples/peer_transformers.py --prompts 6`: all draw the same prompts in turn, as in
`bench speed`. This project's methods are also timed by the wall clock, from the prefill to the last
token.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from functools import partial
from statistics import median

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    set_seed,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from lantern_demo.bench.report import parser_of
from lantern_demo.bench.speed import Contestant, measure, play, prompts_for, rows_of
from lantern_demo.decoding.sampling import guide
from lantern_demo.decoding.timing import Clock
from lantern_demo.models.llama import prefix_mask, rotations
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.runs.load import load
from lantern_demo.runs.pipeline import Pipeline


class ImageConfig(PretrainedConfig):
    """The configuration that `generate` requires of a model."""

    model_type = "llamagen-image"


def append(cache: DynamicCache, layer: int, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Append the keys and values kv [R, 2 heads, n, d] of a layer, and return all that the cache
    holds of it.
    """
    return cache.update(*kv.chunk(2, 1), layer)


class ImageModel(PreTrainedModel, GenerationMixin):
    """A LlamaGen target for `generate`, which sees a batch of one.

    Guidance doubles the rows inside `forward`.

    transformers' own Llama cannot replace it: the rotary angles follow the image's rows and
    columns, and are 0 on the prompt.
    """

    config_class = ImageConfig
    main_input_name = "input_ids"

    def __init__(self, target: LlamaGen, cfg_scale: float) -> None:
        config = ImageConfig(
            vocab_size=target.vocab_size,
            hidden_size=target.config.dim,
            num_hidden_layers=target.config.layers,
            num_attention_heads=target.config.heads,
        )
        super().__init__(config)
        self.target, self.cfg_scale = target, cfg_scale

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.target.embed_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        unconditional: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        **_: object,
    ) -> CausalLMOutputWithPast:
        """Compute guided logits [1, 1, V] of the prefix inputs_embeds [1, T, H] with its
        unconditional row, or a token [1, 1].

        attention_mask [1, all positions so far] marks the prompt's padding, and is None without
        padding.
        """
        cache = DynamicCache() if past_key_values is None else past_key_values
        first = cache.get_seq_length()
        visible = None if attention_mask is None else attention_mask.bool()
        rows = 1 if unconditional is None else 2
        if inputs_embeds is not None:
            x = inputs_embeds
            if unconditional is not None:
                x = torch.cat((x, unconditional))
            config, dtype = self.target.config, inputs_embeds.dtype
            mask: Tensor | None = prefix_mask(visible, x.shape[1], x.device, config.padding, dtype)
        else:
            x = self.target.embed_tokens(input_ids).expand(rows, -1, -1)
            mask = None if visible is None else visible[:, None, None]
        rotation = rotations(self.target.rope[None, first : first + x.shape[1]])
        stores = [partial(append, cache, layer) for layer in range(self.target.config.layers)]
        hidden = self.target.run(x, rotation, mask, stores)
        logits = guide(self.target.head(hidden[:, -1:]), self.cfg_scale)[None]
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)


class Peer:
    """Draws pictures with `generate` under a pipeline's default settings."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe, knobs = pipe, pipe.defaults
        self.guided = knobs.cfg_scale != 1
        self.model = ImageModel(pipe.networks.target, knobs.cfg_scale).eval()
        sampled = {"temperature": knobs.temperature, "top_k": knobs.top_k, "top_p": knobs.top_p}
        self.config = GenerationConfig(
            max_new_tokens=pipe.info.tokens,
            min_new_tokens=pipe.info.tokens,
            use_cache=True,
            do_sample=knobs.temperature > 0,
            **(sampled if knobs.temperature > 0 else {}),
        )

    @torch.inference_mode()
    def read(self, prompt: str) -> dict[str, Tensor]:
        """Encode the prompt: the inputs of the prefix, and its padding."""
        networks = self.pipe.networks
        encoded = networks.text.encode(prompt)
        condition = networks.target.condition(encoded.features, encoded.mask, self.guided)
        rows = networks.target.read(condition)
        inputs = {"inputs_embeds": rows[:1]}
        if self.guided:
            inputs["unconditional"] = rows[1:]
        if encoded.mask is not None:
            inputs["attention_mask"] = encoded.mask.long()
        return inputs

    @torch.inference_mode()
    def draw(self, inputs: dict[str, Tensor], seed: int) -> list[int]:
        set_seed(seed)
        return self.model.generate(**inputs, generation_config=self.config)[0].tolist()


def timed(peer: Peer, prompt: str, seed: int) -> dict[str, float]:
    """Draw a picture and return its seconds.

    Raises RuntimeError if the number of tokens is wrong.
    """
    inputs = peer.read(prompt)
    clock = Clock(peer.pipe.device)
    with clock.measure("verify"):
        tokens = peer.draw(inputs, seed)
    if len(tokens) != peer.pipe.info.tokens:
        raise RuntimeError(
            f"generate drew {len(tokens)} tokens, a picture has {peer.pipe.info.tokens}"
        )
    return {"wall_seconds": clock.seconds["verify"]}


def main() -> None:
    """Print the seconds of a picture by method, and how many times as long `generate` takes."""
    parser = parser_of(__doc__)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--methods", nargs="+", default=["vanilla", "eagle1", "lantern++"])
    args = parser.parse_args()
    pipe = load()
    ours: dict[str, Contestant] = {
        row.name: partial(play, pipe, row) for row in rows_of(args.methods, {})
    }
    contestants = ours | {"generate": partial(timed, Peer(pipe))}
    rounds = measure(contestants, prompts_for(args.prompts))
    seconds_of = {name: [r["runs"][name]["wall_seconds"] for r in rounds] for name in contestants}
    for name, seconds in seconds_of.items():
        ratios = [g / own for g, own in zip(seconds_of["generate"], seconds, strict=True)]
        print(f"{name}: {median(seconds):.3f} s, generate takes {median(ratios):.2f} times as long")


if __name__ == "__main__":
    main()
