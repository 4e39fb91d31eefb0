"""The workers, whether they are alive, and their load."""

from collections.abc import Iterable
from typing import Final

from textual.app import ComposeResult
from textual.widgets import DataTable

from horsies.operate.views import WorkerLiveness, WorkerStatus
from horsies_tui.data.models import WorkerLine, worker_name
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.worker import WorkerScreen
from horsies_tui.text import bar, blocks, dotted, number, percent, short_id, size, span
from horsies_tui.themes import GLYPHS, MUTED, badge
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import TablePanel

_ORDER: Final = (WorkerLiveness.DEAD, WorkerLiveness.LATE, WorkerLiveness.ALIVE, WorkerLiveness.STOPPED)


def _running(row: WorkerLine) -> str:
    """Without a fraction: a process runs many async tasks at a time and prefetches its next one."""
    return f"{bar(row.status.holds_running, row.status.processes, 6)} {number(row.status.holds_running)}"


def _fullness(row: WorkerLine) -> str:
    return "late" if row.status.processes and row.status.holds_running >= row.status.processes else "RUNNING"


def _memory(one: WorkerStatus) -> str:
    return size(((one.memory_usage_mb or 0) + (one.children_memory_mb or 0)) * 1024 * 1024)


def _past(row: WorkerLine) -> str:
    """The load of a worker that is gone is that of its last snapshot."""
    return "" if row.status.liveness.is_there else MUTED


_COLUMNS: Final[Columns[WorkerLine]] = (
    Column("state", 10, lambda row: badge(row.status.standing), lambda row: row.status.standing),
    Column("worker", 0, lambda row: worker_name(row.status),
           lambda row: "dead" if row.status.liveness is WorkerLiveness.DEAD else "", least=16),
    Column("id", 17, lambda row: short_id(row.status.worker_id), MUTED, above=118),
    Column("running", 12, _running, _fullness),
    Column("procs", 5, lambda row: str(row.status.processes), MUTED, right=True),
    Column("ahead", 5, lambda row: dotted(row.status.holds_claimed), MUTED, above=90, right=True),
    Column("cpu", 5, lambda row: percent(row.status.cpu_percent), _past, right=True),
    Column("", 12, lambda row: blocks(row.cpu, 100), lambda row: _past(row) or "RUNNING", above=96),
    Column("memory", 8, lambda row: _memory(row.status), _past, right=True),
    Column("seen", 6, lambda row: span(row.status.age),
           lambda row: "" if row.status.liveness is WorkerLiveness.ALIVE else row.status.liveness, right=True),
    Column("up", 6, lambda row: span(row.status.up_for), MUTED, above=84, right=True),
    Column("queues", 24, lambda row: " ".join(row.status.queues), MUTED, above=128),
)  # fmt: skip


class WorkersScreen(LiveScreen[tuple[WorkerLine, ...]]):
    NAME = "workers"
    TABLE = "workers"
    KINDS = frozenset()
    ABOUT = (
        "Every worker that was seen within a day, those in trouble first. Alive: its snapshots arrive. Late: it missed "
        "three. Dead: judged dead by another worker, or silent for long. Running can be more than the processes: one "
        "runs many async tasks at a time, and has its next task ahead. Enter shows what it runs and its past. D drains "
        "the worker under the cursor (it finishes what runs and claims nothing more) or resumes it; + and - change "
        "the number of its child processes."
    )

    def body(self) -> ComposeResult:
        yield TablePanel(
            "workers", _COLUMNS, lambda row: row.status.worker_id, markable=False,
            empty="No worker was seen within a day. `horsies worker module:app` starts one.",
        )  # fmt: skip

    async def look(self) -> tuple[WorkerLine, ...]:
        return await self.dash.source.workers()

    def show(self, data: tuple[WorkerLine, ...]) -> None:
        rows = sorted(data, key=lambda row: (_ORDER.index(row.status.liveness), worker_name(row.status)))
        states = [row.status.liveness for row in rows]
        counts = [f"{GLYPHS[state]} {states.count(state)} {state}" for state in _ORDER if state in states]
        self.panel("workers").show(rows, "  ".join(counts))

    def targets(self) -> Iterable[Target]:
        for row in self.data or ():
            yield Target(row.status.worker_id, worker_name(row.status), row.status.standing)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.dash.push_screen(WorkerScreen(str(event.row_key.value)))
