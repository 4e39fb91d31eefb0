"""Tasks by filter, a page after the other; at 120 columns the one under the cursor and what to narrow the list to."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable

from horsies._text import plural
from horsies.status import TaskStatus
from horsies_tui.actions import Action
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Breakdown, TaskList, TaskRow
from horsies_tui.data.source import SourceError, Target
from horsies_tui.screens.filtered import PAGE, FilteredScreen
from horsies_tui.screens.lines import TASK_COLUMNS, task_line
from horsies_tui.screens.live import action_bindings
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, inert
from horsies_tui.widgets.facet_list import FacetList
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.live_table import LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.status_chips import StatusChips
from horsies_tui.widgets.task_card import TaskCard
from horsies_tui.widgets.typed import table_id

MARKED_AT_MOST: Final = 1_000
COUNTED_EVERY_S: Final = 4.0
"""The list follows every notification; its numbers cost more, and nobody reads them so fast."""


class TasksScreen(FilteredScreen[TaskList]):
    NAME = "tasks"
    PLACE = "tasks"
    ABOUT = (
        "First what workers hold, then what waits in the order in which it will be claimed, then what ended within the "
        "window ([ and ] change it), the newest first. / filters: queue:mail status:failed name:receipt error:smtp "
        "id:0192 worker:web; a bare word is a name. The letters w h x d f u e switch a status. On a wide screen, i "
        "goes to the queues, names and workers of the list; enter narrows it to one. Numbers: ≈ is an estimate, + at "
        "least. "
        "Space marks, a marks all that the filter matches; actions take the marks, or the row under the cursor. The "
        "list grows as you go down."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings("tasks"),
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
        self._looks = 1
        self._breakdown: Breakdown | None = None
        self._is_counting = False
        self._counted: tuple[object, float] | None = None
        """What was counted last, and when."""

    def body(self) -> ComposeResult:
        yield StatusChips([str(status) for status in TaskStatus])
        yield FilterBar("filter: queue: status: name: error: id: worker:")
        with Horizontal():
            yield Panel("tasks", LiveTable(*TASK_COLUMNS, id="tasks"),
                        empty="No tasks yet. Whatever is sent shows up here at once.", id="tasks-panel")  # fmt: skip
            with Vertical(id="beside"):
                yield Panel("task", TaskCard(), empty="The task under the cursor.", id="card-panel")
                yield Panel("narrow to", FacetList(), empty="Queues, names and workers of the list.",
                            id="facets-panel")  # fmt: skip

    def look(self) -> Callable[[], Awaitable[TaskList]]:
        query, pages, looks, source = self.filter_query, self._pages, self._looks, self.dash.source
        since = self.dash.window.since

        async def ask() -> TaskList:
            first = page = await source.tasks(query, since=since, after=None, limit=PAGE)
            rows, looked = list(page.rows), page.looked or 0
            left = looks - (page.looked is not None)  # a rare thing: one look, and one more per press of m
            while len(rows) < pages * PAGE and page.next is not None and left > 0:
                page = await source.tasks(query, since=since, after=page.next, limit=PAGE)
                rows += page.rows
                looked += page.looked or 0
                left -= page.looked is not None
            unique = tuple({row.id: row for row in rows}.values())
            looked = looked if page.looked is not None else None
            return replace(first, rows=unique, next=page.next, looked=looked)

        return ask

    def show(self, data: TaskList) -> None:
        self.table.show([task_line(row, self.colour, self.muted) for row in data.rows])
        panel = self.query_one("#tasks-panel", Panel)
        panel.face_of(empty=not data.rows, text=self._nothing(data))
        notes = [f"{len(data.rows):,}{'+' if data.next else ''}"]
        if data.more_held:
            notes.append("more are held: x shows them")
        if data.more_waiting:
            notes.append("more wait: w shows them")
        if data.looked is not None:
            notes.append(f"searched {data.looked:,}: m looks further")
        panel.border_subtitle = " · ".join(notes)
        self._show_card()
        self._count()

    def _nothing(self, data: TaskList) -> str:
        """Why the list is empty, and what would fill it."""
        window = self.dash.window
        wider = "" if window.is_all else " ] looks further back."
        if data.looked is not None:
            return f"Nothing among the newest {data.looked:,} tasks matches. m looks further."
        if not self.filter_query.is_empty:
            return f"Nothing that waits, runs or {window.ended} matches the filter. 0 clears it.{wider}"
        return f"Nothing waits, runs or {window.ended}. Whatever is sent shows up here at once.{wider}"

    # -- the numbers -----------------------------------------------------------------------------

    def _count(self) -> None:
        """Count again when something else is asked, or now and then."""
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
        except SourceError:  # the list has told of it
            self._counted = None
        finally:
            self._is_counting = False

    def _show_breakdown(self) -> None:
        found = self._breakdown
        if found is not None:
            self.query_one(StatusChips).count({str(status): count for status, count in found.statuses.items()})
            self.query_one(FacetList).show_facets(found.facets, self.muted)
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
        if self.focused_within(self.query_one(FacetList)):
            self.table.focus()
        else:
            super().action_back()

    # -- the card --------------------------------------------------------------------------------

    def _current(self) -> TaskRow | None:
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
        event.stop()
        if table_id(event) == "tasks":
            self._show_card()

    # -- keys ------------------------------------------------------------------------------------

    def apply(self, query: Query) -> None:
        self._looks = 1
        super().apply(query)

    def action_further(self) -> None:
        self._looks += 1
        self.reload()

    def action_status(self, status: str) -> None:
        self.apply(self.filter_query.toggled(status))

    async def action_mark_all(self) -> None:
        """Everything that the filter matches, also beyond this page; the confirmation names the number."""
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

    def targets(self, action: Action) -> Sequence[Target]:
        chosen = self.table.chosen
        rows = {row.id: row for row in (self.data.rows if self.data is not None else ())}
        found = [rows[key] for key in chosen if key in rows]
        return [Target(row.id, row.task_name, str(row.status)) for row in found if row.status in action.states]

    def copied(self) -> str | None:
        chosen = self.table.chosen
        return "\n".join(map(inert, chosen)) if len(chosen) != 1 else as_json({"id": chosen[0]}) if chosen else None

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        key = str(event.row_key.value)
        if table_id(event) == "tasks":
            self.dash.push_screen(TaskScreen(key))
        elif (facet := self.query_one(FacetList).facet(key)) is not None:
            self.apply(self.filter_query.narrowed(facet.field, facet.value))
