"""The film of a race, and what a finished race is compared with."""

from copy import deepcopy
from pathlib import Path

from PIL import Image, ImageFont, ImageSequence

from lantern_demo.models.bundled import PATCHES
from lantern_demo.models.registry import BUNDLED
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import film, texts
from lantern_demo.ui.files import address, facts
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.run_view import picture_of, typical_speedups


def test_a_film_shows_the_race_of_a_record(tmp_path: Path) -> None:
    run = recorded_runs()[0]
    pictures = {name: picture_of(address) for name, address in run.pictures.items()}
    link = address("../../\n" + "x" * 500 + "\u202e", "?prompt=a+cat")
    assert link.endswith("x/?prompt=a+cat") and len(link) < 120 and link.isprintable()
    path = Path(film.write_film(tmp_path, run.record, pictures, link))
    assert path == tmp_path / "lantern-demo-race.webp" and path.stat().st_size < 3_000_000
    middle = (film.MARGIN + film.TILE // 2, film.MARGIN + 64 + film.TILE // 2)
    with Image.open(path) as race:
        frames = ImageSequence.Iterator(race)
        seen = [(one.convert("RGB").getpixel(middle), one.info["duration"]) for one in frames]
    shown = [duration for _, duration in seen]
    # equal frames become one, which is shown as long as they
    assert sum(shown) == (film.FRAMES - 1) * film.FRAME + film.REST
    assert film.FRAMES // 2 < len(shown) <= film.FRAMES
    (first, _), *_, (last, _) = seen
    cover = tuple(int(film.COVER[at : at + 2], 16) for at in (1, 3, 5))
    assert max(abs(a - b) for a, b in zip(first, cover, strict=True)) < 12
    assert max(abs(a - b) for a, b in zip(last, cover, strict=True)) > 40


def test_an_address_is_printed_whole_or_not_at_all() -> None:
    record, font = recorded_runs()[0].record, ImageFont.load_default(13)
    for width, whole in ((200, False), (900, True)):
        link = "/?prompt=" + "%D0" * 100
        told = facts(record, link, font, width)
        assert (link in "".join(told)) == whole and (texts.LONG_ADDRESS in told) != whole
        assert all(font.getlength(line) <= width for line in told if line in link)


def test_typical_speedups_are_those_of_such_a_run_alone() -> None:
    record = recorded_runs()[0].record
    settings = Settings(**record["settings"])
    preset = settings.with_changes(seed=1)
    assert typical_speedups(record, settings, preset)["lantern++"][0] > 1
    assert typical_speedups(record | {"device": "another"}, settings, preset) == {}  # type: ignore[arg-type]
    assert typical_speedups(record, settings.with_changes(temperature=0.5), preset) == {}
    other = deepcopy(record)
    other["methods"]["lantern++"]["tree"] = "static chain of 3 (default)"
    assert set(typical_speedups(other, settings, preset)) == {"eagle1", "eagle2", "lantern"}


def test_the_bundled_model_has_a_patch_for_each_token() -> None:
    path = BUNDLED / "lantern-scenes" / PATCHES
    with Image.open(path) as patches:
        assert patches.size == (64 * 16, 2048 // 64 * 16)
    assert path.stat().st_size < 130_000
