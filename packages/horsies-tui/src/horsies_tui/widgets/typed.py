"""Textual's generic classes with their type parameters filled in."""

from typing import Any, cast

from textual.app import App
from textual.dom import DOMNode
from textual.widgets import DataTable


def app_of(node: DOMNode) -> App[Any]:
    return cast("App[Any]", node.app)  # pyright: ignore[reportUnknownMemberType]


def table_id(event: DataTable.RowSelected | DataTable.RowHighlighted) -> str | None:
    """The id of the table that an event comes from."""
    return event.data_table.id  # pyright: ignore[reportUnknownMemberType]
