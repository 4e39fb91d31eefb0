"""Tasks that do what tasks do: real functions, run by real children, without a database.

Those that must leave a trace append a line to a file, one write each, so that starts can be counted.
"""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from horsies.context import TaskStopped, current_task
from horsies.result import TaskError, TaskResult
from tests.support.pool_kit import Result, Text, app, hold_gil, note


@app.task
def noop() -> Result:
    return TaskResult(ok=0)


@app.task
def add(a: int, b: int) -> Result:
    return TaskResult(ok=a + b)


@app.task
def sleep(seconds: float, path: str = "") -> Result:
    if path:
        note(path, f"start {current_task().task_id}")
    time.sleep(seconds)
    if path:
        note(path, f"end {current_task().task_id}")
    return TaskResult(ok=os.getpid())


@app.task
def counted(path: str, seconds: float = 0.0) -> Result:
    note(path, current_task().task_id)
    time.sleep(seconds)
    return TaskResult(ok=os.getpid())


@app.task
def in_c(seconds: float, path: str = "") -> Result:
    if path:
        note(path, str(os.getpid()))
    hold_gil(seconds)
    return TaskResult(ok=1)


@app.task
def with_subprocess(path: str, seconds: float) -> Result:
    inner = subprocess.Popen(["sleep", "60"])
    note(path, f"{os.getpid()} {inner.pid}")
    hold_gil(seconds)
    return TaskResult(ok=1)


@app.task
def big(size: int) -> Text:
    return TaskResult(ok="x" * size)


@app.task
def length(text: str) -> Result:
    return TaskResult(ok=len(text))


@app.task
def cooperative(path: str, answer: str) -> Text:
    note(path, "start")
    while not current_task().is_cancelled():
        time.sleep(0.01)
    if answer == "ok":
        return TaskResult(ok="partial")
    return TaskResult(err=TaskError("STOPPED_EARLY", "as asked"))


@app.task
def cleans_up(path: str, seconds: float = 30.0) -> Result:
    note(path, "start")
    try:
        time.sleep(seconds)
    except Exception:
        note(path, "swallowed")
    except TaskStopped as stop:
        note(path, f"cleanup {stop.reason}")
        raise
    return TaskResult(ok=1)


@app.task
def who() -> TaskResult[dict[str, Any], TaskError]:
    task = current_task()
    task.report_progress({"half": 0.5})
    return TaskResult(
        ok={
            "id": task.task_id,
            "name": task.task_name,
            "attempt": task.attempt,
            "token": task.fencing_token,
            "deadline": None if task.deadline is None else task.deadline.isoformat(),
            "cancelled": task.is_cancelled(),
        }
    )


_kept: list[bytearray] = []


@app.task
def grow(megabytes: int) -> Result:
    _kept.append(bytearray(os.urandom(1) * (megabytes << 20)))
    return TaskResult(ok=os.getpid())


@app.task
def say(text: str, times: int = 1, stream: int = 1) -> Result:
    data = text.encode()
    for _ in range(times):
        view = memoryview(data)
        while view:
            view = view[os.write(stream, view) :]
    return TaskResult(ok=len(data) * times)


@app.task
def printing(text: str) -> Result:
    print(text)  # noqa: T201
    return TaskResult(ok=1)


@app.task
def descriptors() -> TaskResult[list[str], TaskError]:
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue
    return TaskResult(ok=found)


@app.task
def inherited() -> TaskResult[list[str], TaskError]:
    """Return the descriptors that a program inherits from user code that closes none."""
    listed = subprocess.run(
        ["find", "/proc/self/fd", "-printf", "%f %l\\n"], close_fds=False, capture_output=True, text=True, check=True
    )
    lines = [line.split(" ", 1) for line in listed.stdout.splitlines()]
    return TaskResult(ok=[link for number, link in lines if number.isdigit() and int(number) > 2])
