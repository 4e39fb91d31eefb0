"""What `horsies doctor` finds, and how large the tables are."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Static

from horsies.doctor import Finding, Severity
from horsies_tui.data.feed import Kinds
from horsies_tui.data.models import Maintenance, TableFacts
from horsies_tui.messages import DataStale
from horsies_tui.screens.live import LiveScreen
from horsies_tui.text import block, inert, number, size, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.typed import table_id

_ORDER = list(Severity)


class MaintenanceScreen(LiveScreen[Maintenance]):
    NAME = "maintenance"
    PLACE = "maintenance"
    KINDS: ClassVar[Kinds] = frozenset()
    ABOUT = (
        "The findings of `horsies doctor`, the worst first: what, why it matters, how to fix it. It is asked when this "
        "screen opens and on r, not all the time: it opens connections of its own. Below: tables, their indexes, rows "
        "that vacuum has still to clear."
    )

    def body(self) -> ComposeResult:
        with Horizontal(id="findings-row"):
            yield Panel(
                "doctor",
                LiveTable(
                    Column("check", "check", 18), Column("what", "finding", least=20), markable=False, id="findings"
                ),
                empty="The doctor has nothing to say.", id="findings-panel",
            )  # fmt: skip
            yield Panel("remedy", VerticalScroll(Static("", id="remedy", markup=False)),
                        empty="Why it matters and how to fix it.", id="remedy-panel")  # fmt: skip
        yield Panel(
            "tables",
            LiveTable(
                Column("name", "table", least=20), Column("rows", "rows ≈", 8, right=True),
                Column("dead", "dead", 7, right=True), Column("table", "size", 8, right=True),
                Column("indexes", "indexes", 8, right=True), Column("vacuumed", "vacuumed", 8, above=90, right=True),
                Column("analyzed", "analyzed", 8, above=100, right=True), markable=False, id="tables",
            ),
            empty="No table of horsies is visible to this role. `horsies-migrate up` makes them.", id="tables-panel",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[Maintenance]]:
        return self.dash.source.maintenance

    def on_data_stale(self, message: DataStale) -> None:
        message.stop()  # only when asked: the doctor is not cheap
        if self.data is None:
            self.reload()

    def show(self, data: Maintenance) -> None:
        rows = self._findings(data)
        self.query_one("#findings", LiveTable).show(
            [
                Line(
                    str(place),
                    {
                        "check": Cell(f"{GLYPHS[one.severity]} {one.check}", self.colour(one.severity)),
                        "what": Cell(one.what),
                    },
                )
                for place, one in enumerate(rows)
            ]
        )
        self.query_one("#findings-panel", Panel).face_of(empty=not rows)
        self.query_one("#tables", LiveTable).show([self._table(one) for one in data.tables])
        self.query_one("#tables-panel", Panel).face_of(empty=not data.tables)
        self._show_remedy()

    def _findings(self, data: Maintenance) -> list[Finding]:
        return sorted(data.findings, key=lambda one: _ORDER.index(one.severity))

    def _table(self, one: TableFacts) -> Line:
        return Line(
            one.name,
            {
                "name": Cell(one.name),
                "rows": Cell(number(one.rows)),
                "dead": Cell(number(one.dead) if one.dead is not None else "·", self.muted),
                "table": Cell(size(one.table_bytes)),
                "indexes": Cell(size(one.index_bytes)),
                "vacuumed": Cell(span(one.vacuumed), self.muted),
                "analyzed": Cell(span(one.analyzed), self.muted),
            },
        )

    def _show_remedy(self) -> None:
        panel = self.query_one("#remedy-panel", Panel)
        key = self.query_one("#findings", LiveTable).cursor_key
        if self.data is None or key is None or int(key) >= len(self.data.findings):
            panel.face("empty")
            return
        one = self._findings(self.data)[int(key)]
        parts = [
            Content.styled(f"{GLYPHS[one.severity]} {one.check}", self.colour(one.severity)),
            Content(block(one.what, 2_000)),
        ]
        parts += [
            Content(f"\n{title}: {block(text, 2_000)}") for title, text in (("why", one.why), ("fix", one.fix)) if text
        ]
        self.query_one("#remedy", Static).update(Content("\n").join(parts))
        panel.face("data")

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        if table_id(event) == "findings":
            self._show_remedy()

    def copied(self) -> str | None:
        if self.data is None:
            return None
        return "\n".join(inert(f"{one.severity}: {one.check}: {one.what}", 2_000) for one in self._findings(self.data))
