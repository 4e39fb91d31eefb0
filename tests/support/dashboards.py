"""The dashboard in tests: driven by a pilot, on a source of the test's choosing, waited for and never slept for."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

# Most of what a test of the dashboard costs is laying out and drawing frames that no test looks at: fewer of the former
# (Textual reads this when it is imported), none of the latter (below).
os.environ.setdefault("TEXTUAL_FPS", "10")

from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen

from horsies import PostgresConfig
from horsies.operate.groups import QueueGroups
from horsies.operate.policies import QueuePolicy
from horsies.status import TaskStatus
from horsies_tui.app import Dashboard
from horsies_tui.data.filters import Query
from horsies_tui.data.models import (
    Count,
    Maintenance,
    Overview,
    Place,
    QueueDetail,
    Rate,
    ScheduleDetail,
    ScheduleRow,
    Series,
    Stale,
    WorkerDetail,
    WorkerLine,
    WorkflowDetail,
    WorkflowList,
)
from horsies_tui.data.postgres import PostgresSource
from horsies_tui.data.source import Source, SourceError
from horsies_tui.demo import DemoSource
from horsies_tui.screens.live import LiveScreen
from horsies_tui.widgets.live_table import LiveTable
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

FROZEN = 1_800_000_000.0
"""The demo's now: the same picture for ever."""
SLOTS = (0.0,) * 40

# A test that looks (`text_of`, a picture) draws the whole screen for itself. The tests in a real terminal and in a
# browser, which are other processes, draw every frame.
Screen._compositor_refresh = lambda screen: screen._dirty_widgets.clear()  # type: ignore[method-assign]


def demo() -> DemoSource:
    return DemoSource(clock=lambda: FROZEN)


class EmptySource(DemoSource):
    """A database that was just migrated."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: FROZEN)
        self.world.tasks.clear()

    async def overview(self, window: timedelta) -> Overview:
        none = {status: Count(0) for status in TaskStatus}
        return Overview(none, (), (), Series(1.0, Rate(SLOTS), Rate(SLOTS), Rate(SLOTS), SLOTS), (), ())

    async def queue(self, name: str) -> QueueDetail:
        return QueueDetail(QueuePolicy.none(name), QueueGroups(name, (), 0, is_complete=True, throttled=0), ())

    async def workers(self) -> tuple[WorkerLine, ...]:
        return ()

    async def worker(self, worker_id: str, window: timedelta) -> WorkerDetail | None:
        return None

    async def stale(self) -> Stale:
        return Stale((), (), (), False)

    async def workflows(
        self, query: Query, *, since: timedelta | None, after: Place | None, limit: int
    ) -> WorkflowList:
        return WorkflowList(())

    async def workflow(self, workflow_id: str) -> WorkflowDetail | None:
        return None

    async def schedules(self) -> tuple[ScheduleRow, ...]:
        return ()

    async def schedule(self, name: str) -> ScheduleDetail | None:
        return None

    async def maintenance(self) -> Maintenance:
        return Maintenance((), ())


class SilentSource(EmptySource):
    """Every question fails, as with a server that refuses connections."""

    async def _fail(self, *_: Any, **__: Any) -> Any:
        raise SourceError("ConnectionRefusedError: connect to db.example:5432 was refused")

    overview = tasks = breakdown = task = queue = workers = worker = stale = _fail
    workflows = workflow = schedules = schedule = maintenance = _fail


@asynccontextmanager
async def dashboard(
    source: Source,
    size: tuple[int, int] = (100, 30),
    on_message: Callable[[Message], None] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Dashboard, Pilot[None]]]:
    """The app on this source, up and loaded once. Every column costs time to draw: large only for who looks there."""
    app = Dashboard(source, **options)
    async with app.run_test(size=size, notifications=True, message_hook=on_message) as pilot:
        await settled(app, pilot)
        yield app, pilot


@asynccontextmanager
async def on_database(db: Database, **options: Any) -> AsyncIterator[tuple[Dashboard, Pilot[None]]]:
    async with dashboard(source_on(db.url), **options) as pair:
        yield pair


def source_on(url: str, **config: Any) -> PostgresSource:
    return PostgresSource(
        PostgresConfig(url, pool_max_size=1, application_name="horsies tui", connect_timeout_ms=5_000, **config)
    )


def seen(app: Dashboard) -> LiveScreen[Any]:
    found = app.live_screen()
    assert found is not None
    return found


async def settled(app: Dashboard, pilot: Pilot[None]) -> None:
    """What is seen has been loaded and drawn."""

    def loaded() -> bool:
        screen = app.live_screen()
        if screen is None or not screen.is_mounted or not app.session.database:
            return False
        has_answer = screen.data is not None or bool(list(screen.query(".-empty, .-error")))
        quiet = not any(worker.group in ("load", "count", "card", "act", "session") for worker in app.workers)
        return has_answer and quiet and not screen.is_loading and _card_is_there(screen) and _is_drawn(app)

    for _ in range(2):  # what arrived last may ask for something more
        await eventually_async(loaded, timeout=20, describe="the screen has loaded and is drawn")
        await pilot.pause()
    await eventually_async(loaded, timeout=20, describe="the screen has loaded and is drawn")


def _is_drawn(app: Dashboard) -> bool:
    """The clock of the frames stands still while there is nothing to draw."""
    return not app.screen._update_timer._active.is_set()


def _card_is_there(screen: LiveScreen[Any]) -> bool:
    """Beside a list of tasks, where there is room, the one under the cursor is loaded after the list."""
    return all(
        not panel.display or not screen.query_one("#tasks", LiveTable).row_count or panel.has_class("-data")
        for panel in screen.query("#card-panel")
    )


async def go(app: Dashboard, pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await settled(app, pilot)


def table(app: Dashboard, name: str) -> LiveTable:
    return seen(app).query_one(f"#{name}", LiveTable)


def text_of(app: Dashboard) -> str:
    """Everything that the terminal shows, line by line."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


def notifications(app: Dashboard) -> list[str]:
    """What is notified at the moment; on the screen its words may be broken into lines."""
    return [notification.message for notification in app._notifications]


async def said(app: Dashboard, pilot: Pilot[None], text: str) -> None:
    """A notification says so."""
    try:
        await eventually_async(lambda: any(text in message for message in notifications(app)), timeout=15)
    except AssertionError:
        raise AssertionError(f"{text!r} was not said; but: {'; '.join(notifications(app))}") from None
    await pilot.pause()


async def shows(app: Dashboard, pilot: Pilot[None], text: str, *, timeout: float = 10.0) -> None:
    def found() -> bool:
        return _is_drawn(app) and text in text_of(app)

    try:
        # rarely: to read the screen is to draw it
        await eventually_async(found, timeout=timeout, interval=0.08, describe=f"{text!r} on the screen")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text_of(app)}") from None
