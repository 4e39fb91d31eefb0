"""`horsies worker`, `horsies scheduler`, `horsies dev` and `horsies health`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from horsies.errors import HorsiesError
from horsies.locate import LocatorError, full_locator, load_app
from horsies_worker.child.template import descriptors
from horsies_worker.exit_codes import ExitCode
from horsies_worker.health import HealthError, default_health_file, read_mark
from horsies_worker.options import (
    LOG_FORMATS,
    LOG_LEVELS,
    MAX_SHUTDOWN_S,
    ProcessOptions,
    SchedulerOptions,
    WorkerOptions,
)
from horsies_worker.running import complain, run_worker

_EXIT_CODES = (
    "exit codes: 0 stopped cleanly; 2 usage; 3 configuration; 4 schema; 5 the database refuses this process or stayed "
    "away; 6 children cannot start; 1 anything else"
)


def worker_main(argv: Sequence[str] | None = None) -> int:
    """`horsies worker module:app`."""
    parser = argparse.ArgumentParser(
        prog="horsies worker", description="Claim tasks and run them in child processes.", epilog=_EXIT_CODES
    )
    _add_worker_arguments(parser)
    given = parser.parse_args(argv)
    found_open = descriptors()
    try:
        app = load_app(given.app)
    except (LocatorError, HorsiesError) as error:
        complain(str(error))
        return ExitCode.CONFIGURATION
    return run_worker(app, _options(given), found_open=found_open)


def scheduler_main(argv: Sequence[str] | None = None) -> int:
    """`horsies scheduler module:app`."""
    parser = argparse.ArgumentParser(
        prog="horsies scheduler",
        description="Enqueue scheduled tasks when they are due. Any number may run: each slot is fired once.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("app", help="where the app is: module:attribute, such as shop.tasks:app")
    _add_process_arguments(parser, SchedulerOptions())
    given = parser.parse_args(argv)
    try:
        app = load_app(given.app)
    except (LocatorError, HorsiesError) as error:
        complain(str(error))
        return ExitCode.CONFIGURATION
    from horsies_worker.scheduler.process import run_scheduler

    return run_scheduler(
        app,
        SchedulerOptions(
            locator=given.app,
            database_timeout_s=given.database_timeout,
            shutdown_timeout_s=given.shutdown_timeout,
            log_level=given.loglevel,
            log_format=given.log_format,
            health_file=given.health_file,
        ),
        owns_process=True,
    )


def dev_main(argv: Sequence[str] | None = None) -> int:
    """`horsies dev module:app`."""
    parser = argparse.ArgumentParser(
        prog="horsies dev",
        description="For development: an embedded PostgreSQL (unless HORSIES_DATABASE_URL names another), migrations, "
        "a worker and a scheduler in one command, started again when your code changes.",
    )
    _add_worker_arguments(parser)
    parser.add_argument("--no-reload", action="store_true", help="do not watch the code")
    parser.add_argument("--watch", action="append", metavar="DIR", help="directory to watch (default: the current one)")
    parser.add_argument("--no-scheduler", action="store_true", help="do not serve the app's schedules")
    given = parser.parse_args(argv)
    from horsies_worker.dev import run_dev

    ours = ("--no-reload", "--no-scheduler", "--with-scheduler")
    arguments = [item for item in (argv if argv is not None else sys.argv[2:]) if item not in ours]
    if not given.no_scheduler:
        arguments.append("--with-scheduler")
    return run_dev(
        _without_watch(arguments),
        [Path(item) for item in given.watch or ["."]],
        reload=not given.no_reload,
        shutdown_timeout_s=given.shutdown_timeout,
    )


def health_main(argv: Sequence[str] | None = None) -> int:
    """`horsies health`."""
    parser = argparse.ArgumentParser(
        prog="horsies health",
        description="For container probes: succeeds when the worker (or scheduler) on this machine is alive and its "
        "database answered it recently.",
    )
    parser.add_argument("--max-age", type=float, default=60.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--scheduler", action="store_true", help="ask for the scheduler, not for the worker")
    parser.add_argument("--health-file", type=Path, help=f"default: {default_health_file()}")
    given = parser.parse_args(argv)
    if not 0 <= given.max_age <= MAX_SHUTDOWN_S:  # NaN is not
        parser.error(f"--max-age must be 0 to {MAX_SHUTDOWN_S} seconds")
    role = "scheduler" if given.scheduler else "worker"
    problem = _health_problem(given.health_file or default_health_file(role), given.max_age, role)
    print(f"unhealthy: {problem}" if problem else "healthy")
    return ExitCode.FAILED if problem else ExitCode.CLEAN


def _health_problem(file: Path, max_age: float, role: str) -> str | None:
    try:
        pid, age = read_mark(file)
    except FileNotFoundError:
        return f"no {role} has written {file}"
    except (OSError, HealthError) as error:
        return f"{file} cannot be read: {error}"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"the {role} (pid {pid}) is gone"
    except PermissionError:
        pass  # alive, and somebody else's
    query = "claim query" if role == "worker" else "look"
    return f"the last successful {query} was {age:.0f} s ago" if age > max_age else None


def _without_watch(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for item in arguments:
        if skip:
            skip = False
        elif item == "--watch":
            skip = True
        elif not item.startswith("--watch="):
            kept.append(item)
    return kept


def _add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    default = WorkerOptions(locator="")
    add = parser.add_argument
    add("app", help="where the app is: module:attribute, such as shop.tasks:app")
    add("--processes", type=int, default=default.processes, metavar="N", help="child processes (default: %(default)s)")
    add(
        "--async-concurrency", type=int, default=default.async_concurrency, metavar="M",
        help="async def tasks at once in each child (default: %(default)s)",
    )  # fmt: skip
    add("--queues", metavar="a,b", help="serve only these queues (default: all)")
    add("--max-claim-batch", type=int, metavar="N", help="tasks per claim statement (default: the app's, 500)")
    add("--max-claim-per-worker", type=int, metavar="N", help="tasks held by this worker at once")
    add("--max-tasks-per-child", type=int, metavar="N", help="replace a child after so many tasks")
    add("--max-memory-per-child-mb", type=int, metavar="MB", help="replace a child above this resident size")
    add("--max-child-age", type=float, metavar="SECONDS", help="replace a child after so long")
    add("--no-run-ahead", action="store_true", help="never hand very short tasks to a child ahead of time")
    add("--with-scheduler", action="store_true", help="serve the app's schedules too, in this process")
    _add_process_arguments(parser, default)


def _add_process_arguments(parser: argparse.ArgumentParser, default: ProcessOptions) -> None:
    add = parser.add_argument
    add(
        "--database-timeout",
        type=float,
        metavar="SECONDS",
        help="give up when the database is away at start for so long",
    )
    add(
        "--shutdown-timeout", type=float, default=default.shutdown_timeout_s, metavar="SECONDS",
        help="time for the whole stop after the first signal; a second one hurries (default: %(default)s)",
    )  # fmt: skip
    add("--loglevel", default=default.log_level, choices=LOG_LEVELS, type=str.upper, help="default: %(default)s")
    add("--log-format", default=default.log_format, choices=LOG_FORMATS, help="default: %(default)s")
    add(
        "--health-file",
        type=Path,
        default=default.health_file,
        help="written for `horsies health` (default: %(default)s)",
    )


def _options(given: argparse.Namespace) -> WorkerOptions:
    return WorkerOptions(
        locator=full_locator(given.app),
        processes=given.processes,
        async_concurrency=given.async_concurrency,
        queues=[name.strip() for name in given.queues.split(",") if name.strip()] if given.queues else None,
        max_claim_batch=given.max_claim_batch,
        max_claim_per_worker=given.max_claim_per_worker,
        max_tasks_per_child=given.max_tasks_per_child,
        max_memory_per_child_mb=given.max_memory_per_child_mb,
        max_child_age_s=given.max_child_age,
        run_ahead=not given.no_run_ahead,
        with_scheduler=given.with_scheduler,
        shutdown_timeout_s=given.shutdown_timeout,
        database_timeout_s=given.database_timeout,
        log_level=given.loglevel,
        log_format=given.log_format,
        health_file=given.health_file,
    )
