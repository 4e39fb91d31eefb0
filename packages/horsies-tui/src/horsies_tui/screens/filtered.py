"""A list with a filter that the session keeps; scrolling to its end loads the next page."""

from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

from textual.binding import Binding, BindingType

from horsies_tui.data.filters import Query
from horsies_tui.data.models import Page
from horsies_tui.data.source import ReadPage
from horsies_tui.screens.live import LiveScreen
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.status_chips import StatusChips

PAGE: Final = 100
P = TypeVar("P", bound=Page[Any])


class FilteredScreen(LiveScreen[P]):
    """A screen with status chips, a filter bar and a table."""

    HAS_WINDOW = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("0", "clear", "Clear filter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._pages = self._looks = 1

    @property
    def read_page(self) -> ReadPage[P]:
        raise NotImplementedError

    async def look(self) -> P:
        query, pages, looks, read = self.filter_query, self._pages, self._looks, self.read_page
        since = self.dash.window.since
        first = page = await read(query, since=since, after=None, limit=PAGE)
        rows, looked = list(page.rows), page.looked or 0
        left = looks - (page.looked is not None)  # for a rare match: one search, and one more for each press of m
        while len(rows) < pages * PAGE and page.next is not None and left > 0:
            page = await read(query, since=since, after=page.next, limit=PAGE)
            rows += page.rows
            looked += page.looked or 0
            left -= page.looked is not None
        unique = tuple({row.id: row for row in rows}.values())
        return replace(first, rows=unique, next=page.next, looked=None if page.looked is None else looked)

    @property
    def filter_query(self) -> Query:
        return self.dash.queries.get(self.NAME, Query())

    def on_screen_resume(self) -> None:
        self._show_filter()
        self.table.focus()

    def apply(self, query: Query) -> None:
        """Use this filter, and list from the beginning."""
        self.dash.queries[self.NAME] = query
        self._pages = self._looks = 1
        self.table.unmark()
        self.table.begin_anew()
        self._show_filter()
        self.reload()

    def _show_filter(self) -> None:
        self.query_one(FilterBar).show(self.filter_query)
        self.query_one(StatusChips).ask(self.filter_query.statuses)

    def action_filter(self) -> None:
        self.query_one(FilterBar).edit()

    def action_clear(self) -> None:
        self.apply(Query())

    def on_status_chips_toggled(self, event: StatusChips.Toggled) -> None:
        self.apply(self.filter_query.toggled(event.status))

    def on_filter_bar_changed(self, event: FilterBar.Changed) -> None:
        self.apply(event.query)

    def on_filter_bar_left(self) -> None:
        self.table.focus()

    def on_live_table_end_reached(self) -> None:
        if self.data is not None and self.data.next is not None and len(self.data.rows) >= self._pages * PAGE:
            self._pages += 1
            self.reload()
