"""Stale tasks by the thresholds of their workers, dead workers, and the tasks that were recovered from them."""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from textual.app import ComposeResult
from textual.widgets import DataTable

from horsies.operate.views import WorkerStatus
from horsies_tui.data.models import LostAttempt, Stale, StaleRow, worker_name
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.task import TaskScreen
from horsies_tui.screens.worker import WorkerScreen
from horsies_tui.text import dotted, short_id, span
from horsies_tui.themes import MUTED, badge
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import TablePanel
from horsies_tui.widgets.typed import table_id


def _held(one: WorkerStatus) -> int:
    return one.holds_claimed + one.holds_running


_STALE: Final[Columns[StaleRow]] = (
    Column("state", 12, lambda row: badge(row.task.status, row.verdict.kind), lambda row: row.task.status),
    Column("task", 0, lambda row: row.task.task_name, least=14),
    Column("queue", 12, lambda row: row.task.queue_name, MUTED, above=100),
    Column("silent", 6, lambda row: span(row.task.silence), lambda row: "dead" if row.verdict.is_over else "late",
           right=True),
    Column("limit", 6, lambda row: span(row.verdict.threshold), MUTED, right=True),
    Column("held", 6, lambda row: span(row.task.held_for), MUTED, above=84, right=True),
    Column("worker", 26, lambda row: badge("dead", row.worker_name) if row.verdict.worker_is_gone else row.worker_name,
           lambda row: "dead" if row.verdict.worker_is_gone else MUTED),
    Column("id", 17, lambda row: short_id(row.task.id), MUTED, above=118),
)  # fmt: skip
_DEAD: Final[Columns[tuple[WorkerStatus, str]]] = (
    Column("worker", 0, lambda row: badge("dead", worker_name(row[0])), "dead", least=18),
    Column("id", 17, lambda row: short_id(row[0].worker_id), MUTED, above=100),
    Column("last seen", 9, lambda row: span(row[0].age), right=True),
    Column("holds", 6, lambda row: dotted(_held(row[0])), lambda row: "dead" if _held(row[0]) else MUTED, right=True),
    Column("recovered", 9, lambda row: row[1], right=True),
    Column("verdict", 30, lambda row: f"judged by {short_id(row[0].judged_by)}" if row[0].judged_by
           else "silent; no verdict yet", MUTED, above=86),
)  # fmt: skip
"""Of a worker, and how many tasks were recovered from it."""
_LOST: Final[Columns[tuple[LostAttempt, str]]] = (
    Column("is now", 12, lambda row: badge(row[0].status), lambda row: row[0].status),
    Column("task", 0, lambda row: row[0].task_name, least=14),
    Column("ago", 6, lambda row: span(row[0].age), MUTED, right=True),
    Column("lost by", 26, lambda row: row[1], MUTED),
    Column("reason", 40, lambda row: row[0].failed_reason or "", MUTED, above=140),
)
"""Of an attempt, and the name of its worker."""


class StaleScreen(LiveScreen[Stale]):
    NAME = "stale"
    TABLE = "stale"
    ABOUT = (
        "Claimed, running or finalizing tasks without a sign of life for longer than their worker's own threshold "
        "(from the recovery_config that it reports), and everything that a dead worker holds. Q sends claimed ones "
        "back to their queue, F ends running ones as WORKER_CRASHED; both only if still silent. Live workers do this "
        "by themselves when their thresholds pass. Below: dead workers, and what was recovered from them within a day."
    )

    def body(self) -> ComposeResult:
        yield TablePanel(
            "stale", _STALE, lambda row: row.task.id, title="stale tasks",
            empty="No task is stale: every claimed or running task gave a sign of life within its threshold.",
        )  # fmt: skip
        yield TablePanel("dead", _DEAD, lambda row: row[0].worker_id, title="dead workers", markable=False,
                         empty="No worker died within a day.")  # fmt: skip
        yield TablePanel(
            "lost", _LOST, lambda row: f"{row[0].task_id} {row[0].worker_id}", title="recovered from the dead",
            markable=False, empty="None. Tasks that a dead worker was running are listed here, with their state now.",
        )  # fmt: skip

    async def look(self) -> Stale:
        return await self.dash.source.stale()

    def show(self, data: Stale) -> None:
        self.panel("stale").show(data.tasks, f"{len(data.tasks):,}{'+' if data.is_cut else ''}")
        lost = Counter(row.worker_id for row in data.lost)
        more = "+" if data.lost_is_cut else ""
        self.panel("dead").show(
            [(one, f"{lost[one.worker_id]}{more}" if one.worker_id in lost else "·") for one in data.dead]
        )
        names = {one.worker_id: worker_name(one) for one in data.dead}
        self.panel("lost").show(
            [(one, names.get(one.worker_id, one.worker_id)) for one in data.lost],
            f"the newest {len(data.lost)}" if data.lost_is_cut else "",
        )

    def targets(self) -> Iterable[Target]:
        for row in self.data.tasks if self.data is not None else ():
            guard_ms = int(row.verdict.guard / timedelta(milliseconds=1))
            yield Target(row.task.id, row.task.task_name, str(row.task.status), guard_ms)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = str(event.row_key.value)
        screen = WorkerScreen(key) if table_id(event) == "dead" else TaskScreen(key.split(" ")[0])
        self.dash.push_screen(screen)
