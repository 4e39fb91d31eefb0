"""What was said to one database: statements and their numbers, as pg_stat_statements counts them.

The server is shared with the other processes of the suite, and so is the extension's memory: a reset of all of it would
also erase what another test is counting.
"""

from typing import Any

import psycopg
import pytest

from tests.support.postgres import Database

HERE = "(SELECT oid FROM pg_database WHERE datname = current_database())"


def start_counting(db: Database) -> None:
    """Forgets what was said in this database until now; skips the test where the server cannot count."""
    try:
        db.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        db.execute(f"SELECT pg_stat_statements_reset(0, {HERE}, 0)")
    except psycopg.errors.Error as error:
        pytest.skip(f"pg_stat_statements is not loaded in this server: {error}")


def said(db: Database, where: str = "true") -> list[tuple[str, int, int]]:
    """Text, calls and rows of what was said since then and meets a condition on `query`; not of what the count says."""
    rows: list[Any] = db.execute(
        "SELECT query, sum(calls)::int, sum(rows)::int FROM pg_stat_statements"
        f" WHERE dbid = {HERE} AND toplevel AND query NOT LIKE '%pg_stat_statements%' AND ({where})"
        " GROUP BY query"
    )
    return rows


def calls(db: Database, where: str = "true") -> int:
    return sum(count for _, count, _ in said(db, where))
