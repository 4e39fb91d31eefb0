"""The findings of `horsies doctor`, and the sizes of the tables."""

from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Static

from horsies.operate.doctor import Finding, Severity
from horsies_tui.data.feed import Kinds
from horsies_tui.data.models import Maintenance, TableFacts
from horsies_tui.screens.live import LiveScreen
from horsies_tui.text import block, inert, number, size, span
from horsies_tui.themes import MUTED, badge, variable_of
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.typed import table_id

_ORDER: Final = list(Severity)
_FINDINGS: Final[Columns[tuple[int, Finding]]] = (
    Column("check", 18, lambda row: badge(row[1].severity, row[1].check), lambda row: row[1].severity),
    Column("finding", 0, lambda row: row[1].what, least=20),
)
_TABLES: Final[Columns[TableFacts]] = (
    Column("table", 0, lambda one: one.name, least=20),
    Column("rows ≈", 8, lambda one: number(one.rows), right=True),
    Column("dead", 7, lambda one: number(one.dead) if one.dead is not None else "·", MUTED, right=True),
    Column("size", 8, lambda one: size(one.table_bytes), right=True),
    Column("indexes", 8, lambda one: size(one.index_bytes), right=True),
    Column("vacuumed", 8, lambda one: span(one.vacuumed), MUTED, above=90, right=True),
    Column("analyzed", 8, lambda one: span(one.analyzed), MUTED, above=100, right=True),
)


class MaintenanceScreen(LiveScreen[Maintenance]):
    NAME = "maintenance"
    ABOUT = (
        "The findings of `horsies doctor`, the worst first: what, why it matters, how to fix it. It is asked when this "
        "screen opens and on r, not all the time: it opens connections of its own. Below: tables, their indexes, rows "
        "that vacuum has still to clear."
    )

    def body(self) -> ComposeResult:
        with Horizontal(id="findings-row"):
            yield TablePanel("findings", _FINDINGS, lambda row: str(row[0]), title="doctor", markable=False,
                             empty="The doctor has nothing to say.")  # fmt: skip
            yield Panel("remedy", VerticalScroll(Static("", id="remedy", markup=False)),
                        empty="Why it matters and how to fix it.", id="remedy-panel")  # fmt: skip
        yield TablePanel(
            "tables", _TABLES, lambda one: one.name, markable=False,
            empty="No table of horsies is visible to this role. `horsies-migrate up` makes them.",
        )  # fmt: skip

    async def look(self) -> Maintenance:
        return await self.dash.source.maintenance()

    def is_stale(self, kinds: Kinds) -> bool:
        return self.data is None  # only on request: the doctor runs some twenty statements

    def show(self, data: Maintenance) -> None:
        self.panel("findings").show(list(enumerate(self._findings(data))))
        self.panel("tables").show(data.tables)
        self._show_remedy()

    def _findings(self, data: Maintenance) -> list[Finding]:
        return sorted(data.findings, key=lambda one: _ORDER.index(one.severity))

    def _show_remedy(self) -> None:
        panel = self.query_one("#remedy-panel", Panel)
        key = self.panel("findings").table.cursor_key
        if self.data is None or key is None or int(key) >= len(self.data.findings):
            panel.face("empty")
            return
        one = self._findings(self.data)[int(key)]
        parts = [
            Content.styled(badge(one.severity, one.check), f"${variable_of(one.severity)}"),
            Content(block(one.what, 2_000)),
        ]
        parts += [
            Content(f"\n{title}: {block(text, 2_000)}") for title, text in (("why", one.why), ("fix", one.fix)) if text
        ]
        self.query_one("#remedy", Static).update(Content("\n").join(parts))
        panel.face("data")

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if table_id(event) == "findings":
            self._show_remedy()

    def copied(self) -> str | None:
        if self.data is None:
            return None
        return "\n".join(inert(f"{one.severity}: {one.check}: {one.what}", 2_000) for one in self._findings(self.data))
