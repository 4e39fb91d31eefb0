"""A list under a filter that the session remembers, a page more whenever its end is reached."""

from collections.abc import Sequence
from typing import ClassVar, Final, Protocol, TypeVar

from textual.binding import Binding, BindingType

from horsies_tui.data.filters import Query
from horsies_tui.screens.live import LiveScreen
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.live_table import LiveTable
from horsies_tui.widgets.status_chips import StatusChips

PAGE: Final = 100


class Listed(Protocol):
    @property
    def rows(self) -> Sequence[object]: ...
    @property
    def next(self) -> object | None: ...


L = TypeVar("L", bound=Listed)


class FilteredScreen(LiveScreen[L]):
    """Has status chips, a filter bar, and a table whose id is the screen's name."""

    HAS_WINDOW = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("0", "clear", "Clear filter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._pages = 1

    @property
    def filter_query(self) -> Query:
        return self.dash.queries.get(self.NAME, Query())

    @property
    def table(self) -> LiveTable:
        return self.query_one(f"#{self.NAME}", LiveTable)

    def on_screen_resume(self) -> None:
        self._show_filter()
        super().on_screen_resume()
        self.table.focus()

    def apply(self, query: Query) -> None:
        """List what this one asks for, from the beginning."""
        self.dash.queries[self.NAME] = query
        self._pages = 1
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
        event.stop()
        self.apply(self.filter_query.toggled(event.status))

    def on_filter_bar_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self.apply(event.query)

    def on_filter_bar_left(self, event: FilterBar.Left) -> None:
        event.stop()
        self.table.focus()

    def on_live_table_end_reached(self, event: LiveTable.EndReached) -> None:
        event.stop()
        if self.data is not None and self.data.next is not None and len(self.data.rows) >= self._pages * PAGE:
            self._pages += 1
            self.reload()
