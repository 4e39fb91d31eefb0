"""What nobody vouches for any more: stale tasks by their workers' own thresholds, dead workers and what they held."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable

from horsies.info import WorkerStatus
from horsies_tui.actions import Action
from horsies_tui.data.models import LostAttempt, Stale, StaleTask, worker_name
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.screens.task import TaskScreen
from horsies_tui.screens.worker import WorkerScreen
from horsies_tui.text import inert, short_id, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.typed import table_id


class StaleScreen(LiveScreen[Stale]):
    NAME = "stale"
    PLACE = "stale"
    ABOUT = (
        "Claimed, running or finalizing tasks without a sign of life for longer than their worker's own threshold "
        "(from the recovery_config that it reports), and everything that a dead worker holds. Q sends claimed ones "
        "back to their queue, F ends running ones as WORKER_CRASHED; both only if still silent. Live workers do this "
        "by themselves when their thresholds pass. Below: dead workers, and what was recovered from them within a day."
    )
    BINDINGS: ClassVar[list[BindingType]] = action_bindings("stale")

    def body(self) -> ComposeResult:
        yield Panel(
            "stale tasks",
            LiveTable(
                Column("kind", "state", 12), Column("name", "task", least=14), Column("queue", "queue", 12, above=100),
                Column("silence", "silent", 6, right=True), Column("limit", "limit", 6, right=True),
                Column("held", "held", 6, above=84, right=True), Column("worker", "worker", 26),
                Column("id", "id", 17, above=118), id="stale",
            ),
            empty="No task is stale: everything that is claimed or running was vouched for within its threshold.",
            id="stale-panel",
        )  # fmt: skip
        yield Panel(
            "dead workers",
            LiveTable(
                Column("worker", "worker", least=18), Column("id", "id", 17, above=100),
                Column("seen", "last seen", 9, right=True),
                Column("holds", "holds", 6, right=True), Column("lost", "recovered", 9, right=True),
                Column("verdict", "verdict", 30, above=86), markable=False, id="dead",
            ),
            empty="No worker died within a day.",
            id="dead-panel",
        )  # fmt: skip
        yield Panel(
            "recovered from the dead",
            LiveTable(
                Column("now", "is now", 12), Column("name", "task", least=14), Column("age", "ago", 6, right=True),
                Column("worker", "lost by", 26), Column("reason", "reason", 40, above=140), markable=False, id="lost",
            ),
            empty="Nothing: what a dead worker was running would be listed here, with what became of it.",
            id="lost-panel",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[Stale]]:
        return self.dash.source.stale

    def show(self, data: Stale) -> None:
        self.query_one("#stale", LiveTable).show([self._task_line(one) for one in data.tasks])
        panel = self.query_one("#stale-panel", Panel)
        panel.face_of(empty=not data.tasks)
        panel.border_subtitle = f"{len(data.tasks):,}{'+' if data.is_cut else ''}"
        lost: dict[str, int] = {}
        for row in data.lost:
            lost[row.worker_id] = lost.get(row.worker_id, 0) + 1
        more = "+" if data.lost_is_cut else ""
        self.query_one("#dead", LiveTable).show(
            [self._dead_line(one, f"{lost[one.worker_id]}{more}" if one.worker_id in lost else "") for one in data.dead]
        )
        self.query_one("#dead-panel", Panel).face_of(empty=not data.dead)
        names = {one.worker_id: worker_name(one) for one in data.dead}
        self.query_one("#lost", LiveTable).show([self._lost_line(one, names) for one in data.lost])
        panel = self.query_one("#lost-panel", Panel)
        panel.face_of(empty=not data.lost)
        panel.border_subtitle = f"the newest {len(data.lost)}" if data.lost_is_cut else ""

    def _task_line(self, one: StaleTask) -> Line:
        return Line(
            one.id,
            {
                "kind": Cell(f"{GLYPHS[one.status]} {one.kind}", self.colour(one.status)),
                "name": Cell(one.task_name),
                "queue": Cell(one.queue_name, self.muted),
                "silence": Cell(span(one.silence), self.colour("dead" if one.is_over else "late")),
                "limit": Cell(span(one.threshold), self.muted),
                "held": Cell(span(one.held_for), self.muted),
                "worker": Cell(
                    f"{GLYPHS['dead'] + ' ' if one.worker_is_dead else ''}{one.worker_name or one.worker_id or ''}",
                    self.colour("dead") if one.worker_is_dead else self.muted,
                ),
                "id": Cell(short_id(one.id), self.muted),
            },
        )

    def _dead_line(self, one: WorkerStatus, lost: str) -> Line:
        held = one.holds_claimed + one.holds_running
        verdict = f"judged by {short_id(one.judged_by)}" if one.judged_by else "silent; no verdict yet"
        return Line(
            one.worker_id,
            {
                "worker": Cell(f"{GLYPHS['dead']} {worker_name(one)}", self.colour("dead")),
                "id": Cell(short_id(one.worker_id), self.muted),
                "seen": Cell(f"{span(one.age)}"),
                "holds": Cell(str(held) if held else "·", self.colour("dead") if held else self.muted),
                "lost": Cell(lost or "·"),
                "verdict": Cell(verdict, self.muted),
            },
        )

    def _lost_line(self, one: LostAttempt, names: dict[str, str]) -> Line:
        return Line(
            f"{one.task_id} {one.worker_id}",
            {
                "now": Cell(f"{GLYPHS[one.status]} {one.status.lower()}", self.colour(one.status)),
                "name": Cell(one.task_name),
                "age": Cell(span(one.age), self.muted),
                "worker": Cell(names.get(one.worker_id, one.worker_id), self.muted),
                "reason": Cell(one.failed_reason or "", self.muted),
            },
        )

    def targets(self, action: Action) -> Sequence[Target]:
        chosen = self.query_one("#stale", LiveTable).chosen
        rows = self.data.tasks if self.data is not None else ()
        return [
            Target(one.id, one.task_name, str(one.status), int(one.guard / timedelta(milliseconds=1)))
            for one in rows
            if one.id in chosen and one.status in action.states
        ]

    def copied(self) -> str | None:
        return "\n".join(map(inert, self.query_one("#stale", LiveTable).chosen)) or None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        key = str(event.row_key.value)
        screen = WorkerScreen(key) if table_id(event) == "dead" else TaskScreen(key.split(" ")[0])
        self.dash.push_screen(screen)
