"""`horsies worker`, `horsies scheduler`, `horsies exporter`, `horsies dev` and `horsies health`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from horsies._checks import Checks
from horsies._command_line import Parser
from horsies.app import Horsies
from horsies.errors import HorsiesError
from horsies.locate import full_locator, load_app
from horsies.operate.commands._common import add_database_options, chosen_app
from horsies_worker import signals
from horsies_worker.child.template import descriptors
from horsies_worker.exit_codes import ExitCode
from horsies_worker.health import HealthError, default_health_file, is_other_than_file, read_mark
from horsies_worker.metrics import require_extra
from horsies_worker.options import (
    LOG_FORMATS,
    LOG_LEVELS,
    MAX_SHUTDOWN_S,
    ExporterOptions,
    SchedulerOptions,
    WorkerOptions,
)
from horsies_worker.process import complain, run_worker

_Options = TypeVar("_Options", WorkerOptions, SchedulerOptions, ExporterOptions)
_EXIT_CODES = (
    "exit codes: 0 stopped cleanly; 2 usage; 3 configuration; 4 schema; 5 the database refuses this process or stayed "
    "away; 6 children cannot start; 1 anything else"
)


def worker_parser() -> Parser:
    parser = Parser(
        prog="horsies worker", description="Claim tasks and run them in child processes.", epilog=_EXIT_CODES,
        examples=(
            "horsies worker shop.tasks:app",
            "horsies worker shop.tasks:app --processes 8 --queues mail,reports",
            "horsies worker shop.tasks:app --with-scheduler --log-format json --metrics-port 9000",
        ),
    )  # fmt: skip
    _add_worker_arguments(parser)
    return parser


def worker_main(argv: Sequence[str] | None = None) -> int:
    """`horsies worker module:app`."""
    parser = worker_parser()
    options = _options(WorkerOptions, parser.parse_args(argv))
    _refuse(parser, options.values())
    signals.exit_on_signal(ExitCode.CLEAN)
    found_open = descriptors()
    if (app := _load(options.locator)) is None:
        return ExitCode.CONFIGURATION
    _refuse(parser, options.values(app))
    options.locator = full_locator(options.locator)
    return run_worker(app, options, found_open=found_open)


def scheduler_parser() -> Parser:
    parser = Parser(
        prog="horsies scheduler",
        description="Enqueue scheduled tasks when they are due. Any number may run: each slot is fired once.",
        epilog=_EXIT_CODES,
        examples=("horsies scheduler shop.tasks:app",),
    )
    _add_process_arguments(parser, SchedulerOptions())
    return parser


def scheduler_main(argv: Sequence[str] | None = None) -> int:
    """`horsies scheduler module:app`."""
    parser = scheduler_parser()
    options = _options(SchedulerOptions, parser.parse_args(argv))
    _refuse(parser, options.values())
    signals.exit_on_signal(ExitCode.CLEAN)
    if (app := _load(options.locator)) is None:
        return ExitCode.CONFIGURATION
    from horsies_worker.scheduler.process import run_scheduler

    return run_scheduler(app, options, owns_process=True)


def exporter_parser() -> Parser:
    default = ExporterOptions()
    parser = Parser(
        prog="horsies exporter",
        description="Serve the figures of the whole installation to Prometheus: queues, workers, stale tasks, "
        "schedules, workflows. One is enough, however many workers there are; a viewer's role and a read replica do.",
        epilog="exit codes: 0 stopped cleanly; 1 the address cannot be used, or anything else; 2 usage",
        examples=("horsies exporter --port 9100", "horsies exporter --host 127.0.0.1 --interval 30 --top-groups 5"),
    )
    add = parser.add_argument
    add("--host", default=default.host, metavar="ADDRESS", help="listen on this address (default: %(default)s, all)")
    add("--port", type=int, default=default.port, help="0: any free one (default: %(default)s)")
    add(
        "--interval", dest="interval_s", type=float, default=default.interval_s, metavar="SECONDS",
        help="how often the exporter asks the database, however many scrapes there are (default: %(default)g)",
    )  # fmt: skip
    add(
        "--count-limit", type=int, default=default.count_limit, metavar="N",
        help="count waiting tasks up to N for each queue and priority (default: %(default)s)",
    )  # fmt: skip
    add(
        "--top-groups", type=int, default=default.top_groups, metavar="N",
        help="serve the depth of the N deepest groups of each queue, with the group as a label (default: none)",
    )  # fmt: skip
    _add_log_arguments(parser, default)
    add_database_options(parser)
    return parser


def exporter_main(argv: Sequence[str] | None = None) -> int:
    """`horsies exporter`."""
    parser = exporter_parser()
    given = parser.parse_args(argv)
    options = _options(ExporterOptions, given)
    _refuse(parser, options.values())
    signals.exit_on_signal(ExitCode.CLEAN)
    try:
        require_extra()
        app, _ = chosen_app(given, "horsies exporter")
    except HorsiesError as error:
        complain(str(error))
        return ExitCode.USAGE
    from horsies_worker.metrics.process import run_exporter

    return run_exporter(app, options)


def dev_parser() -> Parser:
    parser = Parser(
        prog="horsies dev",
        description="For development: an embedded PostgreSQL (unless HORSIES_DATABASE_URL names another), migrations, "
        "a worker and a scheduler in one command, started again when your code changes.",
        examples=("horsies dev shop.tasks:app", "horsies dev shop.tasks:app --watch src --processes 2"),
    )
    _add_worker_arguments(parser)
    parser.add_argument("--no-reload", action="store_true", help="do not watch the code")
    parser.add_argument("--watch", action="append", metavar="DIR", help="directory to watch (default: the current one)")
    parser.add_argument("--no-scheduler", action="store_true", help="do not serve the app's schedules")
    return parser


def dev_main(argv: Sequence[str] | None = None) -> int:
    """`horsies dev module:app`."""
    parser = dev_parser()
    given = parser.parse_args(argv)
    _refuse(parser, _options(WorkerOptions, given).values())
    watched = [Path(item) for item in given.watch or ["."]]
    for item in watched:
        if not item.is_dir():
            parser.error(f"argument --watch: {str(item)!r} is not a directory")
    from horsies_worker.dev import run_dev

    ours = ("--no-reload", "--no-scheduler", "--with-scheduler")
    arguments = [item for item in (argv if argv is not None else sys.argv[2:]) if item not in ours]
    if not given.no_scheduler:
        arguments.append("--with-scheduler")
    return run_dev(
        _without_watch(arguments),
        watched,
        reload=not given.no_reload,
        shutdown_timeout_s=given.shutdown_timeout_s,
    )


def health_parser() -> Parser:
    parser = Parser(
        prog="horsies health",
        description="For container probes: succeeds when the worker (or scheduler) on this machine is alive and its "
        "database answered it recently.",
        examples=("horsies health", "horsies health --scheduler --max-age 120"),
    )
    parser.add_argument("--max-age", type=float, default=60.0, metavar="SECONDS",
                        help="how long ago the database may have answered (default: %(default)g)")  # fmt: skip
    parser.add_argument("--scheduler", action="store_true", help="ask for the scheduler, not for the worker")
    parser.add_argument(
        "--health-file", metavar="FILE", help=f"the file of that process (default: {default_health_file()})"
    )
    return parser


def health_main(argv: Sequence[str] | None = None) -> int:
    """`horsies health`."""
    parser = health_parser()
    given = parser.parse_args(argv)
    if not 0 <= given.max_age <= MAX_SHUTDOWN_S:  # NaN is not
        parser.error(f"--max-age must be 0 to {MAX_SHUTDOWN_S} seconds")
    role = "scheduler" if given.scheduler else "worker"
    file = default_health_file(role) if given.health_file is None else Path(given.health_file)
    if is_other_than_file(file):
        parser.error(f"argument --health-file: {str(given.health_file or file)!r} is not a file")
    problem = _health_problem(file, given.max_age, role)
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
        pass  # alive, and owned by another user
    query = "claim query" if role == "worker" else "check"
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
    add("--processes", type=int, default=default.processes, metavar="N", help="child processes (default: %(default)s)")
    add(
        "--async-concurrency", type=int, default=default.async_concurrency, metavar="M",
        help="async def tasks at once in each child (default: %(default)s)",
    )  # fmt: skip
    add("--queues", type=_names, metavar="a,b", help="serve only these queues (default: all)")
    add("--max-claim-batch", type=int, metavar="N", help="tasks per claim statement (default: the app's, 500)")
    add("--max-claim-per-worker", type=int, metavar="N", help="tasks owned by this worker at once")
    add("--max-tasks-per-child", type=int, metavar="N", help="replace a child after so many tasks")
    add("--max-memory-per-child-mb", type=int, metavar="MB", help="replace a child above this resident size")
    add("--max-child-age", dest="max_child_age_s", type=float, metavar="SECONDS", help="replace a child after so long")
    add(
        "--no-run-ahead",
        dest="run_ahead",
        action="store_false",
        help="never hand very short tasks to a child ahead of time",
    )
    add("--with-scheduler", action="store_true", help="serve the app's schedules too, in this process")
    add("--log-tasks", action="store_true", help="log every successful task too, at INFO")
    add(
        "--metrics-port", type=int, metavar="PORT",
        help="serve metrics of this worker, /healthz and /readyz on this port (0: any free one)",
    )  # fmt: skip
    add(
        "--metrics-host", default=default.metrics_host, metavar="ADDRESS",
        help="listen on this address (default: %(default)s, all)",
    )  # fmt: skip
    _add_process_arguments(parser, default)


def _add_process_arguments(parser: argparse.ArgumentParser, default: WorkerOptions | SchedulerOptions) -> None:
    add = parser.add_argument
    add("locator", metavar="app", help="where the app is: module:attribute, such as shop.tasks:app")
    add(
        "--database-timeout", dest="database_timeout_s", type=float, metavar="SECONDS",
        help="give up when the database is away at start for so long",
    )  # fmt: skip
    add(
        "--shutdown-timeout", dest="shutdown_timeout_s", type=float, metavar="SECONDS",
        default=default.shutdown_timeout_s,
        help="time for the whole stop after the first signal; a second one hurries (default: %(default)s)",
    )  # fmt: skip
    _add_log_arguments(parser, default)
    add(
        "--health-file", metavar="FILE", default=default.health_file,
        help="written for `horsies health` (default: %(default)s)",
    )  # fmt: skip


def _add_log_arguments(
    parser: argparse.ArgumentParser, default: WorkerOptions | SchedulerOptions | ExporterOptions
) -> None:
    add = parser.add_argument
    add(
        "--loglevel", dest="log_level", default=default.log_level, choices=LOG_LEVELS, type=str.upper,
        help="default: %(default)s",
    )  # fmt: skip
    add("--log-format", default=default.log_format, choices=LOG_FORMATS, help="default: %(default)s")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _refuse(parser: argparse.ArgumentParser, checks: Checks) -> None:
    """End the process with code 2 and the names of the flags whose values are wrong."""
    said = [
        f"argument --{problem.where.split('.', 1)[1].replace('_', '-')}: {problem.why}: "
        + problem.fix.removesuffix(", or None")
        for problem in checks.problems
    ]
    if said:
        parser.error("; ".join(said))


def _options(kind: type[_Options], given: argparse.Namespace) -> _Options:
    """The flags are stored by the names of the options."""
    return kind(**{name: value for name, value in vars(given).items() if name in kind.__dataclass_fields__})


def _load(locator: str) -> Horsies | None:
    try:
        app = load_app(locator)
    except HorsiesError as error:
        complain(str(error))
        return None
    signals.repair()
    return app
