"""A table that is refreshed in place: rows change by key, so cursor, marks and scroll position stay.

Columns have fixed widths and at most one that takes what is left; those that a narrow terminal has no room for are
dropped. Cells are plain text: nothing in a row is read as markup.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import DataTable

from horsies_tui.text import fit, inert
from horsies_tui.themes import variable_of
from horsies_tui.widgets.typed import app_of

_MARK = "\0mark"
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column, and the text that it has for a row of type `R`."""

    label: str
    width: int
    """0 means the remaining width, at least `least`."""
    text: Callable[[R], str]
    state: str | Callable[[R], str] = ""
    """The state that gives the text its colour."""
    above: int = 0
    """The least width of the table at which the column is shown."""
    right: bool = False
    least: int = 12

    @property
    def justify(self) -> Literal["left", "right"]:
        return "right" if self.right else "left"


Columns = tuple[Column[R], ...]


class Cell(NamedTuple):
    """The text of one cell and its style."""

    text: str
    style: str


class _Ranked(Text):
    """The mark of a row, with the position of the row, by which the table is sorted."""

    rank: int = 0


class LiveTable(DataTable[Text]):
    """A table of rows that can be replaced at any time; `key` tells them apart."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
        Binding("space", "mark", "Mark", show=False),
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("g", "scroll_top", "Top", show=False),
        Binding("G", "scroll_bottom", "Bottom", show=False),
    ]

    class MarksChanged(Message):
        """Rows were marked or unmarked."""

    class EndReached(Message):
        """The cursor is on the last row, and there may be more to load."""

    def __init__(
        self, columns: Columns[Any], key: Callable[[Any], str], *, markable: bool = True, **options: Any
    ) -> None:
        super().__init__(cursor_type="row", cell_padding=1, cursor_foreground_priority="renderable", **options)
        self._columns = columns
        self._key = key
        self._shown: dict[int, int] = {}
        """The shown columns by their place, with their widths."""
        self.lines: dict[str, list[Cell]] = {}
        self._is_markable = markable
        self._laid_out_for = 0
        self._begins_anew = False
        self.marks: set[str] = set()

    # -- reading ---------------------------------------------------------------------------------

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor."""
        order = self.order()
        return order[self.cursor_row] if 0 <= self.cursor_row < len(order) else None

    @property
    def chosen(self) -> list[str]:
        """The marked rows in their order, or the one under the cursor."""
        if self.marks:
            return [key for key in self.lines if key in self.marks] + sorted(self.marks - self.lines.keys())
        return [self.cursor_key] if self.cursor_key is not None else []

    def order(self) -> list[str]:
        return [str(row.key.value) for row in self.ordered_rows]

    # -- showing ---------------------------------------------------------------------------------

    def show(self, rows: Iterable[Any]) -> None:
        """Show these rows; only changed cells are updated."""
        new = {self._key(row): [self._cell(column, row) for column in self._columns] for row in rows}
        old, self.lines = self.lines, new
        if not self._shown:
            return  # without a width; the first layout shows the lines
        at, offset = self.cursor_key, self.scroll_offset
        index = self.cursor_row
        if self._begins_anew and new:
            self._begins_anew = False
            at, offset, index = next(iter(new)), Offset(), 0
        with app_of(self).batch_update():
            for key in old.keys() - new.keys():
                self.remove_row(key)
            for key, line in new.items():
                before = old.get(key)
                if before is None:
                    self._add(key, line)
                elif before != line:
                    for place in self._shown:
                        if line[place] != before[place]:
                            self.update_cell(key, str(place), self._rendered(line, place))
            self._arrange(list(new))
            if at is not None and new:
                self.put_cursor(at, index)
            if list(old.items()) != list(new.items()):
                # Textual keeps up to 10,000 drawn cells of a table, also those that a change has made useless.
                self.notify_style_update()
        # marks of rows on other pages stay: an action may span several pages
        self.scroll_to(offset.x, offset.y, animate=False, force=True, immediate=True)

    def begin_anew(self) -> None:
        """The next lines belong to another filter, so they are shown from the top."""
        self._begins_anew = True

    def unmark(self) -> None:
        for key in list(self.marks):
            self._set_mark(key, False)
        self.marks.clear()
        self.post_message(self.MarksChanged())

    def mark_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._set_mark(key, True)
        self.post_message(self.MarksChanged())

    def style_of(self, state: str) -> str:
        return app_of(self).theme_variables.get(variable_of(state), "") if state else ""

    # -- internals -------------------------------------------------------------------------------

    def _cell(self, column: Column[Any], row: Any) -> Cell:
        state = column.state(row) if callable(column.state) else column.state
        return Cell(column.text(row), self.style_of(state))

    def _rendered(self, line: Sequence[Cell], place: int) -> Text:
        text, style = line[place]
        shown = fit(inert(text), self._shown[place])
        return Text(shown, style=style, justify=self._columns[place].justify, no_wrap=True, end="")

    def on_resize(self, event: events.Resize) -> None:
        width = event.size.width
        if width and width != self._laid_out_for:
            self._laid_out_for = width
            self._lay_out(width)

    def repaint(self) -> None:
        """Forget the colours after a change of theme; the caller shows the lines again."""
        self._lay_out(self._laid_out_for or self.size.width)

    def _lay_out(self, width: int) -> None:
        if not width:
            return
        at, index = self.cursor_key, self.cursor_row
        room = width - (3 if self._is_markable else 0) - 2  # leave room for a vertical scrollbar
        columns = {place: column for place, column in enumerate(self._columns) if width >= column.above}
        fixed = [column.width + 2 for column in columns.values() if column.width]
        share = (room - sum(fixed)) // max(1, len(columns) - len(fixed)) - 2
        self._shown = {place: column.width or max(column.least, share) for place, column in columns.items()}
        self.clear(columns=True)
        if self._is_markable:
            self.add_column(Text(""), width=1, key=_MARK)
        for place, column in columns.items():
            label = Text(column.label, justify=column.justify, no_wrap=True)
            self.add_column(label, width=self._shown[place], key=str(place))
        for key, line in self.lines.items():
            self._add(key, line)
        if at is not None:
            self.put_cursor(at, index)

    def _add(self, key: str, line: Sequence[Cell]) -> None:
        mark = [self._mark_of(key, len(self.lines))] if self._is_markable else []
        self.add_row(*mark, *(self._rendered(line, place) for place in self._shown), key=key)

    def _arrange(self, wanted: Sequence[str]) -> None:
        if self.order() == list(wanted):
            return
        ranks = {key: rank for rank, key in enumerate(wanted)}
        if self._is_markable:
            for key, rank in ranks.items():
                self.update_cell(key, _MARK, self._mark_of(key, rank))
            self.sort(_MARK, key=lambda mark: cast("_Ranked", mark).rank)
        else:
            self.clear()
            for key, line in self.lines.items():
                self._add(key, line)

    def _mark_of(self, key: str, rank: int) -> _Ranked:
        mark = _Ranked("●" if key in self.marks else " ", style=app_of(self).theme_variables.get("accent", ""))
        mark.rank = rank
        return mark

    def _set_mark(self, key: str, marked: bool) -> None:
        (self.marks.add if marked else self.marks.discard)(key)
        if key in self.lines and self._shown:
            order = self.order()
            if key in order:
                self.update_cell(key, _MARK, self._mark_of(key, order.index(key)))

    def put_cursor(self, key: str, fallback: int = 0) -> None:
        """Put the cursor on this row or, if it is gone, on the row at `fallback`."""
        order = self.order()
        row = order.index(key) if key in order else min(fallback, len(order) - 1)
        if row >= 0 and row != self.cursor_row:
            self.move_cursor(row=row, animate=False, scroll=False)

    def action_mark(self) -> None:
        key = self.cursor_key
        if key is None or not self._is_markable:
            return
        self._set_mark(key, key not in self.marks)
        self.post_message(self.MarksChanged())
        self.action_cursor_down()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if self.row_count and event.cursor_row == self.row_count - 1:
            self.post_message(self.EndReached())
