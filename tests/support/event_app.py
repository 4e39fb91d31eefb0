"""The app of worker_app with event handlers: every event becomes a line of a file, and what misbehaves is asked for.

with observed(db, tmp_path) as one:
    one.wait(AttemptFailed, kind="timeout")
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from horsies import Horsies, Interval, ScheduleConfig, TaskError, TaskResult, TaskSchedule
from horsies.events import AttemptSucceeded, Event, WorkerStarted
from tests.support import worker_app
from tests.support.exporters import Exporter
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import VARIABLE, note
from tests.support.workers import WorkerProcess, describe, ended, start_worker

APP = "tests.support.event_app:app"
EVENTS_VARIABLE = "HORSIES_TEST_EVENTS"
BLOCK_VARIABLE = "HORSIES_TEST_BLOCK"
SLOW_START_VARIABLE = "HORSIES_TEST_SLOW_START"
SCHEDULE_VARIABLE = "HORSIES_TEST_SCHEDULE"
HANDLERS_VARIABLE = "HORSIES_TEST_HANDLERS"
FORGED = "2026-01-01 00:00:00,000 CRITICAL horsies.worker: all is lost"
_LOG = logging.getLogger("shop")


class Odd:
    """What a user may put into `extra`."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def register(app: Horsies) -> SimpleNamespace:
    """The tasks of worker_app and some about logs."""
    tasks = worker_app.register(app)

    @app.task("forge")
    def forge() -> TaskResult[int, TaskError]:
        raise ValueError(f"first\n{FORGED}\x1b[2J")

    @app.task("log_extra")
    def log_extra() -> TaskResult[int, TaskError]:
        log_oddly("in a child")
        return TaskResult(ok=1)

    @app.task("verbose")
    def verbose(size: int) -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError("VERBOSE", "m" * size, {"traceback": "t" * size}))

    tasks.verbose, tasks.forge, tasks.log_extra, tasks.app = verbose, forge, log_extra, app
    return tasks


def log_oddly(text: str) -> None:
    """One line with values of the app's own, and lines whose values cannot be JSON as they are."""
    _LOG.warning("%s", text, extra={"order": 7, "task": "mine", "task_id": "forged", "level": "forged"})
    around: list[object] = []
    around.append(around)
    for odd in (Odd(), {(1, 2): 3}, float("nan"), around, {"deep": {"inside": Odd()}}):
        _LOG.warning("odd: %s", text, extra={"odd": odd, "order": 8})
    try:
        raise KeyError(text)
    except KeyError:
        _LOG.exception("excepted: %s", text)


def record(event: Event) -> None:
    fields = {
        "event": type(event).__name__, "pid_": os.getpid(), "thread": threading.current_thread().name,
        "at": time.monotonic(), **asdict(event),
    }  # fmt: skip
    note(os.environ[EVENTS_VARIABLE], json.dumps(fields))


class _Raises:
    """A callable object, whose repr fails as well."""

    def __call__(self, event: AttemptSucceeded) -> NoReturn:
        raise RuntimeError(f"not a good handler\n{FORGED}")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def _exits(_event: AttemptSucceeded) -> NoReturn:
    sys.exit(3)


def _logs(_event: WorkerStarted) -> None:
    log_oddly("in the parent")
    _LOG.warning("%d", "no number")


def _blocks(_record: logging.LogRecord) -> bool:
    """The filter of a logger runs where the record is made: on the event loop, as for the report of SIGUSR1."""
    while threading.current_thread() is threading.main_thread() and Path(os.environ[BLOCK_VARIABLE]).exists():
        time.sleep(0.01)
    return True


def _sleeps(_event: AttemptSucceeded) -> None:
    time.sleep(600)


if VARIABLE in os.environ:
    schedules = [TaskSchedule("tick", "noop", Interval(seconds=1))] if SCHEDULE_VARIABLE in os.environ else []
    app = worker_app.build({**json.loads(os.environ[VARIABLE]), "schedule": ScheduleConfig(schedules)})
    register(app)
    if BLOCK_VARIABLE in os.environ:
        logging.getLogger("horsies.worker").addFilter(_blocks)
    if SLOW_START_VARIABLE in os.environ:

        @app.on_child_start
        def wait() -> None:
            while Path(os.environ[SLOW_START_VARIABLE]).exists():
                time.sleep(0.01)

    for name in os.environ.get(HANDLERS_VARIABLE, "").split(","):
        match name:
            case "raises":
                app.on_event(AttemptSucceeded, _Raises())
            case "exits":
                app.on_event(AttemptSucceeded)(_exits)
            case "logs":
                app.on_event(WorkerStarted, _logs)
            case "sleeps":
                app.on_event(AttemptSucceeded, _sleeps)
            case _:
                pass
    if EVENTS_VARIABLE in os.environ:
        app.on_event(Event, record)
        app.on_event(Event, record)  # as when its module is imported under two names


class Observed(Exporter):
    """A worker that serves metrics, and the events that its handlers have seen."""

    def __init__(self, process: WorkerProcess, file: Path) -> None:
        super().__init__(process)
        self._file = file

    def events(self, kind: type[Event] | None = None, **fields: Any) -> list[dict[str, Any]]:
        if not self._file.exists():
            return []
        found = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [
            one for one in found
            if (kind is None or one["event"] == kind.__name__) and all(one[name] == fields[name] for name in fields)
        ]  # fmt: skip

    def wait(self, kind: type[Event], *, timeout: float = 30.0, **fields: Any) -> dict[str, Any]:
        """The first such event."""

        def found() -> list[dict[str, Any]]:
            return self.events(kind, **fields)

        try:
            return eventually(found, timeout=timeout, describe=f"{kind.__name__} with {fields}")[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.events()}\n{self.log[-6000:]}") from None


@contextmanager
def observed(
    where: Database | str,
    folder: Path,
    *arguments: str,
    handlers: str = "",
    processes: int = 2,
    wait: bool = True,
    code: int | None = 0,
    environment: Mapping[str, str] | None = None,
    **config: Any,
) -> Iterator[Observed]:
    """A worker with these handlers, up and running; ended with the block. Its figures are served on a free port."""
    file = folder / f"events-{time.monotonic_ns()}"
    variables: dict[str, Any] = {EVENTS_VARIABLE: str(file), HANDLERS_VARIABLE: handlers, **(environment or {})}
    process = start_worker(
        describe(where, **config), folder, "--metrics-host=127.0.0.1", "--metrics-port=0", *arguments, app=APP,
        processes=processes, **variables,
    )  # fmt: skip
    with ended(process, code=code):
        if wait:
            process.wait_up()
        yield Observed(process, file)


@contextmanager
def tasks_on(where: Database | str, **config: Any) -> Iterator[SimpleNamespace]:
    with worker_app.build(describe(where, **config)) as app:
        yield register(app)
