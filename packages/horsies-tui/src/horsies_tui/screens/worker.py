"""One worker: its tasks, its finished attempts, its load and its settings."""

from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable

from horsies._text import plural
from horsies.operate.views import WorkerStatus
from horsies_tui.data.models import WorkerAttempt, WorkerDetail
from horsies_tui.data.source import Target
from horsies_tui.screens.lines import TASK_COLUMNS, outcome_text
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, percent, size, span
from horsies_tui.themes import MUTED
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.metric_card import MetricCard
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.texts import Fields, status_content

_FINISHED: Final[Columns[WorkerAttempt]] = (
    Column("outcome", 16, lambda row: outcome_text(row.outcome), lambda row: row.outcome),
    Column("task", 0, lambda row: row.task_name, least=14),
    Column("took", 7, lambda row: span(row.took), right=True),
    Column("ago", 6, lambda row: span(row.age), MUTED, right=True),
    Column("error", 20, lambda row: row.error_code or "", "FAILED", above=80),
)


class WorkerScreen(LiveScreen[WorkerDetail | None]):
    NAME = "worker"
    PLACE = "workers"
    TABLE = "holds"
    HAS_WINDOW = True
    ABOUT = (
        "One worker: its newest snapshot, processor and memory (children included) over the window ([ and ] change it) "
        "up to its last sign of life, what it holds now by the task table, and what it finished of late. Enter opens a "
        "task."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def __init__(self, worker_id: str) -> None:
        super().__init__()
        self._worker_id = worker_id

    def body(self) -> ComposeResult:
        with Horizontal(id="upper"):
            yield Panel("worker", Fields(""), empty="It was not seen within a day.", id="facts")
            yield MetricCard("cpu", id="cpu")
            yield MetricCard("memory", id="memory")
            yield MetricCard("running", id="running")
        yield TablePanel("holds", TASK_COLUMNS, lambda row: row.id, empty="It holds no task.")
        yield TablePanel(
            "finished", _FINISHED, lambda row: f"{row.task_id} {row.age}", markable=False,
            empty="Among the newest two thousand attempts of all workers, none is its own.",
        )  # fmt: skip

    async def look(self) -> WorkerDetail | None:
        return await self.dash.source.worker(self._worker_id, self.dash.window.span)

    def show(self, data: WorkerDetail | None) -> None:
        self.query_one("#facts", Panel).face_of(empty=data is None)
        if data is None:
            return
        one = data.status
        self.query_one(Fields).show(
            [
                ("worker", one.worker_id),
                ("state", status_content(one.liveness)),
                ("judged dead", f"by {one.judged_by}" if one.judged_by else None),
                ("seen", f"{span(one.age)} ago, up for {span(one.up_for)}"),
                ("host", f"{one.hostname} pid {one.pid}"),
                ("queues", ", ".join(one.queues)),
                ("thresholds", _thresholds(one)),
            ]
        )
        moments = data.history
        cpu = [moment.cpu_percent or 0.0 for moment in moments]
        memory = [moment.memory_mb for moment in moments]
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
        held = one.holds_running + one.holds_claimed
        more = f"the first {len(data.holds):,} of {held:,}" if held > len(data.holds) else ""
        self.panel("holds").show(data.holds, more)
        self.panel("finished").show(data.finished)

    def _card(self, name: str, value: str, curve: list[float], foot: str, covers: str = "") -> None:
        self.query_one(f"#{name}", MetricCard).show(value, curve, foot, covers)

    def targets(self) -> Iterable[Target]:
        for row in self.data.holds if self.data is not None else ():
            yield Target(row.id, row.task_name, str(row.status))

    def copied(self) -> str | None:
        return as_json({"worker_id": self._worker_id})

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
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
