"""Draft, verify, commit: fast decoding of autoregressive image models that keeps their distribution, or changes it within a
bound. Nothing here knows a network, a setting or a page.

`interfaces` has the protocols of target, drafter and verifier. `config` has the values of a run, `methods` the table of methods.
Read in this order:

1. `reference`: every acceptance rule at one node, one token at a time, in plain Python.
2. `noise`, `sampling`: how a token is drawn from logits.
3. `rules`: the same rules as tensors; a new rule is a class.
4. `trees`, `drafting`: draft trees, and the proposers that fill them; then `window` (SJD) and `opt_tree` (OPT-Tree).
5. `verify`: which drafts are accepted, and the token after them.
6. `step`: one step. `results`: the one row of integers that the host reads of it.
7. `loop`: a run from the prompt to the last token. `graphs`: the same steps as captured CUDA graphs.
8. `zipar`: rows drawn side by side, in steps of their own.

`cache` holds keys and values, `timing` is the clock, and `evidence` tells why a draft was accepted or refused.

One step, as `step.TreeSteps` takes it:

    draft = proposer.propose(root, passes, target.head, uniforms)                             # draft: a tree after the root
    hidden = target.forward(draft.tokens, positions, slots, visible, cache)                   # verify: one pass over the tree
    scores = warp(target.head(hidden), sampling)
    out = verifier.verify(draft, scores, position, uniforms)                                  # commit: the accepted path stays
    cache.move(length + out.path, slots)                                                      # in the cache
    proposer.observe(out, scores)
    root = out.bonus                                                                          # not yet read by the target
"""
