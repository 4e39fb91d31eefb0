"""One schedule: what it runs and when, what is wrong with it, and its last runs."""

import json
from collections.abc import Iterable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from horsies.operate.schedule_views import ScheduleRun
from horsies_tui.data.models import ScheduleDetail
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.task import TaskScreen
from horsies_tui.screens.workflow import WorkflowScreen
from horsies_tui.text import dotted, inert, moment, number, short_id, span
from horsies_tui.themes import MUTED, badge
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.texts import Fields


def _result(run: ScheduleRun) -> str:
    return run.skipped or run.status or "gone"


def _kind(run: ScheduleRun) -> str:
    if run.skipped is None:
        return "on request" if run.is_request else "slot"
    return "skipped" if run.slot == run.last_slot else f"skipped to {moment(run.last_slot)}"


_COLUMNS: Final[Columns[ScheduleRun]] = (
    Column("slot (UTC)", 23, lambda run: moment(run.slot)),
    Column("late by", 8, lambda run: "·" if run.skipped or run.is_request else span(run.fired_at - run.slot), MUTED,
           right=True),
    Column("result", 13, lambda run: badge(_result(run)), _result),
    Column("kind", 0, _kind, MUTED, least=12),
    Column("task", 17, lambda run: short_id(run.task_id or ""), MUTED, above=90),
    Column("error", 24, lambda run: run.error_code or "·", MUTED, above=110),
)  # fmt: skip


class ScheduleScreen(LiveScreen[ScheduleDetail | None]):
    NAME = "schedule"
    PLACE = "schedules"
    KINDS = frozenset({"schedules", "tasks"})
    ABOUT = (
        "One schedule: where it comes from, its pattern and arguments if it was made at run time, and its last 20 runs "
        "and skipped slots. Enter opens the task or workflow of a run. Missed: no scheduler ran at that time. Overlap: "
        "the run before had not ended."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]
    AUTO_FOCUS = "#history"

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def body(self) -> ComposeResult:
        yield Panel(f"schedule {inert(self._name)}", Fields(""), empty="It is gone.", id="definition")
        yield TablePanel(
            "history", _COLUMNS, lambda run: f"{run.slot.isoformat()} {run.task_id or run.skipped}", markable=False,
            empty="It has not run yet.",
        )  # fmt: skip

    async def look(self) -> ScheduleDetail | None:
        return await self.dash.source.schedule(self._name)

    def show(self, data: ScheduleDetail | None) -> None:
        self.query_one("#definition", Panel).face_of(empty=data is None)
        self.query_one(Fields).show([] if data is None else list(_facts(data)))
        self.panel("history").show(() if data is None else data.history)

    def targets(self) -> Iterable[Target]:
        if self.data is not None:
            yield Target(self._name, self._name, self.data.row.target_state)

    def copied(self) -> str | None:
        return inert(self._name)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        run = next(
            (
                run
                for run in (self.data.history if self.data is not None else ())
                if f"{run.slot.isoformat()} {run.task_id or run.skipped}" == event.row_key.value
            ),
            None,
        )
        if run is None or run.task_id is None:
            self.dash.say("no task ran")
        elif self.data is not None and self.data.is_workflow:
            self.dash.push_screen(WorkflowScreen(run.task_id))
        else:
            self.dash.push_screen(TaskScreen(run.task_id))


def _facts(data: ScheduleDetail) -> Iterable[tuple[str, object]]:
    row, stored = data.row, data.stored
    yield "from", "data: it was made at run time" if row.is_data else "the code of an app"
    yield "state", str(row.state)
    if data.problem is not None:
        yield "problem", data.problem
    if row.paused_at is not None:
        yield "paused at", moment(row.paused_at)
    yield "next run", moment(row.next_run_at)
    yield "runs so far", number(row.run_count)
    if stored is not None:
        yield "runs", stored.target
        yield "pattern", f"{stored.told_pattern}, {stored.timezone}"
        if stored.kwargs is not None:
            yield "arguments", json.dumps(stored.kwargs)
        yield "queue", dotted(stored.queue_name, str)
        if stored.group_key is not None:
            yield "group", stored.group_key
        yield "overlap", stored.overlap
        if stored.catch_up_missed:
            yield "catch up", f"up to {stored.max_catch_up_runs} runs"
        if stored.jitter_s:
            yield "jitter", f"{stored.jitter_s:g} s"
        if not stored.enabled:
            yield "enabled", "no: it runs by hand only"
        yield "version", f"{stored.version}, by {stored.created_by or '?'}, changed {moment(stored.updated_at)}"
