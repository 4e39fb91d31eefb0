"""Workers: who is alive, how full, how loaded."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable

from horsies.info import WorkerLiveness, WorkerStatus
from horsies_tui.data.feed import Kinds
from horsies_tui.data.models import WorkerLine, worker_name
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.screens.worker import WorkerScreen
from horsies_tui.text import bar, blocks, inert, number, percent, short_id, size, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel

_ORDER = {WorkerLiveness.DEAD: 0, WorkerLiveness.LATE: 1, WorkerLiveness.ALIVE: 2, WorkerLiveness.STOPPED: 3}


class WorkersScreen(LiveScreen[tuple[WorkerLine, ...]]):
    NAME = "workers"
    PLACE = "workers"
    KINDS: ClassVar[Kinds] = frozenset()
    ABOUT = (
        "Every worker that was seen within a day, those in trouble first. Alive: its snapshots arrive. Late: it missed "
        "three. Dead: judged dead by another worker, or silent for long. Running can be more than the processes: one "
        "runs many async tasks at a time, and has its next task ahead. Enter shows what it runs and its past."
    )
    BINDINGS: ClassVar[list[BindingType]] = action_bindings("workers")

    def body(self) -> ComposeResult:
        yield Panel(
            "workers",
            LiveTable(
                Column("state", "state", 9),
                Column("worker", "worker", least=16),
                Column("id", "id", 17, above=118),
                Column("running", "running", 12),
                Column("processes", "procs", 5, right=True),
                Column("claimed", "ahead", 5, above=90, right=True),
                Column("cpu", "cpu", 5, right=True),
                Column("curve", "", 12, above=96),
                Column("memory", "memory", 8, right=True),
                Column("seen", "seen", 6, right=True),
                Column("up", "up", 6, above=84, right=True),
                Column("queues", "queues", 24, above=128),
                markable=False, id="workers",
            ),
            empty="No worker was seen within a day. `horsies worker module:app` starts one.",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[tuple[WorkerLine, ...]]]:
        return self.dash.source.workers

    def show(self, data: tuple[WorkerLine, ...]) -> None:
        rows = sorted(data, key=lambda row: (_ORDER[row.status.liveness], worker_name(row.status)))
        self.query_one(LiveTable).show([self._line(row) for row in rows])
        panel = self.query_one(Panel)
        panel.face_of(empty=not rows)
        states = [row.status.liveness for row in rows]
        panel.border_subtitle = "  ".join(
            f"{GLYPHS[state]} {states.count(state)} {state}" for state in _ORDER if states.count(state)
        )

    def _line(self, row: WorkerLine) -> Line:
        one = row.status
        colour = self.colour(one.liveness)
        running = one.holds_running
        # what it used when it was last seen; nothing uses it now
        past = "" if one.liveness.is_there else self.muted
        full = self.colour("late") if one.processes and running >= one.processes else self.colour("RUNNING")
        return Line(
            one.worker_id,
            {
                "state": Cell(f"{GLYPHS[one.liveness]} {one.liveness}", colour),
                "worker": Cell(worker_name(one), colour if one.liveness is WorkerLiveness.DEAD else ""),
                "id": Cell(short_id(one.worker_id), self.muted),
                # no fraction: a process runs many async tasks at a time, and is handed its next task ahead
                "running": Cell(f"{bar(running, one.processes, 6)} {number(running)}", full),
                "processes": Cell(str(one.processes), self.muted),
                "claimed": Cell(str(one.holds_claimed) if one.holds_claimed else "·", self.muted),
                "cpu": Cell(percent(one.cpu_percent), past),
                "curve": Cell(blocks(row.cpu, 100), past or self.colour("RUNNING")),
                "memory": Cell(size(memory_mb(one) * 1024 * 1024), past),
                "seen": Cell(span(one.age), "" if one.liveness is WorkerLiveness.ALIVE else colour),
                "up": Cell(span(one.up_for), self.muted),
                "queues": Cell(" ".join(one.queues), self.muted),
            },
        )

    def copied(self) -> str | None:
        key = self.query_one(LiveTable).cursor_key
        return inert(key) if key is not None else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.dash.push_screen(WorkerScreen(str(event.row_key.value)))


def memory_mb(one: WorkerStatus) -> float:
    return (one.memory_usage_mb or 0) + (one.children_memory_mb or 0)
