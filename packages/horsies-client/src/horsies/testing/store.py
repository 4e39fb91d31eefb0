"""The rows that a database would have: their ids and unique keys decide what a repeated send is, as in production."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from horsies._pg import foreign
from horsies._pg.enqueue import Written, require_same
from horsies.envelopes import Envelopes
from horsies.errors import SendErrorCode, TaskSendError
from horsies.metadata import decode
from horsies.new_tasks import NewTasks
from horsies.send import Send, SendOne, TaskSend
from horsies.send_calls import SendCalls
from horsies.testing.calls import Call, read_call
from horsies.testing.records import SentSignal, SentTask, StartedWorkflow
from horsies.testing.transactions import follow
from horsies.testing.unique_keys import UniqueKeys, overwrite
from horsies.workflow.run_start import RunStart
from horsies.workflow.signals import Signal

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.registry import TaskDefinition
    from horsies.testing.sends import Sends


@dataclass(slots=True, eq=False)
class TaskRow:
    """What a worker would claim."""

    sent: SentTask
    definition: "TaskDefinition | None"
    args: str | None
    kwargs: str | None
    task_options: str | None
    max_retries: int
    metadata: str | None
    sha: str | None = None
    result: str | None = None
    """As it would be stored."""


@dataclass(slots=True, eq=False)
class RunRow:
    """A run as its start writes it."""

    started: StartedWorkflow
    data: Mapping[str, Any]
    name: str
    definition_key: str
    """Of what it is now: a run may continue as another workflow."""
    result: str | None = None
    error: str | None = None
    node_texts: dict[str, str | None] = field(default_factory=dict[str, "str | None"])


@dataclass(slots=True, eq=False)
class SignalRow:
    """A signal as it is stored."""

    sent: SentSignal
    run_id: str
    """Of the run that it goes to; inside the one that was named, where it has a path."""
    value: str


Row = TaskRow | RunRow | SignalRow
Address = Callable[[Signal], tuple[str, str | None]]
"""The id of the run that a signal goes to, and why it cannot."""


class Store:
    """The rows of one `with` block."""

    def __init__(self, sends: "Sends", address: Address) -> None:
        self._sends = sends
        self._address = address
        self._lock = threading.RLock()
        self.tasks: dict[str, TaskRow] = {}
        self.runs: dict[str, RunRow] = {}
        self.keys = UniqueKeys[TaskRow]()
        self._signals: dict[str, SignalRow] = {}

    def write(self, send: Send[Any], committed: Callable[[list[Row]], None]) -> tuple[Any, list[Row]]:
        """What the send's own `write` would return, and the new rows. Rows on the caller's connection are passed to
        `committed` when its transaction commits, and are not in the list."""
        with self._lock:
            if isinstance(send, RunStart):
                written, rows = self._write_run(send)
            elif isinstance(send, Signal):
                written, rows = self._write_signal(send)
            elif isinstance(send, SendCalls):
                written, rows = self._write_calls(send)
            else:
                written, rows = self._write_tasks(send)
            for row in rows:
                self._list(row, send.app.envelopes, is_committed=send.connection is None)
        if send.connection is None or not rows:
            return written, rows
        caller = foreign.adapt(send.connection)
        # without the lock: a commit may come at once, and run the tasks
        if follow(caller, send.connection, lambda: self._commit(rows, committed), lambda: self._roll_back(rows)):
            return written, []
        for row in rows:
            self._sends.commit(id_of(row))
        return written, rows

    def add(self, row: TaskRow, call: Call) -> None:
        """A row that a worker writes: the task of a workflow's node."""
        with self._lock:
            self.tasks[row.sent.id] = row
            self._sends.add(row.sent, call)

    def release(self, row: TaskRow) -> None:
        """The task has ended: its unique key is free."""
        with self._lock:
            self.keys.release(row)

    def _write_tasks(self, send: Any) -> tuple[Any, list[Row]]:
        assert isinstance(send, TaskSend)
        one = cast("TaskSend[Any]", send)
        if (written := self._taken(one)) is not None:
            return written, []
        rows, held = self._add_tasks(send.app, [(list(range(len(send.ids))), one.tasks)])
        is_one = isinstance(send, SendOne)
        return Written(held.get(0, send.ids[0]), bool(held)) if is_one else None, rows

    def _write_calls(self, send: SendCalls) -> tuple[dict[int, str], list[Row]]:
        rows, held = self._add_tasks(send.app, send.parts)
        order = {task_id: place for place, task_id in enumerate(send.ids)}
        return held, sorted(rows, key=lambda row: order[id_of(row)])

    def _add_tasks(
        self, app: "AppRuntime", parts: Sequence[tuple[list[int], NewTasks]]
    ) -> tuple[list[Row], dict[int, str]]:
        """Add the tasks of all parts, or none: the new rows, and the calls whose unique key is held, by their places,
        with the id of the task that holds it."""
        ids: dict[str, str] = {}
        for _, tasks in parts:
            for at, task_id in enumerate(tasks.ids):
                if task_id in self.tasks:
                    require_same(tasks, at, self.tasks[task_id].sha)
                elif ids.setdefault(task_id, tasks.shas[at]) != tasks.shas[at]:
                    require_same(tasks, at, ids[task_id])
        rows: list[Row] = []
        held: dict[int, str] = {}
        for places, tasks in parts:
            self._add_part(app, places, tasks, rows, held)
        return rows, held

    def _add_part(
        self,
        app: "AppRuntime",
        places: list[int],
        tasks: NewTasks,
        rows: list[Row],
        held: dict[int, str],
    ) -> None:
        plan = tasks.plan
        for at, task_id in enumerate(tasks.ids):
            if task_id in self.tasks:
                continue
            if tasks.unique_key is not None and plan.unique is None:
                holder = self.keys.live(plan.task_name, tasks.unique_key)
                if holder is not None and holder.sent.id != task_id:
                    held[places[at]] = holder.sent.id
                    continue
            row = self.tasks[task_id] = _row(app, tasks, at)
            if tasks.unique_key is not None:
                self.keys.take(row, tasks.unique_key, plan.unique)
            rows.append(row)

    def _taken(self, send: TaskSend[Any]) -> Written | None:
        """What a send with `unique_for`, `debounce` or `on_conflict="replace"` gets if its key is taken."""
        tasks, plan, key = send.tasks, send.tasks.plan, send.tasks.unique_key
        if key is None or plan.unique is None or tasks.ids[0] in self.tasks:
            return None
        verdict = self.keys.judge(tasks, plan.unique, key)
        if verdict.row is None:
            return None
        if verdict.outcome == "replaced":
            self._replace(verdict.row, send)
        return Written(verdict.row.sent.id, True)

    def _replace(self, row: TaskRow, send: TaskSend[Any]) -> None:
        """Let a task that waits take over what this send brings."""
        new, kept = _row(send.app, send.tasks, 0), set[str]()
        unique = send.tasks.plan.unique
        if unique is not None and unique.mode == "replace" and unique.delay is None and new.sent.eta is None:
            kept = {"delay", "eta"}
        undo_sent = overwrite(row.sent, new.sent, keep=frozenset({"id", *kept}))
        undo_row = overwrite(row, new, keep=frozenset({"sent", "sha"}))
        self._show(row, send.app.envelopes)

        def roll_back() -> None:
            with self._lock:
                undo_sent()
                undo_row()
                self._show(row, send.app.envelopes)

        if send.connection is not None:
            follow(foreign.adapt(send.connection), send.connection, lambda: None, roll_back)

    def _show(self, row: TaskRow, envelopes: Envelopes) -> None:
        call = read_call(row.definition, row.args, row.kwargs, envelopes, task_name=row.sent.task_name)
        self._sends.add(row.sent, call)

    def _write_run(self, start: RunStart[Any]) -> tuple[str | None, list[Row]]:
        _, (text,) = start.statement()
        data: dict[str, Any] = json.loads(text)
        before = self.runs.get(data["id"])
        if before is not None:
            if before.data["enqueue_sha"] != data["enqueue_sha"]:
                raise TaskSendError(
                    SendErrorCode.PAYLOAD_MISMATCH,
                    f"workflow id {data['id']} is taken by another graph or other arguments; it was left untouched",
                    task_ids=[data["id"]],
                )
            return None, []
        name, key = data["name"], data["unique_key"]
        if key is not None:
            for run in self.runs.values():
                if (run.name, run.started.unique_key) == (name, key) and not run.started.status.is_terminal:
                    return run.started.id, []
        started = StartedWorkflow(
            data["id"], name, data["metadata"] or {}, tuple(node["node_id"] for node in data["nodes"]),
            data["group_key"], data["priority"], key, _given(data, "start_at"), _given(data, "deadline"),
        )  # fmt: skip
        row = RunRow(started, data, name, data["definition_key"])
        self.runs[data["id"]] = row
        return None, [row]

    def _write_signal(self, signal: Signal) -> tuple[str, list[Row]]:
        """In the order in which the database looks: an id that is taken counts before a run that has ended."""
        run_id, refusal = self._address(signal)
        if refusal not in (None, "WORKFLOW_ENDED"):
            return refusal, []
        (signal_id,) = signal.ids
        if signal_id in self._signals:
            return "REPEATED", []
        if refusal is not None:
            return refusal, []
        value = json.loads(signal.app.envelopes.unwrap(signal.value))
        sent = SentSignal(signal_id, signal.workflow_id, signal.name, value, signal.path)
        row = self._signals[signal_id] = SignalRow(sent, run_id, signal.value)
        return "DELIVERED", [row]

    # -- the caller's transaction ----------------------------------------------------------------

    def _commit(self, rows: list[Row], committed: Callable[[list[Row]], None]) -> None:
        for row in rows:
            self._sends.commit(id_of(row))
        committed(rows)

    def _roll_back(self, rows: list[Row]) -> None:
        with self._lock:
            for row in rows:
                self._sends.remove(id_of(row))
                self.runs.pop(id_of(row), None)
                self._signals.pop(id_of(row), None)
                if self.tasks.pop(id_of(row), None) is not None and isinstance(row, TaskRow):
                    self.keys.forget(row)

    def _list(self, row: Row, envelopes: Envelopes, *, is_committed: bool) -> None:
        if isinstance(row, RunRow):
            self._sends.add_run(row.started, is_committed=is_committed)
        elif isinstance(row, SignalRow):
            self._sends.add_signal(row.sent, is_committed=is_committed)
        else:
            call = read_call(row.definition, row.args, row.kwargs, envelopes, task_name=row.sent.task_name)
            self._sends.add(row.sent, call, is_committed=is_committed)


def _row(app: "AppRuntime", tasks: NewTasks, at: int) -> TaskRow:
    """The task of one call of a send."""
    plan = tasks.plan
    definition = app.registry.get(plan.task_name)
    call = read_call(definition, tasks.args[at], tasks.kwargs[at], app.envelopes, task_name=plan.task_name)
    delay = plan.delay if plan.unique is None else plan.unique.debounce or plan.unique.delay
    sent = SentTask(
        id=tasks.ids[at], task_name=plan.task_name, args=call.args, kwargs=call.kwargs, arguments=call.arguments,
        queue_name=plan.queue_name, priority=plan.priority, delay=delay or None, eta=plan.eta,
        good_until=plan.good_until or plan.ttl, unique_key=tasks.unique_key, metadata=decode(tasks.metadata),
        group=tasks.groups[at] if tasks.groups is not None else None, store_result=plan.stores_result,
        keep_for=None if plan.keep_seconds is None else timedelta(seconds=plan.keep_seconds),
    )  # fmt: skip
    return TaskRow(sent, definition, tasks.args[at], tasks.kwargs[at], plan.task_options, plan.max_retries,
                   tasks.metadata, tasks.shas[at])  # fmt: skip


def id_of(row: Row) -> str:
    return row.started.id if isinstance(row, RunRow) else row.sent.id


_SECONDS: Final = {"start_at": "start_in", "deadline": "deadline_in"}


def moment_of(data: Mapping[str, Any], name: str, since: datetime) -> datetime | None:
    """`start_at` or `deadline` of a run; one that was told in seconds counts from `since`."""
    given = _given(data, name)
    return since + given if isinstance(given, timedelta) else given


def _given(data: Mapping[str, Any], name: str) -> datetime | timedelta | None:
    if data.get(name) is not None:
        return datetime.fromisoformat(data[name])
    seconds: float | None = data.get(_SECONDS[name])
    return None if seconds is None else timedelta(seconds=seconds)
