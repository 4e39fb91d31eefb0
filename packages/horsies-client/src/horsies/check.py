"""`horsies check`: checks an app's tasks, workflows and settings, and with `--live` its database.

A finding is one sentence. A problem means that something will not work, a note is only worth knowing. Nothing is
written to the database, and nothing stays open.
"""

import inspect
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from horsies._checks import Checks
from horsies.errors import ConfigurationError, HorsiesError
from horsies.middleware import check_batch_scopes, check_kinds
from horsies.schedule import Cron, Hourly, Interval

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.registry import TaskDefinition
    from horsies.schedule import TaskSchedule

NOTIFY_PATIENCE_S = 5.0
CLOCK_TOLERANCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of the check; `is_problem` means that the check has failed."""

    text: str
    is_problem: bool = False


def _problem(text: str) -> Finding:
    return Finding(text, is_problem=True)


# -- the app -------------------------------------------------------------------------------------


def describe(app: "Horsies") -> Iterator[str]:
    """The app as horsies sees it: database, queues, tasks, schedules, workflows."""
    yield f"database: {app.config.broker!r}"
    yield f"queues: {', '.join(app.config.queue_names)}"
    yield f"tasks: {len(app.registry)}"
    width = max((len(task.name) for task in app.registry), default=0)
    for task in sorted(app.registry, key=lambda task: task.name):
        yield f"  {task.name:<{width}}  {_traits(app, task)}"
    if schedules := app.config.schedule.schedules:
        yield f"schedules: {len(schedules)}"
        width = max(len(schedule.name) for schedule in schedules)
        for schedule in schedules:
            where = "" if isinstance(schedule.pattern, Interval) else f" in {schedule.timezone}"
            state = "" if schedule.enabled else ", not enabled"
            yield f"  {schedule.name:<{width}}  {schedule.target}: {schedule.pattern}{where}{state}"
    if len(app.workflows):
        yield f"workflows: {len(app.workflows)}"
        for spec in sorted(app.workflows, key=lambda spec: spec.name):
            yield f"  {spec.name}  {len(spec.wired)} nodes, on_error {spec.on_error}  ({spec.location})"


def _traits(app: "Horsies", task: "TaskDefinition") -> str:
    options = task.options
    queue = options.queue_name or app.config.queue_names[0]
    traits = [f"queue {queue}", f"priority {options.priority or app.config.queue_priority(queue)}"]
    if options.max_retries:
        traits.append(f"up to {options.max_retries} retries")
    if options.timeout_ms is not None:
        traits.append(f"timeout {options.timeout_ms} ms")
    if task.is_stub:
        traits.append("declared only")
    elif task.is_async:
        traits.append("async")
    if task.batch is not None:
        traits.append(f"up to {task.batch.max_size} in one call")
    return f"{', '.join(traits)}  ({task.location})"


def check_app(app: "Horsies") -> Iterator[Finding]:
    """The checks that need no database."""
    from horsies._pg.dsn import connect_arguments
    from horsies.config.dsn import is_embedded

    if not len(app.registry):
        yield _problem(
            "no task is registered: the module of the app has to import the modules that define its tasks (or name one "
            "that does, `horsies check module:app`)"
        )
    for task in app.registry:
        deadline = task.options.good_until
        if isinstance(deadline, datetime) and deadline <= datetime.now(UTC):
            yield _problem(
                f"task {task.name!r} ({task.location}): its good_until {deadline.isoformat()} has passed, "
                "every send is refused"
            )
    checks = Checks("AppConfig")
    check_kinds(checks, app.config.middleware, {task.is_async for task in app.registry if not task.is_stub})
    check_batch_scopes(checks, app.config.middleware, [task.name for task in app.registry if task.batch is not None])
    for problem in checks.problems:
        yield _problem(str(problem))
    yield from _check_schedules(app)
    yield from check_workflows(app)
    if not is_embedded(app.config.broker.url):
        try:
            connect_arguments(app.config.broker)
        except HorsiesError as error:
            yield _problem(str(error))


def _check_schedules(app: "Horsies") -> Iterator[Finding]:
    if not app.config.schedule.schedules:
        return
    from horsies.scheduled import settle_schedule

    try:
        from horsies_worker.scheduler.local_times import cron_problem
    except ImportError:
        cron_problem = None
        if any(isinstance(schedule.pattern, Cron) for schedule in app.config.schedule.schedules):
            yield Finding("cron strings were not checked: that takes the package horsies-worker")
    settled: list[TaskSchedule] = []
    for schedule in app.config.schedule.schedules:
        try:
            settle_schedule(app, schedule, cron_problem)
        except ConfigurationError as error:
            for problem in error.problems:
                yield _problem(str(problem))
        else:
            settled.append(schedule)
    for schedule in settled:
        if _comes_twice(schedule):
            yield Finding(
                f"schedule {schedule.name!r} runs several times a day in {schedule.timezone}: of the time that comes "
                "twice when the clock is put back, its slots run the first time only; "
                'timezone="UTC" or an Interval knows no such time'
            )


def _comes_twice(schedule: "TaskSchedule") -> bool:
    """True for a schedule that fires several times a day, in a time zone with daylight saving time."""
    from zoneinfo import ZoneInfo

    pattern = schedule.pattern
    is_frequent = isinstance(pattern, Hourly) or (
        isinstance(pattern, Cron) and any(sign in pattern.expression.split()[1] for sign in "*/-,")
    )
    zone = ZoneInfo(schedule.timezone)
    year = datetime.now(UTC).year
    offsets = {datetime(year, month, 1, tzinfo=UTC).astimezone(zone).utcoffset() for month in range(1, 13)}
    return is_frequent and len(offsets) > 1


def check_workflows(app: "Horsies") -> Iterator[Finding]:
    """Run each `build_with` with the arguments of `check_with`, or without arguments where it needs none. Other graphs
    were validated when they were defined."""
    from horsies.workflow.spec import WorkflowSpec

    for definition in app.workflows.definitions():
        builder = definition.build_with
        if builder is None:
            continue
        required = [
            parameter.name
            for parameter in inspect.signature(builder).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if required and not definition.check_with:
            yield Finding(
                f"workflow {definition.name!r} ({definition.location}): its build_with was not tried, it needs "
                f"{', '.join(required)}; give arguments to try it with as check_with"
            )
            continue
        for arguments in definition.check_with or ({},):
            what = f"build_with({', '.join(f'{name}=...' for name in arguments)})"
            try:
                built = cast("object", builder(**arguments))
            except Exception as error:  # user code
                yield _problem(f"workflow {definition.name!r} ({definition.location}): {what}: {_told(error)}")
                continue
            if not isinstance(built, WorkflowSpec):
                yield _problem(
                    f"workflow {definition.name!r} ({definition.location}): {what} returned "
                    f"{type(built).__name__}; let it return cls.workflow([...])"
                )


# -- the database --------------------------------------------------------------------------------


async def check_live(app: "Horsies") -> list[Finding]:
    """Check server, schema, notifications and clock. Returns early when the database cannot be reached."""
    from horsies._pg.pool import LoopDatabase
    from horsies._pg.refusals import and_remedy, worded

    redact = app.config.broker.redact
    database = LoopDatabase(app.config.broker, app.config.resilience)
    findings: list[Finding] = []
    try:
        async with AsyncExitStack() as stack:
            try:
                connection = await database.connect()
                stack.push_async_callback(connection.close)
                listening = await database.connect(direct=True)
                stack.push_async_callback(listening.close)
            except HorsiesError as error:
                return [_problem(str(error))]
            except Exception as error:
                return [_problem(redact(f"the database cannot be reached: {worded(error)}{and_remedy(error)}"))]
            findings += await _server(connection)
            if not any(finding.is_problem for finding in findings):
                findings.append(await _schema(connection, app.schema))
            findings.append(await _notify(connection, listening))
            findings.append(await _clock(connection))
    except Exception as error:
        findings.append(_problem(redact(f"the connection failed in the middle of the check: {worded(error)}")))
    return findings


async def _server(connection: Any) -> list[Finding]:
    from horsies._pg.schema_guard import MINIMUM_SERVER

    version, number, encoding, in_recovery = await connection.fetchrow(
        "SELECT current_setting('server_version'), current_setting('server_version_num')::int,"
        " current_setting('server_encoding'), pg_is_in_recovery()"
    )
    findings = [Finding(f"server: PostgreSQL {version}, encoding {encoding}")]
    if number // 10_000 < MINIMUM_SERVER:
        findings.append(_problem(f"the server is older than PostgreSQL {MINIMUM_SERVER}: upgrade it"))
    if encoding != "UTF8":
        findings.append(
            _problem(f"the database's encoding is {encoding}, horsies needs UTF8: create one with ENCODING 'UTF8'")
        )
    if in_recovery:
        findings.append(_problem("the server is in recovery (a read-only standby): connect to the primary"))
    return findings


async def _schema(connection: Any, schema: str | None) -> Finding:
    from horsies._pg.schema_guard import HEAD_REVISION, behind, require_schema

    try:
        found = await require_schema(connection, schema)
    except HorsiesError as error:
        return _problem(str(error))
    told = f"; {behind(found, schema)}" if found < HEAD_REVISION else ""
    return Finding(f"schema: revision {found}{told}")


async def _notify(connection: Any, listening: Any) -> Finding:
    """A pooler between client and server would lose notifications silently."""
    from horsies._pg.listener import notify_round_trip

    took = await notify_round_trip(connection, listening, NOTIFY_PATIENCE_S)
    if took is not None:
        return Finding(f"notifications: arrive ({took:.0f} ms)")
    return _problem(
        f"a notification did not arrive within {NOTIFY_PATIENCE_S:g} s: is there a pooler in between? "
        "set pooler=True and direct_url to the server itself"
    )


async def _clock(connection: Any) -> Finding:
    before = datetime.now(UTC)
    there: datetime = await connection.fetchval("SELECT clock_timestamp()")
    after = datetime.now(UTC)
    ahead = (before + (after - before) / 2 - there).total_seconds()
    if abs(ahead) <= CLOCK_TOLERANCE_S:
        return Finding(f"clock: {abs(ahead) * 1000:.0f} ms from the database's")
    return Finding(
        f"clock: this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the database; the "
        "database's clock decides, so moments computed here (eta, good_until) are off by as much: prefer delays"
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
