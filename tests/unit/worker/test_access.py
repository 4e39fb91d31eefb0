"""What is told of a session that may not work, without a database."""

from typing import Any

import pytest

from horsies_worker.database.access import told_refusal


def told(**found: Any) -> str | None:
    row = {"role": "web", "database": "shop", "in_recovery": False, "read_only": False, "read_only_by": "default",
           "refused": []}  # fmt: skip
    return told_refusal({**row, **found}, "worker")


def test_a_session_that_may_work() -> None:
    assert told() is None


def test_a_standby_is_named_before_anything_else() -> None:
    text = told(in_recovery=True, read_only=True, refused=["UPDATE on table public.horsies_tasks"])
    assert text is not None
    assert "standby" in text
    assert "primary" in text


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("user", 'ALTER ROLE "web" RESET default_transaction_read_only'),
        ("database", 'ALTER DATABASE "shop" RESET default_transaction_read_only'),
        ("database user", 'ALTER ROLE "web" IN DATABASE "shop" RESET default_transaction_read_only'),
        ("client", "options of the URL"),
        ("configuration file", "server's configuration"),
    ],
)
def test_a_read_only_session_is_told_where_that_comes_from(source: str, remedy: str) -> None:
    text = told(read_only=True, read_only_by=source)
    assert text is not None
    assert remedy in text
    assert "'web'" in text


def test_the_first_missing_rights_are_named() -> None:
    text = told(refused=[f"UPDATE on table public.t{number}" for number in range(5)])
    assert text is not None
    assert "no UPDATE on table public.t0, no UPDATE on table public.t1" in text
    assert "and 2 more" in text
    assert 'GRANT horsies_worker TO "web"' in text
