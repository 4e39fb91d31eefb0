"""What a list can be narrowed to: queues, task names, workers, each with how many. Enter or a click does it."""

from collections.abc import Sequence

from horsies_tui.data.facets import FIELDS
from horsies_tui.data.models import Facet
from horsies_tui.text import counted
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.typed import app_of


class FacetList(LiveTable):
    def __init__(self) -> None:
        super().__init__(
            Column("field", "", 6),
            Column("value", "", least=12),
            Column("count", "", 7, right=True),
            markable=False,
            show_header=False,
            id="facets",
        )
        self._facets: dict[str, Facet] = {}

    def show_facets(self, facets: Sequence[Facet], muted: str) -> None:
        self._facets = {f"{facet.field}:{facet.value}": facet for facet in facets}
        accent = app_of(self).theme_variables.get("accent", "")
        lines: list[Line] = []
        before = ""
        for key, facet in self._facets.items():
            # a name of its own for each group, once
            title = FIELDS[facet.field] if facet.field != before else ""
            before = facet.field
            mark = "● " if facet.is_asked else "  "
            lines.append(
                Line(
                    key,
                    {
                        "field": Cell(title, muted),
                        "value": Cell(mark + _label(facet), f"bold {accent}" if facet.is_asked else ""),
                        "count": Cell(counted(facet.count), muted),
                    },
                )
            )
        self.show(lines)

    def facet(self, key: str) -> Facet | None:
        return self._facets.get(key)


def _label(facet: Facet) -> str:
    """An id says nothing to anybody; its end tells the workers of one host apart."""
    if facet.field != "worker":
        return facet.value
    return f"{facet.host} …{facet.value[-6:]}" if facet.host else facet.value
