"""`horsies scheduler`: a scheduler in a process of its own, from an app and options to an exit code."""

import asyncio
import logging
import os
import socket
import time
from functools import partial
from math import inf

from horsies._pg import channels
from horsies._pg.embedded import resolve_async
from horsies._pg.listener import Listener
from horsies.app import Horsies
from horsies.errors import ConfigurationError
from horsies_worker import signals
from horsies_worker.child.logs import configure_logging
from horsies_worker.database import DatabaseGone, connect_listener, connect_ready
from horsies_worker.exit_codes import ExitCode
from horsies_worker.options import SchedulerOptions
from horsies_worker.running import complain, run_until_stopped, told_schedules
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from horsies_worker.session import CLAIM_SETTINGS, Session, close
from horsies_worker.stopping import StopDeadlines, Watchdog

_log = logging.getLogger("horsies.scheduler")


def run_scheduler(app: Horsies, options: SchedulerOptions, *, owns_process: bool = False) -> ExitCode:
    """Run one scheduler in this process until it is told to stop; blocks. `owns_process`: the process ends with it."""
    configure_logging(options.log_level, options.log_format)
    try:
        options.check(app)
    except ConfigurationError as error:
        complain(str(error))
        return ExitCode.CONFIGURATION
    watchdog = Watchdog(lambda: (ExitCode.FAILED, "the stop took longer than it may, and is cut short"))
    code = run_until_stopped(app, partial(_serve, app, options, watchdog), "the scheduler failed", watchdog)
    if not owns_process:
        watchdog.arm(inf)  # called from a program that may go on
    return code


async def _serve(app: Horsies, options: SchedulerOptions, watchdog: Watchdog) -> None:
    """Until a signal comes. A slot is fired whole or not at all, so nothing needs to be waited for."""
    stop = asyncio.Event()
    deadlines = StopDeadlines(options.shutdown_timeout_s)

    def leave(*, hurry: bool = False) -> None:
        hurry = hurry or stop.is_set()
        stop.set()
        deadlines.begin(time.monotonic())
        if hurry:
            deadlines.hurry(time.monotonic())
        watchdog.arm(deadlines.end)

    # they stay ours until the loop is closed: an impatient second one must not end a clean stop
    signals.handle(asyncio.get_running_loop(), stop=leave, hurry=lambda: leave(hurry=True))
    _banner(app, options)
    work = asyncio.create_task(_work(app, options), name="scheduler")
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        _log.info("stopping")
    finally:
        for task in (work, stopped):
            task.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)


async def _work(app: Horsies, options: SchedulerOptions) -> None:
    broker = await resolve_async(app.config.broker)
    connection = await connect_ready(app, broker, timeout_s=options.database_timeout_s, who="scheduler")
    await close(connection)
    session = Session(broker, "scheduler", settings=CLAIM_SETTINGS)
    scheduler = Scheduler(app, settled_schedules(app), session, on_contact=options.touch_health_file)
    listener = Listener(partial(connect_listener, broker, "scheduler"), app.config.resilience, redact=broker.redact)
    # what was asked while nobody listened is found by the look that follows
    heard = listener.run({channels.SCHEDULE_STATE: scheduler.on_news}, on_live=lambda _: scheduler.wake())
    services = {asyncio.create_task(scheduler.run()), asyncio.create_task(heard)}
    _log.info("scheduler is up")
    try:
        ended, _ = await asyncio.wait(services, return_when=asyncio.FIRST_COMPLETED)
        raise DatabaseGone(f"a service ended: {ended.pop().exception()!r}")  # they never end by themselves
    finally:
        for service in services:
            service.cancel()
        await asyncio.gather(*services, return_exceptions=True)
        await session.close()


def _banner(app: Horsies, options: SchedulerOptions) -> None:
    from horsies import __version__

    _log.info("horsies %s scheduler, process %d on %s", __version__, os.getpid(), socket.gethostname())
    _log.info("  app       %s", options.locator)
    _log.info("  database  %r", app.config.broker)
    _log.info("  schedules %s", told_schedules(app))
