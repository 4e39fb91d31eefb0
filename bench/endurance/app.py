"""The app of `bench day`: no-ops, arguments, failures, retries, async tasks and a small workflow.

All records are kept for one hour; `bench/endurance/worker.py` makes that hour a few seconds long.
"""

import os

from horsies import (
    AppConfig,
    Horsies,
    Interval,
    PostgresConfig,
    RecoveryConfig,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    current_task,
    from_node,
)

Number = TaskResult[int, TaskError]

app = Horsies(
    AppConfig(
        PostgresConfig(os.environ["BENCH_DATABASE_URL"]),
        recovery=RecoveryConfig(
            heartbeat_retention_hours=1, worker_state_retention_hours=1, terminal_record_retention_hours=1
        ),
        schedule=ScheduleConfig(
            [TaskSchedule(f"every-{seconds}-s", "tick", Interval(seconds=seconds)) for seconds in (1, 2, 5)]
        ),
    )
)


@app.task("tick")
def tick() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("noop")
def noop(n: int) -> Number:
    return TaskResult(ok=n)


@app.task("anoop")
async def anoop(n: int) -> Number:
    return TaskResult(ok=n)


@app.task("echo")
def echo(numbers: list[int], note: str) -> TaskResult[dict[str, list[int]], TaskError]:
    return TaskResult(ok={note: numbers})


@app.task("fails")
def fails(n: int) -> Number:
    return TaskResult(err=TaskError("NO_MAIL", f"order {n} has no address"))


@app.task("again", retry_policy=RetryPolicy.fixed(1, 3, auto_retry_for=["BUSY"]))
def again(n: int) -> Number:
    """Its first attempt fails, its second succeeds."""
    return TaskResult(err=TaskError("BUSY", "later")) if current_task().attempt == 1 else TaskResult(ok=n)


@app.task("add")
def add(a: int, b: int) -> Number:
    return TaskResult(ok=a + b)


_first = add.node(node_id="first")(1, 2)
_left = add.node(node_id="left")(from_node(_first), 10)
_right = anoop.node(node_id="right")(from_node(_first))
diamond = app.workflow(
    "diamond", [_first, _left, _right, add.node(node_id="last")(from_node(_left), from_node(_right))]
)
