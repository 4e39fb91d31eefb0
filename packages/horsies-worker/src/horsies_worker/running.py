"""From an app and options to a running worker process: logging, loop, signals, exit code."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from horsies._text import printable
from horsies.app import Horsies
from horsies.errors import ConfigurationError, SchemaError
from horsies_worker.child.logs import configure_logging
from horsies_worker.database import DatabaseGone
from horsies_worker.exit_codes import ExitCode
from horsies_worker.log_queue import queued_logging
from horsies_worker.options import WorkerOptions
from horsies_worker.template_start import fork_template
from horsies_worker.worker import ChildrenCannotStart, Worker

_log = logging.getLogger("horsies.worker")

OWNER_PIPE = "HORSIES_OWNER_PIPE"
"""Set by `horsies dev`: a descriptor that ends when that process does, however it does."""


def run_worker(app: Horsies, options: WorkerOptions, *, found_open: Collection[int] | None = None) -> ExitCode:
    """Run one worker in this process until it is told to stop; blocks.

    `found_open`: the descriptors that were open before the app was imported, from a process that has done nothing
    else since; its children then come of a fork of it.
    """
    configure_logging(options.log_level, options.log_format)
    try:
        options.check(app)
    except ConfigurationError as error:
        complain(str(error))
        return ExitCode.CONFIGURATION
    worker = Worker(app, options)
    owner = _owner_pipe()
    if found_open is not None:
        worker.pool.adopt(fork_template(app, worker.pool.spec, found_open))
    return run_until_stopped(app, partial(_serve, worker, owner), "the worker failed")


def run_until_stopped(app: Horsies, serve: Callable[[], Coroutine[Any, Any, None]], failure: str) -> ExitCode:
    """Run a long-lived coroutine to its end, with a log that cannot block it; tell what ended it."""
    with queued_logging() as output:
        code, last_words = _run(app, serve, failure)
    if output.is_blocked:
        os._exit(code)  # the interpreter's own exit flushes the log and would wait for ever
    if last_words:
        complain(last_words)
    return code


def _run(app: Horsies, serve: Callable[[], Coroutine[Any, Any, None]], failure: str) -> tuple[ExitCode, str]:
    try:
        loop_runner()(serve())
    except (SchemaError, DatabaseGone, ChildrenCannotStart, ConfigurationError) as error:
        return _CODES[type(error)], app.config.broker.redact(str(error))
    except Exception:
        _log.exception(failure)
        return ExitCode.FAILED, ""
    return ExitCode.CLEAN, ""


_CODES: dict[type[Exception], ExitCode] = {
    SchemaError: ExitCode.SCHEMA,
    DatabaseGone: ExitCode.DATABASE,
    ChildrenCannotStart: ExitCode.CHILDREN,
    ConfigurationError: ExitCode.CONFIGURATION,
}


def complain(text: str) -> None:
    sys.stderr.write(f"horsies: {printable(text)}\n")


async def _serve(worker: Worker, owner: int | None) -> None:
    loop = asyncio.get_running_loop()
    while True:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        if owner is not None:
            loop.add_reader(owner, _leave_with_owner, loop, owner, worker)
        banner(worker)
        try:
            await worker.run()
        finally:
            # the signals stay ours until the loop is closed: an impatient second one must not end a clean stop
            if owner is not None:
                loop.remove_reader(owner)
        if not worker.is_judged:
            return
        worker = Worker(worker.app, worker.options)


def _owner_pipe() -> int | None:
    """The end of a pipe whose other end only our owner holds; children must not inherit it."""
    number = os.environ.pop(OWNER_PIPE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def _leave_with_owner(loop: asyncio.AbstractEventLoop, owner: int, worker: Worker) -> None:
    loop.remove_reader(owner)  # at its end it stays readable
    _log.warning("the process that started this worker is gone: leaving as well")
    worker.stop()


def banner(worker: Worker) -> None:
    """What matters, in a few lines, before anything can go wrong."""
    from horsies import __version__

    app, options = worker.app, worker.options
    names = sorted(task.name for task in app.registry if not task.is_stub)
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    limits = [
        f"{name} {value}"
        for name, value in (
            ("cluster cap", app.config.cluster_wide_cap),
            ("tasks per child", options.max_tasks_per_child),
            ("MB per child", options.max_memory_per_child_mb),
        )
        if value is not None
    ]
    _log.info("horsies %s worker %s on %s", __version__, worker.identity.worker_id, worker.identity.hostname)
    _log.info("  app       %s, %d tasks: %s", options.locator, len(names), shown)
    _log.info("  database  %r", app.config.broker)
    _log.info("  queues    %s", ", ".join(options.queues or app.config.queue_names))
    _log.info(
        "  children  %d processes, %d async tasks each%s", options.processes, options.async_concurrency,
        "; " + ", ".join(limits) if limits else "",
    )  # fmt: skip
    if options.with_scheduler:
        _log.info("  schedules %s", told_schedules(app))


def told_schedules(app: Horsies) -> str:
    """How many, and the first of their names."""
    names = [schedule.name for schedule in app.config.schedule.schedules]
    if not names:
        return "none"
    return f"{len(names)}: {', '.join(names[:10])}" + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def loop_runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """uvloop where it is installed: about a fifth less parent CPU per task."""
    try:
        import uvloop  # pyright: ignore[reportMissingImports]
    except ImportError:
        return asyncio.run
    return uvloop.run  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
