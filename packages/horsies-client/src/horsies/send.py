"""From a call to a row: build the `NewTasks`, write it once, and say honestly what happened if that failed.

The id and the fingerprint (`enqueue_sha`) are made before the first byte goes out, so every send can be
repeated: by ourselves after a lost connection, by the caller with `.retry()`, by a job that ran twice with
its own `task_id`. The same fingerprint under the same id is success, another one is PAYLOAD_MISMATCH.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from horsies._checks import Checks
from horsies.errors import ConfigurationError, HorsiesError
from horsies.ids import new_id, new_ids
from horsies.options import SendOptions, TaskOptions, check_good_until

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.codec import EncodedCall
    from horsies.registry import TaskDefinition

NO_DELAY: Final = timedelta(0)


class SendErrorCode(StrEnum):
    VALIDATION_FAILED = "VALIDATION_FAILED"
    """The call is wrong; nothing was written and sending it again cannot help."""
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    """The database did not take it, or its answer was lost. `.retry()` is safe where `retryable`."""
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    """A task with this id exists and is a different one; it was left untouched."""


class TaskSendError(HorsiesError):
    """A send that failed. Nothing is lost: the same tasks, with the same ids, can be sent again."""

    def __init__(
        self,
        code: SendErrorCode,
        message: str,
        *,
        retryable: bool = False,
        task_ids: Sequence[str] = (),
        resend: "Resend | None" = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retryable = retryable
        self.task_ids = tuple(task_ids)
        self._resend = resend

    @property
    def task_id(self) -> str | None:
        """The id that the task has, or would have had."""
        return self.task_ids[0] if self.task_ids else None

    def retry(self) -> Any:
        """Send the same again and return what the first call would have: a handle, or a list of them."""
        return self._again().send()

    async def retry_async(self) -> Any:
        """See `retry`."""
        return await self._again().send_async()

    def _again(self) -> "Resend":
        if not self.retryable or self._resend is None:
            raise self
        return self._resend


class Resend(Protocol):
    """What `.retry()` needs: the tasks as they were, and how they were to be sent."""

    def send(self) -> Any: ...
    async def send_async(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is common to the tasks of a sender: everything but the arguments. `eta` and `good_until` are
    moments; `delay` and `ttl` count on the database's clock, from the moment that it takes the row."""

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

    def tasks(self, calls: "Sequence[EncodedCall]") -> "NewTasks":
        return NewTasks(
            plan=self,
            ids=new_ids(len(calls)) if len(calls) != 1 else [self.task_id or new_id()],
            args=[call.args_json for call in calls],
            kwargs=[call.kwargs_json for call in calls],
            shas=[self._sha(call) for call in calls],
            sent_at=datetime.now(UTC),
        )

    def _sha(self, call: "EncodedCall") -> str:
        return _sha(self.fingerprint, call.args_json, call.kwargs_json)

    def older_sha(self, args: str | None, kwargs: str | None) -> str:
        """The fingerprint that releases up to 0.1 gave the same call: also of what its registration said."""
        identity = [
            self.task_name, self.queue_name, self.priority, _moment(self.eta), self.delay.total_seconds(),
            _moment(self.good_until), self.ttl and self.ttl.total_seconds(), self.task_options, self.unique_key,
        ]  # fmt: skip
        return _sha(json.dumps(identity), args, kwargs)


def _sha(fingerprint: str, args: str | None, kwargs: str | None) -> str:
    text = f"{fingerprint}\0{args or ''}\0{kwargs or ''}"
    # Two calls of one id are compared, no one is kept out: 128 bits are enough, and more would be written with each
    # state of the row. BLAKE2s would take a send 4 µs less, but not every FIPS build of Python has it.
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class NewTasks(NamedTuple):
    """Tasks that are about to exist, as columns: a statement takes them so, and ten thousand cost no objects."""

    plan: Plan
    ids: list[str]
    args: list[str | None]
    kwargs: list[str | None]
    shas: list[str]
    sent_at: datetime


def plan(app: "Horsies", task_name: str, definition: "TaskDefinition | None", options: SendOptions) -> Plan:
    """Settle queue, priority and times. `definition` is None for a task that only the worker knows."""
    checks = Checks(f"send of task {task_name!r}")
    options.check(checks)
    known = definition.options if definition is not None else TaskOptions()
    queue = _queue(app, checks, options.queue_name or known.queue_name)
    deadline = options.good_until if options.good_until is not None else known.good_until
    if options.good_until is None:
        check_good_until(checks, deadline)  # registered long ago: it may have passed since
    try:
        checks.finish()
    except ConfigurationError as error:
        raise TaskSendError(SendErrorCode.VALIDATION_FAILED, str(error)) from None
    priority = options.priority or known.priority or app.config.queue_priority(queue)
    good_until = deadline if isinstance(deadline, datetime) else None
    ttl = deadline if isinstance(deadline, timedelta) else None
    delay = options.delay if options.delay is not None else NO_DELAY
    # A sender by name or by stub does not know the worker's options: its row says nothing, and the registration of
    # the worker that claims it decides.
    stored = definition is not None and not definition.is_stub
    row_options = known.to_json() if stored else None
    # What this send asked for, and not what the task is registered with: that may change with a deploy between a send
    # and its repetition.
    asked = options.good_until
    identity = [
        task_name, options.queue_name, options.priority, _moment(options.eta), delay.total_seconds(),
        asked.total_seconds() if isinstance(asked, timedelta) else _moment(asked), options.unique_key,
    ]  # fmt: skip
    return Plan(
        task_name=task_name,
        queue_name=queue,
        priority=priority,
        eta=options.eta,
        delay=delay,
        good_until=good_until,
        ttl=ttl,
        max_retries=known.max_retries if stored else 0,
        task_options=row_options,
        unique_key=options.unique_key,
        task_id=options.task_id,
        fingerprint=json.dumps(identity),
    )


def _moment(value: datetime | None) -> str | None:
    """The same for the same moment, whatever the time zone that it is written in."""
    return None if value is None else value.astimezone(UTC).isoformat()


def _queue(app: "Horsies", checks: Checks, name: str | None) -> str:
    queues = app.config.queue_names
    if name is None:
        if len(queues) == 1:
            return queues[0]
        checks.add(
            "queue_name",
            f"this app has the queues {', '.join(queues)} and the task's own is not known here",
            "name one: with_options(queue_name=...)",
        )
    elif name not in queues:
        checks.add("queue_name", f"{name!r} is not a queue of this app", f"use one of: {', '.join(queues)}")
    return name or queues[0]
