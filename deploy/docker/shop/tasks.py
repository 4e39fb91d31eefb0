"""A small application for the example: put your own package in its place."""

import os

from horsies import (
    AppConfig,
    Horsies,
    Interval,
    PostgresConfig,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
)

# Behind a transaction-mode pooler, LISTEN and session locks need the server itself: HORSIES_DIRECT_URL leads there.
# The migrate job upgrades the tables, with rights that this account does not have.
DIRECT_URL = os.environ.get("HORSIES_DIRECT_URL")
app = Horsies(
    AppConfig(
        PostgresConfig(pooler=DIRECT_URL is not None, direct_url=DIRECT_URL),
        auto_migrate=False,
        schedule=ScheduleConfig([TaskSchedule("tick", "shop.tick", Interval(seconds=10))]),
    )
)


@app.task("shop.add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("shop.tick")
def tick() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
