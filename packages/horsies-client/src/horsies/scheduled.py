"""Turns each schedule into the task or the workflow that its runs start, once, when the scheduler starts.

Used by the scheduler and by `horsies check`. Reports the problems of all schedules together: an unknown task or queue,
arguments that do not fit, an unknown time zone, an invalid cron expression.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from horsies._checks import Checks, shown
from horsies.codec import EncodeError
from horsies.errors import ConfigurationError, Problem, TaskSendError
from horsies.groups import GroupError
from horsies.ids import derived_id, new_id
from horsies.new_tasks import NewTasks, checked_plan
from horsies.options import SendOptions
from horsies.schedule import Cron, TaskSchedule
from horsies.workflow.spec import WorkflowSpec

if TYPE_CHECKING:
    from horsies.app import Horsies

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


def settle_schedules(app: "Horsies", cron_problem: CronProblem | None) -> list[ScheduledTask]:
    """Settle all schedules of the app; raises ConfigurationError with the problems of all of them."""
    problems: list[Problem] = []
    settled = [_settle(app, schedule, cron_problem, problems) for schedule in app.config.schedule.schedules]
    if problems:
        raise ConfigurationError(problems, subject="schedules")
    return [task for task in settled if task is not None]


def _settle(
    app: "Horsies", schedule: TaskSchedule, cron_problem: CronProblem | None, problems: list[Problem]
) -> ScheduledTask | None:
    checks = Checks(f"TaskSchedule({schedule.name!r})")
    _check_zone(checks, schedule.timezone)
    pattern = schedule.pattern
    if isinstance(pattern, Cron) and cron_problem is not None and (why := cron_problem(pattern.expression)):
        checks.add("pattern", f"{pattern.expression!r}: {why}", "five fields: minute hour day-of-month month weekday")
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


def _workflow(app: "Horsies", schedule: TaskSchedule, name: str, checks: Checks) -> "WorkflowSpec[Any] | None":
    """Build the workflow once for all slots; later builds of the app do not change it."""
    definition = app.workflows.definition(name)
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
    elif app.workflows.is_rebuilt(name):
        why = f"app.workflow has built {name!r} more than once and differently, so that the schedule could mean any"
        checks.add("workflow", why, "write a WorkflowDefinition with a build_with, and give its arguments as kwargs")
        return None
    else:
        spec = app.workflows.get(name)
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


def _row(app: "Horsies", schedule: TaskSchedule, task_name: str, checks: Checks) -> NewTasks | None:
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


def _check_zone(checks: Checks, name: str) -> None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        if available_timezones():
            checks.add("timezone", f"there is no time zone {name!r}", "give an IANA name, such as Europe/Berlin or UTC")
        else:
            checks.add("timezone", f"{name!r} cannot be read: this machine has no time zone data", "pip install tzdata")
