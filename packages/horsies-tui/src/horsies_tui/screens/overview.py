"""The first look: how much of what, how fast, which queues, what is wrong."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable

from horsies._text import plural
from horsies.info import QueueStatus
from horsies.status import TaskStatus
from horsies_tui.actions import Action
from horsies_tui.data.feed import Kinds
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Failing, Overview, Series
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
    HAS_WINDOW = True
    KINDS: ClassVar[Kinds] = frozenset({"tasks", "queues"})
    ABOUT = (
        "All tasks by state, rates over the window ([ and ] change it), queues, what deserves a look, and what failed "
        "within the window. Numbers with ≈ are estimates: counting them would read too much. Enter on a queue or a "
        "failure lists its tasks, on an alert goes there."
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
            with Vertical(id="right"):
                yield Panel(
                    "alerts",
                    LiveTable(Column("text", "", least=20), markable=False, show_header=False, id="alerts"),
                    empty="Nothing needs attention. Dead or silent workers, unserved, paused and late queues, many "
                    "failures and overdue schedules show up here.",
                    id="alerts-panel",
                )
                yield Panel(
                    "failing",
                    LiveTable(
                        Column("task", "task", least=12),
                        Column("error", "error", 19),
                        Column("count", "times", 5, right=True),
                        Column("age", "last", 5, right=True),
                        markable=False,
                        id="failing",
                    ),
                    empty="Nothing failed within the window.",
                    id="failing-panel",
                )

    def look(self) -> Callable[[], Awaitable[Overview]]:
        span = self.dash.window.span
        return lambda: self.dash.source.overview(span)

    def show(self, data: Overview) -> None:
        self.query_one(StatusChips).count({str(key): value for key, value in data.counts.items()})
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
        self.query_one("#failing", LiveTable).show([self._failing(one) for one in data.failing])
        self.query_one("#failing-panel", Panel).face_of(empty=not data.failing)
        there = sum(worker.liveness.is_there for worker in data.workers)
        processes = sum(worker.processes for worker in data.workers if worker.liveness.is_there)
        panel = self.query_one("#queues-panel", Panel)
        panel.border_subtitle = f"{plural(there, 'worker')}, {plural(processes, 'process', 'processes')}"

    def _show_cards(self, data: Overview) -> None:
        curves = data.series
        for name in ("sent", "done", "failed"):
            curve: tuple[float, ...] = getattr(curves, name)
            past = self._past(curves, getattr(curves, f"{name}_counted_s"))
            self.query_one(f"#{name}", MetricCard).show(
                rate(getattr(curves, f"{name}_now")), curve, f"max {rate(max(curve, default=0))} in {past}",
                _covers(getattr(curves, f"{name}_span_s")),
            )  # fmt: skip
        highest = f", max {_seconds(max(curves.wait_p95, default=0))}" if not self.has_class("-narrow") else ""
        self.query_one("#wait", MetricCard).show(
            _seconds(curves.wait_p95_now), curves.wait_p95, f"p50 {_seconds(curves.wait_p50_now)}{highest}",
            _covers(curves.failed_span_s),
        )  # fmt: skip

    def _past(self, curves: Series, counted_s: float) -> str:
        """How far back a curve goes by now: a long window is counted over several looks."""
        window = self.dash.window
        if counted_s >= window.span.total_seconds() - curves.slot_s:
            return window.curve_name
        return f"{span(timedelta(seconds=counted_s))} …"

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

    def _failing(self, one: Failing) -> Line:
        return Line(
            f"{one.task_name}\0{one.error_code}",
            {
                "task": Cell(one.task_name),
                "error": Cell(one.error_code, self.colour("FAILED")),
                "count": Cell(number(one.tasks) + ("+" if one.is_least else "")),
                "age": Cell(span(one.age), self.muted),
            },
        )

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
            await self._list(Query(queue=str(event.row_key.value)))
        elif table_id(event) == "failing":
            name, _, error = str(event.row_key.value).partition("\0")
            failed = Query(statuses=frozenset({TaskStatus.FAILED, TaskStatus.EXPIRED}))
            await self._list(failed.narrowed("name", name).narrowed("error", error))
        elif self.data is not None and event.cursor_row < len(self.data.alerts):
            alert = self.data.alerts[event.cursor_row]
            if alert.filter:
                self.dash.queries[alert.screen] = Query.parse(alert.filter)[0]
            await self.dash.run_action(f"go('{alert.screen}')")

    async def on_status_chips_toggled(self, event: StatusChips.Toggled) -> None:
        event.stop()
        await self._list(Query(statuses=frozenset({event.status})))

    async def _list(self, query: Query) -> None:
        self.dash.queries["tasks"] = query
        await self.dash.run_action("go('tasks')")


def _covers(seconds: float) -> str:
    return f"last {seconds:.0f} s" if seconds < 100 else f"last {seconds / 60:.0f} min"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"
