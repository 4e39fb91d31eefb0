"""Every screen at many sizes of the terminal: what is shown at one is shown at each larger one."""

import pytest
from textual.widget import Widget

from horsies_tui.app import Dashboard
from horsies_tui.widgets.metric_card import MetricCard
from horsies_tui.widgets.panel import Panel
from tests.support.dashboards import dashboard, demo, go, seen, settled

HEIGHTS = (24, 34, 46, 80)
WIDTHS = (80, 100, 120, 200)
KEYS = {
    "overview": "1", "tasks": "2", "task": "2 enter", "workers": "3", "worker": "3 enter", "stale": "4",
    "workflows": "5", "workflow": "5 enter", "schedules": "6", "schedule": "6 enter", "maintenance": "7",
}  # fmt: skip


def visible(app: Dashboard) -> set[str]:
    """The panels and cards that have at least one line of their own between their borders."""

    def is_seen(widget: Widget) -> bool:
        return all(one.display for one in widget.ancestors_with_self if isinstance(one, Widget)) and (
            min(widget.content_size) > 0 and widget.region.overlaps(app.screen.region)
        )

    found = [widget for kind in (Panel, MetricCard) for widget in seen(app).query(kind)]
    return {f"{widget.id}: {widget.border_title}" for widget in found if is_seen(widget)}


@pytest.mark.long
@pytest.mark.parametrize("place", KEYS)
async def test_a_larger_terminal_never_shows_fewer_panels(place: str) -> None:
    async with dashboard(demo(), size=(80, 24)) as (app, pilot):
        await go(app, pilot, *KEYS[place].split())

        async def shown(width: int, height: int) -> set[str]:
            await pilot.resize_terminal(width, height)
            await settled(app, pilot)
            return visible(app)

        for sizes in ([(120, height) for height in HEIGHTS], [(width, 40) for width in WIDTHS]):
            before: set[str] = set()
            for size in sizes:
                now = await shown(*size)
                assert before <= now, f"{before - now} is not shown at {size}"
                before = now
            assert before == {
                f"{widget.id}: {widget.border_title}"
                for kind in (Panel, MetricCard)
                for widget in seen(app).query(kind)
            }, "all of them, where there is room"


@pytest.mark.parametrize("height", [34, 40, 46, 50, 80])
async def test_what_fails_is_on_the_first_screen_of_a_high_terminal(height: int) -> None:
    async with dashboard(demo(), size=(120, height)) as (app, _pilot):
        assert "failing-panel: failing" in visible(app)
