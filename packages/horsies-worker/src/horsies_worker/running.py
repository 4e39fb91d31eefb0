"""From an app and options to a running worker process: logging, loop, signals, exit code."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from math import inf
from typing import Any

from horsies._text import plural, printable
from horsies.app import Horsies
from horsies.errors import ConfigurationError, SchemaError
from horsies_worker import signals
from horsies_worker.child.logs import configure_logging
from horsies_worker.database import DatabaseGone
from horsies_worker.exit_codes import ExitCode
from horsies_worker.log_queue import queued_logging
from horsies_worker.options import WorkerOptions
from horsies_worker.stopping import Watchdog
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
    process = _WorkerProcess(app, options)
    if found_open is not None:
        pool = process.worker.pool
        pool.adopt(fork_template(app, pool.spec, found_open))
    code = run_until_stopped(app, process.serve, "the worker failed", process.watchdog)
    if found_open is None:
        process.watchdog.arm(inf)  # called from a program that may go on
    return code


def run_until_stopped(
    app: Horsies, serve: Callable[[], Coroutine[Any, Any, None]], failure: str, watchdog: Watchdog
) -> ExitCode:
    """Run a long-lived coroutine to its end, with a log that cannot block it; tell what ended it. The watchdog stays
    armed: it bounds the exit of the interpreter as well."""
    ended: list[tuple[ExitCode, str]] = []

    async def serve_to_the_end() -> None:
        ended.append(await _outcome(app, serve, failure))
        watchdog.ends_with(*ended[0])  # closing the loop may take long, if a look-up of a host name hangs

    with queued_logging() as output:
        loop_runner()(serve_to_the_end())
    code, last_words = ended[0]
    if output.is_blocked:
        os._exit(code)  # the interpreter's own exit flushes the log and would wait for ever
    if last_words:
        complain(last_words)
    return code


async def _outcome(app: Horsies, serve: Callable[[], Coroutine[Any, Any, None]], failure: str) -> tuple[ExitCode, str]:
    try:
        await serve()
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


class _WorkerProcess:
    """One worker after another: one that was judged dead goes on under another id."""

    def __init__(self, app: Horsies, options: WorkerOptions) -> None:
        self.watchdog = Watchdog(self._cut_short)
        self.worker = Worker(app, options, on_deadline=self.watchdog.arm)
        self._owner = _owner_pipe()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        # they stay ours until the loop is closed: an impatient second one must not end a clean stop
        signals.handle(loop, stop=self._stop, hurry=partial(self._stop, hurry=True))
        if self._owner is not None:
            loop.add_reader(self._owner, self._leave_with_owner, loop, self._owner)
        try:
            while True:
                banner(self.worker)
                await self.worker.run()
                if not self.worker.is_judged:
                    return
                self.watchdog.arm(inf)
                self.worker = Worker(self.worker.app, self.worker.options, on_deadline=self.watchdog.arm)
        finally:
            if self._owner is not None:
                loop.remove_reader(self._owner)

    def _stop(self, *, hurry: bool = False) -> None:
        self.worker.stop(hurry=hurry)

    def _leave_with_owner(self, loop: asyncio.AbstractEventLoop, owner: int) -> None:
        loop.remove_reader(owner)  # at its end it stays readable
        _log.warning("the process that started this worker is gone: leaving as well")
        self.worker.stop()

    def _cut_short(self) -> tuple[ExitCode, str]:
        if self.worker.unwritten:
            return ExitCode.DATABASE, self.worker.told_unwritten()
        return ExitCode.FAILED, "the stop took longer than it may, and is cut short"


def _owner_pipe() -> int | None:
    """The end of a pipe whose other end only our owner holds; children must not inherit it."""
    number = os.environ.pop(OWNER_PIPE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


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
    _log.info("  app       %s, %s: %s", options.locator, plural(len(names), "task"), shown)
    _log.info("  database  %r", app.config.broker)
    _log.info("  queues    %s", ", ".join(options.queues or app.config.queue_names))
    _log.info(
        "  children  %s, %s each%s", plural(options.processes, "process", "processes"),
        plural(options.async_concurrency, "async task"), "; " + ", ".join(limits) if limits else "",
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
