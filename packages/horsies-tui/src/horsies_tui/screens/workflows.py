"""Runs of workflows: live ones first, with their progress."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable

from horsies.status import WorkflowStatus
from horsies_tui.actions import Action
from horsies_tui.data.feed import Kinds
from horsies_tui.data.models import WorkflowList, WorkflowRow
from horsies_tui.data.source import Target
from horsies_tui.screens.filtered import PAGE, FilteredScreen
from horsies_tui.screens.live import action_bindings
from horsies_tui.screens.workflow import WorkflowScreen
from horsies_tui.text import bar, inert, short_id, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.status_chips import StatusChips


class WorkflowsScreen(FilteredScreen[WorkflowList]):
    NAME = "workflows"
    PLACE = "workflows"
    KINDS: ClassVar[Kinds] = frozenset({"tasks", "workflows"})
    ABOUT = (
        "Runs that go on, wait or are paused, then those that ended within the window ([ and ] change it). Workflows "
        "inside others are reached through their parent. / filters by name:, status: and id:. Enter shows the graph."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings("workflows"),
    ]

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in WorkflowStatus])
        yield FilterBar("filter: name: status: id:")
        yield Panel(
            "workflows",
            LiveTable(
                Column("status", "status", 11), Column("name", "workflow", least=14), Column("bar", "progress", 20),
                Column("nodes", "nodes", 11, right=True), Column("failed", "failed", 6, above=84, right=True),
                Column("age", "since", 6, right=True), Column("took", "took", 6, above=90, right=True),
                Column("id", "id", 17, above=104), id="workflows",
            ),
            empty="No workflow has run. `app.workflow(...).start()` makes one appear.",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[WorkflowList]]:
        query, pages, source = self.filter_query, self._pages, self.dash.source
        since = self.dash.window.since

        async def ask() -> WorkflowList:
            first = page = await source.workflows(query, since=since, after=None, limit=PAGE)
            rows = list(page.rows)
            while len(rows) < pages * PAGE and page.next is not None and page.looked is None:
                page = await source.workflows(query, since=since, after=page.next, limit=PAGE)
                rows += page.rows
            return WorkflowList(tuple({row.id: row for row in rows}.values()), page.next, page.looked, first.counts)

        return ask

    def show(self, data: WorkflowList) -> None:
        self.table.show([self._line(row) for row in data.rows])
        panel = self.query_one(Panel)
        window = self.dash.window
        wider = "" if window.is_all else " ] looks further back."
        nothing = f"No workflow goes on, and none {window.ended}. `app.workflow(...).start()` makes one appear.{wider}"
        if not self.filter_query.is_empty:
            nothing = f"Nothing that goes on or {window.ended} matches the filter. 0 clears it.{wider}"
        panel.face_of(empty=not data.rows, text=nothing)
        self.query_one(StatusChips).count({str(status): count for status, count in data.counts.items()})
        panel.border_subtitle = f"{len(data.rows):,}{'+' if data.next else ''}"

    def _line(self, row: WorkflowRow) -> Line:
        colour = self.colour(row.status)
        return Line(
            row.id,
            {
                "status": Cell(f"{GLYPHS[row.status]} {row.status.lower()}", colour),
                "name": Cell(row.name),
                "bar": Cell(bar(row.ended, row.nodes, 20), colour),
                "nodes": Cell(row.progress),
                "failed": Cell(
                    str(row.failed) if row.failed else "·", self.colour("FAILED") if row.failed else self.muted
                ),
                "age": Cell(span(row.age)),
                "took": Cell(span(row.took) if row.took is not None else "·", self.muted),
                "id": Cell(short_id(row.id), self.muted),
            },
        )

    def targets(self, action: Action) -> Sequence[Target]:
        chosen = self.table.chosen
        rows = self.data.rows if self.data is not None else ()
        return [
            Target(row.id, row.name, str(row.status))
            for row in rows
            if row.id in chosen and row.status in action.states
        ]

    def copied(self) -> str | None:
        return "\n".join(map(inert, self.table.chosen)) or None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.dash.push_screen(WorkflowScreen(str(event.row_key.value)))
