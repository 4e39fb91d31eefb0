"""Which database a command of an operator asks, and what it says when there is none."""

from typing import Any

import pytest

from tests.support import factories
from tests.support.apps import UNREACHABLE
from tests.support.operator import Operator, as_process
from tests.support.postgres import Database


def test_no_database_at_all() -> None:
    ran = as_process("tasks", "list", url=None)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "horsies: no database: give --database-url, set HORSIES_DATABASE_URL, or name an app with --app module:app\n"
    )


@pytest.mark.parametrize("option", ["--database-url", "--replica-url"])
def test_an_empty_url_is_refused(db: Database, option: str) -> None:
    """An unset variable of a script must not lead to the database of the environment."""
    task_id = factories.task(db, "COMPLETED")
    ran = as_process("tasks", "purge", task_id, option, "", url=db.url)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"horsies: {option} is empty: give a URL, or leave the option out\n"
    assert db.value("SELECT count(*) FROM horsies_tasks") == 1


def test_by_the_environment_and_by_an_app(db: Database, tmp_path: Any) -> None:
    task_id = factories.task(db)
    assert task_id in as_process("tasks", "list", url=db.url).out
    (tmp_path / "shop.py").write_text(
        f"from horsies import *\napp = Horsies(AppConfig(PostgresConfig({db.url!r}, pool_min_size=1)))\n"
    )
    assert task_id in as_process("tasks", "list", "--app", "shop:app", url=UNREACHABLE, cwd=tmp_path).out
    broken = as_process("tasks", "list", "--app", "shop:nothing", url=db.url, cwd=tmp_path)
    assert (broken.code, broken.out) == (2, "")
    assert "module 'shop' has no 'nothing'" in broken.err
    both = as_process("tasks", "list", "--app", "shop:app", "--database-url", db.url, url=None, cwd=tmp_path)
    assert both.code == 2


def test_in_a_schema_of_its_own(empty_db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    import horsies_schema

    horsies_schema.upgrade(empty_db.url, schema="jobs")
    task_id = factories.task(empty_db, "FAILED", schema="jobs")
    operator = Operator(empty_db, capsys)
    assert operator.json("tasks", "list", "--schema", "jobs")["tasks"][0]["id"] == task_id
    assert operator("tasks", "purge", task_id, "--schema", "jobs").out == "purged 1 task\n"
    ran = operator("tasks", "list")
    assert ran.code == 1
    assert "there are no horsies tables in this database (by its search_path): run `horsies-migrate up`" in ran.err


@pytest.mark.parametrize("command", [["tasks", "list"], ["workers"], ["queues"], ["stale", "list"], ["doctor"]])
def test_unreachable_without_a_secret_or_a_traceback(operator: Operator, command: list[str]) -> None:
    ran = operator(*command, url=UNREACHABLE)
    assert ran.code == 1
    assert "ConnectionRefusedError" in ran.out + ran.err
    assert "hunter2" not in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_a_url_in_the_wrong_place_does_not_leak(operator: Operator) -> None:
    for arguments in (["tasks"], ["tasks", "list", "--database", "--status"], ["stale"], ["queues", "drop"]):
        ran = operator(*arguments, url="postgresql://u:hunter2@h/x")
        assert ran.code == 2
        assert "hunter2" not in ran.out + ran.err


def test_a_bad_url_does_not_leak(operator: Operator) -> None:
    for url in ("mysql://root:hunter2@db/x", "postgresql://u:hunter2@h:port/x"):
        ran = operator("tasks", "list", url=url)
        assert ran.code == 2
        assert "hunter2" not in ran.out + ran.err
        assert ran.err.startswith("horsies: ")
