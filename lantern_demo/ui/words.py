"""Every text of the page and of the API's documentation."""

from __future__ import annotations

from dataclasses import dataclass

from lantern_demo.decoding.methods import Method
from lantern_demo.settings import LIMITS

TITLE = "Images, drawn faster"
INTRO = """# Images, drawn faster

A visual autoregressive model draws a picture token by token, each by one pass of a large network.
*Speculative decoding* lets a small drafter guess several tokens ahead and checks all guesses in one pass; on images most
guesses fail, because many tokens would do equally well.
**LANTERN** and **LANTERN++** accept such near misses too: see what that gains, and what it gives up.
"""

EXAMPLES = (
    "three red round lanterns over a lake at dusk",
    "four golden sky lanterns over the hills at night",
    "two blue box lanterns above still water at dawn",
    "a purple globe lantern over a meadow at sunset, softly lit",
    "four orange paper lanterns by the lake in the moonlight",
    "a pair of green square lanterns in the mountains at dusk",
    "two crimson floating lanterns over the water at midnight",
    "three violet sky lanterns over a plain at sunrise",
)

PROMPT_LABEL = "Prompt"
PROMPT_PLACEHOLDER = "What to draw, for example: three red round lanterns over a lake at dusk"
MODEL_LABEL = "Model"
MODEL_INFO = "The first ships with the code; the others are loaded at their first run."
CLASS_LABEL = "Class"
CLASS_INFO = "This model draws one of the 1,000 ImageNet classes. Type a part of its name, or its number."
METHODS_LABEL = "Methods"
METHODS_INFO = "They run one after the other, so that none disturbs another's clock. Speedups need Vanilla."
SEED_LABEL = "Seed"
SEED_INFO = "The same seed, settings and machine give the same pictures."
RANDOM_LABEL = "Randomise for every run"
DRAW, STOP, DOWNLOAD = "Draw", "Stop", "Download the run record (JSON)"

KNOBS_TITLE = "More settings"
TIMING_TITLE = "How timings are taken"
BARS_TITLE = "Speedup against vanilla"
TABLE_TITLE = "All numbers of this run"
TABLE_NOTE = (
    "MAL is the mean accepted length: tokens committed per step, a step being one pass of the target. TVD is the measured one-step "
    "total variation distance from the target's own law: 0 changes nothing, 1 everything. Seconds = prefill + draft + verify + commit."
)
TABLE_HEAD = (
    "Method", "Seconds", "Tokens/s", "Steps", "MAL", "Speedup", "TVD", "Prefill s", "Draft s", "Verify s", "Commit s", "Tree nodes",
)  # fmt: skip

TIMING = """
- The methods run **one after the other on one device**, in the order shown. Two at once would slow each other.
- The clock counts **synchronised device work only**: prefill, draft, verify, accept and commit. Previews, picture files, the
  network and this page happen between its ticks. Encoding the prompt and decoding the final picture are timed apart (see the record).
- Before the first method is timed, **every method is warmed up** with the same few tokens, which are not counted.
- **Speedup** is vanilla's decode seconds over the method's, both of this run on this device. Without vanilla there is none.
- Vanilla runs on the same engine as the others. Below 1 a method is slower: on a small machine, drafting can cost more than it saves.
- **One-step TVD** is measured after the run, off the clock: how far the law of the tokens emitted is from the target's.
"""

NOT_YET = "\u2013"  # stands where a number will be
READY = "Type a prompt, or pick an example, and press Draw."
STARTING = "Warming up the methods; this is not timed."
WAITING_FOR_VANILLA = "needs a vanilla run"
NO_BARS = "No speedups to show: they need Vanilla in the same run."
STOPPED = "Stopped. What was drawn so far stays; press Draw to start again."
NO_METHOD_FINISHED = "No method finished; the lanes say why."

METHOD_SENTENCES = {
    "vanilla": "One pass of the model for every token. The baseline.",
    "eagle1": "Guesses along a fixed tree; keeps only what the model would have drawn.",
    "eagle2": "Grows its tree where the drafter is sure; keeps only what the model would have drawn.",
    "lantern": "EAGLE-2's tree, but near misses count too: similar tokens lend their probability, up to delta.",
    "lantern++": "A fixed tree, and near misses bounded by lambda times the guess's own probability.",
}
LOSSLESS, LOSSY = "lossless", "lossy"
TVD_TITLE = "Measured one-step total variation distance from the model's own law: 0 changes nothing, 1 everything"
MAL_TITLE = "Mean accepted length: tokens committed per pass of the model"
NOT_MEASURED = "What it gave up was not measured: there was no step."
LOSSLESS_TITLE = "Every token follows the model's own law."
LOSSY_TITLE = "Accepts more guesses by changing the law of the tokens; by how much is measured."


@dataclass(frozen=True)
class Knob:
    """A setting's name on the page, and its sentence there and in the API's documentation."""

    label: str
    sentence: str


KNOBS: dict[str, Knob] = {
    "temperature": Knob(
        "Temperature",
        "1 samples from the model's own law, lower is safer. 0 is greedy: such models then draw poor, flat pictures.",
    ),
    "top_k": Knob("Top-k", "Only the k likeliest tokens may be drawn; 0 allows all."),
    "top_p": Knob("Top-p", "Only the likeliest tokens that together reach this probability may be drawn."),
    "cfg_scale": Knob(
        "CFG scale", "How much the prompt's effect is exaggerated (classifier-free guidance); 1 leaves it as the model has it."
    ),
    "lantern_k": Knob("LANTERN k", "How many neighbours in the codebook may lend their probability to a guess."),
    "lantern_delta": Knob(
        "LANTERN delta", "The most probability that neighbours may lend: higher accepts more and strays further from the model."
    ),
    "lanternpp_k": Knob("LANTERN++ k", "How many neighbours may lend their probability in LANTERN++."),
    "lanternpp_lambda": Knob(
        "LANTERN++ lambda", "Neighbours may lend up to lambda - 1 times the guess's own probability; 1 relaxes nothing."
    ),
    "tree": Knob(
        "Draft tree",
        "fit is chosen for this machine, from what checking costs here and how often guesses land; small suits processors, paper is what "
        "was published for GPUs; the others are fixed trees, with which EAGLE-2 and LANTERN use the small dynamic one. One of your own: "
        "paths such as 0 1 00, where 00 is the first child of the first child.",
    ),
    "draft_top_k": Knob("Dynamic tree: top-k (0: of the draft tree)", "Children per node of EAGLE-2's and LANTERN's tree."),
    "draft_depth": Knob("Dynamic tree: depth (0: of the draft tree)", "How many levels it grows below its first guesses."),
    "draft_nodes": Knob("Dynamic tree: nodes (0: of the draft tree)", "How many nodes are kept for checking, the root counted."),
    "residual": Knob(
        "Residual",
        "After a rejection: set takes out the guess and what was lent to it; released does what the authors' code does.",
    ),
    "neighbours": Knob(
        "Neighbours", "Which codebook vectors say what is near: those that the picture decoder sees, or the raw stored ones."
    ),
}


def method_sentence(method: Method) -> str:
    return METHOD_SENTENCES.get(method.id, method.summary)


def times(speedup: float) -> str:
    return f"{speedup:.2f}\u00d7"


def price(tvd: float, lossless: bool) -> str:
    return f"{'Gave up nothing' if lossless else 'Gave up'}: {tvd:.3f}"


def needs(download: str, memory: dict[str, str]) -> str:
    amounts = ", ".join(f"{amount} in {dtype}" for dtype, amount in memory.items())
    return f"Needs a download of about {download} at its first run, and memory of about {amounts} (estimates from the sizes of its tensors)."


def unavailable(labels: list[str], reason: str) -> str:
    why, _, command = reason.split(", and ", 1)[-1].partition("; train one: ")
    text = f"Not available: {', '.join(labels)}. The reason: {why}."
    return f"{text} This trains one: `{command}`" if command else text


def unmet(reason: str) -> str:
    return f"**It cannot run here:** {reason}"


def loading(title: str) -> str:
    return f"Loading {title}. The first time it is downloaded and converted, which takes a while."


def knob_range(name: str) -> str:
    """What a number may be, in words; empty for a choice."""
    if name not in LIMITS:
        return ""
    limit = LIMITS[name]
    digits = ".0f" if limit.whole else "g"
    return f"{limit.low:{digits}} to {limit.high:{digits}}"


def running(label: str, position: int, total: int) -> str:
    return f"Drawing with {label} ({position} of {total})."


def finished(seed: int, device: str, failed: int) -> str:
    text = f"Done, with seed {seed} on {device}."
    return text if not failed else f"{text} Some methods failed; their lanes say why."


def unknown_words(words: list[str]) -> str:
    names = ", ".join(dict.fromkeys(words))
    return f"The model does not know these words and drew without them: {names}."


def internal_error(error: Exception) -> str:
    return f"The run failed on the server ({type(error).__name__}: {error}). Try again, or other settings."
