"""The panel of look-alikes in a real browser, with measurements that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages
import pytest
from pages import expect, fits, open_page
from test_price import made_price
from tiny import served

from lantern_demo.ui import recorded, texts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pages.IN_A_BROWSER

WORDS: dict[str, Any] = texts.PRICE
# of the picture: its colour, and which of some cells are outlined
SEEN = """(canvas, cells) => {
  const g = canvas.getContext("2d");
  const size = canvas.width / 16;
  const at = (x, y) => [...g.getImageData(x, y, 1, 1).data.slice(0, 3)];
  const outlined = (cell) => {
    const [x, y] = [(cell % 16) * size, Math.floor(cell / 16) * size];
    const edge = [...Array(Math.ceil(size / 3)).keys()].map((i) => at(x + size / 2, y + i));
    return edge.some(([red, green, blue]) => red > 200 && green > 130 && green < 200 && blue < 60);
  };
  const tint = at(canvas.width / 2, canvas.width - 2).map((part) => Math.round(part / 255));
  return [tint, cells.map(outlined)];
}"""


@pytest.fixture(scope="module")
def panel(
    browser: Browser, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """A page with measurements, scrolled to the panel."""
    folder = tmp_path_factory.mktemp("price")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "PRICE", folder / "price.json")
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        made_price(recorded.PRICE)
        with served(tiny_model) as (url, _), pages.new_tab(browser) as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.set_viewport_size({"width": 390, "height": 500})  # the panel is far below
            open_page(page, url)
            assert not any("price.js" in address for address in asked), "nobody has seen it"
            page.set_viewport_size({"width": 1280, "height": 844})
            page.locator("#price").scroll_into_view_if_needed()
            page.locator(".price output").wait_for()
            yield page


def shows(page: Page, at: str, steps: int, alike: int, tint: list[int]) -> str:
    """Wait until the panel shows a value: what is told, and the picture -> where the ring is."""
    told = WORDS["told"].format(at=at, steps=f"{steps} steps", alike=alike)
    expect(page.locator(".price output")).to_have_text(at)
    expect(page.locator(".price input")).to_have_attribute("aria-valuetext", told)
    expect(page.locator(".price .facts p").first).to_contain_text(f"{steps} steps, vanilla 255.")
    cells = [0, max(0, alike - 1), alike]
    seen = f"({SEEN})(document.querySelector('.price canvas'), cells)"
    page.wait_for_function(
        f"([cells, seen]) => JSON.stringify({seen}) === JSON.stringify(seen)",
        arg=[cells, [tint, [alike > 0, alike > 0, False]]],
    )
    return page.locator(".price .ring").get_attribute("transform") or ""


def test_one_slider_moves_the_picture_its_look_alikes_the_steps_and_the_ring(panel: Page) -> None:
    """By keys, too. It begins at the preset's value."""
    slider, verdict = panel.locator(".price input"), panel.locator(".price .verdict")
    places = [shows(panel, "lambda 3", 184, 16, [0, 1, 0])]
    slider.press("ArrowRight")
    places.append(shows(panel, "lambda 40", 155, 45, [0, 0, 1]))
    holds = {"at": "lambda 40", "pictures": 200, "unseen": "2\u00a0%"}  # 0.01 ** (1 / 200)
    expect(verdict).to_have_text(WORDS["holds"].format(**holds))
    slider.press("Home")
    places.append(shows(panel, "lambda 1", 200, 0, [1, 0, 0]))
    expect(panel.locator(".price")).to_contain_text("this is the exact twin")
    panel.get_by_role("button", name="LANTERN", exact=True).click()
    places.append(shows(panel, "delta 0.2", 180, 20, [0, 1, 0]))
    breaks = {"first": "delta 0.2", "at": "delta 1", "share": "10\u00a0%"}
    expect(verdict).to_have_text(WORDS["breaks"].format(**breaks))
    assert len(set(places)) == len(places)
    told = panel.locator(".price .facts")
    expect(told).to_contain_text("1.30\u00d7 as fast as vanilla, 8\u00a0% look-alikes")
    expect(told).to_contain_text("That is -18.0 points (-21.0 to -15.0, 99\u00a0%).")
    expect(told).to_contain_text("a <b>machine</b>")
    points = panel.locator(".price svg").get_attribute("aria-label") or ""
    assert points.count(";") == 5
    assert "LANTERN++ at lambda 40: 1.55\u00d7, 97\u00a0% named" in points


@pytest.mark.parametrize("width", [390, 768, 1000, 1280])
def test_the_panel_fits(panel: Page, width: int) -> None:
    panel.set_viewport_size({"width": width, "height": 844})
    panel.wait_for_timeout(200)
    assert fits(panel)
    for part in ("canvas", "input", "figure svg"):
        box = panel.locator(f".price {part}").bounding_box()
        assert box and box["width"] >= 180, part
    if width in (390, 1280):
        pages.faults_of(panel, f"the panel of look-alikes, {width} px wide")
