"""Turns each schedule into the task or the workflow that its runs start.

Used by the scheduler, by `horsies check`, and before a schedule is stored. Reports all problems together: an unknown
task or queue, arguments that do not fit, an unknown time zone, an invalid cron expression.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from horsies._checks import Checks, shown
from horsies.codec import DecodeError, EncodeError
from horsies.errors import ConfigurationError, Problem, TaskSendError
from horsies.groups import GroupError
from horsies.ids import derived_id, new_id
from horsies.new_tasks import NewTasks, checked_plan
from horsies.options import SendOptions
from horsies.payload_codec import PayloadError
from horsies.schedule import Cron, TaskSchedule
from horsies.stored_schedule import has_encoded, plain_kwargs, storable, stored_kwargs
from horsies.workflow.defined import workflows_of
from horsies.workflow.spec import WorkflowSpec

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime

CronProblem = Callable[[str], str | None]
"""Returns the problem of a cron expression, or None."""


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A schedule that is ready to run: only the id and the times of each run are open."""

    schedule: TaskSchedule
    target: "NewTasks | WorkflowSpec[Any]"
    """The row to insert, or the workflow to start."""

    @property
    def name(self) -> str:
        return self.schedule.name

    def id_of(self, slot: datetime) -> str:
        """The id of this slot's task: the same in every scheduler, so a slot cannot have two."""
        return derived_id(slot, "schedule", self.name)

    def id_of_request(self, requested_at: datetime) -> str:
        return derived_id(requested_at, "run-now", self.name)

    def delay_of(self, slot: datetime) -> timedelta:
        """The jitter of this slot, derived from its id."""
        if not self.schedule.max_jitter:
            return timedelta(0)
        draw = int(self.id_of(slot)[-8:], 16) / 2**32
        return timedelta(milliseconds=int(self.schedule.max_jitter / timedelta(milliseconds=1) * draw))


def settle_schedules(app: "AppRuntime", cron_problem: CronProblem | None) -> list[ScheduledTask]:
    """Settle all schedules of the app; raises ConfigurationError with the problems of all of them."""
    problems: list[Problem] = []
    settled = [_settle(app, schedule, cron_problem, problems) for schedule in app.config.schedule.schedules]
    if problems:
        raise ConfigurationError(problems, subject="schedules")
    return [task for task in settled if task is not None]


def settle_schedule(app: "AppRuntime", schedule: TaskSchedule, cron_problem: CronProblem | None) -> ScheduledTask:
    """The same for one schedule."""
    problems: list[Problem] = []
    task = _settle(app, schedule, cron_problem, problems)
    if task is None or problems:
        raise ConfigurationError(problems, subject="schedule")
    return task


def decoded(app: "AppRuntime", schedule: TaskSchedule, kwargs: str) -> TaskSchedule:
    """The stored schedule with its arguments in the types of its task, from JSON; raises ConfigurationError."""
    plain = _plain_kwargs(app, schedule, kwargs)
    definition = None if schedule.task_name is None else app.registry.get(schedule.task_name)
    if definition is None:
        return schedule if plain == kwargs else replace(schedule, kwargs=json.loads(plain))
    try:
        return replace(schedule, kwargs=definition.codec.decode_call(None, plain)[1])
    except DecodeError as error:
        checks = Checks(f"TaskSchedule({schedule.name!r})")
        checks.add("kwargs", str(error), f"give what {schedule.task_name!r} ({definition.location}) takes")
        raise ConfigurationError(checks.problems, subject="schedule") from error


def checked_kwargs(app: "AppRuntime", schedule: TaskSchedule) -> str:
    """The arguments of a schedule as JSON, to be stored with it; raises ConfigurationError with all problems.

    A task or workflow that this app has not defined belongs to another code base: its arguments are checked there.
    """
    cron_problem = _installed_cron_problem()
    is_known = _is_known(app, schedule)
    if schedule.args:
        checks = Checks(f"TaskSchedule({schedule.name!r})")
        schedule = _by_name(app, schedule, checks)
        checks.finish()
    schedule = _without_envelopes(app, schedule, is_known=is_known)
    if schedule.workflow is not None:
        if is_known:
            settle_schedule(app, schedule, cron_problem)
    elif is_known:
        try:
            target = settle_schedule(app, schedule, cron_problem).target
        except ConfigurationError as error:
            target = _settle_json(app, schedule, cron_problem, error).target
        if isinstance(target, NewTasks):
            return storable(schedule, target.kwargs[0] or "{}")
    checks = Checks(f"TaskSchedule({schedule.name!r})")
    _check_time(checks, schedule, cron_problem)
    checks.finish()
    return stored_kwargs(schedule, app.envelopes)


def _by_name(app: "AppRuntime", schedule: TaskSchedule, checks: Checks) -> TaskSchedule:
    """The schedule with all its arguments in `kwargs`, by the names that the task's parameters have."""
    if not schedule.args:
        return schedule
    definition = app.registry.get(str(schedule.task_name))
    fix = "give them as kwargs, by name"
    if definition is None:
        why = f"task {schedule.task_name!r} is not defined here, so that the names of its parameters are not known"
        checks.add("args", why, fix)
        return replace(schedule, args=())
    signature = definition.codec.signature
    names = [parameter.name for parameter in signature.positional_or_keyword]
    given = dict(zip(names, schedule.args, strict=False))
    if signature.positional_only:
        why = f"task {schedule.task_name!r} has parameters without a name, and a schedule has its arguments by name"
        checks.add("args", why, "remove the / from its parameters")
    elif len(schedule.args) > len(names):
        takes = ", ".join(names) or "none"
        why = f"task {schedule.task_name!r} takes by position and by name: {takes}; {len(schedule.args)} are given"
        checks.add("args", why, fix)
    elif twice := sorted(given.keys() & schedule.kwargs.keys()):
        checks.add("args", f"{', '.join(map(repr, twice))} is in kwargs too", "give each argument once")
    return replace(schedule, args=(), kwargs={**given, **schedule.kwargs})


def _is_known(app: "AppRuntime", schedule: TaskSchedule) -> bool:
    """Whether this app has the task or the workflow."""
    if schedule.workflow is None:
        return app.registry.get(str(schedule.task_name)) is not None
    workflows = workflows_of(app)
    return workflows.definition(schedule.workflow) is not None or workflows.get(schedule.workflow) is not None


def _without_envelopes(app: "AppRuntime", schedule: TaskSchedule, *, is_known: bool) -> TaskSchedule:
    """A stored schedule that is put again may have its arguments as they are stored. An app that has neither the codec
    nor the task stores them so again. Raises ConfigurationError."""
    if not has_encoded(schedule) or (app.envelopes.codec is None and not is_known):
        return schedule
    try:
        text = plain_kwargs(schedule)
    except ConfigurationError:
        return schedule  # not JSON: the checks tell
    plain = _plain_kwargs(app, schedule, text)
    return schedule if plain == text else replace(schedule, kwargs=json.loads(plain))


def _plain_kwargs(app: "AppRuntime", schedule: TaskSchedule, kwargs: str) -> str:
    """Stored arguments without envelopes; raises ConfigurationError."""
    try:
        return app.envelopes.unwrap_call(None, kwargs, schedule.target)[1] or "{}"
    except PayloadError as error:
        checks = Checks(f"TaskSchedule({schedule.name!r})")
        checks.add("kwargs", str(error), "configure the payload_codec of the app that stored the schedule")
        raise ConfigurationError(checks.problems, subject="schedule") from error


def _settle_json(
    app: "AppRuntime", schedule: TaskSchedule, cron_problem: CronProblem | None, error: ConfigurationError
) -> ScheduledTask:
    """The same for arguments that are JSON already: of a stored schedule, or of the command line."""
    try:
        return settle_schedule(app, decoded(app, schedule, stored_kwargs(schedule)), cron_problem)
    except ConfigurationError:
        raise error from None


def _installed_cron_problem() -> CronProblem | None:
    """The check of cron expressions, where the package horsies-worker is installed."""
    try:
        from horsies_worker.scheduler.local_times import cron_problem
    except ImportError:
        return None
    return cron_problem


def _settle(
    app: "AppRuntime", schedule: TaskSchedule, cron_problem: CronProblem | None, problems: list[Problem]
) -> ScheduledTask | None:
    checks = Checks(f"TaskSchedule({schedule.name!r})")
    schedule = _by_name(app, schedule, checks)
    _check_time(checks, schedule, cron_problem)
    queues = app.config.queue_names
    if schedule.queue_name is not None and schedule.queue_name not in queues:
        checks.add(
            "queue_name", f"{schedule.queue_name!r} is not a queue of this app", f"use one of: {', '.join(queues)}"
        )
    if schedule.workflow is not None:
        target = _workflow(app, schedule, schedule.workflow, checks)
    else:
        target = _row(app, schedule, str(schedule.task_name), checks)
    problems += checks.problems
    return None if target is None or checks.problems else ScheduledTask(schedule, target)


def _workflow(app: "AppRuntime", schedule: TaskSchedule, name: str, checks: Checks) -> "WorkflowSpec[Any] | None":
    """Build the workflow once for all slots; later builds of the app do not change it."""
    definition = workflows_of(app).definition(name)
    spec: object
    if definition is not None and definition.build_with and (schedule.kwargs or definition.static is None):
        try:
            spec = cast("object", definition.build_with(**schedule.kwargs))
        except Exception as error:  # user code
            why = f"build_with of workflow {name!r} ({definition.location}) raised {type(error).__name__}: {error}"
            checks.add("kwargs", why, "give what it takes, or correct it")
            return None
        if not isinstance(spec, WorkflowSpec):
            why = f"build_with of workflow {name!r} ({definition.location}) returned {shown(spec)}"
            checks.add("workflow", why, "let it return cls.workflow([...])")
            return None
    elif schedule.kwargs:
        checks.add("kwargs", f"workflow {name!r} takes none", "give its definition a build_with, or leave them out")
        return None
    elif workflows_of(app).is_rebuilt(name):
        why = f"app.workflow has built {name!r} more than once and differently, so that the schedule could mean any"
        checks.add("workflow", why, "write a WorkflowDefinition with a build_with, and give its arguments as kwargs")
        return None
    else:
        spec = workflows_of(app).get(name)
    if spec is None:
        checks.add("workflow", f"no workflow {name!r} is defined", "import the module that defines it, or rename")
        return None
    found = cast("WorkflowSpec[Any]", spec)
    try:
        found.prepared_start(new_id(), schedule.group).statement()
    except TaskSendError as error:
        checks.add("workflow", str(error), "see its definition")
        return None
    return found


def _row(app: "AppRuntime", schedule: TaskSchedule, task_name: str, checks: Checks) -> NewTasks | None:
    definition = app.registry.get(task_name)
    if definition is None:
        checks.add("task_name", f"no task {task_name!r} is registered", "import the module that defines it, or rename")
        return None
    try:
        call = definition.codec.encode_call((), schedule.kwargs, limits=app.payload_limits)
    except EncodeError as error:
        checks.add("kwargs", str(error), f"give what {task_name!r} ({definition.location}) takes")
        return None
    if checks.problems:
        return None  # the plan would only report the queue again
    options = SendOptions(queue_name=schedule.queue_name, group=schedule.group)
    settled = checked_plan(app.config, task_name, definition, options, checks)
    if settled is None:
        return None
    try:
        group = settled.group_of((), schedule.kwargs)
    except GroupError as error:
        checks.add("kwargs", str(error), "or give the schedule its group: group=...")
        return None
    return settled.tasks([call], None if group is None else [group])


def _check_time(checks: Checks, schedule: TaskSchedule, cron_problem: CronProblem | None) -> None:
    name, pattern = schedule.timezone, schedule.pattern
    if isinstance(pattern, Cron) and cron_problem is not None and (why := cron_problem(pattern.expression)):
        checks.add("pattern", f"{pattern.expression!r}: {why}", _cron_fix(why))
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        if available_timezones():
            checks.add("timezone", f"there is no time zone {name!r}", "give an IANA name, such as Europe/Berlin or UTC")
        else:
            checks.add("timezone", f"{name!r} cannot be read: this machine has no time zone data", "pip install tzdata")


_CRON_FIELDS: Final = {
    "minute": "a minute is 0 to 59",
    "hour": "an hour is 0 to 23",
    "day-of-month": "a day of the month is 1 to 31, L or LW, and one that a month of the fourth field has",
    "month": "a month is 1 to 12, or jan to dec",
    "day-of-week": "a day of the week is 0 to 7, or sun to sat; 5L is the last Friday, 1#2 the second Monday",
}


def _cron_fix(why: str) -> str:
    """The remedy for what the cron library says: `bad minute`, or that no time is named."""
    if (field := why.removeprefix("bad ")) in _CRON_FIELDS:
        return f"{_CRON_FIELDS[field]}; in lists and ranges too, which ascend"
    if why.startswith("names no time"):
        return "name a day that exists"
    return "five fields: minute hour day-of-month month weekday"
