"""The overview: counts, rates, queues, alerts and failures."""

from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable

from horsies._text import plural
from horsies.operate.views import QueueStatus
from horsies.status import TaskStatus
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Alert, Failing, Overview, Series
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.queue import QueueScreen
from horsies_tui.text import as_json, dotted, number, rate, span
from horsies_tui.themes import MUTED, badge
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.metric_card import MetricCard
from horsies_tui.widgets.panel import TablePanel
from horsies_tui.widgets.status_chips import StatusChips
from horsies_tui.widgets.typed import table_id

_LATE: Final = timedelta(seconds=60)
_QUEUES: Final[Columns[QueueStatus]] = (
    Column("queue", 0, lambda one: badge("PAUSED", one.name) if one.paused_at else one.name,
           lambda one: "PAUSED" if one.paused_at else "", least=10),
    Column("ready", 7, lambda one: dotted(one.ready, number) + "+" * (one.is_bounded and one.ready > 0), right=True),
    Column("delayed", 7, lambda one: dotted(one.delayed, number), MUTED, above=56, right=True),
    Column("running", 7, lambda one: dotted(one.running, number), "RUNNING", right=True),
    Column("oldest", 6, lambda one: span(one.oldest_ready) if one.oldest_ready else "·",
           lambda one: "late" if one.oldest_ready and one.oldest_ready > _LATE else "", right=True),
    Column("workers", 7, lambda one: str(one.served_by),
           lambda one: "" if one.served_by or not one.ready else "problem", above=50, right=True),
)  # fmt: skip
_ALERTS: Final[Columns[tuple[int, Alert]]] = (
    Column("", 0, lambda row: badge(row[1].level, row[1].text), lambda row: row[1].level, least=20),
)
_FAILING: Final[Columns[Failing]] = (
    Column("task", 0, lambda one: one.task_name),
    Column("error", 19, lambda one: one.error_code, "FAILED"),
    Column("times", 5, lambda one: number(one.tasks) + "+" * one.is_least, right=True),
    Column("last", 5, lambda one: span(one.age), MUTED, right=True),
)


class OverviewScreen(LiveScreen[Overview]):
    NAME = "overview"
    TABLE = "queues"
    HAS_WINDOW = True
    KINDS = frozenset({"tasks", "queues"})
    ABOUT = (
        "All tasks by state, rates over the window ([ and ] change it), queues, what deserves a look, and what failed "
        "within the window. Numbers with ≈ are estimates: counting them would read too much. Enter on a queue or a "
        "failure lists its tasks, on an alert goes there. l shows the groups and limits of a queue."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", show=False),
        Binding("l", "limits", "Groups and limits"),
    ]

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in TaskStatus])
        with Horizontal(id="cards"):
            yield MetricCard("sent /s", id="sent")
            yield MetricCard("done /s", id="done")
            yield MetricCard("failed /s", id="failed")
            yield MetricCard("wait p95", id="wait")
        with Horizontal(id="lower"):
            yield TablePanel(
                "queues", _QUEUES, lambda one: one.name,
                empty="No queue has tasks or a worker. A send, or a worker that starts, makes one appear.",
            )  # fmt: skip
            with Vertical(id="right"):
                yield TablePanel(
                    "alerts", _ALERTS, lambda row: str(row[0]), markable=False, show_header=False,
                    empty="Nothing needs attention. Dead or silent workers, unserved, paused and late queues, many "
                    "failures and overdue schedules show up here.",
                )  # fmt: skip
                yield TablePanel(
                    "failing", _FAILING, lambda one: f"{one.task_name}\0{one.error_code}", markable=False,
                    empty="Nothing failed within the window.",
                )  # fmt: skip

    async def look(self) -> Overview:
        return await self.dash.source.overview(self.dash.window.span)

    def show(self, data: Overview) -> None:
        self.query_one(StatusChips).count({str(key): value for key, value in data.counts.items()})
        self._show_cards(data)
        there = [worker.processes for worker in data.workers if worker.liveness.is_there]
        processes = plural(sum(there), "process", "processes")
        self.panel("queues").show(data.queues, f"{plural(len(there), 'worker')}, {processes}")
        self.panel("alerts").show(list(enumerate(data.alerts)))
        self.panel("failing").show(data.failing)

    def _show_cards(self, data: Overview) -> None:
        curves = data.series
        for name, shown in (("sent", curves.sent), ("done", curves.done), ("failed", curves.failed)):
            past = self._past(curves, shown.counted_s)
            self.query_one(f"#{name}", MetricCard).show(
                rate(shown.now), shown.curve, f"max {rate(max(shown.curve, default=0))} in {past}",
                _covers(shown.span_s),
            )  # fmt: skip
        highest = f", max {_seconds(max(curves.wait_p95, default=0))}" if not self.has_class("-narrow") else ""
        self.query_one("#wait", MetricCard).show(
            _seconds(curves.wait_p95_now), curves.wait_p95, f"p50 {_seconds(curves.wait_p50_now)}{highest}",
            _covers(curves.failed.span_s),
        )  # fmt: skip

    def _past(self, curves: Series, counted_s: float) -> str:
        """How far back a curve is counted: a long window takes several refreshes."""
        window = self.dash.window
        if counted_s >= window.span.total_seconds() - curves.slot_s:
            return window.curve_name
        return f"{span(timedelta(seconds=counted_s))} …"

    def targets(self) -> Iterable[Target]:
        for queue in self.data.queues if self.data is not None else ():
            yield Target(queue.name, f"queue {queue.name}", "paused" if queue.paused_at is not None else "open")

    def copied(self) -> str | None:
        return as_json([str(alert.text) for alert in self.data.alerts]) if self.data else None

    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
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

    def action_limits(self) -> None:
        name = self.table.cursor_key
        if name is not None:
            self.dash.push_screen(QueueScreen(name))

    async def on_status_chips_toggled(self, event: StatusChips.Toggled) -> None:
        await self._list(Query(statuses=frozenset({event.status})))

    async def _list(self, query: Query) -> None:
        self.dash.queries["tasks"] = query
        await self.dash.run_action("go('tasks')")


def _covers(seconds: float) -> str:
    return f"last {seconds:.0f} s" if seconds < 100 else f"last {seconds / 60:.0f} min"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"
