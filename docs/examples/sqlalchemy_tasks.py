"""A SQLAlchemy session per task. Needs `pip install horsies-client horsies-worker sqlalchemy psycopg`.

    HORSIES_DATABASE_URL=postgresql://... DATABASE_URL=postgresql+psycopg://... horsies worker sqlalchemy_tasks:app

Each child process has an engine of its own, opened after the fork. What a task wrote is committed when it returns an ok
result, and rolled back when it raises, is stopped or returns an error.
"""

import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from horsies import AppConfig, Horsies, Middleware, PostgresConfig, TaskContext, TaskError, TaskResult

session: ContextVar[Session] = ContextVar("session")


class SessionPerTask(Middleware):
    def run_task(self, ctx: TaskContext, call: Callable[[], TaskResult[Any, TaskError]]) -> TaskResult[Any, TaskError]:
        with Session(engine.value) as opened:
            token = session.set(opened)
            try:
                result = call()
                if result.is_ok():
                    opened.commit()  # otherwise the end of the block rolls back
                return result
            finally:
                session.reset(token)


app = Horsies(AppConfig(PostgresConfig(), middleware=[SessionPerTask()]))


@app.lifespan
def engine() -> Iterator[Engine]:
    opened = create_engine(os.environ["DATABASE_URL"], pool_size=1)  # a child runs one `def` task at a time
    yield opened
    opened.dispose()


@app.task("place_order")
def place_order(pieces: int) -> TaskResult[int, TaskError]:
    row = session.get().execute(text("INSERT INTO orders (pieces) VALUES (:n) RETURNING id"), {"n": pieces})
    if pieces > 10:
        return TaskResult(err=TaskError("OUT_OF_STOCK", "there are ten"))
    return TaskResult(ok=row.scalar_one())
