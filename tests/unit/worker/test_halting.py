"""Which errors of a step are its run's own, and what a success policy must look like."""

import asyncpg
import pytest

from horsies_worker.workflows.halting import BadRow, cases_of, is_own_fault


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (asyncpg.InvalidTextRepresentationError("not json"), True),
        (asyncpg.CheckViolationError("no"), True),
        (BadRow("no"), True),
        (KeyError("cases"), True),
        (asyncpg.SerializationError("again"), False),
        (asyncpg.LockNotAvailableError("held"), False),
        (asyncpg.QueryCanceledError("too long"), False),
        (asyncpg.InsufficientPrivilegeError("no rights"), False),
        (asyncpg.UndefinedColumnError("an older schema"), False),
        (asyncpg.ConnectionDoesNotExistError("gone"), False),
        (asyncpg.InterfaceError("connection is closed"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
    ],
)
def test_only_its_own_data_end_a_run(error: Exception, own: bool) -> None:
    assert is_own_fault(error) is own


def test_cases() -> None:
    assert cases_of(None) is None
    assert cases_of('{"cases": [[0, 1], [2]]}') == [[0, 1], [2]]
    with pytest.raises(BadRow, match="has no list of cases"):
        cases_of("[" * 100_000)
