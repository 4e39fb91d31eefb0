"""An API that takes 100 calls a minute. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker rated_api:app --processes 4
    HORSIES_DATABASE_URL=postgresql://... python rated_api.py

Two queues share the limit "bank", so all their tasks together start at most 100 times in any minute, on however many
workers. A retry is a call, and counts too.
"""

import os
import time
from pathlib import Path

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    Limit,
    PostgresConfig,
    QueueMode,
    Rate,
    RetryPolicy,
    TaskError,
    TaskResult,
    current_task,
    gather,
)

WINDOW_S = float(os.environ.get("WINDOW_S", "60"))  # shorter where you want to see it faster

app = Horsies(
    AppConfig(
        PostgresConfig(),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig("payments", priority=10, limits=["bank"]),
            CustomQueueConfig("refunds", limits=["bank"]),
        ],
        limits=[Limit("bank", rate=Rate(100, WINDOW_S))],
    )
)
again = RetryPolicy.fixed(0.1, max_retries=3, auto_retry_for=["BANK_BUSY"])


def call_bank(what: str, number: int) -> TaskResult[str, TaskError]:
    """Stands for a request over HTTP; the bank refuses one in ten at first."""
    with Path(os.environ.get("JOURNAL", "journal.txt")).open("a") as journal:
        journal.write(f"{time.monotonic()} {what} {number}\n")
    if number % 10 == 0 and current_task().attempt == 1:
        return TaskResult(err=TaskError("BANK_BUSY", f"{what} {number} is refused"))
    return TaskResult(ok=f"{what} {number}")


@app.task("pay", queue_name="payments", retry_policy=again)
def pay(number: int) -> TaskResult[str, TaskError]:
    return call_bank("pay", number)


@app.task("refund", queue_name="refunds", retry_policy=again)
def refund(number: int) -> TaskResult[str, TaskError]:
    return call_bank("refund", number)


def main() -> None:
    handles = [
        *pay.send_many([pay.call(number) for number in range(150)]),
        *refund.send_many([refund.call(number) for number in range(50)]),
    ]
    done = [result.unwrap() for result in gather(handles)]
    print(f"{len(done)} calls are done, and 20 of them needed a second one")
    app.close()


if __name__ == "__main__":
    main()
