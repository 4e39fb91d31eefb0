"""Writes a batch, or splits it in half until the row that the database refuses stands alone."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from horsies._pg.transient import is_notify_queue_full

T = TypeVar("T")
R = TypeVar("R")


def is_data_error(error: BaseException) -> bool:
    """Return whether the database refused a value. The driver refuses lone surrogates under the same SQLSTATE."""
    sqlstate = getattr(error, "sqlstate", None)
    return isinstance(sqlstate, str) and sqlstate[:2] in ("22", "23", "54") and not is_notify_queue_full(error)


async def write_or_split(
    batch: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[R]],
    refuse: Callable[[T, Exception], R],
    *,
    transaction: Any = None,
) -> list[R]:
    """Write `batch` at once, or its parts, so that one refused item does not keep the others from being written.

    `refuse` gets each item that the database refuses even alone. Returns the results of `write` and `refuse` in order.
    `transaction`: a connection inside a transaction, which then gets a savepoint around each part.
    Any error that is no data error is raised; the parts before it stay written.
    """
    try:
        async with nullcontext() if transaction is None else transaction.transaction():
            return [await write(batch)]
    except Exception as error:
        if not is_data_error(error):
            raise
        if len(batch) == 1:
            return [refuse(batch[0], error)]
    half = len(batch) // 2
    first = await write_or_split(batch[:half], write, refuse, transaction=transaction)
    return first + await write_or_split(batch[half:], write, refuse, transaction=transaction)
