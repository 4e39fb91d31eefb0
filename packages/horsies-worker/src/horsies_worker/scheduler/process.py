"""`horsies scheduler`: a scheduler in a process of its own, from an app and options to an exit code."""

import asyncio
import logging
import os
import socket
from functools import partial

from horsies._pg.embedded import resolve_async
from horsies.app import Horsies
from horsies.errors import SchemaError
from horsies_worker import signals
from horsies_worker.database.connect import DatabaseGone, prepare_database
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.events.bus import EventBus
from horsies_worker.events.user_handlers import CLOSE_S, UserHandlers
from horsies_worker.exit_codes import ExitCode
from horsies_worker.identity import Identity
from horsies_worker.liveness.revision_watch import RevisionWatch
from horsies_worker.options import SchedulerOptions
from horsies_worker.output.stacks import log_own_stacks
from horsies_worker.process import are_sound, run_until_stopped, told_schedules
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from horsies_worker.stop import Stop, Watchdog

_log = logging.getLogger("horsies.scheduler")


def run_scheduler(app: Horsies, options: SchedulerOptions, *, owns_process: bool = False) -> ExitCode:
    """Run one scheduler in this process until it is told to stop; blocks. `owns_process`: the process ends with it."""
    if not are_sound(options, app):
        return ExitCode.CONFIGURATION
    watchdog = Watchdog(lambda: (ExitCode.FAILED, "the stop exceeded its deadline and was cut short"))
    serve = partial(_serve, app, options, watchdog)
    return run_until_stopped(app, serve, "the scheduler failed", watchdog, owns_process=owns_process)


async def _serve(app: Horsies, options: SchedulerOptions, watchdog: Watchdog) -> None:
    """Run until a signal comes. A slot is fired whole or not at all, so a stop waits for nothing."""
    stop = Stop(options.shutdown_timeout_s, watchdog.arm)
    bus = EventBus()
    handlers = UserHandlers(bus, app.event_handlers)
    signals.handle(asyncio.get_running_loop(), stop=stop.begin_or_hurry, hurry=stop.hurry, log_stacks=log_own_stacks)
    _banner(app, options)
    try:
        await stop.unless_begun(_work(app, options, bus))
        _log.info("stopping")
    finally:
        handlers.close(min(CLOSE_S, watchdog.left_s))


async def _work(app: Horsies, options: SchedulerOptions, bus: EventBus) -> None:
    broker = await resolve_async(app.config.broker)
    await prepare_database(app, broker, timeout_s=options.database_timeout_s, who="scheduler")
    session = Session(broker, "scheduler", Queries(app.schema, Identity()), bus=bus)
    scheduler = Scheduler(session, app, settled_schedules(app), bus=bus, on_contact=options.touch_health_file)
    broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_schema_problem(problem: str) -> None:
        if not broken.done():
            broken.set_result(problem)

    revision = RevisionWatch(session, app.config.resilience, app.schema, on_problem=on_schema_problem)
    work = (scheduler.run(), scheduler.hear(broker, "scheduler"), revision.run())
    services = {asyncio.create_task(one) for one in work}
    _log.info("scheduler is up")
    try:
        ended, _ = await asyncio.wait({*services, broken}, return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            _log.critical("the schema was changed while this scheduler ran: %s; stopping", broken.result())
            raise SchemaError(broken.result())
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
