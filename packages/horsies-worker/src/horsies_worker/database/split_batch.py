"""Writes a batch, or splits it in half until the row that the database refuses stands alone."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from horsies._pg.transient import is_server_limit

T = TypeVar("T")
R = TypeVar("R")

_RAISED_FOR_ROWS: Final = ("38", "39", "44", "P0", "XX")
"""A trigger, function or view of the application refuses the row (RAISE EXCEPTION is P0001), or the row is damaged."""


def is_data_error(error: BaseException) -> bool:
    """Return whether the database refused a value. The driver refuses lone surrogates under the same SQLSTATE."""
    sqlstate = getattr(error, "sqlstate", None)
    return isinstance(sqlstate, str) and sqlstate[:2] in ("22", "23", "54") and not is_server_limit(error)


def is_row_error(error: BaseException) -> bool:
    """Return whether one row may be the reason: its value, a trigger of the application, or damage."""
    sqlstate = getattr(error, "sqlstate", None)
    return is_data_error(error) or (isinstance(sqlstate, str) and sqlstate[:2] in _RAISED_FOR_ROWS)


async def write_or_split(
    batch: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[R]],
    refuse: Callable[[T, Exception], R],
    *,
    transaction: Any = None,
    splits: Callable[[BaseException], bool] = is_data_error,
) -> list[R]:
    """Write `batch` at once, or its parts, so that one refused item does not keep the others from being written.

    `refuse` gets each item that the database refuses even alone. Returns the results of `write` and `refuse` in order.
    `transaction`: a connection inside a transaction, which then gets a savepoint around each part.
    `splits`: the errors that one item may be the reason of. Any other is raised; the parts before it stay written.
    """
    try:
        async with nullcontext() if transaction is None else transaction.transaction():
            return [await write(batch)]
    except Exception as error:
        if not splits(error):
            raise
        if len(batch) == 1:
            return [refuse(batch[0], error)]
    half = len(batch) // 2
    first = await write_or_split(batch[:half], write, refuse, transaction=transaction, splits=splits)
    return first + await write_or_split(batch[half:], write, refuse, transaction=transaction, splits=splits)
