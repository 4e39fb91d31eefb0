"""Tasks that snooze and tasks that crash, for real workers."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import psutil

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, TaskStopped, current_task, snooze
from tests.support.worker_app import VARIABLE, build

APP = "tests.support.ends_app:app"
LIMIT = int(os.environ.get("HORSIES_POISON_LIMIT", "2"))
"""`just bench-poison` sets it, as it does with the other numbers of the test."""
LIMITED = RetryPolicy.fixed(0.2, 0, max_crashes=LIMIT)
Number = TaskResult[int, TaskError]


def register(app: Horsies) -> SimpleNamespace:
    @app.task("poll")
    def poll(until: int, seconds: float = 0.05) -> TaskResult[list[int], TaskError]:
        """Snoozes so often, then tells attempt and snoozes."""
        here = current_task()
        return snooze(seconds=seconds) if here.snoozes < until else TaskResult(ok=[here.attempt, here.snoozes])

    @app.task("poll_async")
    async def poll_async(until: int) -> TaskResult[list[int], TaskError]:
        await asyncio.sleep(0)
        here = current_task()
        return snooze(seconds=0.05) if here.snoozes < until else TaskResult(ok=[here.attempt, here.snoozes])

    @app.task("until_stopped")
    def until_stopped(trace: str) -> Number:
        """Runs until the worker shuts down, and asks to go on later."""
        here = current_task()
        if here.snoozes:
            return TaskResult(ok=here.snoozes)
        try:
            Path(trace).touch()
            time.sleep(60)
        except TaskStopped:
            return snooze(seconds=0.05)
        return TaskResult(ok=0)

    @app.task("poison", retry_policy=LIMITED)
    def poison(whole_worker: bool) -> Number:
        """Kills its process, or all processes of its worker."""
        if whole_worker:
            template = psutil.Process().parent()
            worker = template and template.parent()
            assert worker is not None
            for process in (worker, *worker.children(recursive=True)):
                if process.pid != os.getpid():
                    process.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        return TaskResult(ok=0)

    @app.task("work", retry_policy=LIMITED)
    def work(seconds: float) -> Number:
        time.sleep(seconds)
        return TaskResult(ok=current_task().attempt)

    return SimpleNamespace(**{task.name: task for task in (poll, poll_async, until_stopped, poison, work)})


app = build(json.loads(os.environ.get(VARIABLE, '{"url": "postgresql:///none"}')))
register(app)
