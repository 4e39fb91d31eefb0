"""The options of a registered task, and those of a send."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast
from unicodedata import category

from horsies._checks import Checks, key_problem, shown
from horsies.exception_codes import ExceptionMapper, check_default_code, check_exception_mapper
from horsies.groups import check_group
from horsies.metadata import RESERVED, encode
from horsies.retry import RetryPolicy
from horsies.uniqueness import OnConflict, check_unique

MAX_TIMEOUT_MS: Final = 7 * 24 * 3_600_000
MAX_DELAY: Final = timedelta(days=3650)
REGISTERED: Final = '{"registered":true'
"""The beginning of the `task_options` of a row that names only some options; the others are those of the worker's
registration. Sends by name, by stub and from SQL write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a worker runs the task. Registered with the task, and stored in each of its rows."""

    queue_name: str | None = None
    """The queue of its sends, which must be named in CUSTOM mode; None: `default`."""
    priority: int | None = None
    """1 (first) to 100 (last); None: that of its queue."""
    retry_policy: RetryPolicy | None = None
    """Which errors are retried, and when; None: none."""
    timeout_ms: int | None = None
    """How long one attempt may run before it is stopped, and ends with TASK_TIMEOUT; None: no limit."""
    good_until: datetime | timedelta | None = None
    """Until when it may start, as a moment or counted from the send, up to ten years; afterwards it ends as EXPIRED."""
    run_ahead: bool = True
    """Whether a worker may assign the task to a busy child ahead of time when it is very short. Turn it off if a
    failure without a run, after the loss of a whole worker, is worse for this task than a lower speed."""
    metadata: Mapping[str, Any] | None = None
    """What every send of the task starts with; stored in the row by itself."""
    group_by: str | Callable[..., Any] | None = None
    """The parameter, or the function of the arguments, that gives the group of a send without `group=`."""
    store_result: bool = True
    """Whether the value that the task returns is stored. Errors always are, and None is."""
    keep_for: timedelta | None = None
    """How long an ended task stays in the database; None: as long as the retention says."""
    unique_for: timedelta | None = None
    """The key stays taken for so long after the send, also when the task has ended."""
    unique_by_args: bool | None = None
    """The arguments are the key."""
    debounce: timedelta | None = None
    """A task that waits starts so long after the last send of its key, with the arguments of that."""
    max_wait: timedelta | None = None
    """But not later than so long after the first."""
    on_conflict: OnConflict | None = None
    """`replace`: a task that has not started takes the arguments and options of a further send of its key."""
    exception_mapper: ExceptionMapper | None = None
    """The error codes of exceptions that escape this task. Not stored in rows: the worker's registration decides."""
    default_unhandled_error_code: str | None = None
    """The error code of an exception that neither this task nor the app maps."""

    def check(self, checks: Checks) -> None:
        """Add all problems of these options."""
        checks.queue_name("queue_name", self.queue_name, optional=True)
        if self.exception_mapper is not None:
            object.__setattr__(self, "exception_mapper", check_exception_mapper(checks, self.exception_mapper))
        if self.default_unhandled_error_code is not None:
            check_default_code(checks, self.default_unhandled_error_code)
        checks.integer("priority", self.priority, 1, 100, optional=True)
        checks.integer("timeout_ms", self.timeout_ms, 1, MAX_TIMEOUT_MS, optional=True, unit="ms")
        checks.boolean("run_ahead", self.run_ahead)
        checks.boolean("store_result", self.store_result)
        check_keep_for(checks, self.keep_for)
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            checks.add(
                "retry_policy", "is not a RetryPolicy", "use RetryPolicy.fixed, .exponential, .intervals or .crashes"
            )
        check_good_until(checks, self.good_until)
        check_metadata(checks, self.metadata)
        check_unique(checks, self, is_whole=True)

    @property
    def max_retries(self) -> int:
        return self.retry_policy.max_retries if self.retry_policy else 0

    def to_json(self) -> str:
        """The text of `task_options`, which tells a worker with any release of the app how to run the task."""
        stored: dict[str, Any] = {}
        if self.retry_policy is not None:
            stored["retry_policy"] = self.retry_policy.to_json()
            if self.retry_policy.max_crashes is not None:
                stored["max_crashes"] = self.retry_policy.max_crashes
        if self.timeout_ms is not None:
            stored["timeout_ms"] = self.timeout_ms
        if not self.run_ahead:
            stored["run_ahead"] = False
        if not self.store_result:
            stored["store_result"] = False
        return json.dumps(stored, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "TaskOptions":
        """Read a row's options. Rows are untrusted: an unexpected value raises ValueError."""
        stored = json.loads(text)
        if not isinstance(stored, dict):
            raise ValueError("task_options is not a JSON object")
        data = cast("dict[str, Any]", stored)
        policy = data.get("retry_policy")
        options = cls(
            retry_policy=None if policy is None else RetryPolicy.from_json(policy, max_crashes=data.get("max_crashes")),
            timeout_ms=data.get("timeout_ms"),
            run_ahead=data.get("run_ahead", True),
            store_result=data.get("store_result", True),
        )
        checks = Checks("task_options")
        options.check(checks)
        checks.finish()
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """The options of a send, set by `with_options`. None: what the task, its queue or the app says."""

    priority: int | None = None
    """1 (first) to 100 (last)."""
    queue_name: str | None = None
    """A queue of the app, in place of the task's."""
    good_until: datetime | timedelta | None = None
    """Until when it may start; afterwards it ends as EXPIRED."""
    delay: timedelta | None = None
    """How long it waits before it may start, up to ten years. A number is taken as seconds."""
    eta: datetime | None = None
    """The moment from which on it may start; excludes `delay`."""
    unique_key: str | None = None
    """While a task of this name with this key has not ended, a send returns the handle of that task. 1 to 255
    characters."""
    task_id: str | None = None
    """An id of your own, for a send that you may repeat: a UUID in its canonical form."""
    connection: Any = None
    """Your own connection or session: the task exists if and only if your transaction commits."""
    metadata: Mapping[str, Any] | None = None
    """Small JSON values beside the arguments, such as the tenant."""
    group: str | None = None
    """The group that limits and turns go by, 1 to 255 characters; wins over the task's `group_by`."""
    store_result: bool | None = None
    """False: the value that the task returns is not stored."""
    keep_for: timedelta | None = None
    """How long the ended task stays in the database, in place of the retention."""
    unique_for: timedelta | None = None
    """The key stays taken for so long after the send, also when the task has ended."""
    unique_by_args: bool | None = None
    """The arguments are the key."""
    debounce: timedelta | None = None
    """A task that waits starts so long after the last send of its key, with the arguments of that."""
    max_wait: timedelta | None = None
    """But not later than so long after the first."""
    on_conflict: OnConflict | None = None
    """`replace`: a task that has not started takes the new arguments and options."""

    def check(self, checks: Checks) -> None:
        """Add all problems of these options."""
        from horsies.ids import ID_FIX, id_problem

        checks.integer("priority", self.priority, 1, 100, optional=True)
        checks.queue_name("queue_name", self.queue_name, optional=True)
        check_good_until(checks, self.good_until)
        check_delay(checks, self.delay)
        if self.eta is not None:
            _check_moment(checks, "eta", self.eta)
            if self.delay is not None:
                checks.add("eta", "cannot be combined with delay", "give one of them")
        if self.unique_key is not None and (why := key_problem(self.unique_key)) is not None:
            checks.add("unique_key", why, _key_fix(self.unique_key))
        if self.task_id is not None and (why := id_problem(self.task_id)):
            checks.add("task_id", why, ID_FIX)
        check_metadata(checks, self.metadata)
        check_group(checks, self.group)
        if self.store_result is not None:
            checks.boolean("store_result", self.store_result)
        check_keep_for(checks, self.keep_for)
        check_unique(checks, self)


def _key_fix(key: object) -> str:
    """The remedy for a unique key that `key_problem` refuses."""
    if not isinstance(key, str):
        return "give a text, such as str(...) of what the task is about"
    if not key:
        return "give a text, or None for no key"
    return "use a shorter key, or its hash" if len(key) > 255 else "leave that character out, or use a hash of the key"


def check_name(checks: Checks, field: str, name: object, *, is_sent: bool = False) -> None:
    """The rule for the names of tasks, workflows, nodes and schedules. A send by name (`is_sent`) also takes characters
    that this Python does not know yet: the worker's may be newer, and print them."""
    if not checks.text(field, name) or not isinstance(name, str):
        return
    if len(name) > 255:
        checks.add(field, f"has {len(name)} characters", "at most 255 fit the column")
    elif any(0xD800 <= ord(char) <= 0xDFFF for char in name):
        checks.add(field, "contains a lone surrogate", "give text that UTF-8 can carry")
    elif not name.strip() or not _is_printable(name, allows_unassigned=is_sent):
        checks.add(field, f"{shown(name)} is blank or not printable", "give it a short, plain name")


def _is_printable(name: str, *, allows_unassigned: bool) -> bool:
    if name.isprintable() or not allows_unassigned:
        return name.isprintable()
    return all(char.isprintable() or category(char) == "Cn" for char in name)


def check_timeout(verb: str, timeout_ms: object) -> None:
    """Refuse the `timeout_ms` of a wait that is not a whole number of milliseconds, or longer than a task may wait."""
    checks = Checks(verb)
    checks.integer("timeout_ms", timeout_ms, 0, int(MAX_DELAY.total_seconds()) * 1000, optional=True, unit="ms")
    checks.finish()


def check_good_until(checks: Checks, value: object) -> None:
    if value is None:
        return
    if isinstance(value, timedelta):
        if not timedelta(0) < value <= MAX_DELAY:
            checks.add("good_until", f"{_told(value)} is not between 0 and ten years", "give a positive timedelta")
    else:
        _check_moment(checks, "good_until", value)
        # a task with a deadline in the past would expire at once; the database's clock decides the rest
        if isinstance(value, datetime) and value.tzinfo is not None and value <= datetime.now(value.tzinfo):
            checks.add("good_until", f"{value.isoformat()} is in the past", "give a moment in the future")


def check_delay(checks: Checks, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, timedelta):
        checks.add("delay", f"is a {type(value).__name__}", "give a timedelta")
    elif not timedelta(0) <= value <= MAX_DELAY:
        checks.add("delay", f"{_told(value)} is not between 0 and ten years", "give a timedelta in that range")


def check_keep_for(checks: Checks, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, timedelta):
        checks.add("keep_for", f"is {shown(value)}", "give a timedelta, such as timedelta(days=30)")
    elif not timedelta(0) <= value <= MAX_DELAY:
        checks.add("keep_for", f"{_told(value)} is not between 0 and ten years", "give a timedelta in that range")


def _told(value: timedelta) -> str:
    """Python writes a negative timedelta as `-1 day, 23:59:55`."""
    return f"{value.total_seconds():g} seconds" if value < timedelta(0) else f"{value}"


def check_metadata(checks: Checks, value: object) -> None:
    """The rule for the metadata of tasks, sends and starts of workflows."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        checks.add("metadata", f"must be a mapping, got {shown(value)}", 'write {"tenant": "acme"}')
        return
    entries = cast("Mapping[object, object]", value)
    for key in entries:
        if not isinstance(key, str) or not key:
            why = "a key is empty" if key == "" else f"the key {shown(key)} is not a text"
            checks.add("metadata", why, "name every value by a short text")
            return
        if key.startswith(RESERVED):
            checks.add("metadata", f"the key {key!r} is reserved for horsies itself", "choose another name")
    try:
        encode(cast("Mapping[str, Any]", value))
    except ValueError as error:
        checks.add("metadata", str(error), "give small JSON values: texts, numbers, booleans, lists and objects")


def _check_moment(checks: Checks, name: str, value: object) -> None:
    if not isinstance(value, datetime):
        checks.add(name, f"is a {type(value).__name__}", "give an aware datetime or a timedelta")
    elif value.tzinfo is None or value.utcoffset() is None:
        checks.add(name, f"{value.isoformat()} has no time zone", "use datetime.now(timezone.utc) + timedelta(...)")
    elif not 1971 <= value.year < 9000:  # the schema refuses what is not from 1970 to 9000, in UTC
        checks.add(name, f"{value.isoformat()} is out of range", "give a year from 1971 to 8999, or leave it out")
