"""The queues, task names and workers of a list with their counts. Enter or a click narrows the list to one."""

from collections.abc import Sequence
from typing import Final

from horsies_tui.data.facets import FIELDS
from horsies_tui.data.models import Facet
from horsies_tui.text import counted
from horsies_tui.themes import MUTED
from horsies_tui.widgets.live_table import Column, Columns, LiveTable
from horsies_tui.widgets.typed import app_of

_ASKED: Final = "asked"
_COLUMNS: Final[Columns[tuple[Facet, bool]]] = (
    Column("", 6, lambda row: FIELDS[row[0].field] if row[1] else "", MUTED),
    Column("", 0, lambda row: f"{'●' if row[0].is_asked else ' '} {_label(row[0])}",
           lambda row: _ASKED if row[0].is_asked else ""),
    Column("", 7, lambda row: counted(row[0].count), MUTED, right=True),
)  # fmt: skip
"""Of a facet, and whether it is the first of its field, which shows the field's name."""


def _label(facet: Facet) -> str:
    """The host, and the end of the id, which tells the workers of one host apart."""
    if facet.field != "worker":
        return facet.value
    return f"{facet.host} …{facet.value[-6:]}" if facet.host else facet.value


class FacetList(LiveTable):
    def __init__(self) -> None:
        super().__init__(
            _COLUMNS, lambda row: f"{row[0].field}:{row[0].value}", markable=False, show_header=False, id="facets"
        )

    def style_of(self, state: str) -> str:
        return f"bold {app_of(self).theme_variables.get('accent', '')}" if state == _ASKED else super().style_of(state)

    def show_facets(self, facets: Sequence[Facet]) -> None:
        fields = [facet.field for facet in facets]
        self.show((facet, fields.index(facet.field) == place) for place, facet in enumerate(facets))
