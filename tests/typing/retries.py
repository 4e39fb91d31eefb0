# pyright: strict
"""`snooze` fits every task; the arguments of `RetryPolicy` and the broker's quarantine."""

from datetime import timedelta
from typing import Never, assert_type

from horsies import (
    Horsies,
    PostgresBroker,
    RetryPolicy,
    RetryResult,
    TaskError,
    TaskFilter,
    TaskPage,
    TaskResult,
    current_task,
    snooze,
)

app = Horsies()

assert_type(snooze(seconds=60), TaskResult[Never, TaskError])
snooze(timedelta(minutes=5))
snooze(minutes=1.5, hours=1)
snooze(60)  # type: ignore[arg-type]
snooze(days=1)  # type: ignore[call-arg]


@app.task("poll", retry_policy=RetryPolicy.crashes(3, base_seconds=0.5))
def poll(ready: bool) -> TaskResult[str, TaskError]:
    assert_type(current_task().snoozes, int)
    return TaskResult(ok="ready") if ready else snooze(seconds=5)


@app.task("poll_async", retry_policy=RetryPolicy.fixed(1, 2, auto_retry_for=["DOWN"], max_crashes=3))
async def poll_async() -> TaskResult[list[int], TaskError]:
    return snooze(timedelta(seconds=5))


RetryPolicy.crashes("3")  # type: ignore[arg-type]
RetryPolicy.intervals([1, 5], max_crashes=2)
RetryPolicy.fixed(1, 2, auto_retry_for=[ConnectionError, "DOWN"])
RetryPolicy.fixed(1, 2, auto_retry_for=[KeyboardInterrupt])  # type: ignore[list-item]


async def operate(broker: PostgresBroker) -> None:
    assert_type(await broker.quarantine.list(TaskFilter(task_names=["poll"])), TaskPage)
    assert_type(await broker.quarantine.release(["id"]), dict[str, RetryResult])
    assert_type(await broker.quarantine.purge(), int)
