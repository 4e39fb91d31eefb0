"""Payments that are made once, whatever dies. Needs `pip install horsies-client horsies-worker sqlalchemy psycopg`.

    HORSIES_DATABASE_URL=postgresql://... DATABASE_URL=postgresql+psycopg://... horsies worker exactly_once:app

Both URLs lead to the same database. The payment and the end of its task are one transaction: kill the worker, or one of
its child processes, as often as you like, and compare the payments with the tasks.
"""

import os
from collections.abc import Iterator

from sqlalchemy import Engine, create_engine, text

from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult, current_task

app = Horsies(AppConfig(PostgresConfig()))
AGAIN = RetryPolicy.fixed(1, 20, auto_retry_for=["WORKER_CRASHED", "COMPLETION_NOT_COMMITTED"])


@app.lifespan
def engine() -> Iterator[Engine]:
    opened = create_engine(os.environ["DATABASE_URL"], pool_size=1)  # a child runs one `def` task at a time
    yield opened
    opened.dispose()


@app.task("pay", retry_policy=AGAIN)
def pay(order_id: int, cents: int) -> TaskResult[int, TaskError]:
    with engine.value.begin() as connection:
        row = connection.execute(
            text("INSERT INTO payments (order_id, cents) VALUES (:order_id, :cents) RETURNING id"),
            {"order_id": order_id, "cents": cents},
        )
        # a task of its own, sent with the payment or not at all: a mail cannot be rolled back
        receipt.with_options(connection=connection).send(order_id)
        return current_task().complete(connection, int(row.scalar_one()))


@app.task("receipt")
def receipt(order_id: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"the receipt of order {order_id} is on its way")
