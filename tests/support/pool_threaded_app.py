"""An app whose import starts a thread, so that each child must import it."""

import threading
import time

from horsies.result import TaskError, TaskResult
from tests.support.pool_kit import App

app = App()
threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="left-behind").start()


@app.task
def threads() -> TaskResult[int, TaskError]:
    """Return how many of those threads are alive in this process."""
    return TaskResult(ok=sum(thread.name == "left-behind" for thread in threading.enumerate()))
