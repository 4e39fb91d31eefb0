"""Every screen with data, empty and without an answer, at 80x24 and 120x40, compared with the accepted pictures.

`just snap` compares, `just snap-update` accepts; the SVG files are reviewed like code. One run of the app serves all
captures of a size.
"""

import re

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from horsies_tui.app import Dashboard
from horsies_tui.data.source import Source
from tests.support.dashboards import FROZEN, EmptySource, SilentSource, demo, go, settled

PLACES = ("overview", "tasks", "workers", "stale", "workflows", "schedules", "maintenance")
SIZES = {"80x24": (80, 24), "120x40": (120, 40)}


class Svg(SingleFileSnapshotExtension):
    """As pytest-textual-snapshot has it, under the attribute names of the syrupy that we run."""

    file_extension = "svg"
    _write_mode = WriteMode.TEXT


@pytest.fixture
def picture(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(Svg)


def normal(svg: str) -> str:
    """The ids in the file are a hash of how it was made, not of what it shows; nothing is as wide as nothing. The
    schema's revision changes with every migration."""
    svg = re.sub(r"revision&#160;\d{4}", "revision&#160;0000", svg)
    return re.sub(r'<rect [^>]*width="0"[^>]*/>', "", re.sub(r"terminal-\d+-", "terminal-", svg))


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen(size: str, picture: SnapshotAssertion) -> None:
    """Without an answer first: a screen that had one keeps its data."""
    sources: dict[str, Source] = {"error": SilentSource(), "empty": EmptySource(), "data": demo()}
    now = 0.0
    app = Dashboard(sources["error"], is_demo=True, clock=lambda: now, refresh_s=3_600.0)
    differing: list[str] = []
    async with app.run_test(size=SIZES[size]) as pilot:
        for face, source in sources.items():
            app.source = source
            now += 60.0  # what was counted for the face before is old

            async def compare(name: str, face: str = face) -> None:
                await settled(app, pilot)
                if normal(app.export_screenshot()) != picture(name=f"{size}-{face}-{name}"):
                    differing.append(f"{face}-{name}")

            for number, place in enumerate(PLACES, 1):
                await go(app, pilot, str(number))
                await compare(place)
                if face == "data" and place == "overview":
                    await go(app, pilot, "down", "l")
                    await compare("queue")
                    await pilot.press("S")
                    await compare("policy")
                    await pilot.press("escape")
                    await go(app, pilot, "escape")
                if face == "data" and place in ("tasks", "workers", "workflows"):
                    await go(app, pilot, "enter")
                    await compare(f"{place}-detail")
                    if place == "workflows":
                        await pilot.press("s", *"yes")
                        await compare("signal")
                        await pilot.press("escape")
                    await go(app, pilot, "escape")
        await go(app, pilot, "2")
        await pilot.press("space", "space", "space", "c")
        await compare("confirm")
        await pilot.press("escape", "escape", "question_mark")
        await compare("help")
    assert not differing, f"{differing} differ from the accepted pictures (`just snap-update` accepts)"


def test_the_clock_of_the_pictures_stands_still() -> None:
    source = demo()
    assert source.now == source.now
    assert source.now.timestamp() == FROZEN
