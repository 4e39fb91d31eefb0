"""`horsies capacity`: what a load needs. Needs no database."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, fields

from horsies._command_line import Parser
from horsies.errors import ConfigurationError
from horsies.operate.capacity import COEFFICIENTS, SERVER_CPU, WORKER_CPU, Capacity, Load, capacity
from horsies.operate.commands._common import OK, USAGE
from horsies.operate.commands._print import complain, say, say_json, say_pairs, span

_HELP = {
    "tasks_per_second": "on average over a day",
    "task_seconds": "how long a task runs, on average",
    "retention_days": "how long finished tasks stay",
    "peak": "the busiest minutes, as a multiple of the average",
    "arguments_bytes": "arguments of a task, as JSON",
    "result_bytes": "result of a task, as JSON",
    "processes": "child processes of one worker",
    "busy": "the share of the time that a process shall be busy at the peak",
    "web_processes": "processes that send tasks",
    "pool_size": "pool_max_size of these",
    "workflows": "the workers run workflows",
    "schedulers": "processes of `horsies scheduler`",
}
_EPILOG = (
    "The coefficients were measured; --coefficients lists them with their sources, and `just bench capacity` of the "
    "repository compares the results with a real run. exit codes: 0 done; 2 wrong usage"
)


def build_parser() -> Parser:
    parser = Parser(
        prog="horsies capacity",
        description="What a load needs: connections, processes, WAL, disk, vacuum, CPU.",
        epilog=_EPILOG,
        examples=(
            "horsies capacity --tasks-per-second 500 --task-seconds 0.2 --retention-days 7",
            "horsies capacity --tasks-per-second 50 --task-seconds 2 --retention-days 30 --json",
            "horsies capacity --coefficients",
        ),
    )
    for one in fields(Load):
        flag, default = "--" + one.name.replace("_", "-"), one.default
        if one.type in (bool, "bool"):
            parser.add_argument(flag, action="store_true", help=_HELP[one.name])
            continue
        kind = int if one.type in (int, "int") else float
        told = " (required)" if default is MISSING else f" (default: {default:g})"
        parser.add_argument(
            flag, type=kind, metavar="N", default=None if default is MISSING else default, help=_HELP[one.name] + told
        )
    parser.add_argument("--coefficients", action="store_true", help="list the measured numbers and their sources")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.coefficients:
        return _coefficients(options.json)
    needed = [one.name for one in fields(Load) if one.default is MISSING and getattr(options, one.name) is None]
    if needed:
        parser.error(f"needs {' and '.join('--' + name.replace('_', '-') for name in needed)}")
    try:
        load = Load(**{one.name: getattr(options, one.name) for one in fields(Load)})
    except ConfigurationError as error:
        complain(str(error))
        return USAGE
    found = capacity(load)
    if options.json:
        say_json({"load": asdict(load), "needs": asdict(found)})
        return OK
    say_pairs(_pairs(load, found))
    for note in found.notes:
        say(f"\n{note}")
    return OK


def _pairs(load: Load, found: Capacity) -> Iterator[tuple[str, object]]:
    peak = f"{load.tasks_per_second * load.peak:,.4g} tasks/s"
    processes = f"{found.slots:,} of {found.workers:,} worker(s) with {load.processes}, at a peak of {peak}"
    yield "processes", f"{processes}; for `def` tasks: a process runs many `async def` ones at once"
    yield (
        "connections",
        f"max_connections {found.connections:,}; behind a pooler {found.direct_connections:,} are direct",
    )
    yield "WAL", f"{_bytes(found.wal_bytes_per_day)} per day"
    yield "rows", f"{found.rows:,.0f} finished tasks after {load.retention_days:g} days"
    yield "disk", f"{_bytes(found.disk_bytes)} of tables and indexes, {found.bytes_per_task:,.0f} bytes per task"
    vacuum = f"{found.dead_rows_per_second:,.0f} dead rows/s, autovacuum of horsies_tasks every "
    yield "vacuum", vacuum + _every(found.vacuum_every_s)
    yield "CPU, server", f"{found.server_cores:,.2f} cores at the peak"
    yield "CPU, workers", f"{found.worker_cores:,.2f} cores at the peak, without your code"


def _every(seconds: float) -> str:
    from datetime import timedelta

    return span(timedelta(seconds=min(seconds, 86_400 * 36_500)))


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1_000:
            return f"{value:,.3g} {unit}"
        value /= 1_000
    return f"{value:,.3g} TB" if value < 1_000 else f"{value:,.0f} TB"


def _coefficients(is_json: bool) -> int:
    curves = {"server_cpu": SERVER_CPU, "worker_cpu": WORKER_CPU}
    if is_json:
        say_json({"coefficients": {name: asdict(one) for name, one in COEFFICIENTS.items()}, "us_by_rate": curves})
        return OK
    for one in COEFFICIENTS.values():
        say(f"{one.value:>10,g}  {one.means} ({one.source})")
    for name, points in curves.items():
        told = ", ".join(f"{cost:g} at {rate:,g}/s" for rate, cost in points)
        say(f"{name.replace('_', ' ')} in µs per task: {told} (just bench capacity)")
    return OK
