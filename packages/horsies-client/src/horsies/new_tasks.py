"""Tasks that are about to be written: a call and its options, validated and turned into the columns of rows.

The id and the fingerprint (`enqueue_sha`) are made before the first statement is sent, so every send can be repeated:
by the client after a lost connection, by the caller with `.retry()`, by a job that runs twice with its own `task_id`.
The same fingerprint under the same id is success, another one is PAYLOAD_MISMATCH.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from horsies._checks import Checks
from horsies._text import short
from horsies.errors import ConfigurationError, SendErrorCode, TaskSendError
from horsies.groups import plain
from horsies.ids import new_id, new_ids
from horsies.metadata import NOTHING
from horsies.options import SendOptions, TaskOptions, check_good_until

if TYPE_CHECKING:
    from horsies.codec import EncodedCall
    from horsies.config import AppConfig
    from horsies.groups import GroupBy
    from horsies.registry import TaskDefinition

NO_DELAY: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The columns that all tasks of a sender share, which is everything but the arguments. `eta` and `good_until` are
    moments; `delay` and `ttl` count on the database's clock from the insert."""

    task_name: str
    queue_name: str
    priority: int
    eta: datetime | None
    delay: timedelta
    good_until: datetime | None
    ttl: timedelta | None
    max_retries: int
    task_options: str | None
    unique_key: str | None
    task_id: str | None
    fingerprint: str
    metadata: Mapping[str, Any]
    """Of this send."""
    default_metadata: Mapping[str, Any]
    """Of the registration."""
    group: str | None = None
    """`group=` of this send."""
    group_by: "GroupBy | None" = field(default=None, compare=False)
    """Of the registration; None if the send names the group. Not compared: it is made anew when a module is imported
    again."""

    def group_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The group of a call, whose arguments fit the task. Raises GroupError."""
        return self.group if self.group_by is None else self.group_by.of(args, kwargs)

    def tasks(self, calls: "Sequence[EncodedCall]", groups: list[str | None] | None = None) -> "NewTasks":
        """The rows of these calls. `groups` has the group of each; None: no call has one."""
        return NewTasks(
            plan=self,
            ids=new_ids(len(calls)) if len(calls) != 1 else [self.task_id or new_id()],
            args=[call.args_json for call in calls],
            kwargs=[call.kwargs_json for call in calls],
            shas=[_sha(self.fingerprint, call.args_json, call.kwargs_json) for call in calls],
            sent_at=datetime.now(UTC),
            groups=groups,
        )

    def older_sha(self, args: str | None, kwargs: str | None) -> str:
        """The fingerprint that releases up to 0.1 gave the same call. It also covered the task's registration."""
        identity = [
            self.task_name, self.queue_name, self.priority, _moment(self.eta), self.delay.total_seconds(),
            _moment(self.good_until), self.ttl and self.ttl.total_seconds(), self.task_options, self.unique_key,
            *_asked_group(self.group),
        ]  # fmt: skip
        return _sha(json.dumps(identity), args, kwargs)


class NewTasks(NamedTuple):
    """New tasks as columns, which is how a statement takes them: 10,000 tasks need no object each."""

    plan: Plan
    ids: list[str]
    args: list[str | None]
    kwargs: list[str | None]
    shas: list[str]
    sent_at: datetime
    metadata: str | None = None
    """JSON, the same for all."""
    groups: list[str | None] | None = None
    """The group of each; None when no task has one."""


def plan(config: "AppConfig", task_name: str, definition: "TaskDefinition | None", options: SendOptions) -> Plan:
    """Resolve queue, priority and times for a send. `definition` is None for a task that only the worker knows."""
    checks = Checks(f"send of task {task_name!r}")
    if (made := checked_plan(config, task_name, definition, options, checks)) is not None:
        return made
    raise TaskSendError(
        SendErrorCode.VALIDATION_FAILED, str(ConfigurationError(checks.problems, subject=checks.subject))
    )


def checked_plan(
    config: "AppConfig", task_name: str, definition: "TaskDefinition | None", options: SendOptions, checks: Checks
) -> Plan | None:
    """The same for a node or a schedule, which tells its problems itself. None when there are some."""
    options.check(checks)
    known = definition.options if definition is not None else TaskOptions()
    queue = _queue(config.queue_names, checks, options.queue_name or known.queue_name)
    deadline = options.good_until if options.good_until is not None else known.good_until
    if options.good_until is None:
        check_good_until(checks, deadline)  # it may have passed since the task was registered
    if not checks.problems:
        _check_order(checks, options, deadline)
    if checks.problems:
        return None
    delay = options.delay if options.delay is not None else NO_DELAY
    # A sender by name or by stub does not know the worker's options: the row stores none, and the registration of the
    # worker that claims it decides.
    stored = definition is not None and not definition.is_stub
    # The fingerprint covers what this send asked for and not the task's registration, which a deploy between a send
    # and its repetition may change.
    asked, group = options.good_until, plain(options.group)
    identity = [
        task_name, options.queue_name, options.priority, _moment(options.eta), delay.total_seconds(),
        asked.total_seconds() if isinstance(asked, timedelta) else _moment(asked), options.unique_key,
        *_asked_group(group),
    ]  # fmt: skip
    return Plan(
        task_name=task_name,
        queue_name=queue,
        priority=options.priority or known.priority or config.queue_priority(queue),
        eta=options.eta,
        delay=delay,
        good_until=deadline if isinstance(deadline, datetime) else None,
        ttl=deadline if isinstance(deadline, timedelta) else None,
        max_retries=known.max_retries if stored else 0,
        task_options=known.to_json() if stored else None,
        unique_key=options.unique_key,
        task_id=options.task_id,
        fingerprint=json.dumps(identity),
        metadata=options.metadata or NOTHING,
        default_metadata=known.metadata or NOTHING,
        group=group,
        group_by=definition.group_by if definition is not None and group is None else None,
    )


def _check_order(checks: Checks, options: SendOptions, deadline: datetime | timedelta | None) -> None:
    """Refuse a task that would expire before it may start. The options themselves are valid."""
    start = options.delay if options.eta is None else options.eta
    if start is None or deadline is None:
        return
    now = datetime.now(UTC)
    starts_at, ends_at = (value if isinstance(value, datetime) else now + value for value in (start, deadline))
    if starts_at >= ends_at:
        why = f"{deadline} will have passed when the task may start ({start}): it would expire without a run"
        checks.add("good_until", why, "give it a later good_until, or an earlier start")


def _sha(fingerprint: str, args: str | None, kwargs: str | None) -> str:
    text = f"{fingerprint}\0{args or ''}\0{kwargs or ''}"
    # The hash compares two calls with one id and protects nothing: 128 bits are enough, and every version of the row
    # carries them. BLAKE2s would save 4 µs per send, but not every FIPS build of Python has it.
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _asked_group(group: str | None) -> tuple[str, ...]:
    """What a fingerprint has of `group=`: nothing without one, as before there were groups. The answer of `group_by` is
    left out as every part of the registration; the arguments from which it is made are in the fingerprint."""
    return () if group is None else (f"group {group}",)


def _moment(value: datetime | None) -> str | None:
    """Equal for equal moments, in any time zone."""
    return None if value is None else value.astimezone(UTC).isoformat()


def _queue(queues: Sequence[str], checks: Checks, name: str | None) -> str:
    if name is None:
        if len(queues) == 1:
            return queues[0]
        checks.add(
            "queue_name",
            f"this app has the queues {', '.join(queues)} and the task's own is not known here",
            "name one: with_options(queue_name=...)",
        )
    elif name not in queues:
        checks.add("queue_name", f"{short(str(name))!r} is not a queue of this app", f"use one of: {', '.join(queues)}")
    return name or queues[0]
