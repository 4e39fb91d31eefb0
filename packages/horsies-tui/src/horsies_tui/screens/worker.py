"""One worker: what it runs now, what it finished, how it fared, and how it was set."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable

from horsies._text import plural
from horsies.info import WorkerStatus
from horsies_tui.actions import Action
from horsies_tui.data.models import WorkerAttempt, WorkerDetail
from horsies_tui.data.source import Target
from horsies_tui.screens.lines import TASK_COLUMNS, task_line
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, percent, size, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.fields import Fields, status_content
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.metric_card import MetricCard
from horsies_tui.widgets.panel import Panel


class WorkerScreen(LiveScreen[WorkerDetail | None]):
    NAME = "worker"
    PLACE = "workers"
    HAS_WINDOW = True
    ABOUT = (
        "One worker: its newest snapshot, processor and memory (children included) over the window ([ and ] change it) "
        "up to its last sign of life, what it holds now by the task table, and what it finished of late. Enter opens a "
        "task."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*action_bindings("worker"), Binding("escape", "back", "Back")]

    def __init__(self, worker_id: str) -> None:
        super().__init__()
        self._worker_id = worker_id

    def body(self) -> ComposeResult:
        with Horizontal(id="upper"):
            yield Panel("worker", Fields(""), empty="It was not seen within a day.", id="facts")
            yield MetricCard("cpu", id="cpu")
            yield MetricCard("memory", id="memory")
            yield MetricCard("running", id="running")
        yield Panel("holds", LiveTable(*TASK_COLUMNS, id="holds"), empty="It holds no task.", id="holds-panel")
        yield Panel(
            "finished",
            LiveTable(
                Column("outcome", "outcome", 16), Column("name", "task", least=14),
                Column("took", "took", 7, right=True), Column("age", "ago", 6, right=True),
                Column("error", "error", 20, above=80), markable=False, id="finished",
            ),
            empty="Among the newest two thousand attempts of all workers, none is its own.", id="finished-panel",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[WorkerDetail | None]]:
        span = self.dash.window.span
        return lambda: self.dash.source.worker(self._worker_id, span)

    def show(self, data: WorkerDetail | None) -> None:
        self.query_one("#facts", Panel).face_of(empty=data is None)
        if data is None:
            return
        one = data.status
        judged = f"by {one.judged_by}" if one.judged_by else None
        self.query_one(Fields).show(
            [
                ("worker", one.worker_id),
                ("state", status_content(one.liveness)),
                ("judged dead", judged),
                ("seen", f"{span(one.age)} ago, up for {span(one.up_for)}"),
                ("host", f"{one.hostname} pid {one.pid}"),
                ("queues", ", ".join(one.queues)),
                ("thresholds", _thresholds(one)),
            ]
        )
        moments = data.history
        cpu = [moment.cpu_percent or 0.0 for moment in moments]
        memory = [(moment.memory_usage_mb or 0) + (moment.children_memory_mb or 0) for moment in moments]
        running = [float(moment.tasks_running) for moment in moments]
        past = self.dash.window.curve_name
        self._card("cpu", percent(cpu[-1] if cpu else None), cpu, f"max {max(cpu, default=0):.0f}% in {past}")
        self._card("memory", _mb(memory[-1] if memory else 0), memory, f"max {_mb(max(memory, default=0))} in {past}")
        self._card(
            "running",
            str(one.holds_running),
            running,
            f"max {max(running, default=0):.0f} in {past}",
            f"on {plural(one.processes, 'process', 'processes')}",
        )
        self.query_one("#holds", LiveTable).show([task_line(row, self.colour, self.muted) for row in data.holds])
        panel = self.query_one("#holds-panel", Panel)
        panel.face_of(empty=not data.holds)
        held = one.holds_running + one.holds_claimed
        panel.border_subtitle = f"the first {len(data.holds):,} of {held:,}" if held > len(data.holds) else ""
        self.query_one("#finished", LiveTable).show([self._attempt(row) for row in data.finished])
        self.query_one("#finished-panel", Panel).face_of(empty=not data.finished)

    def _card(self, name: str, value: str, curve: list[float], foot: str, covers: str = "") -> None:
        self.query_one(f"#{name}", MetricCard).show(value, curve, foot, covers)

    def _attempt(self, row: WorkerAttempt) -> Line:
        return Line(
            f"{row.task_id} {row.age}",
            {
                "outcome": Cell(
                    f"{GLYPHS[row.outcome]} {row.outcome.lower().replace('_', ' ')}", self.colour(row.outcome)
                ),
                "name": Cell(row.task_name),
                "took": Cell(span(row.took)),
                "age": Cell(span(row.age), self.muted),
                "error": Cell(row.error_code or "", self.colour("FAILED")),
            },
        )

    def targets(self, action: Action) -> Sequence[Target]:
        chosen = self.query_one("#holds", LiveTable).chosen
        rows = self.data.holds if self.data is not None else ()
        return [
            Target(row.id, row.task_name, str(row.status))
            for row in rows
            if row.id in chosen and row.status in action.states
        ]

    def copied(self) -> str | None:
        return as_json({"worker_id": self._worker_id})

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.dash.push_screen(TaskScreen(str(event.row_key.value).split(" ")[0]))


def _mb(value: float) -> str:
    return size(value * 1024 * 1024)


def _thresholds(one: WorkerStatus) -> str | None:
    parts = [
        f"{kind} {span(timedelta(milliseconds=value))}"
        for kind in ("claimed", "running")
        if (value := one.recovery(f"{kind}_stale_threshold_ms")) is not None
    ]
    return ", ".join(parts) or None
