"""A batch is written at once, or split until the items that the database refuses stand alone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest

from horsies._pg.transient import is_transient
from horsies_worker.database.split_batch import is_data_error, is_row_error, write_or_split


class Table:
    """Refuses every batch that contains a bad item, like a statement that fails as a whole."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.written: list[int] = []
        self.statements = 0
        self.savepoints = self.rolled_back = 0

    async def write(self, batch: Sequence[int]) -> list[int]:
        self.statements += 1
        if self.bad & set(batch):
            raise asyncpg.CharacterNotInRepertoireError("refused")
        self.written += batch
        return list(batch)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self.savepoints += 1
        try:
            yield
        except Exception:
            self.rolled_back += 1
            raise


def refuse(item: int, error: Exception) -> list[int]:
    assert "refused" in str(error)
    return [-item]


async def test_a_good_batch_is_one_statement() -> None:
    table = Table()
    assert await write_or_split(range(300), table.write, refuse) == [list(range(300))]
    assert table.statements == 1


async def test_only_bad_items_are_refused() -> None:
    table = Table(3, 200)
    parts = await write_or_split(range(300), table.write, refuse)
    assert [abs(item) for part in parts for item in part] == list(range(300)), "in the order of the batch"
    assert sorted(item for part in parts for item in part if item < 0) == [-200, -3]
    assert table.written == [item for item in range(300) if item not in (3, 200)]
    assert table.statements <= 1 + 2 * 2 * 9


async def test_any_other_error_is_raised_and_the_parts_before_it_stay() -> None:
    table = Table(7)

    async def write(batch: Sequence[int]) -> list[int]:
        if batch[0] >= 4 and len(batch) == 4:
            raise ConnectionResetError("gone")
        return await table.write(batch)

    with pytest.raises(ConnectionResetError):
        await write_or_split(range(8), write, refuse)
    assert table.written == [0, 1, 2, 3]


async def test_inside_a_transaction_each_part_has_a_savepoint() -> None:
    table = Table(1)
    await write_or_split(range(2), table.write, refuse, transaction=table)
    assert (table.statements, table.savepoints, table.rolled_back) == (3, 3, 2)


@pytest.mark.parametrize(
    ("code", "function", "transient", "data", "row"),
    [
        ("22021", "report_invalid_encoding", False, True, True),
        ("54000", "index_form_tuple_context", False, True, True),
        # nothing can be written for now: no result is at fault, and each must be kept
        ("54000", "GetNewTransactionId", True, False, False),
        ("54000", "GetNewMultiXactId", True, False, False),
        ("54000", "PreCommit_Notify", True, False, False),
        ("P0001", "exec_stmt_raise", False, False, True),
        ("XX001", "heap_fetch_toast_slice", False, False, True),
        ("42P01", "parserOpenTable", False, False, False),
        ("57P01", "ProcessInterrupts", True, False, False),
    ],
)
def test_what_an_error_means_for_the_rows_of_a_batch(
    code: str, function: str, transient: bool, data: bool, row: bool
) -> None:
    error = asyncpg.PostgresError.new({"S": "ERROR", "V": "ERROR", "C": code, "M": "no", "R": function})
    assert (is_transient(error), is_data_error(error), is_row_error(error)) == (transient, data, row)
