"""The first look: how much of what, how fast, which queues, what is wrong."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable

from horsies.info import QueueStatus
from horsies.status import TaskStatus
from horsies_tui.actions import Action
from horsies_tui.data.feed import Kinds
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Overview
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.text import as_json, number, rate, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.metric_card import MetricCard
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.status_chips import StatusChips
from horsies_tui.widgets.typed import table_id


class OverviewScreen(LiveScreen[Overview]):
    NAME = "overview"
    PLACE = "overview"
    KINDS: ClassVar[Kinds] = frozenset({"tasks", "queues"})
    ABOUT = (
        "Tasks by state, rates over the window ([ and ] change it), queues and what deserves a look. Numbers with ≈ "
        "are estimates: counting them would read too much. Enter on a queue lists its tasks, on an alert goes there."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*action_bindings("overview"), Binding("enter", "open", "Open", show=False)]

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in TaskStatus])
        with Horizontal(id="cards"):
            yield MetricCard("sent /s", id="sent")
            yield MetricCard("done /s", id="done")
            yield MetricCard("failed /s", id="failed")
            yield MetricCard("wait p95", id="wait")
        with Horizontal(id="lower"):
            yield Panel(
                "queues",
                LiveTable(
                    Column("name", "queue", least=10),
                    Column("ready", "ready", 7, right=True),
                    Column("delayed", "delayed", 7, above=56, right=True),
                    Column("running", "running", 7, right=True),
                    Column("oldest", "oldest", 6, right=True),
                    Column("workers", "workers", 7, above=50, right=True),
                    id="queues",
                ),
                empty="No queue has tasks or a worker. A send, or a worker that starts, makes one appear.",
                id="queues-panel",
            )
            yield Panel(
                "alerts",
                LiveTable(Column("text", "", least=20), markable=False, show_header=False, id="alerts"),
                empty="Nothing needs attention. Dead or silent workers, unserved, paused and late queues show up here.",
                id="alerts-panel",
            )

    def look(self) -> Callable[[], Awaitable[Overview]]:
        window = self.dash.window
        return lambda: self.dash.source.overview(window)

    def show(self, data: Overview) -> None:
        self.query_one(StatusChips).show({str(key): value for key, value in data.counts.items()}, frozenset())
        self._show_cards(data)
        self.query_one("#queues", LiveTable).show([self._queue(queue) for queue in data.queues])
        self.query_one("#queues-panel", Panel).face_of(empty=not data.queues)
        self.query_one("#alerts", LiveTable).show(
            [
                Line(f"{number}", {"text": Cell(f"{GLYPHS[alert.level]} {alert.text}", self.colour(alert.level))})
                for number, alert in enumerate(data.alerts)
            ]
        )
        self.query_one("#alerts-panel", Panel).face_of(empty=not data.alerts)
        there = sum(worker.liveness.is_there for worker in data.workers)
        slots = sum(worker.processes for worker in data.workers if worker.liveness.is_there)
        panel = self.query_one("#queues-panel", Panel)
        panel.border_subtitle = f"{there} workers, {slots} slots"

    def _show_cards(self, data: Overview) -> None:
        window = self.dash.window_name
        curves = data.series
        for name in ("sent", "done", "failed"):
            curve: tuple[float, ...] = getattr(curves, name)
            # the last slot has only begun
            now = curve[-2] if len(curve) > 1 else 0.0
            self.query_one(f"#{name}", MetricCard).show(
                rate(now), curve, f"max {rate(max(curve, default=0))} in {window}"
            )
        waits = curves.wait_p95
        last = next((value for value in reversed(waits) if value), 0.0)
        middle = next((value for value in reversed(curves.wait_p50) if value), 0.0)
        self.query_one("#wait", MetricCard).show(
            _seconds(last), waits, f"p50 {_seconds(middle)}, max {_seconds(max(waits, default=0))}"
        )

    def _queue(self, queue: QueueStatus) -> Line:
        paused = queue.paused_at is not None
        bound = "+" if queue.is_bounded else ""
        late = self.colour("late") if queue.oldest_ready and queue.oldest_ready.total_seconds() > 60 else ""
        unserved = "" if queue.served_by or not queue.ready else self.colour("problem")
        return Line(
            queue.name,
            {
                "name": Cell(f"{GLYPHS['PAUSED']} {queue.name}" if paused else queue.name,
                             self.colour("PAUSED") if paused else ""),
                "ready": Cell(number(queue.ready) + bound if queue.ready else "·"),
                "delayed": Cell(number(queue.delayed) if queue.delayed else "·", self.muted),
                "running": Cell(number(queue.running) if queue.running else "·", self.colour("RUNNING")),
                "oldest": Cell(span(queue.oldest_ready) if queue.oldest_ready else "·", late),
                "workers": Cell(str(queue.served_by), unserved),
            },
        )  # fmt: skip

    def targets(self, action: Action) -> Sequence[Target]:
        if self.data is None:
            return ()
        chosen = set(self.query_one("#queues", LiveTable).chosen)
        return [
            Target(queue.name, f"queue {queue.name}", "paused" if queue.paused_at is not None else "open")
            for queue in self.data.queues
            if queue.name in chosen
        ]

    def copied(self) -> str | None:
        return as_json([str(alert.text) for alert in self.data.alerts]) if self.data else None

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if table_id(event) == "queues":
            self.dash.queries["tasks"] = Query(queue=str(event.row_key.value))
            await self.dash.run_action("go('tasks')")
        elif self.data is not None and event.cursor_row < len(self.data.alerts):
            await self.dash.run_action(f"go('{self.data.alerts[event.cursor_row].screen}')")

    async def on_status_chips_toggled(self, event: StatusChips.Toggled) -> None:
        event.stop()
        self.dash.queries["tasks"] = Query(statuses=frozenset({event.status}))
        await self.dash.run_action("go('tasks')")


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"
