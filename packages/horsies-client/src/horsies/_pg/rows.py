"""Frozen values that are built from rows."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self, cast


def json_value(value: Any) -> Any:
    """The value of a jsonb column, which asyncpg returns as text. It stays text where Python cannot read what another
    program wrote: very deep nesting, or a number of thousands of digits."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def json_object(value: Any) -> Mapping[str, Any]:
    """The object in a jsonb column; empty when the column holds another value."""
    found = json_value(value)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


class FromRow:
    """Base of a dataclass whose fields are columns. Extra columns are ignored: a newer schema may have more."""

    __slots__ = ()
    CONVERTED: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Columns whose values are converted, unless they are NULL."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        values = {field.name: row[field.name] for field in fields(cls)}  # pyright: ignore[reportArgumentType]
        for name, convert in cls.CONVERTED.items():
            if values[name] is not None:
                values[name] = convert(values[name])
        return cls(**values)
