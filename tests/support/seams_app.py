"""The app of the tests of middleware, lifespans and metadata; its middleware is that of seams_middleware.py."""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from horsies import Horsies, Middleware, RetryPolicy, TaskError, TaskResult, current_task
from tests.support.postgres import Database
from tests.support.seams_middleware import KINDS, Mischief, write
from tests.support.worker_app import VARIABLE, build, note
from tests.support.workers import WorkerProcess, describe, start_worker

SEAMS_VARIABLE = "HORSIES_TEST_SEAMS"
APP = "tests.support.seams_app:app"
ASYNC_TASKS = ("add_async", "fail_async", "wait_async", "child", "lifespans_async")
Number = TaskResult[int, TaskError]
Data = TaskResult[dict[str, Any], TaskError]


def build_app(
    where: Database | str,
    *,
    middleware: Sequence[str | Middleware] = (),
    lifespans: Sequence[Sequence[str]] = (),
    **config: Any,
) -> Horsies:
    """`middleware`: objects, or keys of KINDS. `lifespans`: the arguments of `add_lifespan`."""
    items = [KINDS[item]() if isinstance(item, str) else item for item in middleware]
    app = build(describe(where, middleware=items, **config))
    for entry in lifespans:
        add_lifespan(app, *entry)
    for item in items:
        if isinstance(item, Mischief):
            item.lifespans = app.lifespans
    return app


@contextmanager
def tasks_on(where: Database | str, **given: Any) -> Iterator[SimpleNamespace]:
    """The tasks, ready to be sent; `.app` is the app."""
    with build_app(where, **given) as app:
        tasks = register(app)
        tasks.app = app
        yield tasks


def start(
    db: Database,
    folder: Path,
    *arguments: str,
    processes: int = 2,
    middleware: Sequence[str] = ("outer", "mischief", "inner"),
    lifespans: Sequence[Sequence[str]] = (),
    **config: Any,
) -> WorkerProcess:
    """A worker of this app; the caller ends it."""
    given = {"middleware": list(middleware), "lifespans": list(lifespans), **config}
    return start_worker(
        describe(db), folder, *arguments, app=APP, processes=processes, **{SEAMS_VARIABLE: json.dumps(given)}
    )


def add_lifespan(app: Horsies, name: str, path: str, kind: str = "") -> Any:
    """One that notes when it opens and closes; `kind` has words for what is odd about it."""

    def told(what: str) -> str:
        where = "main" if threading.current_thread() is threading.main_thread() else threading.current_thread().name
        return f"{name} {what} {where}"

    def plain() -> Iterator[str]:
        if "fails" in kind:
            raise OSError("no pool for you")
        if "never" in kind:
            return
        note(path, told("opens"))
        yield name
        note(path, told("closes"))
        if "hangs" in kind:
            time.sleep(60)
        if "breaks" in kind:
            raise OSError("it does not close")
        if "exits" in kind:
            raise SystemExit(3)
        if "twice" in kind:
            yield name

    async def awaiting() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        for value in plain():
            yield value

    function = awaiting if "async" in kind else plain
    function.__name__ = name
    return app.lifespan(function)  # type: ignore[type-var]


def register(app: Horsies) -> SimpleNamespace:
    retried = RetryPolicy.fixed(0.1, 2, auto_retry_for=["SMTP_DOWN"])

    @app.task("add")
    def add(a: int, b: int = 0) -> Number:
        write(current_task(), "task runs")
        return TaskResult(ok=a + b)

    @app.task("add_async")
    async def add_async(a: int, b: int = 0) -> Number:
        write(current_task(), "task runs")
        await asyncio.sleep(0)
        return TaskResult(ok=a + b)

    @app.task("fail")
    def fail(text: str) -> Number:
        raise LookupError(text)

    @app.task("fail_async")
    async def fail_async(text: str) -> Number:
        raise LookupError(text)

    @app.task("flaky", retry_policy=retried)
    def flaky(until: int) -> Number:
        attempt = current_task().attempt
        return TaskResult(ok=attempt) if attempt >= until else TaskResult(err=TaskError("SMTP_DOWN", "not yet"))

    @app.task("sleep", timeout_ms=300)
    def sleep(seconds: float) -> Number:
        write(current_task(), "task sleeps")
        time.sleep(seconds)
        return TaskResult(ok=1)

    @app.task("nap", timeout_ms=300)
    async def nap(seconds: float) -> Number:
        write(current_task(), "task sleeps")
        await asyncio.sleep(seconds)
        return TaskResult(ok=1)

    @app.task("wait")
    def wait() -> Number:
        write(current_task(), "task sleeps")
        time.sleep(60)
        return TaskResult(ok=1)

    @app.task("wait_async")
    async def wait_async() -> Number:
        write(current_task(), "task sleeps")
        await asyncio.sleep(60)
        return TaskResult(ok=1)

    @app.task("metadata", metadata={"team": "billing", "level": 1})
    def metadata() -> Data:
        return TaskResult(ok=dict(current_task().metadata))

    @app.task("metadata_of_child")
    def metadata_of_child() -> TaskResult[str, TaskError]:
        return TaskResult(ok=child.with_options(metadata={"level": 3}).send().task_id)

    @app.task("child", metadata={"team": "mail", "level": 2})
    async def child() -> Data:
        return TaskResult(ok=dict(current_task().metadata))

    @app.task("spread")
    def spread(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("item_metadata")
    def item_metadata(x: int) -> Data:
        return TaskResult(ok={"x": x, **current_task().metadata})

    @app.task("lifespans")
    def lifespans() -> Data:
        return TaskResult(ok=read_lifespans(app))

    @app.task("lifespans_async")
    async def lifespans_async() -> Data:
        return TaskResult(ok=read_lifespans(app))

    return SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "retried")})


def read_lifespans(app: Horsies) -> dict[str, Any]:
    found: dict[str, Any] = {"pid": os.getpid()}
    for lifespan in app.lifespans:
        try:
            found[lifespan.name] = lifespan.value
        except Exception as error:
            found[lifespan.name] = f"{type(error).__name__}: {error}"
    return found


if SEAMS_VARIABLE in os.environ:
    app = build_app(json.loads(os.environ[VARIABLE])["url"], **json.loads(os.environ[SEAMS_VARIABLE]))
    tasks = register(app)
