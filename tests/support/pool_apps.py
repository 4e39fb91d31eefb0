"""The apps of the child pool's tests: one with all tasks, and some that misbehave at their start."""

import os
import time
from pathlib import Path

from horsies.result import TaskResult
from tests.support import pool_async_tasks, pool_harmful_tasks, pool_tasks  # noqa: F401  (they add their tasks to `app`)
from tests.support.pool_kit import App, Result, app
from tests.support.pool_tasks import noop

__all__ = ["app", "broken_hook", "hooked", "patient", "slow_start"]

hooked = App()
hooked.task(noop)
_hook_calls: list[int] = []


@hooked.task
def hook_calls() -> Result:
    return TaskResult(ok=len(_hook_calls))


hooked.child_start_hooks.append(lambda: _hook_calls.append(os.getpid()))

slow_start = App()
slow_start.task(noop)
slow_start.child_start_hooks.append(lambda: time.sleep(1.3))

patient = App()
"""Its children start as soon as a file exists."""
patient.task(noop)


@patient.child_start_hooks.append
def wait_for_file() -> None:
    while not Path(os.environ["HORSIES_TEST_HOOK_FLAG"]).exists():
        time.sleep(0.01)


broken_hook = App()
broken_hook.task(noop)


@broken_hook.child_start_hooks.append
def _raise_in_hook() -> None:
    flag = os.environ.get("HORSIES_TEST_HOOK_FLAG")
    if flag is None or not Path(flag).exists():
        raise RuntimeError("the hook is broken")
