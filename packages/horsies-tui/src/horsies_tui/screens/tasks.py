"""The list of tasks with a filter; from 120 columns on also the task under the cursor and the facets."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable

from horsies._text import plural
from horsies.operate.views import TaskSummary
from horsies.status import TaskStatus
from horsies_tui.data.models import Breakdown, TaskList
from horsies_tui.data.source import ReadPage, SourceError, Target
from horsies_tui.screens.filtered import FilteredScreen
from horsies_tui.screens.lines import TASK_COLUMNS
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, inert
from horsies_tui.widgets.facet_list import FacetList
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.status_chips import StatusChips
from horsies_tui.widgets.task_card import TaskCard
from horsies_tui.widgets.typed import table_id

MARKED_AT_MOST: Final = 1_000
COUNTED_EVERY_S: Final = 4.0
"""The list follows every notification; the counts cost more, so they are read less often."""


class TasksScreen(FilteredScreen[TaskList]):
    NAME = "tasks"
    TABLE = "tasks"
    ABOUT = (
        "First what workers hold, then what waits in the order in which it will be claimed, then what ended within the "
        "window ([ and ] change it), the newest first. / filters: queue:mail status:failed name:receipt error:smtp "
        "id:0192 worker:web meta:tenant=acme; a bare word is a name. The letters w h x d f u e switch a status. "
        "On a wide screen, i goes to the queues, names and workers of the list; enter narrows it to one. Numbers: ≈ is "
        "an estimate, + at least. "
        "Space marks, a marks all that the filter matches; actions take the marks, or the row under the cursor. The "
        "list grows as you go down."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "mark_all", "Mark all"),
        *(
            Binding(letter, f"status('{status}')", f"{status.lower()} only", show=False)
            for letter, status in zip("whxdfue", TaskStatus, strict=True)
        ),
        Binding("i", "narrow", "Narrow"),
        Binding("m", "further", "Look further back", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._breakdown: Breakdown | None = None
        self._is_counting = False
        self._counted: tuple[object, float] | None = None
        """The filter and the window that were counted last, and when."""

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in TaskStatus])
        yield FilterBar("filter: queue: status: name: error: id: worker: meta:")
        with Horizontal():
            yield TablePanel("tasks", TASK_COLUMNS, lambda row: row.id,
                             empty="No tasks yet. New tasks show up here at once.")  # fmt: skip
            with Vertical(id="beside"):
                yield Panel("task", TaskCard(), empty="The task under the cursor.", id="card-panel")
                yield Panel("narrow to", FacetList(), empty="Queues, names and workers of the list.",
                            id="facets-panel")  # fmt: skip

    @property
    def read_page(self) -> ReadPage[TaskList]:
        return self.dash.source.tasks

    def show(self, data: TaskList) -> None:
        notes = [f"{len(data.rows):,}{'+' if data.next else ''}"]
        if data.more_held:
            notes.append("more are held: x shows them")
        if data.more_waiting:
            notes.append("more wait: w shows them")
        if data.looked is not None:
            notes.append(f"searched {data.looked:,}: m looks further")
        self.panel("tasks").show(data.rows, " · ".join(notes), self._nothing(data))
        self._show_card()
        self._count()

    def _nothing(self, data: TaskList) -> str:
        """Why the list is empty, and how to fill it."""
        window = self.dash.window
        wider = "" if window.is_all else " ] looks further back."
        if data.looked is not None:
            return f"Nothing among the newest {data.looked:,} tasks matches. m looks further."
        if not self.filter_query.is_empty:
            return f"Nothing that waits, runs or {window.ended} matches the filter. 0 clears it.{wider}"
        return f"Nothing waits, runs or {window.ended}. New tasks show up here at once.{wider}"

    # -- the counts ------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count again when filter or window have changed, and at intervals."""
        asked, now = (self.filter_query, self.dash.window), self.dash.now()
        is_fresh = self._counted is not None and self._counted[0] == asked and now - self._counted[1] < COUNTED_EVERY_S
        if is_fresh or self._is_counting:
            return
        self._is_counting = True
        self._counted = (asked, now)
        self.run_worker(self._load_breakdown(), group="count", exit_on_error=False)

    async def _load_breakdown(self) -> None:
        try:
            while True:
                query, window = self.filter_query, self.dash.window
                self._breakdown = await self.dash.source.breakdown(query, since=window.since)
                if (query, window) == (self.filter_query, self.dash.window):
                    self._counted = ((query, window), self.dash.now())
                    self._show_breakdown()
                    return
        except SourceError:  # the list has reported it
            self._counted = None
        finally:
            self._is_counting = False

    def _show_breakdown(self) -> None:
        found = self._breakdown
        if found is not None:
            self.query_one(StatusChips).count({str(status): count for status, count in found.statuses.items()})
            self.query_one(FacetList).show_facets(found.facets)
            self.query_one("#facets-panel", Panel).face_of(empty=not found.facets)

    def repaint(self) -> None:
        super().repaint()
        self._show_breakdown()

    def action_reload(self) -> None:
        self._counted = None
        super().action_reload()

    def action_narrow(self) -> None:
        self.query_one(FacetList).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "narrow":
            return self.has_class("-wide") and not self.has_class("-low")
        return super().check_action(action, parameters)

    def action_back(self) -> None:
        if isinstance(self.focused, FacetList):
            self.table.focus()
        else:
            super().action_back()

    # -- the card --------------------------------------------------------------------------------

    def _current(self) -> TaskSummary | None:
        key = self.table.cursor_key
        rows = self.data.rows if self.data is not None else ()
        return next((row for row in rows if row.id == key), None)

    def _show_card(self) -> None:
        panel = self.query_one("#card-panel", Panel)
        row = self._current()
        if row is None or not panel.display:
            panel.face("empty")
            return
        self.run_worker(self._load_card(row.id), group="card", exclusive=False, exit_on_error=False)

    async def _load_card(self, task_id: str) -> None:
        try:
            detail = await self.dash.source.task(task_id)
        except SourceError:
            return
        current = self._current()
        if detail is not None and current is not None and current.id == task_id:
            self.query_one(TaskCard).show(detail)
            self.query_one("#card-panel", Panel).face("data")

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if table_id(event) == "tasks":
            self._show_card()

    # -- keys ------------------------------------------------------------------------------------

    def action_further(self) -> None:
        self._looks += 1
        self.reload()

    def action_status(self, status: str) -> None:
        self.apply(self.filter_query.toggled(status))

    async def action_mark_all(self) -> None:
        """Mark everything that the filter matches, also beyond this page; the confirmation names the number."""
        try:
            found = await self.dash.source.tasks(
                self.filter_query, since=self.dash.window.since, after=None, limit=MARKED_AT_MOST
            )
        except SourceError as error:
            self.dash.say(str(error), warn=True)
            return
        if self.data is not None:
            known = {row.id: row for row in self.data.rows} | {row.id: row for row in found.rows}
            self.data = replace(self.data, rows=tuple(known.values()))
        self.table.mark_all(row.id for row in found.rows)
        more = " (the first of more)" if found.next is not None else ""
        self.dash.say(f"{plural(len(found.rows), 'task')} marked{more}; escape unmarks")

    def targets(self) -> Iterable[Target]:
        for row in self.data.rows if self.data is not None else ():
            yield Target(row.id, row.task_name, str(row.status))

    def copied(self) -> str | None:
        chosen = self.table.chosen
        return "\n".join(map(inert, chosen)) if len(chosen) != 1 else as_json({"id": chosen[0]}) if chosen else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = str(event.row_key.value)
        if table_id(event) == "tasks":
            self.dash.push_screen(TaskScreen(key))
        else:
            field, _, value = key.partition(":")
            self.apply(self.filter_query.narrowed(field, value))
