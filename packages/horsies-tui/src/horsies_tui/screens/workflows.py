"""Runs of workflows: live ones first, with their progress."""

from collections.abc import Iterable
from typing import Final

from textual.app import ComposeResult
from textual.widgets import DataTable

from horsies.status import WorkflowStatus
from horsies_tui.data.models import WorkflowList, WorkflowRow
from horsies_tui.data.source import ReadPage, Target
from horsies_tui.screens.filtered import FilteredScreen
from horsies_tui.screens.workflow import WorkflowScreen
from horsies_tui.text import bar, dotted, short_id, span
from horsies_tui.themes import MUTED, badge
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import TablePanel
from horsies_tui.widgets.status_chips import StatusChips

_COLUMNS: Final[Columns[WorkflowRow]] = (
    Column("status", 11, lambda row: badge(row.status), lambda row: row.status),
    Column("workflow", 0, lambda row: row.name, least=14),
    Column("progress", 20, lambda row: bar(row.ended, row.nodes, 20), lambda row: row.status),
    Column("nodes", 11, lambda row: row.progress, right=True),
    Column("failed", 6, lambda row: dotted(row.failed), lambda row: "FAILED" if row.failed else MUTED, above=84,
           right=True),
    Column("since", 6, lambda row: span(row.age), right=True),
    Column("took", 6, lambda row: dotted(row.took, span), MUTED, above=90, right=True),
    Column("id", 17, lambda row: short_id(row.id), MUTED, above=104),
)  # fmt: skip


class WorkflowsScreen(FilteredScreen[WorkflowList]):
    NAME = "workflows"
    TABLE = "workflows"
    KINDS = frozenset({"tasks", "workflows"})
    ABOUT = (
        "Runs that go on, wait or are paused, then those that ended within the window ([ and ] change it). Workflows "
        "inside others are reached through their parent. / filters by name:, status: and id:. Enter shows the graph."
    )

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in WorkflowStatus])
        yield FilterBar("filter: name: status: id:")
        yield TablePanel("workflows", _COLUMNS, lambda row: row.id,
                         empty="No workflow has run. `app.workflow(...).start()` makes one appear.")  # fmt: skip

    @property
    def read_page(self) -> ReadPage[WorkflowList]:
        return self.dash.source.workflows

    def show(self, data: WorkflowList) -> None:
        window = self.dash.window
        wider = "" if window.is_all else " ] looks further back."
        nothing = f"No workflow goes on, and none {window.ended}. `app.workflow(...).start()` makes one appear.{wider}"
        if not self.filter_query.is_empty:
            nothing = f"Nothing that goes on or {window.ended} matches the filter. 0 clears it.{wider}"
        self.panel("workflows").show(data.rows, f"{len(data.rows):,}{'+' if data.next else ''}", nothing)
        self.query_one(StatusChips).count({str(status): count for status, count in data.counts.items()})

    def targets(self) -> Iterable[Target]:
        for row in self.data.rows if self.data is not None else ():
            yield Target(row.id, row.name, str(row.status))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.dash.push_screen(WorkflowScreen(str(event.row_key.value)))
