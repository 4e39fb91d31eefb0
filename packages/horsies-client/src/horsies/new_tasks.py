"""Tasks that are about to be written: a call and its options, validated and turned into the columns of rows.

The id and the fingerprint (`enqueue_sha`) are made before the first statement is sent, so every send can be repeated:
by the client after a lost connection, by the caller with `.retry()`, by a job that runs twice with its own `task_id`.
The same fingerprint under the same id is success, another one is PAYLOAD_MISMATCH.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from horsies._checks import Checks
from horsies._text import short
from horsies.envelopes import Envelopes, has_mark
from horsies.errors import ConfigurationError, SendErrorCode, TaskSendError
from horsies.groups import plain
from horsies.ids import new_id, new_ids
from horsies.metadata import NOTHING
from horsies.options import REGISTERED, SendOptions, TaskOptions, check_good_until
from horsies.payload_codec import PayloadCodec, PayloadError
from horsies.uniqueness import Uniqueness, asked_unique, merged

if TYPE_CHECKING:
    from horsies.codec import EncodedCall
    from horsies.config import AppConfig
    from horsies.groups import GroupBy
    from horsies.registry import TaskDefinition

NO_DELAY: Final = timedelta(0)
_NO_OPTIONS: Final = TaskOptions()


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
    keep_seconds: int | None = None
    """How long the ended task stays; None: as long as the retention says."""
    group_by: "GroupBy | None" = field(default=None, compare=False)
    """Of the registration; None if the send names the group. Not compared: it is made anew when a module is imported
    again."""
    unique: Uniqueness | None = None
    """What the send does when its key is taken; None: what `unique_key` alone does."""
    by_args: bool = False
    """The arguments are the key."""

    @property
    def stores_result(self) -> bool:
        """False if the row says that the value is not to be stored; the worker's registration may say so as well."""
        return '"store_result":false' not in (self.task_options or "")

    def kind(self, metadata: str | None, unique_key: str | None) -> str:
        """The columns for `horsies_send_calls` as a JSON object, without those that have no value. `metadata`: JSON."""
        made = {
            "task_name": self.task_name, "queue_name": self.queue_name, "priority": self.priority,
            "eta": self.eta and self.eta.isoformat(), "delay": self.delay.total_seconds() or None,
            "good_until": self.good_until and self.good_until.isoformat(),
            "ttl": self.ttl and self.ttl.total_seconds(), "max_retries": self.max_retries or None,
            "task_options": self.task_options, "unique_key": unique_key, "keep_seconds": self.keep_seconds,
        }  # fmt: skip
        text = json.dumps({name: value for name, value in made.items() if value is not None}, ensure_ascii=False)
        return text if metadata is None else f'{text[:-1]},"metadata":{metadata}}}'

    payload_codec: PayloadCodec | None = field(default=None, compare=False)

    def group_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The group of a call, whose arguments fit the task. Raises GroupError."""
        return self.group if self.group_by is None else self.group_by.of(args, kwargs)

    def key_of(self, definition: "TaskDefinition | None", call: "EncodedCall") -> str | None:
        """The unique key of a call. Raises TaskSendError when the app's payload codec fails."""
        if not self.by_args or definition is None:
            return self.unique_key
        from horsies.codec.canonical import key_of_call

        # a keyed hash of the app's codec: the plain one would tell which calls have equal arguments
        try:
            return fingerprint(self.payload_codec, key_of_call(definition.codec, call))
        except PayloadError as error:
            why = f"task {self.task_name!r}: its arguments give no unique key: {error}"
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, why) from error

    def tasks(
        self,
        calls: "Sequence[EncodedCall]",
        groups: list[str | None] | None = None,
        unique_key: str | None = None,
        ids: list[str] | None = None,
    ) -> "NewTasks":
        """The rows of these calls. `groups` has the group of each; None: no call has one. `unique_key`: of the only
        call. `ids`: those of a caller that has made them. Raises TaskSendError when the app's payload codec fails."""
        made = NewTasks(
            plan=self,
            ids=ids or (new_ids(len(calls)) if len(calls) != 1 else [self.task_id or new_id()]),
            args=[call.args_json for call in calls],
            kwargs=[call.kwargs_json for call in calls],
            shas=[_sha(self.fingerprint, call.args_json, call.kwargs_json) for call in calls],
            sent_at=datetime.now(UTC),
            groups=groups,
            unique_key=unique_key,
        )
        codec = self.payload_codec
        if codec is None and not has_mark(made.kwargs) and not has_mark(made.args):
            return made
        return self._encoded(made, codec)

    def _encoded(self, tasks: "NewTasks", codec: PayloadCodec | None) -> "NewTasks":
        """The same tasks with encoded arguments. The fingerprints are those of the plain ones: an encryption gives
        equal calls different texts."""
        envelopes = Envelopes(codec)
        try:
            calls = [envelopes.wrap_call(*call, self.task_name) for call in zip(tasks.args, tasks.kwargs, strict=True)]
            shas = [fingerprint(codec, sha) for sha in tasks.shas]
        except PayloadError as error:
            why = f"task {self.task_name!r}: its arguments cannot be stored: {error}"
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, why) from error
        others = tasks.shas
        if codec is None:
            others = [self.older_sha(*call) for call in zip(tasks.args, tasks.kwargs, strict=True)]
        return tasks._replace(
            args=[args for args, _ in calls], kwargs=[kwargs for _, kwargs in calls], shas=shas, other_shas=others
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
    unique_key: str | None = None
    """Of the only task."""
    other_shas: list[str] | None = None
    """Of calls in envelopes: the fingerprints that apps without their payload codec give the same calls, or, without
    one, older releases."""


def fingerprint(codec: PayloadCodec | None, sha: str) -> str:
    """What is stored of the digest of a send or a start: the digest, or the keyed hash of the app's payload codec.
    Raises PayloadError."""
    if codec is None:
        return sha
    try:
        found = codec.fingerprint(sha.encode())
    except PayloadError as error:
        raise PayloadError(f"payload codec {codec.name!r} gives no fingerprint: {error}") from None
    except Exception as error:  # user code: its message may repeat a key
        raise PayloadError(f"payload codec {codec.name!r} gives no fingerprint: {type(error).__name__}") from None
    if found is None:
        return sha
    if not isinstance(found, str) or len(found) < 16 or not found.isascii() or not found.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance] # user code
        raise PayloadError(
            "the fingerprint of a payload codec is a text of at least 16 characters, such as hexdigest()"
        )
    return found[: len(sha)]


def plan(config: "AppConfig", task_name: str, definition: "TaskDefinition | None", options: SendOptions) -> Plan:
    """Resolve queue, priority and times for a send. `definition` is None for a task that only the worker knows."""
    checks = Checks(f"send of task {task_name!r}")
    made = sender_plan(config, task_name, definition, options, checks)
    if made is None:
        raise TaskSendError(
            SendErrorCode.VALIDATION_FAILED, str(ConfigurationError(checks.problems, subject=checks.subject))
        )
    return made


def sender_plan(
    config: "AppConfig", task_name: str, definition: "TaskDefinition | None", options: SendOptions, checks: Checks
) -> Plan | None:
    """The same for a call of `app.send_many`, which tells its problems itself. None when there are some."""
    made = checked_plan(config, task_name, definition, options, checks)
    if made is None:
        return None
    # Nodes, members of batches and schedules ignore these options: other sends must not replace or drop one of them.
    known = definition.options if definition is not None else _NO_OPTIONS
    by_args, unique = merged(checks, options, known, is_typed=definition is not None)
    if not checks.problems and unique is not None and unique.debounce is not None:
        _check_order(checks, unique.debounce, made.good_until or made.ttl)
    if checks.problems:
        return None
    return made if unique is None and not by_args else replace(made, unique=unique, by_args=by_args)


def checked_plan(
    config: "AppConfig", task_name: str, definition: "TaskDefinition | None", options: SendOptions, checks: Checks
) -> Plan | None:
    """The same for a node, a member of a batch or a schedule: without unique keys. None when there are problems."""
    options.check(checks)
    known = definition.options if definition is not None else TaskOptions()
    queue = _queue(config.queue_names, checks, options.queue_name or known.queue_name)
    deadline = options.good_until if options.good_until is not None else known.good_until
    if options.good_until is None:
        check_good_until(checks, deadline)  # it may have passed since the task was registered
    if not checks.problems:
        _check_order(checks, options.delay if options.eta is None else options.eta, deadline)
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
        *_asked_group(group), *_asked_storage(options), *asked_unique(options),
    ]  # fmt: skip
    keep_for = options.keep_for if options.keep_for is not None else known.keep_for
    return Plan(
        task_name=task_name,
        queue_name=queue,
        priority=options.priority or known.priority or config.queue_priority(queue),
        eta=options.eta,
        delay=delay,
        good_until=deadline if isinstance(deadline, datetime) else None,
        ttl=deadline if isinstance(deadline, timedelta) else None,
        max_retries=known.max_retries if stored else 0,
        task_options=_task_options(known, options.store_result, is_registered_here=stored),
        unique_key=options.unique_key,
        task_id=options.task_id,
        fingerprint=json.dumps(identity),
        metadata=options.metadata or NOTHING,
        default_metadata=known.metadata or NOTHING,
        group=group,
        keep_seconds=None if keep_for is None else ceil(keep_for.total_seconds()),
        group_by=definition.group_by if definition is not None and group is None else None,
        payload_codec=config.payload_codec,
    )


def _check_order(checks: Checks, start: datetime | timedelta | None, deadline: datetime | timedelta | None) -> None:
    """Refuse a task that would expire before it may start. The options themselves are valid."""
    if start is None or deadline is None:
        return
    now = datetime.now(UTC)
    # in UTC: Python compares the wall clocks of two times that share their tzinfo, also where the clock is put back
    starts_at, ends_at = (
        value.astimezone(UTC) if isinstance(value, datetime) else now + value for value in (start, deadline)
    )
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


def _asked_storage(options: SendOptions) -> tuple[str, ...]:
    """What a fingerprint has of `store_result=` and `keep_for=`: nothing where a send does not name them."""
    store, keep = options.store_result, options.keep_for
    return (
        *(() if store is None else (f"store {store}",)),
        *(() if keep is None else (f"keep {keep.total_seconds():g}",)),
    )


def _task_options(known: TaskOptions, store_result: bool | None, *, is_registered_here: bool) -> str | None:
    """What the row tells the worker of the options. A sender that does not have the registration names only what it was
    asked for."""
    if not is_registered_here:
        return None if store_result is None else f'{REGISTERED},"store_result":{"true" if store_result else "false"}}}'
    return (known if store_result is None else replace(known, store_result=store_result)).to_json()


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
