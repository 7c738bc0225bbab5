"""What a race looks like: its patches and pictures, its size on small screens, and its film."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pages import (
    DEFAULT,
    IN_A_BROWSER,
    check_for_axe,
    draw,
    drawn,
    expect,
    faults_of,
    fits,
    lanes_of,
    only,
    open_page,
    scripts,
)
from PIL import Image, ImageSequence

from lantern_demo.models.bundled import PATCHES
from lantern_demo.models.registry import BUNDLED
from lantern_demo.ui import film
from lantern_demo.ui.recorded import recorded_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER

LARGEST_VISIT = 450_000  # bytes, with the patches


# -- the patches


# A picture of four tokens of 16 patches in a row, each half red and half its own blue.
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
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.width);
  const cell = canvas.width / 2;
  const at = (x, y) => [...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 3)];
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


# -- a race


def test_the_pictures_of_a_race_appear_together(tab: Page, server: str) -> None:
    """Over their pieces, when all methods are there."""
    tab.emulate_media(reduced_motion="no-preference")
    tab.add_init_script("""
      window.shown = [];
      const pen = CanvasRenderingContext2D.prototype, draw = pen.drawImage;
      pen.drawImage = function (image, ...rest) {
        const lane = this.canvas.closest(".lane");
        if (image instanceof Image && document.body.matches(":not(:has(.play:disabled))"))
          shown.push([lane?.dataset.method, this.globalAlpha, performance.now()]);
        return draw.call(this, image, ...rest);
      };""")
    open_page(tab, server)
    tab.wait_for_function("document.querySelectorAll('.lane[data-done]').length === 5")
    tab.evaluate("window.shown = []")
    draw(tab)
    drawn(tab, len(DEFAULT))
    tab.wait_for_function("shown.some(([, share]) => share === 1)")
    found: list[tuple[str, float, float]] = tab.evaluate("shown")
    starts = {name: min(at for one, _, at in found if one == name) for name in DEFAULT}
    assert max(starts.values()) - min(starts.values()) < 100, "ms"
    shares = [share for one, share, _ in found if one == "vanilla"]
    assert shares == sorted(shares) and any(0 < share < 1 for share in shares)


def test_a_visit_with_patches_is_small(tab: Page, server: str) -> None:
    """Gradio's own files aside, which a browser keeps."""
    sizes: list[int] = []

    def note(answer: Any) -> None:
        if "/assets/" not in answer.url and "/theme" not in answer.url:
            sizes.append(answer.request.sizes()["responseBodySize"])

    tab.on("requestfinished", lambda request: note(request.response()))
    open_page(tab, server)
    tab.locator("#how-panel").scroll_into_view_if_needed()
    tab.locator(".panel h3").wait_for()
    patches = (BUNDLED / "lantern-scenes" / PATCHES).stat().st_size
    assert sum(sizes) + patches < LARGEST_VISIT, (sum(sizes), patches)


# -- small screens


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


@pytest.mark.parametrize(("width", "least"), [(390, 160), (360, 155)])
def test_a_phone_has_two_columns_with_the_winner_first(
    tab: Page, server: str, width: int, least: int
) -> None:
    """Whoever it was, and also in a race."""
    tab.set_viewport_size({"width": width, "height": 844})
    open_page(tab, server)
    for run in range(len(recorded_runs())):
        tab.locator("#runs button").nth(run).click()
        expect(tab.locator("#status")).to_contain_text("Recorded on")
        tab.wait_for_function(TWO_COLUMNS, arg=least)
        assert fits(tab)
    check_for_axe(tab, "the phone's columns")


# -- the line on a picture


def test_the_rest_of_a_picture_is_drawn_again(tab: Page, server: str) -> None:
    """Below a line that is moved by keys or dragged. Only one picture has one."""
    open_page(tab, server)
    only(tab, "vanilla", "lantern++")
    draw(tab)
    drawn(tab, 2)
    line, other = (tab.locator(f"#lane-{name} .cut") for name in ("lanternpp", "vanilla"))
    for key, rows in (("PageDown", 4), ("ArrowDown", 5), ("End", 15), ("ArrowUp", 14)):
        line.press(key)
        expect(line).to_have_attribute("aria-valuenow", str(rows))
    line.press("Escape")
    expect(tab.locator("#lane-lanternpp .rest")).to_be_hidden()
    box = tab.locator("#lane-lanternpp canvas").bounding_box()
    assert box is not None
    across = box["x"] + box["width"] / 2
    tab.mouse.move(across, box["y"])
    tab.mouse.down()
    tab.mouse.move(across, box["y"] + 9.2 / 16 * box["height"])
    tab.mouse.up()
    expect(line).to_have_attribute("aria-valuetext", "9 rows kept")
    faults_of(tab, "a line on a picture")
    other.press("ArrowDown")
    expect(line).to_have_attribute("aria-valuenow", "0")
    line.press("PageDown")
    expect(other).to_have_attribute("aria-valuenow", "0")
    upper = lanes_of(tab)[1]["tokens"][:64]
    tab.evaluate("window.lanternRun = null")
    tab.locator("#lane-lanternpp .rest").click()
    drawn(tab, 2)
    for lane in lanes_of(tab):
        assert lane["tokens"][:64] == upper and lane["kinds"][:65].count("k") == lane["kept"] == 64
        assert (lane["committed"][0], lane["committed"][-1], lane["total"]) == (65, 256, 192)
    expect(tab.locator("#status")).to_contain_text("Kept: the upper 4 of 16 rows.")
    expect(tab.locator("#draw")).to_be_focused()
    assert "keep" not in tab.url
    tab.evaluate("window.lanternRun = null")
    draw(tab)
    drawn(tab, 2)
    assert {lane["kept"] for lane in lanes_of(tab)} == {0}


# -- the film


def test_a_finished_race_is_a_film(tab: Page, server: str, tmp_path: Path) -> None:
    open_page(tab, server)
    only(tab, "vanilla", "lantern++")
    draw(tab)
    drawn(tab, 2)
    with tab.expect_download() as download:
        tab.locator("#film").click()
    assert download.value.suggested_filename == "lantern-demo-race.webp"
    download.value.save_as(tmp_path / "race.webp")
    with Image.open(tmp_path / "race.webp") as race:
        shown = []
        for frame in ImageSequence.Iterator(race):
            frame.load()
            shown.append(frame.info["duration"])
    # equal frames become one, which is shown as long as they
    assert sum(shown) == (film.FRAMES - 1) * film.FRAME + film.REST
    assert film.FRAMES // 2 < len(shown) <= film.FRAMES
