"""A child tells where its threads and async tasks are.

The thread of its event loop answers the parent's request. When that thread cannot run, because C code holds the GIL or
an async task blocks the loop, a signal makes `faulthandler` write the stacks of the threads into a pipe: its handler is
C code that needs no interpreter.
"""

import asyncio
import faulthandler
import os
import signal
from collections.abc import Mapping
from typing import Final

from horsies_worker.child.error_text import exception_text
from horsies_worker.child.jobs import Job
from horsies_worker.output.stacks import stacks_text

WRITE_STACKS: Final[int | None] = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else None
"""A signal of our own: user code and libraries have handlers for SIGUSR1."""


def write_on_signal(pipe: int) -> None:
    """Write the stacks into `pipe` on WRITE_STACKS. The first byte in it tells the parent that it may send the signal;
    a closed pipe tells that it must not, because the app has a handler of its own."""
    if WRITE_STACKS is None or signal.getsignal(WRITE_STACKS) != signal.SIG_DFL:
        os.close(pipe)
        return
    faulthandler.register(WRITE_STACKS, file=pipe)
    os.write(pipe, b"\n")


def describe(async_runs: Mapping["asyncio.Task[None]", Job]) -> str:
    """Return the stacks of this process. Its event loop's thread must call this."""
    try:
        return stacks_text(
            {task: f"{job.task_name} {job.task_id} attempt {job.attempt}" for task, job in async_runs.items()}
        )
    except Exception as exc:  # threads of user code start and end meanwhile
        return f"the child could not read its stacks: {exception_text(exc)}"
