"""A table that is refreshed while somebody reads it: rows change by key, so cursor, marks and scroll stay.

Columns have fixed widths and at most one that takes what is left; those that a narrow terminal has no room for are
dropped. Cells are plain text: nothing in a row is read as markup.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import DataTable
from textual.widgets.data_table import RowDoesNotExist

from horsies_tui.text import fit, inert
from horsies_tui.widgets.typed import app_of

_MARK = "\0mark"


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    width: int = 0
    """0: what is left; at least `least`."""
    above: int = 0
    """Shown when the table is at least so wide."""
    right: bool = False
    least: int = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place, and how."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One row by its key; columns without a cell stay empty."""

    key: str
    cells: dict[str, Cell]


class _Ranked(Text):
    """The mark of a row; it also knows where the row belongs, which is what the table is sorted by."""

    rank: int = 0


class LiveTable(DataTable[Text]):
    """Show it lines as often as you like."""

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

        def __init__(self, table: "LiveTable") -> None:
            super().__init__()
            self.table = table

    class EndReached(Message):
        """The cursor stands on the last row: there may be more to load."""

        def __init__(self, table: "LiveTable") -> None:
            super().__init__()
            self.table = table

    def __init__(self, *columns: Column, markable: bool = True, **options: Any) -> None:
        super().__init__(cursor_type="row", cell_padding=1, cursor_foreground_priority="renderable", **options)
        self._specs = columns
        self._shown: list[tuple[Column, int]] = []
        self._lines: dict[str, Line] = {}
        self._is_markable = markable
        self._laid_out_for = 0
        self._begins_anew = False
        self.marks: set[str] = set()

    # -- reading ---------------------------------------------------------------------------------

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor."""
        order = self._order()
        return order[self.cursor_row] if 0 <= self.cursor_row < len(order) else None

    @property
    def chosen(self) -> list[str]:
        """The marked rows in their order, or the one under the cursor."""
        if self.marks:
            return [key for key in self._lines if key in self.marks] + sorted(self.marks - self._lines.keys())
        return [self.cursor_key] if self.cursor_key is not None else []

    def _order(self) -> list[str]:
        return [str(row.key.value) for row in self.ordered_rows]

    # -- showing ---------------------------------------------------------------------------------

    def show(self, lines: Iterable[Line]) -> None:
        """Make the table these lines, changing only what differs."""
        new = {line.key: line for line in lines}
        old, self._lines = self._lines, new
        if not self._shown:
            return  # no width yet; the first layout shows them
        at, offset = self.cursor_key, self.scroll_offset
        index = self.cursor_row
        if self._begins_anew and new:
            self._begins_anew = False
            at, offset, index = next(iter(new)), Offset(), 0
        with app_of(self).batch_update():
            for key in old.keys() - new.keys():
                try:
                    self.remove_row(key)
                except RowDoesNotExist:
                    pass
            for key, line in new.items():
                before = old.get(key)
                if before is None:
                    self._add(line)
                elif before != line:
                    for column, width in self._shown:
                        cell = line.cells.get(column.key)
                        if cell != before.cells.get(column.key):
                            self.update_cell(key, column.key, _rendered(cell, column, width))
            self._arrange(list(new))
            if at is not None and new:
                self._put_cursor(at, index)
        # marks of rows that are not on this page stay: a bulk action may span more than one
        self.scroll_to(offset.x, offset.y, animate=False, force=True, immediate=True)

    def begin_anew(self) -> None:
        """The next lines are an answer to another question: they are read from the top."""
        self._begins_anew = True

    def unmark(self) -> None:
        for key in list(self.marks):
            self._set_mark(key, False)
        self.marks.clear()
        self.post_message(self.MarksChanged(self))

    def mark_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._set_mark(key, True)
        self.post_message(self.MarksChanged(self))

    def put_cursor(self, key: str) -> None:
        self._put_cursor(key, self.cursor_row)

    # -- inside ----------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        width = event.size.width
        if width and width != self._laid_out_for:
            self._laid_out_for = width
            self._lay_out(width)

    def repaint(self) -> None:
        """After a change of theme: the caller shows the lines again in new colours."""
        self._lay_out(self._laid_out_for or self.size.width)

    def _lay_out(self, width: int) -> None:
        if not width:
            return
        at, index = self.cursor_key, self.cursor_row
        room = width - (3 if self._is_markable else 0) - 2  # a vertical scrollbar may come
        columns = [column for column in self._specs if width >= column.above]
        fixed = sum(column.width + 2 for column in columns if column.width)
        flexible = [column for column in columns if not column.width]
        share = (room - fixed) // max(1, len(flexible)) - 2
        self._shown = [(column, column.width or max(column.least, share)) for column in columns]
        self.clear(columns=True)
        if self._is_markable:
            self.add_column(Text(""), width=1, key=_MARK)
        for column, wide in self._shown:
            label = Text(column.label, justify="right" if column.right else "left", no_wrap=True)
            self.add_column(label, width=wide, key=column.key)
        for line in self._lines.values():
            self._add(line)
        if at is not None:
            self._put_cursor(at, index)

    def _add(self, line: Line) -> None:
        cells = [_rendered(line.cells.get(column.key), column, width) for column, width in self._shown]
        mark = [self._mark_of(line.key, len(self._lines))] if self._is_markable else []
        self.add_row(*mark, *cells, key=line.key)

    def _arrange(self, wanted: Sequence[str]) -> None:
        if self._order() == list(wanted):
            return
        ranks = {key: rank for rank, key in enumerate(wanted)}
        if self._is_markable:
            for key, rank in ranks.items():
                self.update_cell(key, _MARK, self._mark_of(key, rank))
            self.sort(_MARK, key=lambda mark: cast("_Ranked", mark).rank)
        else:
            lines = list(self._lines.values())
            self.clear()
            for line in lines:
                self._add(line)

    def _mark_of(self, key: str, rank: int) -> _Ranked:
        mark = _Ranked("●" if key in self.marks else " ", style=app_of(self).theme_variables.get("accent", ""))
        mark.rank = rank
        return mark

    def _set_mark(self, key: str, marked: bool) -> None:
        (self.marks.add if marked else self.marks.discard)(key)
        if key in self._lines and self._shown:
            order = self._order()
            if key in order:
                self.update_cell(key, _MARK, self._mark_of(key, order.index(key)))

    def _put_cursor(self, key: str, fallback: int) -> None:
        order = self._order()
        row = order.index(key) if key in order else min(fallback, len(order) - 1)
        if row >= 0 and row != self.cursor_row:
            self.move_cursor(row=row, animate=False, scroll=False)

    def action_mark(self) -> None:
        key = self.cursor_key
        if key is None or not self._is_markable:
            return
        self._set_mark(key, key not in self.marks)
        self.post_message(self.MarksChanged(self))
        self.action_cursor_down()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if self.row_count and event.cursor_row == self.row_count - 1:
            self.post_message(self.EndReached(self))


def _rendered(cell: Cell | None, column: Column, width: int) -> Text:
    if cell is None:
        return Text("")
    text = fit(inert(cell.text), width)
    return Text(text, style=cell.style, justify="right" if column.right else "left", no_wrap=True, end="")
