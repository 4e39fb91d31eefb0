"""The process that sends: steady load from a few threads, and one line per send that was answered, synced to the disk.

    python -m tests.support.ha.producer FOLDER SENDS_PER_SECOND THREADS

Each line of `FOLDER/sends` is `answer k task_id at took_s`, where `answer` is one of

- `acknowledged`: `send` returned, or `.retry()` after it;
- `refused`: the error says that the task is not enqueued;
- `unknown`: the error says that it may or may not be.

Sends with an even `k` are repeated until they are acknowledged, those with an odd one are given up with their error.
It ends at SIGTERM, when every send has been answered.
"""

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from horsies.errors import TaskSendError
from tests.support import worker_app
from tests.support.ha.load import described

LONG_EVERY = 15
"""One task of so many runs for a second, so that some run at the moment of a fault."""


class Books:
    """One line per answer, on the disk before the next send."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, answer: str, k: int, task_id: str, began: float) -> None:
        at = time.time()
        os.write(self._handle, f"{answer} {k} {task_id} {at!r} {at - began:.3f}\n".encode())
        os.fsync(self._handle)


def send(task: Any, k: int, books: Books, stopped: threading.Event) -> None:
    began = time.time()
    try:
        books.note("acknowledged", k, task.send(k, 1.0 if k % LONG_EVERY == 0 else 0.02).task_id, began)
        return
    except TaskSendError as error:
        failure = error
    while k % 2 == 0 and failure.retryable:
        books.note(_answer(failure), k, failure.task_ids[0], began)
        began = time.time()
        try:
            books.note("acknowledged", k, failure.retry().task_id, began)
            return
        except TaskSendError as error:
            failure = error
        if stopped.wait(0.2):
            break
    books.note(_answer(failure), k, failure.task_ids[0], began)


def _answer(error: TaskSendError) -> str:
    text = str(error)
    if "it may or may not be enqueued" in text:
        return "unknown"
    assert "it is not enqueued" in text, text
    return "refused"


def main(folder: Path, rate: float, threads: int) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    books = Books(folder / "sends")
    keys = itertools.count()
    with worker_app.build(described(os.environ["HORSIES_HA_URL"])) as app:
        task = worker_app.register(app).chaos

        def go() -> None:
            while not stopped.wait(threads / rate):
                send(task, next(keys), books, stopped)

        running = [threading.Thread(target=go) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
