"""`async def` tasks of the child pool's tests."""

import asyncio
import gc
import os
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from horsies.context import current_task
from horsies.result import TaskError, TaskResult
from tests.support.pool_harmful_tasks import Exits
from tests.support.pool_kit import Result, Text, app, note


@app.task
async def async_sleep(seconds: float) -> Result:
    await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


@app.task
async def async_cleans_up(path: str) -> Result:
    note(path, "start")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note(path, "cleanup")
        raise
    return TaskResult(ok=1)


@app.task
async def async_stubborn(path: str) -> Result:
    note(path, "start")
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            note(path, "swallowed")


@app.task
async def async_odd(kind: str) -> Result:
    if kind == "exit":
        sys.exit(1)
    if kind == "sub_exit":
        inner = asyncio.ensure_future(_exit_soon())
        await asyncio.sleep(0.05)
        return TaskResult(ok=int(inner.done()))
    if kind == "cancel":
        raise asyncio.CancelledError
    if kind == "cancel_all":
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return TaskResult(ok=1)
    if kind == "exits":
        raise Exits
    if kind == "retry_after_float":
        error = TaskError("LATER", "try again", retry_after_ms=1500)
        error.retry_after_ms = float("nan")  # type: ignore[assignment]
        return TaskResult(err=error)
    raise ValueError(kind)


async def _exit_soon() -> None:
    raise SystemExit(9)


@app.task
async def async_forks(how: str) -> Result:
    """Fork, and let both processes go on: `returns` from the task, `awaits` on the event loop, or `raises`."""
    pid = os.fork()
    if pid == 0:
        if how == "awaits":
            await asyncio.sleep(60)
        if how == "raises":
            raise SystemExit(5)
        return TaskResult(ok=666)
    # The event loop goes on while the copy ends, so that a copy with a loop of its own could do harm.
    while os.waitpid(pid, os.WNOHANG) == (0, 0):  # noqa: ASYNC222  (does not block)
        await asyncio.sleep(0.001)
    return TaskResult(ok=7)


@app.task
async def async_steps(path: str, steps: int) -> Result:
    """Leave one line per step."""
    for step in range(steps):
        note(path, str(step))
        await asyncio.sleep(0)
    return TaskResult(ok=os.getpid())


@app.task
async def async_blocks(path: str, until: str) -> Result:
    """Block the event loop until a file exists."""
    note(path, "start")
    while not Path(until).exists():
        time.sleep(0.005)  # noqa: ASYNC251
    return TaskResult(ok=os.getpid())


_runs: list[weakref.ref[Any]] = []


@app.task
async def async_leftovers() -> Result:
    """How many of the earlier runs of this task are still in memory, without help of the garbage collector."""
    gc.disable()
    left = sum(run() is not None for run in _runs)
    _runs.append(weakref.ref(asyncio.current_task()))
    return TaskResult(ok=left)


@app.task
async def async_who() -> Text:
    await asyncio.sleep(0.01)
    task = current_task()
    task.report_progress("async")
    return TaskResult(ok=task.task_id)
