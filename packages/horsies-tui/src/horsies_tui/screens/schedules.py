"""The schedules with their last and next runs."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from textual.app import ComposeResult
from textual.widgets import DataTable

from horsies.operate.schedule_state import FORGOTTEN_AFTER, ScheduleState, is_scheduler_seen
from horsies_tui.data.models import ScheduleRow
from horsies_tui.data.source import MAX_SCHEDULES, Target
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.schedule import ScheduleScreen
from horsies_tui.text import dotted, inert, moment, number, short_id, span
from horsies_tui.themes import MUTED, badge
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import TablePanel

_STATES: Final = {
    ScheduleState.ACTIVE: ("alive", "active"), ScheduleState.BY_HAND: ("alive", "by hand"),
    ScheduleState.OVERDUE: ("late", "late"), ScheduleState.PAUSED: ("PAUSED", "paused"),
    ScheduleState.REMOVED: ("stopped", "removed"), ScheduleState.BROKEN: ("late", "cannot run"),
    ScheduleState.UNKNOWN: ("late", "unknown"),
}  # fmt: skip


def _state(row: ScheduleRow) -> tuple[str, str]:
    """The state that colours it, and the word for it."""
    if row.run_requested_at is None or row.state is ScheduleState.REMOVED:
        return _STATES[row.state]
    return ("late", "late, asked") if row.state is ScheduleState.OVERDUE else ("CLAIMED", "asked")


def _coming(row: ScheduleRow) -> str:
    if row.state in (ScheduleState.PAUSED, ScheduleState.REMOVED, ScheduleState.BROKEN, ScheduleState.UNKNOWN):
        return "·"
    if row.state is ScheduleState.OVERDUE:
        return f"-{span(row.overdue_by)}"
    return span(row.due_in) if row.due_in is not None else "by hand"


def _result(row: ScheduleRow) -> str:
    return row.last_status or ("gone" if row.last_task_id else "never ran")


_COLUMNS: Final[Columns[ScheduleRow]] = (
    Column("state", 13, lambda row: badge(*_state(row)), lambda row: _state(row)[0]),
    Column("schedule", 0, lambda row: row.schedule_name, least=16),
    Column("from", 4, lambda row: "data" if row.is_data else "code", MUTED, above=76),
    Column("next in", 8, _coming, lambda row: "late" if row.state is ScheduleState.OVERDUE else "", right=True),
    Column("last run", 8, lambda row: dotted(row.last_age, span), right=True),
    Column("drift", 6, lambda row: dotted(row.drift, span), MUTED, above=84, right=True),
    Column("runs", 6, lambda row: number(row.run_count), MUTED, above=70, right=True),
    Column("last result", 13, lambda row: badge(_result(row)), _result),
    Column("next at (UTC)", 23, lambda row: moment(row.next_run_at), MUTED, above=132),
    Column("last task", 17, lambda row: short_id(row.last_task_id or ""), MUTED, above=112),
)


class SchedulesScreen(LiveScreen[tuple[ScheduleRow, ...]]):
    NAME = "schedules"
    TABLE = "schedules"
    KINDS = frozenset({"schedules"})
    ABOUT = (
        "Every schedule that a scheduler has served, or that was made at run time (data): its next and last run, how "
        "late a due one is, how far the last run was from its slot. Enter opens its definition and its last runs. "
        "Removed: no live scheduler lists it: it is gone from the code, or the scheduler of its app is down. It leaves "
        "the list after a day. Unknown: no running scheduler knows its task. D removes one that was made at run time."
    )

    def body(self) -> ComposeResult:
        yield TablePanel(
            "schedules", _COLUMNS, lambda row: row.schedule_name,
            empty="No schedule is known. `horsies scheduler module:app` serves those of an app's configuration; "
            "`horsies schedules add` makes others.",
        )  # fmt: skip

    async def look(self) -> tuple[ScheduleRow, ...]:
        return await self.dash.source.schedules()

    def show(self, data: tuple[ScheduleRow, ...]) -> None:
        shown = [row for row in data if row.state is not ScheduleState.REMOVED or row.unlisted_for <= FORGOTTEN_AFTER]
        seen = shown[0].scheduler_seen if shown else timedelta()
        sign = "there was never one" if seen is None else f"last seen {span(seen)} ago"
        gone = "" if is_scheduler_seen(seen) else f"no scheduler is running: {sign}"
        note = gone or (f"the first {len(data):,}" if len(data) >= MAX_SCHEDULES else "")
        self.panel("schedules").show(shown, note)

    def targets(self) -> Iterable[Target]:
        for row in self.data or ():
            yield Target(row.schedule_name, row.schedule_name, row.target_state)

    def copied(self) -> str | None:
        key = self.table.cursor_key
        return inert(key) if key is not None else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.dash.push_screen(ScheduleScreen(str(event.row_key.value)))
