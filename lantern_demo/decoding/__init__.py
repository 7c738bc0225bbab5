"""Speculative decoding of autoregressive image models: draft, verify, commit. It keeps the model's
distribution, or relaxes it. Nothing in this package depends on a network, a setting or a page.

Begin with `reference`, and with `Steps.step` in `step`: a step drafts, verifies and commits, in
three methods. Then look up its parts:

1. `reference`: every acceptance rule at one node, one token at a time, in plain Python.
2. `noise`, `sampling`: draw a token from logits. `ops`: the operations that a run gets.
3. `rules`: the same rules as tensors; a new rule is a class.
4. `trees`, `drafting`: draft trees, and the proposers that fill them; then `window` (SJD).
5. `accept`, `verify`: judge drafts, accept a path of them, and draw the token after it.
6. `results`: a step's outcome as the one row of integers that the host reads.
7. `loop`: a run from the prompt to the last token. `graphs`: its steps as captured CUDA graphs.

`interfaces` has the protocols of target and drafter, `config` a run's configuration,
`methods` the table of methods. `cache` holds keys and values, `timing` is the clock, and `evidence`
reports why a draft was accepted or refused.
"""
