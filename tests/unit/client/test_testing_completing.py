"""`complete()` in `testing.run` and `testing.inline`: the transaction of the task's own connection is followed."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from horsies import RetryPolicy, TaskError, TaskResult, current_task, testing
from horsies.middleware import AttemptEnd, Middleware
from tests.support.apps import UNREACHABLE, make_app

Number = TaskResult[int, TaskError]
ends: list[str] = []


class Watching(Middleware):
    def on_attempt_end(self, end: AttemptEnd) -> None:
        ends.append(end.outcome)


@pytest.fixture
def engine() -> Iterator[sqlalchemy.Engine]:
    """A database in memory: no statement of horsies is run on it."""
    ends.clear()
    opened = sqlalchemy.create_engine("sqlite://")
    with opened.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (id int)"))
    yield opened
    opened.dispose()


def make(engine: sqlalchemy.Engine, **options: Any) -> Any:
    app = make_app(UNREACHABLE, middleware=[Watching()])

    @app.task("order", **options)
    def order(how: str, value: Any = 7) -> Number:
        with Session(engine) as session:
            session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
            result = current_task().complete(session, value)
            if how == "raise":
                raise ValueError("before the commit")
            if how == "twice":
                current_task().complete(session, value)
            if how == "again":
                session.rollback()
                result = current_task().complete(session, 8)
                session.commit()
            if how in ("commit", "raise late") or (how == "commit late" and current_task().attempt > 1):
                session.commit()
            if how == "raise late":
                raise ValueError("after the commit")
        return result

    return app, order


def test_a_commit_completes_the_task(engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture) -> None:
    _, order = make(engine)
    assert testing.run(order, "commit") == TaskResult(ok=7)
    assert testing.run(order, "again") == TaskResult(ok=8)
    assert ends == ["ok", "ok"]
    assert testing.run(order, "raise late") == TaskResult(ok=7)
    assert "it stays COMPLETED" in caplog.text


def test_without_a_commit_it_is_an_error(engine: sqlalchemy.Engine) -> None:
    _, order = make(engine)
    assert testing.run(order, "nothing").err_value.error_code == "COMPLETION_NOT_COMMITTED"
    assert testing.run(order, "raise").err_value.error_code == "UNHANDLED_EXCEPTION"
    assert "call it once" in testing.run(order, "twice").err_value.message


def test_a_value_of_another_type_is_refused(engine: sqlalchemy.Engine) -> None:
    _, order = make(engine)
    assert testing.run(order, "commit", "seven").err_value.error_code == "RETURN_TYPE_MISMATCH"


def test_it_is_retried_inline(engine: sqlalchemy.Engine) -> None:
    app, order = make(engine, retry_policy=RetryPolicy.fixed(1, 2, auto_retry_for=["COMPLETION_NOT_COMMITTED"]))
    with testing.inline(app) as sends:
        assert order.send("commit late").get() == TaskResult(ok=7)
    assert len(sends.sent(order)[0].attempts) == 2


class Connection:
    """asyncpg's connection, as far as it is asked."""

    __module__ = "asyncpg.connection"

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open

    def is_in_transaction(self) -> bool:
        return self.is_open

    async def fetch(self, *_: Any) -> None:
        raise AssertionError("no statement is run")


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_library_that_does_not_tell_counts_as_committed(is_open: bool) -> None:
    app = make_app(UNREACHABLE)

    @app.task("order")
    async def order(how: str) -> Number:
        result = await current_task().complete_async(Connection(is_open=is_open), 7)
        if how == "raise":
            raise ValueError("before the commit")
        return result

    returned = await testing.run_async(order, "return")
    raised = await testing.run_async(order, "raise")
    if is_open:
        assert returned == TaskResult(ok=7)
        assert raised.err_value.error_code == "UNHANDLED_EXCEPTION"
    else:
        assert "needs an open transaction" in returned.err_value.message
