"""The other direction, for the day on which a move has to be taken back: horsies tasks that hand their calls to Celery.
A horsies worker runs this module in place of `after/tasks.py`, until its queues are empty."""

import os
from typing import Any

from celery import Celery

from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult, current_task

old = Celery("shop", broker=os.environ["BROKER_URL"])
new = Horsies(AppConfig(PostgresConfig()))
# a broker that is away raises; a worker that dies here may have sent the message, so Celery may get it twice
again = RetryPolicy.exponential(5, max_retries=100, auto_retry_for=["UNHANDLED_EXCEPTION"], max_crashes=10)


def hand_back(name: str) -> None:
    @new.task(name, retry_policy=again)
    def send(*args: Any, **kwargs: Any) -> TaskResult[None, TaskError]:
        old.send_task(name, args, kwargs, task_id=current_task().task_id)
        return TaskResult(ok=None)


for name in ("shop.send_receipt", "shop.remind", "shop.count_carts", "shop.close_day"):
    hand_back(name)
