"""The texts of database errors quote neither rows nor arguments."""

from types import SimpleNamespace

import asyncpg
import pytest

from horsies._pg.refusals import leave_out_values, worded

DETAIL = "Failing row contains (secret)."


def refused() -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"S": "ERROR", "C": "23514", "M": "violates check", "D": DETAIL, "H": "look"})


def unencodable(value: object, why: str) -> asyncpg.DataError:
    return asyncpg.DataError(f"invalid input for query argument $2: {value!r} ({why})")


def test_an_error_of_our_connections_keeps_message_code_and_hint() -> None:
    error = refused()
    assert "secret" in str(error)
    leave_out_values(error)
    assert str(error) == "violates check\nHINT:  look"
    assert error.sqlstate == "23514"
    assert worded(error).startswith("CheckViolationError: violates check")


@pytest.mark.parametrize("value", ["secret", "secret (one) (two", "secret\nlines: more", ["secret", {"a": "b (c)"}]])
def test_a_value_that_asyncpg_cannot_send_is_left_out(value: object) -> None:
    error = unencodable(value, "expected str, got int")
    assert worded(error) == "DataError: invalid input for query argument $2 (expected str, got int)"
    leave_out_values(error)
    assert str(error) == "invalid input for query argument $2 (expected str, got int)"


def test_errors_of_other_drivers_are_told_without_their_detail() -> None:
    """SQLAlchemy repeats the text of asyncpg; the labels of psycopg are in the language of the server."""
    assert worded(ValueError(str(refused()))) == "ValueError: violates check"
    error = ValueError(f"verletzt Check\nDETAIL?  {DETAIL}")
    error.diag = SimpleNamespace(message_primary="verletzt Check")  # type: ignore[attr-defined]
    assert worded(error) == "ValueError: verletzt Check"
