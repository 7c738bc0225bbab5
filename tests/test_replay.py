"""The stage in a real browser: pieces, replay and clocks, small screens, and a step's panel."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pages
import pytest
from pages import DEFAULT, LANES, draw, drawn, expect, fits, lit, open_page, scripts
from playwright.sync_api import Browser, Dialog, Page, Request, Route

from lantern_demo import ui
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.bundled import PATCHES
from lantern_demo.models.registry import BUNDLED
from lantern_demo.ui import texts
from lantern_demo.ui.recorded import recorded_runs

pytestmark = pages.IN_A_BROWSER

HEADLINE = "#headline h1"
LARGEST_VISIT = 450_000  # bytes, with the patches
TYPICAL = Path(ui.__file__).with_name("typical.json")
# the parts of a bar, as shares of its whole width
BAR = """(bar) => [...bar.children].map(
  (part) => part.getBoundingClientRect().width / bar.getBoundingClientRect().width)"""


@pytest.fixture(scope="module")
def shown(browser: Browser, server: str) -> Iterator[Page]:
    """The page with the first recorded run, at its end. A test leaves it so."""
    with pages.new_tab(browser) as page:
        open_page(page, server)
        yield page


def scrub(page: Page, per_mille: int) -> None:
    bar = page.get_by_label(texts.WEB["scrub"])
    change = "bar.dispatchEvent(new Event('input', { bubbles: true }))"
    bar.evaluate(f"(bar, to) => {{ bar.value = to; {change}; }}", per_mille)


# Three tokens of a picture of four. A token's patch is half red and half its own blue.
PAINTED = """() => {
  const [canvas, sheet] = [document.createElement("canvas"), document.createElement("canvas")];
  canvas.style.width = "64px";
  document.body.append(canvas);
  [sheet.width, sheet.height] = [1024, 32];
  const pen = sheet.getContext("2d");
  for (let token = 0; token < 128; token++) {
    const [x, y] = cellCorner(token, 64, 16);
    pen.fillStyle = "#f00";
    pen.fillRect(x, y, 8, 16);
    pen.fillStyle = `rgb(0, 0, ${token})`;
    pen.fillRect(x + 8, y, 8, 16);
  }
  const drawn = drawnSoFar(null);
  [3, 70, 5].forEach((token, at) => drawn.cells.set(at, ["t", token]));
  const looks = { patches: sheet, palette: null, otherwise: "#000" };
  paintMosaic(canvas, drawn, 2, { looks, cover: "#0f0" });
  const [painted, cell] = [canvas.getContext("2d"), canvas.width / 2];
  const at = (x, y) => [...painted.getImageData(x, y, 1, 1).data.slice(0, 3)];
  return [0, 1, 2, 3].map((place) => {
    const [x, y] = cellCorner(place, 2, cell);
    return [at(x + cell / 4, y + cell / 2), at(x + (3 * cell) / 4, y + cell / 2)];
  });
}"""


def test_a_piece_is_painted_as_its_tokens_patch(browser: Browser) -> None:
    """Also one of the second row of patches. What is not drawn yet is covered."""
    with scripts(browser, "dom", "grid", "mosaic") as page:
        found = page.evaluate(PAINTED)
    red, green = [255, 0, 0], [0, 255, 0]
    assert found == [[red, [0, 0, token]] for token in (3, 70, 5)] + [[green, green]]


# -- the replay

# The headlines that were shown; and of lanes' pictures when they were painted, and how visible.
WATCH = """addEventListener("DOMContentLoaded", () => {
  window.headlines = new Set();
  window.painted = [];
  const note = () => {
    const told = document.querySelector("#headline h1")?.textContent;
    if (told) window.headlines.add(told);
  };
  const seen = { subtree: true, childList: true, characterData: true };
  new MutationObserver(note).observe(document, seen);
  const pen = CanvasRenderingContext2D.prototype, draw = pen.drawImage;
  pen.drawImage = function (image, ...rest) {
    const lane = this.canvas.closest(".lane");
    if (image instanceof Image && document.body.matches(":not(:has(.play:disabled))"))
      window.painted.push([lane?.dataset.method, this.globalAlpha, performance.now()]);
    return draw.call(this, image, ...rest);
  };
})"""


def test_a_replay_plays_once_and_a_races_pictures_appear_together(tab: Page, server: str) -> None:
    """The recorded run plays by itself, and its headline counts."""
    tab.emulate_media(reduced_motion="no-preference")
    tab.add_init_script(WATCH)
    open_page(tab, server)
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    expect(tab.locator(HEADLINE)).to_contain_text(" won: ")
    leads = r".+ leads: (\d+) of 256 pieces\."
    told = [re.fullmatch(leads, one) for one in tab.evaluate("[...headlines]")]
    counted = [int(found[1]) for found in told if found is not None]
    assert len(counted) > 2 and counted == sorted(counted)
    expect(tab.get_by_role("button", name=texts.WEB["play"])).to_be_enabled()
    tab.evaluate("window.painted = []")
    draw(tab)
    drawn(tab, len(DEFAULT))
    tab.wait_for_function("painted.some(([, share]) => share === 1)")
    found: list[tuple[str, float, float]] = tab.evaluate("painted")
    starts = {name: min(at for one, _, at in found if one == name) for name in DEFAULT}
    assert max(starts.values()) - min(starts.values()) < 100, "ms"
    shares = [share for one, share, _ in found if one == "vanilla"]
    assert shares == sorted(shares) and any(0 < share < 1 for share in shares)


def test_the_numbers_are_those_of_the_record(shown: Page) -> None:
    """The headline, and each lane's seconds, place and bar; half-way its pieces."""
    record = recorded_runs()[0].record
    run = record["methods"]
    order = sorted(run, key=lambda name: run[name]["decode_seconds"])
    best, longest = run[order[0]], run[order[-1]]["decode_seconds"]
    result = f"{METHODS[order[0]].label} won: {best['decode_seconds']:.2f} s. "
    result += f"Vanilla: {run['vanilla']['decode_seconds']:.2f} s ({best['speedup']:.2f}\u00d7)."
    expect(shown.locator(HEADLINE)).to_have_text(result)
    machines = json.loads(TYPICAL.read_text(encoding="utf-8"))
    typical = next(row for row in machines if row["device"] == record["device"])["methods"]
    expect(shown.locator(f"#lane-{order[0].replace('+', 'p')}[data-first]")).to_be_visible()
    for name, lane in zip(run, LANES, strict=True):
        card = shown.locator(f"#lane-{lane}")
        place = texts.WEB["places"][order.index(name)]  # type: ignore[index]
        expect(card.locator(".place")).to_have_text(place)
        steps, took = run[name]["steps"], run[name]["decode_seconds"]
        expect(card.locator(".big")).to_have_text(f"{took:.2f} s")
        made = f"= {steps} steps \u00d7 {1000 * took / steps:.1f} ms"
        if name != "vanilla":  # on the benchmark's kind of machine
            low, high = typical[name]["range"]
            made += f", {run[name]['speedup']:.2f}\u00d7 (other prompts: {low:.2f}\u2013{high:.2f})"
        expect(card.locator(".small")).to_have_text(made)
        shares = [run[name][f"{part}_seconds"] / longest for part in ("draft", "commit")]
        shares.insert(1, took / longest - sum(shares))
        bar = card.locator(".bar").evaluate(BAR)
        assert bar == pytest.approx(shares, abs=0.006), name
    ends = [shown.locator(part) for part in ("#lane-vanilla .pill", "#stage .why")]
    for part in ends:
        expect(part).to_be_visible()
    scrub(shown, 500)
    for part in ends:
        expect(part).to_be_hidden()
    half = max(entry["events"]["milliseconds"][-1] for entry in run.values()) / 2
    for name, lane in zip(run, LANES, strict=True):  # each on its own clock
        events = run[name]["events"]
        pieces = events["committed"][bisect_right(events["milliseconds"], half) - 1]
        expect(shown.locator(f"#lane-{lane} .big")).to_have_text(f"{pieces} pieces")
        bar = shown.locator(f"#lane-{lane} .bar").evaluate(BAR)
        assert bar == pytest.approx([0, pieces / 256, 0], abs=0.006)
    expect(shown.locator(HEADLINE)).to_have_text(re.compile(r".+ leads: \d+ of 256 pieces\."))
    scrub(shown, 1000)


WHY = "1.80 pieces a step, and a step takes 0.90 times as long as vanilla's: 2.00\u00d7. "
WHY += "Below 0.90 pieces a step it would be slower than vanilla."
HEAD, REASON = "headlineOf(lanes).join('').replaceAll('\\u00a0', ' ')", "reason(lanes)"
# A function, the seconds of its lanes, and what it returns. Lanes are vanilla, EAGLE-1, LANTERN++.
TOLD: list[tuple[str, tuple[float | None, ...], str]] = [
    (HEAD, (2, 1, 3), "EAGLE-1 won: 1.00 s. Vanilla: 2.00 s (2.00\u00d7)."),
    (HEAD, (2, None, 3), "Vanilla won: 2.00 s. LANTERN++: 3.00 s."),
    (HEAD, (None, 1, 3), "EAGLE-1 won: 1.00 s. LANTERN++: 3.00 s."),
    (HEAD, (None, 1, None), "EAGLE-1 took 1.00 s."),
    (HEAD, (2, 1, 1.0009), "EAGLE-1 and LANTERN++ tie: 1.00 s. Vanilla: 2.00 s (2.00\u00d7)."),
    (HEAD, (2, 1, 1.0021), "EAGLE-1 won: 1.000 s. Vanilla: 2.000 s (2.00\u00d7)."),
    (REASON, (2, 1, 3), f"EAGLE-1 won here: {WHY}"),
    (REASON, (2, 1, 1.0009), f"EAGLE-1 came first, too: {WHY}"),
    (REASON, (2, None, None), ""),
]


@pytest.fixture(scope="module")
def clock(browser: Browser) -> Iterator[Page]:
    with scripts(browser, "dom", "clock") as page:
        page.evaluate("words => { window.WORDS = words; }", texts.WEB)
        yield page


def drawing(**lanes: tuple[int, float]) -> list[dict[str, Any]]:
    """Lanes by name, each with its pieces and its seconds so far."""
    told = {"phase": "drawing", "total": 256}
    return [
        told | {"id": name, "label": name, "committed": count, "seconds": seconds}
        for name, (count, seconds) in lanes.items()
    ]


def test_a_race_is_told_in_seconds_whoever_won(clock: Page) -> None:
    """In the headline, in the places, and why. What is less than a millisecond apart is a tie."""

    def lanes(took: tuple[float | None, ...]) -> list[dict[str, Any]]:
        names = zip(("vanilla", "eagle1", "lantern++"), (255, 142, 98), took, strict=True)
        return [
            {"id": name, "label": METHODS[name].label, "steps": steps}
            | {"milliseconds": [1, 1000 * seconds]}
            for name, steps, seconds in names
            if seconds
        ]

    for call, took, told in TOLD:
        assert clock.evaluate(f"lanes => {call}", lanes(took)) == told
    lost = clock.evaluate(f"lanes => {REASON}", lanes((2, None, 3)))
    assert lost.startswith("Vanilla won here. LANTERN++ came nearest: 2.60 pieces a step")
    busy = [lane | {"disturbed": True} for lane in lanes((2, 1, 3))]
    about = "EAGLE-1 won: 1.00 s. Vanilla: 2.00 s (about 2.0\u00d7)."
    assert clock.evaluate(f"lanes => {HEAD}", busy) == about
    stopped = HEAD.replace("(lanes)", "(lanes, true)")
    told = clock.evaluate(f"lanes => {stopped}", lanes((None, 1, 3)))
    assert told == "EAGLE-1 took 1.00 s. LANTERN++: 3.00 s.", "another might have won"
    ended = drawing(a=(256, 0.6289), b=(256, 0.628), c=(256, 0.64))
    done = [lane | {"phase": "done"} for lane in ended]
    ranks = "lanes => [...ranksOf(lanes)]"
    assert clock.evaluate(ranks, done) == [["a", 0], ["b", 0], ["c", 2]]
    assert clock.evaluate(ranks, [*done, *drawing(d=(99, 0.631))]) == [["a", 0], ["b", 0]]


def test_the_leader_is_named_late_and_stays_whoever_has_the_time_slice(clock: Page) -> None:
    """At equal time of its own: after a slice a lane has more pieces than the others."""
    frames = [
        (drawing(a=(60, 0.2), b=(25, 0.1)), None),
        (drawing(a=(60, 0.2), b=(30, 0.1)), "a"),
        (drawing(a=(60, 0.2), b=(62, 0.2)), "a"),
        (drawing(a=(90, 0.3), b=(84, 0.25)), "a"),
        (drawing(a=(90, 0.3), b=(110, 0.3)), "b"),
    ]
    leader = None
    for lanes, wanted in frames:
        call = "([lanes, leader]) => leaderOf(lanes, leader)?.id ?? null"
        leader = clock.evaluate(call, [lanes, leader])
        assert leader == wanted


def test_a_leader_with_fewer_pieces_at_the_same_time_is_level(clock: Page) -> None:
    headline = partial(clock.evaluate, "lanes => headlineAt(lanes, lanes[0]).join('')")
    level = headline(drawing(A=(63, 0.2), B=(64, 0.2)))
    assert level == "A and B are level: 63 of 256 pieces."
    assert headline(drawing(A=(63, 0.2), B=(64, 0.3))) == "A leads: 63 of 256 pieces."
    assert headline(drawing(A=(64, 0.2), B=(64, 0.2))) == "A leads: 64 of 256 pieces."
    assert headline(drawing(A=(64, 0.2))) == "A: 64 of 256 pieces."


# Which cells of a lane's picture have the mark of a look-alike in the middle.
MARKED = """(canvas, cells) => cells.map((cell) => {
  const size = canvas.width / 16;
  const [x, y] = cellCorner(cell, 16, size).map((at) => at + size / 2);
  return `${canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3)}` === "240,165,0";
})"""


def test_look_alikes_are_marked_on_all_pictures(shown: Page) -> None:
    """And explained, for a key and a touch, too."""
    alike, told = shown.locator("#stage .alike"), shown.get_by_text(texts.WEB["alikeTold"])
    run = recorded_runs()[0].record["methods"]
    for pressed in (True, False):
        alike.press("Enter")
        expect(alike).to_have_attribute("aria-pressed", f"{pressed}".lower())
        expect(told).to_be_visible(visible=pressed)
        for name in ("lantern", "lantern++"):
            cells = [at for at, kind in enumerate(run[name]["events"]["kinds"]) if kind == "r"]
            canvas = shown.locator(f"[data-method='{name}'] canvas")
            assert len(cells) > 5 and canvas.evaluate(MARKED, cells) == [pressed] * len(cells)


# Read at once: a lane may be painted anew between two questions.
TWO_COLUMNS = """least => {
  const box = (lane) => lane.querySelector(".lane-card")?.getBoundingClientRect();
  const boxes = [...document.querySelectorAll("#stage .lane")].map(box).filter(Boolean);
  const winner = document.querySelector("#stage .lane[data-first]");
  const canvas = document.querySelector("#stage canvas");
  if (!winner || !canvas) return false;
  return new Set(boxes.map((box) => box.x)).size === 2
    && canvas.getBoundingClientRect().width >= least
    && box(winner).y === Math.min(...boxes.map((box) => box.y));
}"""


def test_a_phone_has_two_columns_and_a_step_on_one_screen(tab: Page, server: str) -> None:
    """The winner stands first. Of a step are seen picture, sentence and Next, from any tab."""
    tab.set_viewport_size({"width": 390, "height": 844})
    open_page(tab, server)
    for opener in (".explain", "#lane-lanternpp .picture"):
        tab.get_by_role("tab", name=texts.NUMBERS_TAB).click()
        tab.locator(opener).click()
        expect(tab.locator(".panel .next")).to_be_focused()
        for part in (".large", ".told", ".next"):
            box = tab.locator(f".panel {part}").bounding_box()
            assert box and box["y"] >= 0 and box["y"] + box["height"] <= 844, (opener, part)
        assert tab.locator(".panel .large").bounding_box()["width"] > 300  # type: ignore[index]
    for width, least in ((390, 160), (360, 155)):
        tab.set_viewport_size({"width": width, "height": 844})
        for run in range(len(recorded_runs())):
            tab.locator("#runs button").nth(run).click()
            expect(tab.locator("#status")).to_contain_text("Recorded on")
            tab.wait_for_function(TWO_COLUMNS, arg=least)
            assert fits(tab)
    pages.check_for_axe(tab, "the phone's columns")


def test_a_link_is_copied_without_a_clipboard(shown: Page) -> None:
    """As on plain HTTP from another machine. Where nothing can be copied, the link is shown."""
    shown.evaluate("() => void Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    link = shown.locator("#stage .link")
    link.click()
    expect(link).to_have_text(texts.WEB["copied"])
    expect(link).to_have_text(texts.WEB["copy"], timeout=4000)
    shown.evaluate("document.execCommand = () => false")
    asked: list[tuple[str, str]] = []

    def answer(dialog: Dialog) -> None:
        asked.append((dialog.message, dialog.default_value))
        dialog.dismiss()

    shown.once("dialog", answer)
    link.click()
    expect(link).to_have_text(texts.WEB["copy"])
    assert asked == [(texts.WEB["copyIt"], shown.url)]


def test_a_page_below_an_unknown_path_says_what_is_missing(tab: Page, server: str) -> None:
    """Its server cannot be reached at the address that Gradio then uses."""

    def without_path(route: Route) -> None:
        address = route.request.url.replace("/demo/", "/")
        route.fulfill(response=route.fetch(url=address))

    tab.route("**/healthz", lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
    tab.route("**/demo/**", without_path)
    tab.goto(f"{server}demo/")
    told = tab.locator("#stage").get_by_role("alert")
    expect(told).to_have_text(texts.WEB["noServer"])


# What a model's colours are after the server's answers, 0 where none came, and how many it gave.
ANSWERS = """async ([model, statuses]) => {
  let asked = 0;
  window.fetch = async () => {
    const status = statuses[asked++];
    if (!status) throw new TypeError("no network");
    return { status, arrayBuffer: async () => new Uint8Array([1, 2, 3]).buffer };
  };
  for (const _ of [...statuses, 0]) {
    paletteOf(model, () => {});
    await new Promise((done) => setTimeout(done, 10));
  }
  return [asked, colourOf(paletteOf(model), 0, "none")];
}"""


def test_colours_are_asked_for_until_the_server_can_tell(browser: Browser) -> None:
    """Not while its model loads, and not without a network."""
    with scripts(browser, "grid") as page:
        assert page.evaluate(ANSWERS, ["tiny", [503, 0, 503, 200]]) == [4, "rgb(1,2,3)"]
        assert page.evaluate(ANSWERS, ["another", [404, 200]]) == [1, "none"]


# -- the panel that tells a step


def told(page: Page, begins: str) -> None:
    expect(page.locator(".panel .told")).to_contain_text(begins)


def test_how_it_works_tells_a_step_in_three_phases(shown: Page) -> None:
    """By keys alone, to the next step and back. The lanes stay as they are."""
    before = shown.locator(HEADLINE).inner_text()
    panel, title = shown.locator(".panel"), shown.locator(".panel h3")
    shown.get_by_role("button", name=texts.WEB["explain"]).press("Enter")
    told(shown, "1. Guess. A small drafter makes 4 guesses")
    expect(title).to_contain_text("LANTERN++, step ")
    first = title.inner_text()
    for begins, key in (("2. Check.", "Enter"), ("3. Keep.", "ArrowRight")):
        expect(panel.locator(".next")).to_be_focused()
        shown.keyboard.press(key)
        told(shown, begins)
    told(shown, texts.PANEL["phases"]["alike"])
    tree = panel.locator(".tree svg")
    expect(tree).to_have_attribute("aria-label", re.compile(r"\d kept as look-alikes"))
    expect(panel.locator("li.alike").first).to_contain_text(" + look-alikes ")
    shown.keyboard.press("Enter")
    expect(title).not_to_have_text(first)
    shown.keyboard.press("ArrowLeft")
    expect(title).to_have_text(first)
    told(shown, "3. Keep.")
    pages.check_for_axe(shown, "the panel")
    shown.set_viewport_size({"width": 1280, "height": 900})
    expect(shown.locator(HEADLINE)).to_have_text(before)


def test_the_tab_of_how_it_works_is_told_once_it_is_seen(tab: Page, server: str) -> None:
    """Without a press; and anew for each run, with its picture. A visit so far is small."""
    sizes: list[int] = []

    def note(request: Request) -> None:  # of all but Gradio's own files, which a browser keeps
        if "/assets/" not in request.url and "/theme" not in request.url:
            sizes.append(request.sizes()["responseBodySize"])

    tab.on("requestfinished", note)
    open_page(tab, server)
    tab.locator("#tabs").scroll_into_view_if_needed()
    tab.locator("#how-panel").scroll_into_view_if_needed()
    expect(tab.locator(".panel h3")).to_contain_text("LANTERN++, step ")
    patches = (BUNDLED / "lantern-scenes" / PATCHES).stat().st_size
    assert sum(sizes) + patches < LARGEST_VISIT, (sum(sizes), patches)
    tab.remove_listener("requestfinished", note)
    tab.locator("#runs button").last.click()
    steps = recorded_runs()[-1].record["methods"]["lantern++"]["steps"]
    tab.locator("#how-panel").scroll_into_view_if_needed()
    expect(tab.locator(".panel h3")).to_contain_text(f" of {steps}")
    tab.wait_for_function("""() => {
      const canvas = document.querySelector(".panel .large");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 40);
      return new Set(new Uint32Array(data.buffer)).size > 100;
    }""")


def click_piece(page: Page, canvas: str, cell: int) -> None:
    box = page.locator(canvas).bounding_box()
    assert box is not None
    x, y = ((at + 0.5) * box["width"] / 16 for at in (cell % 16, cell // 16))
    page.locator(canvas).click(position={"x": x, "y": y})


def test_a_click_on_a_piece_tells_the_step_that_drew_it(shown: Page) -> None:
    """In a lane, and in the panel's large picture, which marks it. Nothing precedes step 1."""
    run = recorded_runs()[0].record["methods"]
    title = shown.locator(".panel h3")

    def shows(name: str, cell: int) -> None:
        committed = run[name]["events"]["committed"]
        number = f"{bisect_right(committed, cell)} of {len(committed) - 1}"
        expect(title).to_have_text(f"{METHODS[name].label}, step {number}")

    click_piece(shown, "#lane-eagle2 canvas", 40)
    shows("eagle2", 40)
    told(shown, "1. Guess.")
    assert lit(shown, ".panel .large", 40) and not lit(shown, ".panel .large", 20)
    for _ in range(2):
        shown.keyboard.press("ArrowRight")
    expect(shown.locator(".guesses [aria-current] b").first).to_have_text("Piece 41:")
    click_piece(shown, ".panel .large", 255)
    shows("eagle2", 255)
    assert not lit(shown, ".panel .large", 40)
    click_piece(shown, "#lane-vanilla canvas", 0)
    told(shown, texts.PANEL["phases"]["first"])
    shown.keyboard.press("ArrowLeft")
    shows("vanilla", 0)
    shown.keyboard.press("ArrowRight")
    told(shown, texts.PANEL["phases"]["alone"])


def test_a_piece_that_is_pointed_at_is_lit_in_all_lanes(shown: Page) -> None:
    shown.locator("#lane-vanilla canvas").hover(position={"x": 5, "y": 20})
    assert all(lit(shown, f"#lane-{lane} canvas", 16) for lane in LANES)
    assert not any(lit(shown, f"#lane-{lane} canvas", 1) for lane in LANES)
    shown.mouse.move(0, 0)
    assert not any(lit(shown, f"#lane-{lane} canvas", 16) for lane in LANES)


# The colours of each guess's square.
SQUARES = """() => [...document.querySelectorAll(".panel li canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, 40, 40);
  return new Set(new Uint32Array(data.buffer)).size;
})"""
# What the panel says of every guess, by step: [fate, words], and each phase's sentence.
SAID = """lane => lane.committed.map((_, step) => {
  const phases = phasesOf(lane, step);
  const guesses = phases.length > 1 ? guessesOf(lane, step) : [];
  return {
    guesses: guesses.map((guess) => [guess.node, guess.fate, verdictOf(guess, lane.evidence)]),
    sentences: phases.map((phase) => sentenceOf(lane, step, phase, guesses)),
  };
})"""


def test_every_method_says_what_became_of_its_guesses(tab: Page, shown: Page, server: str) -> None:
    """Of all steps of all methods, with numbers; and of the recorded run, whose exact methods
    share vanilla's and have none. Guesses are decoded, though the server is not reached at first.
    """
    # Bounds so wide that every method that may accept more does, and trees so small that they are
    # drawn with pictures.
    asked = {"seed": 3, "tree": "small", "window": 4, "noise": "independent"}
    asked |= {"lantern_k": 10, "lantern_delta": 0.5, "lanternpp_lambda": 5.5}
    open_page(tab, f"{server}?{urlencode(asked | {'methods': ','.join(METHODS)})}")
    expect(tab.locator("#status")).to_contain_text(texts.READY_LINK)
    draw(tab)
    drawn(tab, len(METHODS))
    tab.route(re.compile("component_server"), lambda route: route.abort(), times=1)
    for page in (tab, shown):
        page.get_by_role("button", name=texts.WEB["explain"]).click()
        page.locator(".panel li").first.wait_for()
    tab.wait_for_function(f"({SQUARES})().every((count) => count > 10)")
    expect(tab.locator(".panel .note")).to_be_empty()
    known = [(tab, number, lane) for number, lane in enumerate(pages.lanes_of(tab))]
    assert [lane["id"] for _, _, lane in known] == list(METHODS)
    known += [(shown, number, lane) for number, lane in enumerate(pages.lanes_of(shown))]
    seen = set()
    for page, number, lane in known:
        steps = page.evaluate(f"({SAID})(lanternRun.lanes[{number}])")
        text = json.dumps(steps)
        assert not any(broken in text for broken in ("NaN", "undefined", "{}", "null")), lane["id"]
        assert ("The model itself made" in text) == lane["window"]
        for said, tree, trials in zip(steps, lane["trees"], lane["trials"], strict=True):
            rows = {row[0]: row for row in trials}
            for node, fate, words in said["guesses"]:
                seen.add(fate)
                assert (fate == "untried") == (node not in rows)
                assert (fate in ("kept", "alike")) <= (node in tree["path"])
                assert ("reach" in words) == (len(rows.get(node, [])) == 4)
                assert ("look-alikes" in words) <= ("lantern" in lane["id"])
    assert seen == {"kept", "alike", "dropped", "untried"}


# Of four places. In the first step 7 is refused, then 8 kept with 5 below it; the model draws 9.
TREE = {
    "id": "lantern++",
    "window": False,
    "tokens": [1, 8, 5, 9],
    "committed": [1, 4],
    "kinds": list("tert"),
    "trees": [
        {"tokens": [], "parents": [], "path": []},
        {"tokens": [1, 7, 8, 6, 5, 4], "parents": [0, 0, 0, 1, 2, 4], "path": [0, 2, 4]},
    ],
    "trials": [[], [[1, 0.1, 0.1, 0.4], [2, 0.5, 0.5, 0.4], [4, 0.001, 0.003, 0.002]]],
    "evidence": {"lends": True, "decides": "", "kept": "", "dropped": ""},
}
READ = """large => {
  const guesses = guessesOf(lane, 1);
  const drawn = treeOf(guesses, ({ fate }) => fate).querySelectorAll("g, path[transform]");
  return {
    guesses: guesses.map((one) => [one.node, one.place, one.fate, verdictOf(one, lane.evidence)]),
    inside: drawnInPlace(guesses).map(({ node }) => node),
    asked: askedFor(lane, 1).tree,
    keep: sentenceOf(lane, 1, "keep", guesses),
    looks: [...drawn].map((one) => one.getAttribute("class")),
    shown: shownNodes(large, 1),
  };
}"""


def test_a_step_is_read_from_tree_path_and_trials(browser: Browser) -> None:
    """By hand for a tree with branches. Of a large one what was kept and tried is shown."""
    wide = {"tokens": list(range(100)), "parents": [0] * 99 + [90], "path": [0, 90, 99]}
    large = {"trees": [None, wide], "trials": [None, [[n] for n in (*range(1, 91), 99)]]}
    with scripts(browser, "dom", "grid", "steps", "tree") as page:
        page.evaluate("given => { [window.lane, window.WORDS] = given; }", [TREE, texts.PANEL])
        found = page.evaluate(READ, large)
    nodes = found["shown"]
    assert len(nodes) == 17 and {0, 90, 99} <= set(nodes) and nodes == sorted(nodes)
    assert found["guesses"] == [
        [1, 1, "dropped", "p 0.100 does not reach 0.400: dropped."],
        [2, 1, "kept", "p 0.500 reaches 0.400: kept."],
        [3, 2, "untried", "Dropped with the guess before it."],
        [4, 2, "alike", "p 0.001 + look-alikes 0.002 reaches 0.002: kept."],
        [5, 3, "untried", "Not tried: another guess was kept first."],
    ]
    assert found["inside"] == [2, 4, 5]
    assert found["looks"] == [fate for _, _, fate, _ in found["guesses"]]
    assert found["asked"]["at"] == 0 and found["asked"]["parents"] == [0, 0, 0, 1, 2, 4]
    assert "2 of 5 guesses" in found["keep"] and "3 new pieces" in found["keep"]
