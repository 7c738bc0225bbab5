"""Speculative decoding of autoregressive image models: draft, verify, commit. It keeps the model's
distribution, or changes it within a bound. Nothing in this package depends on a network, a setting
or a page.

`interfaces` has the protocols of target, drafter and verifier, `config` a run's configuration,
`methods` the table of methods. Read in this order:

1. `reference`: every acceptance rule at one node, one token at a time, in plain Python.
2. `noise`, `sampling`: draw a token from logits.
3. `rules`: the same rules as tensors; a new rule is a class.
4. `trees`, `drafting`: draft trees, and the proposers that fill them; then `window` (SJD).
5. `accept`, `verify`: judge drafts, accept a path of them, and draw the token after it.
6. `step`: one step. `results`: its outcome as the one row of integers that the host reads.
7. `loop`: a run from the prompt to the last token. `graphs`: its steps as captured CUDA graphs.

`cache` holds keys and values, `timing` is the clock, and `evidence` reports why a draft was
accepted or refused.

One step, as `step.Steps` takes it:

    draft = proposer.propose(root, passes, target.head, uniforms)  # a tree after the root
    # verify: one pass over the tree
    hidden = target.forward(Pass(draft.tokens, positions, slots, visible), cache)
    scores = warp(target.head(hidden), sampling)
    # commit: the accepted path stays in the cache
    out = verifier.verify(draft, scores, position, uniforms)
    cache.move(length + out.path, slots)
    proposer.observe(out, scores)
    root = out.bonus  # not yet read by the target
"""
