"""Every text of the page and of the API's documentation, except those of `decisions`."""

from __future__ import annotations

from math import isqrt

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.rules import Lantern
from lantern_demo.faults import NotAllowed, sentence
from lantern_demo.prompt_words import USUAL
from lantern_demo.runs.record import Entry, Record, kept_of
from lantern_demo.settings.knobs import KNOBS

TITLE = "LANTERN: images, drawn faster"
NAME = "LANTERN"
SUBJECT, OWN = "speculative decoding", "independent implementation"
MODEL = "{model} on this machine's {device}"
SIZED = "{millions}\u00a0M-parameter model"
PREVIEW = (
    "Vanilla, EAGLE-1, EAGLE-2, LANTERN and LANTERN++ draw the same prompt with one image model. "
    "Watch the race, see each step, and draw your own."
)
HEADLINE = "<h1>The same prompt in fewer steps.</h1>"
INTRODUCTION = (
    "<p>The ordinary way, <b>vanilla</b>, paints piece by piece, one step each. <span>The "
    "others <b>guess ahead</b>, and one step checks many guesses.</span> <span>LANTERN and "
    "LANTERN++ also keep <b>look-alikes</b>: guesses that only resemble what the model would "
    "paint.</span></p>"
)
# Prompts of the recorded runs. All have the default seed, so no seed is chosen for its picture.
EXAMPLES = (
    USUAL,
    "a cat",
    "two blue box lanterns above still water at dawn",
    "a penguin on a lake at dusk",
)

PROMPT_LABEL = "Prompt"
PROMPT_PLACEHOLDER = f"What to draw, for example: {USUAL} (press / to write)"
METHODS_LABEL = "Methods"
METHODS_INFO = (
    "Each method gets equal time slices of the device. Speedups need Vanilla. "
    "[SJD](https://arxiv.org/abs/2410.01699) is speculative Jacobi decoding. It needs no drafter: "
    "in each step the model itself also guesses the pieces ahead. It is exact. On a processor, "
    "with the bundled model, it is usually faster than LANTERN++."
)
SEED_LABEL = "Seed"
SEED_INFO = (
    "Empty: a new one. Draw also takes a new one if nothing changed. The same seed, settings and "
    "draft trees give the same pictures, up to rounding."
)
DRAW, STOP, SETTINGS = "Draw", "Stop", "Settings"
DRAW_WITH = "Draw with {settings}"
OTHER_SETTINGS = (
    "The API and links have more settings: top-k, top-p, guidance, window, dynamic "
    "tree and neighbours."
)
OTHERS_NOW = "Set now: {values}."
PAPER, RESET = "Paper settings", "Reset to preset"
PAPER_TOLD = (
    "Filled in: the papers' draft trees, k, delta and lambda, stored neighbours, and own random "
    "numbers for each method."
)
PAPER_SLOW = (
    "They are made for GPUs: here they make every method with a drafter slower than vanilla."
)
DOWNLOAD, SHEET, FILM = "Run record (JSON)", "All pictures (PNG)", "Film (WebP)"
LINKS, PAPERS_LABEL = "About this demo", "Papers:"
PAPERS = {
    "LANTERN": "https://arxiv.org/abs/2410.03355",
    "LANTERN++": "https://arxiv.org/abs/2502.06352",
    "EAGLE": "https://arxiv.org/abs/2401.15077",
    "EAGLE-2": "https://arxiv.org/abs/2406.16858",
    "SJD": "https://arxiv.org/abs/2410.01699",
}
# by the name of a link, its path in a Space's repository
OF_A_SPACE = {"Code": "tree/main", "Docs": "blob/main/README.md"}
API = {"API": "?view=api"}  # the page's script opens Gradio's page of it

TABLE_NOTE = (
    "The first piece comes with the prompt, so vanilla takes one step less than there are pieces. "
    "Reading the prompt counts as a check. "
    "c is a method's step over vanilla's: speedup is pieces a step over c. "
    "Look-alikes are the guesses that only the relaxed "
    "rule accepted."
)
TABLE_HEAD = (
    *("Method", "Speedup", "Seconds", "Steps (pieces a step)", "Look-alikes"),
    *("Milliseconds of a step: guess + check + keep", "Tree, rule and noise"),
)
# The same for a spreadsheet, a number a cell, and then a column per depth.
TSV_HEAD = (
    *("method", "steps", "pieces a step", "seconds", "speedup", "lowest", "highest"),
    *("look-alikes", "guess ms", "check ms", "keep ms", "c", "tree, rule and noise"),
    *("seed", "model", "device"),
)
TSV_CHANCE = "guess {depth} ahead kept"
CITED = """@misc{lanterndemo,
  title = {LANTERN demo: an independent implementation of speculative decoding of images},
  year  = {%(year)s},
  note  = {lantern-demo %(version)s, model %(model)s, seed %(seed)s, %(date)s, on %(device)s}
}
"""
REPEAT, OTHER_SEEDS = "Repeat 5 times", "Repeat with 5 other seeds"
REPEATED = (
    "Each time and each speedup is the median of its own {of} values, of runs with the same "
    "prompt and seed. The lanes still show the first run."
)
NOT_ALL_REPEATED = "Not all runs ended. The numbers are the medians of those that did."
HOW_TAB, NUMBERS_TAB = "How it works", "Numbers"
TWIN_LABEL, TWIN = "A method", "Draw its exact twin"
TWIN_NOTE = (
    "The twin has the same tree and the same random numbers, but keeps no look-alikes. The pieces "
    "are the same up to the first guess to which neighbours lent probability. Compare the steps, "
    "and how well each picture shows the prompt."
)
TWIN_SLIDER = "Left: the exact twin. Right: the method, its look-alikes outlined."
TWIN_BUSY = "Drawing the twin."
NO_TWIN = "The run shown has no picture of this method; draw it first."
TWIN_TOLD = (
    "{method} took {steps} steps and kept {count} look-alikes of {of} pieces. "
    "Its exact twin took {twin} steps. {same}"
)
TWIN_SAME = "All pieces are the same."
TWIN_DIFFERS = "The pieces are the same up to piece {piece}."
SURPRISE = "Surprise"
KNOWS, DETAILS, ALL_THINGS = "What this model draws", "Details of the picture", "All {count}"
# parts of a prompt, other than its thing, that have chips
PARTS = {"count": "Number", "colour": "Colour", "shape": "Kind", "place": "Place", "time": "Time"}
SOME_FAILED = "Some methods did not finish; their lanes show why."
REPRODUCED = "Reproduced here: each time all methods drew the same pieces."
LEFT_OUT = "Left out:"
READ_AS = "Read as {thing}: {words}."

NOT_YET = "\u2013"  # stands where a number will be
READY_LINK = "Filled in from the link."
OLD_LINK = (
    "The link is of an older version, which kept runs. That run is gone; an example is shown."
)
LONG_ADDRESS = "The address of this run is too long to be printed."
NO_LONGER_KEPT = "This run is no longer kept. Load the page again for those that are."
RELOADED = (
    "This run had not ended, or is no longer kept. Draw begins it from the start, with its seed."
)
NOT_DRAWN_YET = "Nothing is drawn yet."
NO_ROOM = (
    "The disk of the machine that runs this is full, so there are no files to download. Free some "
    "space and draw again."
)
STILL_RUNNING = "A run waits or is being drawn; press Stop first."
NO_NUMBERS = "No method has finished, so there are no numbers yet."
LOADING = "Loading the model. Runs begin when it is loaded; no time includes this."
RACING = "Live on this machine."
STOPPED_RACE = "Only a part of this race was drawn."
# On the stage: a run drawn just now, one drawn before in this visit, or an example.
SOURCES = {
    "live": "Drawn just now on {device}, with seed {seed}: {prompt}.",
    "kept": "Drawn in this visit on {device}, with seed {seed}: {prompt}.",
    "recorded": "Recorded on {date} on {device}, with seed {seed}. Draw runs it live.",
}
OF_ANOTHER = "Recorded on {date} with {model}. Here another model draws."
KEPT = " Kept: the upper {rows} of {grid} rows."
READING = "Reading the prompt; this is not timed."
NOT_STARTED = "Nothing was started; the queue may be full. Try again in a moment."
UNSURE = "Show where the model was unsure"
UNSURE_TOLD = (
    "{method}'s picture in grey, under orange. The stronger the orange, the more pieces were "
    "likely there: from {least:.1f} to {most:.1f}, median {median:.1f}. The number is the "
    "exponential of the entropy of the model's distribution."
)
UNSURE_GREEDY = "At temperature 0, as here, it is the distribution of temperature 1."
UNSURE_HALVES = (
    "In the surer half of each picture's pieces, {half}, and in the other half, these guesses were "
    "kept:"
)
UNSURE_KEPT = "{method}: {sure} and {unsure}"
UNSURE_ALIKE = ", of them look-alikes {sure} and {unsure}"
UNSURE_MORE = "Fewer guesses are kept where the model is unsure."
UNSURE_MAP = "Map of where the model was unsure, over the picture drawn with {method}"
NO_RUN = "There is no finished run here. Draw one, or load the page again."
NO_MAP = "The model of this run is not loaded here, so it cannot tell where it was unsure."
NO_MAP_HERE = "On this Space the GPU is only lent for runs, so there is no map."
NO_LOOK_HERE = "on this Space the GPU is only lent for runs, so other pieces cannot be shown"
LOOK_LATER = "The device is at work. The guesses are decoded when it is free."
LOOK_LOADING = "The model is being loaded. The guesses are decoded when it is there."
LOOK_NOT_LOADED = (
    "the model of this run is not loaded here, so its guesses cannot be shown as pictures"
)
FILM_LATER = "The device is at work. Press for the film again when it is free."
NO_METHODS = "Choose at least one method: Settings lists them."
STOPPED = "Stopped."
STOPPED_RUN = "Stopped. The pieces drawn so far stay; press Draw to start again."
NO_METHOD_FINISHED = "No method finished; the lanes show why."

WARMING_UP = "Getting {label} ready; this is not timed."
RESET_TO = "All of these are again as {title} has them."
TOO_LARGE = "The request is too large; at most {megabytes} MB are read."
UNHEARD = "the call was stopped: nobody has opened its stream of answers"
NOT_SAVED = "the picture of {method} could not be saved: the disk is full; free some space"
REFUSED_LINK = "The link has a value that is not allowed: {why}"
CAPTION, RECORDED = "seed {seed}", "recorded"  # of a run of this visit, and of an example
SHEET_FACTS = "seed {seed}  \u00b7  {model}  \u00b7  {device}  \u00b7  {date}"

# The texts of the panel "How it works", which are sent with its scripts. Of a counted thing a list
# has the words for one, and for several.
PANEL: dict[str, object] = {
    "panel": "How a step works",
    "hint": "Press a piece of any picture: the step that drew it is told here.",
    "back": "Back",
    "next": {"check": "Next: check", "keep": "Next: keep", "step": "Next step"},
    "stepTitle": "{method}, step {step} of {steps}",
    "names": {"guess": "1. Guess.", "check": "2. Check.", "keep": "3. Keep."},
    "phases": {
        "first": "The first piece: the model draws it itself after reading the prompt.",
        "firstKept": (
            "The rows above the line are kept from another picture. The model reads them with the "
            "prompt, and draws the first piece below itself."
        ),
        "alone": "Vanilla makes no guesses: in each step the model draws one piece itself.",
        "nothing": "Nothing was guessed in this step: the model draws the piece itself.",
        "guess": "A small drafter makes {guesses} for {places}.",
        "guessOwn": "The model itself made {guesses} for {places} in the step before.",
        "guesses": ["1 guess", "{count} guesses"],
        "places": ["the next place", "the next {count} places"],
        "pieces": ["1 new piece", "{count} new pieces"],
        "some": " A part of them is shown.",
        "check": "One step of the model checks all guesses at once.",
        "keep": "Kept: {kept} of {made} guesses. The model adds one piece itself: {added}.",
        "keepLast": "Kept: {kept} of {made} guesses. The picture is full.",
        "alike": "The orange piece is a look-alike: kept, though the exact rule refuses it.",
    },
    "verdicts": {
        "kept": "p {own}{more} reaches {limit}: kept.",
        "dropped": "p {own}{more} does not reach {limit}: dropped.",
        "lent": " + look-alikes {extra}",
        "counted": ", counted as {counted},",
        "overOne": "more than 1",
        "lost": "Dropped with the guess before it.",
        "unneeded": "Not tried: another guess was kept first.",
    },
    "tree": "The draft tree of this step: {told}",
    "looks": {
        "guess": "guesses",
        "kept": "kept",
        "alike": "kept as look-alikes",
        "dropped": "refused",
        "untried": "not tried",
    },
    "guessed": "a guess, token {token}",
    "own": "the model drew it itself.",
    "piece": "Piece {place}:",
    "patch": "Token {token} as piece {place}",
}

# The texts of the panel of look-alikes, which are sent with its script.
PRICE: dict[str, object] = {
    "title": "Turn the look-alikes up",
    "methods": "Method",
    "at": "{knob} {value}",
    "run": (
        "{steps}, vanilla {vanilla}. {alike} of {of} pieces are look-alikes, outlined on the "
        "picture. Each can change the pieces after it, and so the scene."
    ),
    "exact": "{steps}, vanilla {vanilla}. No look-alikes: this is the exact twin.",
    "told": "{at}: {steps}, {alike} look-alikes",
    "picture": "{prompt}, drawn with {method} at {at}: {alike} look-alikes are outlined",
    "all": (
        "Over {pictures} pictures of {things} things: {speedup} as fast as vanilla, {changed} "
        "look-alikes{without}. A judge, another network, names the thing in {share} of these "
        "pictures, and in {vanilla} of vanilla's. It does not judge details, colours or the scene."
    ),
    "without": " ({speedup} without them)",
    "less": "That is {less} points ({low} to {high}, 98\u00a0%).",
    "holds": (
        "The judge sees no loss up to {at}. With {pictures} pictures a loss below {unseen} would "
        "go unnoticed."
    ),
    "breaks": "It breaks from {first} on: at {at} the judge names the thing in {share}.",
    "recorded": "Recorded on {date} on {device}: {prompt}, with seed {seed}.",
    "chart": (
        "Line: pictures whose thing the judge names, in percent. Dotted: pieces that are no "
        "look-alikes."
    ),
    "named": "pictures named",
    "kept": "{method}, ordinary pieces",
    "faster": "times as fast as vanilla",
    "vanilla": "vanilla",
    "points": "Pictures named, and ordinary pieces, by speed. {told}",
    "point": "{method} at {at}: {speedup}, {share} named, {own} ordinary",
}

# The texts of the page's other scripts, which fill in {names}.
WEB: dict[str, object] = {
    "draw": DRAW,
    "drawWith": DRAW_WITH,
    "leftOut": LEFT_OUT,
    "nearest": "nearest:",
    "draws": "Draw gives {drawn}.",
    "stage": "The race",
    # The headline: before its number, and after it.
    "headlines": {
        "took": "{method} took ",
        "won": "{method} won: ",
        "tie": "{method} tie: ",
        "than": ". {method}: {seconds}{gain}.",
        "gain": " ({gain})",
        "about": " (about {gain})",
        "begins": "The race begins.",
        "leads": "{method} leads: ",
        "level": "{methods} are level: ",
        "draws": "{method}: ",
        "of": " of {total} pieces.",
        "arrived": "{method} is done in ",
        "behind": ". Vanilla: {committed} of {total}.",
    },
    "steps": ["1 step", "{count} steps"],
    "made": "= {steps} \u00d7 {each}\u00a0ms",
    "typical": " (other prompts: {low}\u2013{high})",
    "places": ["1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th"],
    "pieces": ["1 piece", "{count} pieces"],
    "soFar": "of {total}, {steps} so far",
    "pills": {
        "vanilla": "the reference",
        "same": "\u2713 the same {of} pieces",
        "differ": "{count} of {of} pieces differ",
        "rounding": "Rounding can tip a close choice.",
        "alike": "{count} of {of} are look-alikes",
        "own": "own draw, {count} look-alikes",
        "exact": "exact",
        "independent": "exact, own draw",
    },
    # why a method won, with its numbers
    "reason": {
        "won": "{method} won here:",
        "tied": "{method} came first, too:",
        "lost": "Vanilla won here. {method} came nearest:",
        "numbers": (
            "{pieces} pieces a step, and a step takes {dear} times as long as vanilla's: {gain}. "
            "Below {dear} pieces a step it would be slower than vanilla."
        ),
    },
    "legend": {
        "title": "On the pictures:",
        "t": "own piece",
        "e": "kept guess",
        "r": "show look-alikes",
    },
    "alikeTold": (
        "A look-alike is a kept guess that the exact rule would refuse: the model wanted pieces "
        "that look like it. The pieces after it build on it."
    ),
    "key": {"title": "Bars:", "guess": "guess", "check": "check", "keep": "keep"},
    # of one method, and of several
    "ownNumbers": [
        "{methods} has other random numbers: its picture differs even without look-alikes.",
        "{methods} have other random numbers: their pictures differ even without look-alikes.",
    ],
    "twinShows": "The exact twin, in Numbers, shows what look-alikes change.",
    "shared": [
        "{methods} shares vanilla's, so its picture must be the same.",
        "{methods} share vanilla's, so their pictures must be the same.",
    ],
    "disturbed": "Other programs used the processor, too, so these speedups can be far off.",
    "before": "These pictures are of an earlier run.",
    "earlier": "The run before:",
    "controls": "Replay",
    "play": "\u25b6 Replay",
    "pause": "\u275a\u275a Pause",
    "scrub": "Time of the replay",
    "copy": "Copy link",
    "copied": "Copied",
    "copiedWhole": "Copied: it draws all rows",
    "copyIt": "This browser lets no page copy here. Copy the link:",
    "noServer": (
        "This page does not reach its server at this address, so it cannot draw. Behind a path of "
        "a proxy the server needs that path in its variable GRADIO_ROOT_PATH."
    ),
    # The drawings below the table of numbers.
    "figures": {
        "table": "Copy as table (TSV)",
        "cite": "Cite (BibTeX)",
        "refused": "This browser lets no page copy here",
        "chances": "Guesses that were kept",
        "ahead": "{count} ahead",
        "tried": "{chance} of {tried}",
        "sizes": "Steps by their pieces",
        "map": "Look-alikes: {count} of {of} pieces",
        "thirds": (
            "Map of {method}'s look-alikes: {top} in the top third of the picture, {middle} in "
            "the middle, {bottom} at the bottom."
        ),
        "counts": "A guess counts once the one before it was kept.",
        "siblings": (
            "Where a piece has several guesses, they are tried in turn until one is kept. The "
            "pale bar, and the number in brackets, are the pieces for which one was kept."
        ),
        "lent": (
            "The brighter a look-alike, the more of the probability that it needed came from "
            "pieces that look like it."
        ),
    },
    "download": "Download the picture drawn with {method} (PNG)",
    "explain": "Explain a step",
    "noSteps": "No method has finished, so there is no step to show yet.",
    "open": "{method}: how its steps work",
    # the line on a finished picture
    "cut": "{method}: rows to keep",
    "drag": "Drag down: the rows above stay, the rest is drawn again",
    "rows": ["1 row kept", "{count} rows kept"],
    "rest": "Draw the rest again",
}


def exactness(method: Method) -> str:
    """Describe a method in three words."""
    if method.alone:
        return "one piece a step"
    if method.lossless:
        return "exact"
    return "look-alikes" if isinstance(method.rule, Lantern) else "not exact"


def times(speedup: float) -> str:
    return f"{speedup:.2f}\u00d7"


def changed_of(entry: Entry) -> int:
    """Count the tokens that a method of a record changed."""
    return entry["events"]["kinds"].count("r")


def stopped_at(committed: int, total: int) -> str:
    return f"stopped at {committed} of {total}" if committed else "stopped before the start"


def of_run(sentence: str, record: Record) -> str:
    """Fill a record's facts into one of SOURCES, or into SHEET_FACTS."""
    told = sentence.format(
        model=record["model"]["id"],
        device=record["device"],
        date=record["created"][:10],
        seed=record["settings"]["seed"],
        prompt=record["completed"] or record["prompt"],
    )
    entry = record["methods"][record["order"][0]]
    return told + rows_kept(len(kept_of(entry)), entry["tokens"])


def rows_kept(kept: int, tokens: int) -> str:
    """Return a further sentence on a picture that kept so many of its tokens; empty for none."""
    grid = isqrt(tokens)
    return KEPT.format(rows=kept // grid, grid=grid) if kept else ""


def to_visitor(error: ValueError) -> str:
    """Return a refusal as a sentence for a visitor, who knows a parameter by its label."""
    told = str(error)
    if isinstance(error, NotAllowed):
        label = KNOBS[error.name].label if error.name in KNOBS else error.name
        told = f"{'the prompt' if label == 'prompt' else label} {error.rest}"
    return told[:1].upper() + told[1:] + ("" if told.endswith((".", "!", "?")) else ".")


def without_drafter(reason: str) -> str:
    """Name the methods that need a drafter, and why the model has none."""
    labels = [method.label for method in METHODS.values() if method.needs_drafter]
    return f"Not available: {', '.join(labels)}. The reason: {reason}."


def waits(ahead: int, seconds: float) -> str:
    """Return how many runs were ahead of a run when it joined the queue; nothing counts it down.

    `seconds`: how long another takes; 0: not known.
    """
    if not ahead:
        return "Starting."
    before = "1 run was" if ahead == 1 else f"{ahead} runs were"
    about = f", about {max(1, round(ahead * seconds))} s" if seconds else ""
    return f"Waiting. When you asked, {before} before yours{about}."


def through(done: int, total: int) -> str:
    told = "Drawing in turns; each method's seconds are its own."
    return "Drawing." if total == 1 else f"{told} {done} of {total} have finished."


def repeating(number: int, of: int, seconds: float) -> str:
    left = f"about {max(1, round(seconds))} s are left"
    return f"Run {number} of {of}; {left}. Stop is at the top, in the place of Draw."


def of_seeds(seeds: list[int]) -> str:
    """Return what the numbers of runs with several seeds are.

    Of N values the range from lowest to highest covers the median with probability 1 - 2^(1-N).
    """
    chance = round(100 * (1 - 2 ** (1 - len(seeds))))
    return (
        f"Each number is the median of {len(seeds)} runs, of the seeds {seeds[0]} to {seeds[-1]}. "
        f"The range of so many speedups covers the median of all seeds {chance} times in 100. "
        "The lanes still show the first run."
    )


def in_turn(labels: list[str], reason: str) -> str:
    """Explain why methods did not race. labels: theirs, where others did race."""
    if labels:
        return f"{', '.join(labels)} could not race with the others: {reason}."
    return f"The methods ran one after the other, not as a race: {reason}."


def starting(seed: int, new: bool) -> str:
    drawn = f"Drawing with {'a new seed' if new else 'seed'} {seed}."
    return f"{drawn} Getting the methods ready; this is not timed."


def internal_error(error: BaseException) -> str:
    return f"The run failed on the server. {sentence(error)} Try again, or other settings."


def load_failed(model: str, error: BaseException) -> str:
    return (
        f"model {model} could not be loaded: {sentence(error)} "
        "Mend that, and start the program anew."
    )


def other_tokens(label: str, tokens: list[int], expected: list[int]) -> str:
    """Return from which piece on a run differs from another one."""
    first = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b)
    return f"{label}: other pieces, from piece {first + 1} on."


def sheet_lines(entry: Entry) -> list[str]:
    """Return the numbers below a picture of the sheet."""
    # the font has no multiplication sign
    gain = f", {entry['speedup']:.2f}x" if "speedup" in entry else ""
    return [
        f"{entry['steps']} steps",
        f"{entry['decode_seconds']:.2f} s{gain}",
        f"{changed_of(entry)} look-alikes of {entry['tokens'] - len(kept_of(entry))}",
    ]
