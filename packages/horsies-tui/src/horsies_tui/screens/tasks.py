"""Tasks by filter, a page after the other; beside the list, at 120 columns, the one under the cursor."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable

from horsies.status import TaskStatus
from horsies_tui.actions import Action
from horsies_tui.data.filters import Query
from horsies_tui.data.models import TaskList, TaskRow
from horsies_tui.data.source import SourceError, Target
from horsies_tui.screens.lines import TASK_COLUMNS, task_line
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.live_table import LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.status_chips import StatusChips
from horsies_tui.widgets.task_card import TaskCard

PAGE = 100
MARKED_AT_MOST = 1_000


class TasksScreen(LiveScreen[TaskList]):
    NAME = "tasks"
    PLACE = "tasks"
    ABOUT = (
        "First what workers hold, then what waits in the order in which it will be claimed, then what ended, the "
        "newest first. / filters: queue:mail status:failed name:receipt error:smtp id:0192 worker:web; a bare word is "
        "a name. The letters w h x d f u e switch a status. Space marks, a marks all that the filter matches; actions "
        "take the marks, or the row under the cursor. The list grows as you go down."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        *action_bindings("tasks"),
        Binding("a", "mark_all", "Mark all"),
        *(
            Binding(letter, f"status('{status}')", f"{status.lower()} only", show=False)
            for letter, status in zip("whxdfue", TaskStatus, strict=True)
        ),
        Binding("m", "further", "Look further back", show=False),
        Binding("0", "clear", "Clear filter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._pages = 1
        self._looks = 1

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in TaskStatus])
        yield FilterBar("filter: queue: status: name: error: id: worker:")
        with Horizontal():
            yield Panel("tasks", LiveTable(*TASK_COLUMNS, id="tasks"),
                        empty="No tasks yet. Whatever is sent shows up here at once.", id="tasks-panel")  # fmt: skip
            yield Panel("task", TaskCard(), empty="The task under the cursor.", id="card-panel")

    @property
    def filter_query(self) -> Query:
        return self.dash.queries.get("tasks", Query())

    def on_screen_resume(self) -> None:
        self.query_one(FilterBar).show(self.filter_query)
        self.query_one(StatusChips).show({}, self.filter_query.statuses)
        super().on_screen_resume()
        self.query_one("#tasks").focus()

    def look(self) -> Callable[[], Awaitable[TaskList]]:
        query, pages, looks, source = self.filter_query, self._pages, self._looks, self.dash.source

        async def ask() -> TaskList:
            page = await source.tasks(query, since=None, after=None, limit=PAGE)
            rows, waiting, looked = list(page.rows), page.more_waiting, page.looked or 0
            left = looks - (page.looked is not None)  # a rare thing: one look, and one more per press of m
            while len(rows) < pages * PAGE and page.next is not None and left > 0:
                page = await source.tasks(query, since=None, after=page.next, limit=PAGE)
                rows += page.rows
                looked += page.looked or 0
                left -= page.looked is not None
            unique = tuple({row.id: row for row in rows}.values())
            return TaskList(unique, page.next, looked if page.looked is not None else None, waiting)

        return ask

    def show(self, data: TaskList) -> None:
        self.query_one("#tasks", LiveTable).show([task_line(row, self.colour, self.muted) for row in data.rows])
        panel = self.query_one("#tasks-panel", Panel)
        nothing = "Nothing matches the filter. 0 clears it." if not self.filter_query.is_empty else None
        if data.looked is not None and not data.rows:
            nothing = f"Nothing among the newest {data.looked:,} tasks matches. m looks further."
        panel.face_of(empty=not data.rows, text=nothing)
        notes = [f"{len(data.rows):,}{'+' if data.next else ''}"]
        if data.more_waiting:
            notes.append("more wait: w shows them")
        if data.looked is not None:
            notes.append(f"searched {data.looked:,}: m looks further")
        panel.border_subtitle = " · ".join(notes)
        self._show_card()

    # -- the card --------------------------------------------------------------------------------

    def _current(self) -> TaskRow | None:
        key = self.query_one("#tasks", LiveTable).cursor_key
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
        event.stop()
        self._show_card()

    # -- keys ------------------------------------------------------------------------------------

    def _apply(self, query: Query) -> None:
        self.dash.queries["tasks"] = query
        self._pages = self._looks = 1
        self.query_one("#tasks", LiveTable).unmark()
        self.query_one(FilterBar).show(query)
        self.query_one(StatusChips).show({}, query.statuses)
        self.reload()

    def action_filter(self) -> None:
        self.query_one(FilterBar).edit()

    def action_further(self) -> None:
        self._looks += 1
        self.reload()

    def action_clear(self) -> None:
        self._apply(Query())

    def action_status(self, status: str) -> None:
        self._apply(self.filter_query.toggled(status))

    def on_status_chips_toggled(self, event: StatusChips.Toggled) -> None:
        event.stop()
        self._apply(self.filter_query.toggled(event.status))

    def on_filter_bar_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self._apply(event.query)

    def on_filter_bar_left(self, event: FilterBar.Left) -> None:
        event.stop()
        self.query_one("#tasks").focus()

    def on_live_table_end_reached(self, event: LiveTable.EndReached) -> None:
        event.stop()
        if self.data is not None and self.data.next is not None and len(self.data.rows) >= self._pages * PAGE:
            self._pages += 1
            self.reload()

    async def action_mark_all(self) -> None:
        """Everything that the filter matches, also beyond this page; the confirmation names the number."""
        try:
            found = await self.dash.source.tasks(self.filter_query, since=None, after=None, limit=MARKED_AT_MOST)
        except SourceError as error:
            self.dash.say(str(error), warn=True)
            return
        if self.data is not None:
            known = {row.id: row for row in self.data.rows} | {row.id: row for row in found.rows}
            self.data = replace(self.data, rows=tuple(known.values()))
        self.query_one("#tasks", LiveTable).mark_all(row.id for row in found.rows)
        more = " (the first of more)" if found.next is not None else ""
        self.dash.say(f"{len(found.rows):,} tasks marked{more}; escape unmarks")

    def targets(self, action: Action) -> Sequence[Target]:
        chosen = self.query_one("#tasks", LiveTable).chosen
        rows = {row.id: row for row in (self.data.rows if self.data is not None else ())}
        found = [rows[key] for key in chosen if key in rows]
        return [Target(row.id, row.task_name, str(row.status)) for row in found if row.status in action.states]

    def copied(self) -> str | None:
        chosen = self.query_one("#tasks", LiveTable).chosen
        return "\n".join(chosen) if len(chosen) != 1 else as_json({"id": chosen[0]}) if chosen else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.dash.push_screen(TaskScreen(str(event.row_key.value)))
