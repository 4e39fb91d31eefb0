"""A worker process: logging, event loop, signals, exit code."""

import asyncio
import faulthandler
import gc
import os
import sys
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from horsies._text import Lines, plural, printable
from horsies.app import Horsies
from horsies.errors import ConfigurationError, SchemaError
from horsies_worker import signals
from horsies_worker.child import signal_stack
from horsies_worker.children.template import fork_template
from horsies_worker.database.connect import DatabaseGone
from horsies_worker.events import log_lines
from horsies_worker.events.bus import EventBus
from horsies_worker.events.user_handlers import CLOSE_S, UserHandlers
from horsies_worker.exit_codes import ExitCode
from horsies_worker.metrics import MetricsUnavailable, require_extra
from horsies_worker.options import SchedulerOptions, WorkerOptions
from horsies_worker.output.log_context import configure_logging, log, logs_json, name_worker
from horsies_worker.output.log_queue import queued_logging
from horsies_worker.output.stacks import log_own_stacks
from horsies_worker.stop import Watchdog
from horsies_worker.worker import ChildrenCannotStart, Worker

if TYPE_CHECKING:
    from horsies_worker.metrics.endpoint import WorkerEndpoint

OWNER_PIPE = "HORSIES_OWNER_PIPE"
"""Set by `horsies dev`: a pipe that reaches its end when that process ends, for any reason."""

_COLLECT_AFTER = 20_000
"""New objects of a worker, about as many as a few large claims have. Python's default of 700 makes the collector look
at tasks in flight again and again: 4 % of the worker's time while it drains no-ops."""


def run_worker(app: Horsies, options: WorkerOptions, *, found_open: Collection[int] | None = None) -> ExitCode:
    """Run one worker in this process until it is stopped; blocks.

    `found_open`: the descriptors that were open before the app was imported. A process that has done nothing else since
    then forks a template of its children.
    """
    if not are_sound(options, app):
        return ExitCode.CONFIGURATION
    process = _WorkerProcess(app, options)
    owns_process = found_open is not None
    if found_open is not None:
        pool = process.worker.pool
        pool.adopt(fork_template(app, pool.spec, found_open))
        gc.set_threshold(_COLLECT_AFTER)
    return run_until_stopped(app, process.serve, "the worker failed", process.watchdog, owns_process=owns_process)


def are_sound(options: WorkerOptions | SchedulerOptions, app: Horsies) -> bool:
    """Begin to log, and check the options: stderr tells what is wrong with them."""
    configure_logging(options.log_level, options.log_format)
    try:
        options.check(app)
    except ConfigurationError as error:
        complain(str(error))
        return False
    return True


def run_until_stopped(
    app: Horsies,
    serve: Callable[[], Coroutine[Any, Any, None]],
    failure: str,
    watchdog: Watchdog,
    *,
    owns_process: bool,
) -> ExitCode:
    """Run a long-lived coroutine to its end, with a log that cannot block it; report what ended it. The watchdog stays
    armed: it bounds the exit of the interpreter as well. `owns_process`: the process ends with it."""
    ended: list[tuple[ExitCode, str]] = []

    async def serve_to_the_end() -> None:
        ended.append(await _outcome(app, serve, failure))
        if owns_process:
            signals.exit_on_signal(ended[0][0], asyncio.get_running_loop())
        watchdog.ends_with(*ended[0])  # closing the loop takes long if the lookup of a host name hangs

    if faulthandler.is_enabled():  # PYTHONFAULTHANDLER, or the app's import
        signal_stack.enlarge()
    with queued_logging() as output:
        loop_runner()(serve_to_the_end())
    code, last_words = ended[0]
    if output.is_blocked:
        os._exit(code)  # the interpreter's exit would wait for the blocked log for ever
    if last_words:
        last_word(last_words)
    if not owns_process:
        watchdog.arm(inf)  # the calling program may continue
    return code


async def _outcome(app: Horsies, serve: Callable[[], Coroutine[Any, Any, None]], failure: str) -> tuple[ExitCode, str]:
    try:
        await serve()
    except (SchemaError, DatabaseGone, ChildrenCannotStart, ConfigurationError, MetricsUnavailable) as error:
        return _CODES[type(error)], app.config.broker.redact(str(error))
    except Exception:
        log.exception(failure)
        return ExitCode.FAILED, ""
    return ExitCode.CLEAN, ""


_CODES: dict[type[Exception], ExitCode] = {
    SchemaError: ExitCode.SCHEMA,
    DatabaseGone: ExitCode.DATABASE,
    ChildrenCannotStart: ExitCode.CHILDREN,
    ConfigurationError: ExitCode.CONFIGURATION,
    MetricsUnavailable: ExitCode.CONFIGURATION,
}


def last_word(text: str) -> None:
    """Say why the process ends: in the log where its lines are JSON, which programs read."""
    if logs_json():
        log.critical("%s", Lines(text))
    else:
        complain(text)


def complain(text: str) -> None:
    sys.stderr.write(f"horsies: {printable(text)}\n")


class _WorkerProcess:
    """Runs a worker, and a new one under another id when the others have declared it dead."""

    def __init__(self, app: Horsies, options: WorkerOptions) -> None:
        self.watchdog = Watchdog(self._cut_short)
        self.bus = EventBus()
        log_lines.subscribe(self.bus, log_tasks=options.log_tasks)
        self.worker = Worker(app, options, self.bus, on_deadline=self.watchdog.arm)
        self._is_asked_to_stop = False
        self._owner = _owner_pipe()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        # its thread begins here: the template of the children was forked before
        handlers = UserHandlers(self.bus, self.worker.app.event_handlers)
        endpoint: WorkerEndpoint | None = None
        # handled until the loop is closed: a second signal must not end a clean stop
        signals.handle(loop, stop=self._stop, hurry=partial(self._stop, hurry=True), log_stacks=self._log_stacks)
        if self._owner is not None:
            loop.add_reader(self._owner, self._on_owner_gone, loop, self._owner)
        try:
            endpoint = self._endpoint(handlers)
            if endpoint is not None:
                endpoint.start()
            while True:
                name_worker(self.worker.identity.worker_id)
                banner(self.worker)
                await self.worker.run()
                if not self.worker.is_declared_dead or self._is_asked_to_stop:
                    return
                self.watchdog.arm(inf)
                former = self.worker
                self.worker = Worker(
                    former.app, former.options, self.bus, on_deadline=self.watchdog.arm, wish=former.control.wish
                )
        finally:
            if endpoint is not None:
                endpoint.close()
            handlers.close(min(CLOSE_S, self.watchdog.left_s))
            if self._owner is not None:
                loop.remove_reader(self._owner)

    def _endpoint(self, handlers: UserHandlers) -> "WorkerEndpoint | None":
        port = self.worker.options.metrics_port
        if port is None:
            return None
        require_extra()
        from horsies_worker.metrics.endpoint import WorkerEndpoint

        host = self.worker.options.metrics_host
        return WorkerEndpoint(self.bus, handlers, lambda: self.worker, host=host, port=port)

    def _stop(self, *, hurry: bool = False) -> None:
        self._is_asked_to_stop = True  # also by a signal that comes while a worker that was declared dead leaves
        self.worker.stop(hurry=hurry)

    def _log_stacks(self) -> None:
        log_own_stacks()
        self.worker.pool.log_stacks()

    def _on_owner_gone(self, loop: asyncio.AbstractEventLoop, owner: int) -> None:
        loop.remove_reader(owner)  # a pipe at its end stays readable
        log.warning("the process that started this worker is gone: stopping as well")
        self._stop()

    def _cut_short(self) -> tuple[ExitCode, str]:
        if self.worker.unwritten:
            return ExitCode.DATABASE, self.worker.told_unwritten()
        return ExitCode.FAILED, "the stop exceeded its deadline and was cut short"


def _owner_pipe() -> int | None:
    """The read end of the owner's pipe, not inherited by children."""
    number = os.environ.pop(OWNER_PIPE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def banner(worker: Worker) -> None:
    """Log the main settings before anything can go wrong."""
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
    log.info("horsies %s worker %s on %s", __version__, worker.identity.worker_id, worker.identity.hostname)
    log.info("  app       %s, %s: %s", options.locator, plural(len(names), "task"), shown)
    log.info("  database  %r", app.config.broker)
    log.info("  queues    %s", ", ".join(options.queues or app.config.queue_names))
    log.info(
        "  children  %s, %s each%s", plural(options.processes, "process", "processes"),
        plural(options.async_concurrency, "async task"), "; " + ", ".join(limits) if limits else "",
    )  # fmt: skip
    if options.with_scheduler:
        log.info("  schedules %s", told_schedules(app))


def told_schedules(app: Horsies) -> str:
    """The number of schedules, and the first of their names."""
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
