"""The members of a batch and its `then`: checked, encoded, and kept as the text of their rows.

A member needs a few hundred bytes of text and no objects of its own: 100,000 of them are one list of texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from horsies._checks import Checks, a_type, shown
from horsies._text import short
from horsies.codec.errors import type_name
from horsies.errors import ConfigurationError, HorsiesError, SendErrorCode, TaskSendError
from horsies.ids import new_ids
from horsies.new_tasks import Plan, checked_plan
from horsies.options import SendOptions
from horsies.tasks import Sender, TaskCall
from horsies.uniqueness import FIELDS as UNIQUE
from horsies.workflow.batch_reading import BatchSummary
from horsies.workflow.run_start import MAX_BYTES

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.registry import TaskDefinition

MAX_MEMBERS: Final = 100_000
_OWN: Final = ("delay", "eta", "unique_key", "task_id", "connection", "keep_for", *UNIQUE)
"""Options of a call that a member cannot have: the batch starts its members, has the id and the connection, and is
deleted with all of them."""


class _Kind(NamedTuple):
    """What members of one task and one set of options share."""

    options: SendOptions
    definition: TaskDefinition
    plan: Plan
    row: str
    """Their columns, as the members of a JSON object."""


class Members:
    """All members of one batch."""

    def __init__(self, app: AppRuntime, label: str) -> None:
        self._app = app
        self._label = label
        self._kinds: dict[tuple[str, int], _Kind] = {}
        self._rows: list[str] = []
        self._sha = hashlib.sha256()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def sha(self) -> str:
        """The fingerprint of the calls and of what their senders asked for."""
        return self._sha.hexdigest()

    def add_all(self, calls: Iterable[Any], dependents: str) -> None:
        """Add these calls. `dependents`: the JSON list of the nodes that wait for them."""
        if not isinstance(calls, Iterable) or isinstance(calls, str | bytes | TaskCall):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._invalid(f"takes several calls, not {a_type(calls)}: give a list: [task.call(...), ...]")
        for at, call in enumerate(calls):
            if at == MAX_MEMBERS:
                raise self._invalid(f"has more than {MAX_MEMBERS:,} members, which is the limit: start several batches")
            self._add(at, call, dependents)
        if not self._rows:
            raise self._invalid("has no members, so that nothing would run: give at least one call")

    def _add(self, at: int, call: object, dependents: str) -> None:
        if not isinstance(call, TaskCall):
            raise self._invalid(f"member {at} is {a_type(call)}, not a call: write task.call(...)")
        made = cast("TaskCall[Any]", call)
        kind = self._kinds.get((made.task_name or "", id(made.options))) or self._kind(at, made, dependents)
        try:
            encoded = kind.definition.codec.encode_call(made.args, made.kwargs, limits=self._app.payload_limits)
            group = kind.plan.group_of(made.args, made.kwargs)
        except HorsiesError as error:
            raise self._invalid(f"member {at}: {error}") from error
        args, kwargs = encoded.args_json, encoded.kwargs_json
        # the fingerprint is that of the plain call: an encryption gives equal calls different texts
        text = f"{kind.plan.fingerprint}\0{args or ''}\0{kwargs or ''}\0".encode()
        self._sha.update(text)
        self._bytes += len(text) - len(kind.plan.fingerprint)
        if self._bytes > MAX_BYTES:
            raise self._invalid(
                f"has more than {MAX_BYTES:,} bytes of arguments up to member {at}, which is the limit: store large "
                "data elsewhere and send its address, or start several batches"
            )
        try:
            args, kwargs = self._app.envelopes.wrap_call(args, kwargs, kind.plan.task_name)
        except HorsiesError as error:
            raise self._invalid(f"member {at}: {error}") from error
        row = [f'"node_id":"member-{at}"', kind.row]
        if args is not None:
            row.append(f'"args":{_dumped(args)}')
        if kwargs is not None:
            row.append(f'"kwargs":{_dumped(kwargs)}')
        if group is not None:
            row.append(f'"group_key":{_dumped(group)}')
        self._rows.append(",".join(row))

    def _kind(self, at: int, call: TaskCall[Any], dependents: str) -> _Kind:
        name, options = call.task_name, call.options
        definition = None if name is None else self._app.registry.get(name)
        if name is None or definition is None:
            why = (
                "names no task" if name is None else f"is a call of task {short(name)!r}, which this app does not have"
            )
            raise self._invalid(f"member {at} {why}: write task.call(...) with a task of this app")
        if given := [one for one in _OWN if getattr(options, one) is not None]:
            raise self._invalid(
                f"member {at} was made by with_options({given[0]}=...), which a member cannot have: leave it out, or "
                "give it to the batch where the batch has such an option"
            )
        checks = Checks(f"member {at}")
        made = checked_plan(self._app.config, name, definition, options, checks)
        if made is None:
            raise self._invalid(f"cannot be sent: {ConfigurationError(checks.problems, subject=checks.subject)}")
        row = node_row(made, [], is_own_priority=options.priority is not None)
        kind = _Kind(options, definition, made, f'{row},"dependents":{dependents}')
        self._kinds[name, id(options)] = kind  # keeps the options, so that no others get their id
        return kind

    def _invalid(self, why: str) -> TaskSendError:
        return TaskSendError(SendErrorCode.VALIDATION_FAILED, f"{self._label} {why}")

    def texts(self) -> Iterator[str]:
        """The rows as JSON objects, with new ids of nodes and tasks."""
        ids = iter(new_ids(2 * len(self._rows)))
        return (f'{{"id":"{one}","task_id":"{next(ids)}",{row}}}' for one, row in zip(ids, self._rows, strict=False))


def node_row(plan: Plan, dependencies: list[int], *, is_own_priority: bool = False) -> str:
    """The columns of a node that its plan decides, as the members of a JSON object; those without a value are left
    out."""
    metadata = {**plan.default_metadata, **plan.metadata}
    made: dict[str, Any] = {
        "task_name": plan.task_name, "queue_name": plan.queue_name, "priority": plan.priority,
        "dependencies": dependencies, "join_type": "all", "allow_failed": False, "kind": "task",
        "task_options": plan.task_options, "max_retries": plan.max_retries,
        "good_until": plan.good_until.isoformat() if plan.good_until else None,
        "ttl": plan.ttl.total_seconds() if plan.ttl else None, "metadata": metadata or None,
        "own_priority": True if is_own_priority else None,
    }  # fmt: skip
    return _dumped({name: value for name, value in made.items() if value is not None})[1:-1]


class Then(NamedTuple):
    """The task that runs when all members have ended."""

    definition: TaskDefinition
    parameter: str
    """It takes the `BatchSummary`."""
    plan: Plan


def check_then(app: AppRuntime, task: object, checks: Checks) -> Then | None:
    """Add all problems of `then`; None when there are some."""
    if not isinstance(task, Sender):
        checks.add("then", f"is {shown(task)}, not a task", "give a task of this app: then=report")
        return None
    then = cast("Sender[Any, Any]", task)
    before = len(checks.problems)
    if then.has_options:
        checks.add("then", "the options of with_options(...) do not reach it", "give the task itself")
    if then.app is not app:
        checks.add("then", f"task {then.name!r} belongs to another app", "use a task of this app")
    signature = then.definition.codec.signature
    positional = signature.positional_only
    named = signature.positional_or_keyword
    first = next(iter((*positional, *named)), None)
    wrong = f"task {then.name!r}: "
    if positional:
        checks.add("then", f"{wrong}its first parameter is positional-only", "remove the / from its signature")
    if first is None:
        checks.add("then", f"{wrong}it takes no first parameter", "let it take a BatchSummary")
    elif first.annotation is not BatchSummary:
        told = f"{wrong}its first parameter {first.name!r} takes {type_name(first.annotation)}"
        checks.add("then", told, f"write {first.name}: BatchSummary, or put such a parameter before it")
    for parameter in (*positional, *named, *signature.keyword_only):
        if parameter is not first and parameter.required:
            told = f"{wrong}parameter {parameter.name!r} has no default, and nothing gives it a value"
            checks.add("then", told, "give it a default")
    made = checked_plan(app.config, then.name, then.definition, SendOptions(), checks)
    if made is None or first is None or len(checks.problems) > before:
        return None
    return Then(then.definition, first.name, made)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
