"""Schedules: when they ran, when they will, and whether they are late."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable

from horsies.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, ScheduleState
from horsies_tui.actions import Action
from horsies_tui.data.feed import Kinds
from horsies_tui.data.models import ScheduleRow
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.screens.task import TaskScreen
from horsies_tui.screens.workflow import WorkflowScreen
from horsies_tui.text import inert, moment, number, short_id, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel

_STATES: Final = {
    ScheduleState.ACTIVE: ("alive", "active"), ScheduleState.BY_HAND: ("alive", "by hand"),
    ScheduleState.OVERDUE: ("late", "late"), ScheduleState.PAUSED: ("PAUSED", "paused"),
    ScheduleState.REMOVED: ("stopped", "removed"),
}  # fmt: skip
LISTED: Final = 1_000
"""Rows that the statement returns at most."""


class SchedulesScreen(LiveScreen[tuple[ScheduleRow, ...]]):
    NAME = "schedules"
    PLACE = "schedules"
    KINDS: ClassVar[Kinds] = frozenset({"schedules"})
    ABOUT = (
        "Every schedule that a scheduler has served: its next and last run, how late a due one is, how far the last "
        "run was from its slot, and the task or workflow that it started. Enter opens that. Removed: no live scheduler "
        "lists it: it is gone from the code, or the scheduler of its app is down. It leaves the list after a day."
    )
    BINDINGS: ClassVar[list[BindingType]] = action_bindings("schedules")

    def body(self) -> ComposeResult:
        yield Panel(
            "schedules",
            LiveTable(
                Column("state", "state", 13), Column("name", "schedule", least=16),
                Column("next", "next in", 8, right=True), Column("last", "last run", 8, right=True),
                Column("drift", "drift", 6, above=84, right=True),
                Column("runs", "runs", 6, above=70, right=True), Column("result", "last result", 13),
                Column("at", "next at (UTC)", 23, above=132), Column("task", "last task", 17, above=112),
                id="schedules",
            ),
            empty="No schedule is known. `horsies scheduler module:app` serves those of an app's configuration.",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[tuple[ScheduleRow, ...]]]:
        return self.dash.source.schedules

    def show(self, data: tuple[ScheduleRow, ...]) -> None:
        shown = [row for row in data if row.state is not ScheduleState.REMOVED or row.unlisted_for <= FORGOTTEN_AFTER]
        self.query_one(LiveTable).show([self._line(row) for row in shown])
        panel = self.query_one(Panel)
        panel.face_of(empty=not shown)
        seen = min((row.scheduler_seen for row in shown), default=timedelta())
        gone = f"no scheduler is running: last seen {span(seen)} ago" if seen > LISTED_FOR else ""
        panel.border_subtitle = gone or (f"the first {len(data):,}" if len(data) >= LISTED else "")

    def _line(self, row: ScheduleRow) -> Line:
        found = row.state
        late = found is ScheduleState.OVERDUE
        state, name = _STATES[found]
        if row.run_requested_at is not None and found is not ScheduleState.REMOVED:
            state, name = ("late", "late, asked") if late else ("CLAIMED", "asked")
        if found in (ScheduleState.PAUSED, ScheduleState.REMOVED):
            coming = "·"
        elif late:
            coming = f"-{span(row.late)}"
        else:
            coming = span(row.due_in) if row.due_in is not None else "by hand"
        result = row.last_status or ("gone" if row.last_task_id else "never ran")
        return Line(
            row.schedule_name,
            {
                "state": Cell(f"{GLYPHS[state]} {name}", self.colour(state)),
                "name": Cell(row.schedule_name),
                "next": Cell(coming, self.colour("late") if late else ""),
                "last": Cell(span(row.last_age) if row.last_age is not None else "·"),
                "drift": Cell(span(row.drift) if row.drift is not None else "·", self.muted),
                "runs": Cell(number(row.run_count), self.muted),
                "result": Cell(f"{GLYPHS.get(result, '·')} {result.lower()}", self.colour(result)),
                "at": Cell(moment(row.next_run_at), self.muted),
                "task": Cell(short_id(row.last_task_id or ""), self.muted),
            },
        )

    def targets(self, action: Action) -> Sequence[Target]:
        chosen = self.query_one(LiveTable).chosen
        return [
            Target(row.schedule_name, row.schedule_name, "paused" if row.paused_at else "active")
            for row in self.data or ()
            if row.schedule_name in chosen
        ]

    def copied(self) -> str | None:
        key = self.query_one(LiveTable).cursor_key
        return inert(key) if key is not None else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        row = next((row for row in self.data or () if row.schedule_name == event.row_key.value), None)
        if row is None or row.last_task_id is None:
            self.dash.say("it has not run yet")
        elif row.is_workflow:
            self.dash.push_screen(WorkflowScreen(row.last_task_id))
        else:
            self.dash.push_screen(TaskScreen(row.last_task_id))
