"""The rows that a database would have: their ids and unique keys decide what a repeated send is, as in production."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from horsies._pg import foreign
from horsies._pg.enqueue import Written, require_same
from horsies.errors import SendErrorCode, TaskSendError
from horsies.metadata import decode
from horsies.send import Send, SendOne, TaskSend
from horsies.testing.calls import Call, read_call
from horsies.testing.records import SentSignal, SentTask, StartedWorkflow
from horsies.testing.transactions import follow
from horsies.workflow.run_start import RunStart
from horsies.workflow.signals import Signal

if TYPE_CHECKING:
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
        self._keys: dict[tuple[str, str], TaskRow] = {}
        self._signals: dict[str, SignalRow] = {}

    def write(self, send: Send[Any], committed: Callable[[list[Row]], None]) -> tuple[Any, list[Row]]:
        """What the send's own `write` would return, and the new rows. Rows on the caller's connection are passed to
        `committed` when its transaction commits, and are not in the list."""
        with self._lock:
            if isinstance(send, RunStart):
                written, rows = self._write_run(send)
            elif isinstance(send, Signal):
                written, rows = self._write_signal(send)
            else:
                written, rows = self._write_tasks(send)
            for row in rows:
                self._list(row, is_committed=send.connection is None)
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
            key = row.sent.task_name, row.sent.unique_key or ""
            if self._keys.get(key) is row:
                del self._keys[key]

    def _write_tasks(self, send: Any) -> tuple[Any, list[Row]]:
        assert isinstance(send, TaskSend)
        tasks, plan = send.tasks, send.tasks.plan
        if plan.unique_key is not None:
            holder = self._keys.get((plan.task_name, plan.unique_key))
            if holder is not None and holder.sent.id != tasks.ids[0]:
                return Written(holder.sent.id, True), []
        for at, task_id in enumerate(tasks.ids):
            if task_id in self.tasks:
                require_same(tasks, at, self.tasks[task_id].sha)
        definition = send.app.registry.get(plan.task_name)
        rows: list[Row] = []
        for at, task_id in enumerate(tasks.ids):
            if task_id in self.tasks:
                continue
            call = read_call(definition, tasks.args[at], tasks.kwargs[at])
            sent = SentTask(
                id=task_id, task_name=plan.task_name, args=call.args, kwargs=call.kwargs, arguments=call.arguments,
                queue_name=plan.queue_name, priority=plan.priority, delay=plan.delay or None, eta=plan.eta,
                good_until=plan.good_until or plan.ttl, unique_key=plan.unique_key, metadata=decode(tasks.metadata),
                group=tasks.groups[at] if tasks.groups is not None else None,
            )  # fmt: skip
            row = TaskRow(sent, definition, tasks.args[at], tasks.kwargs[at], plan.task_options, plan.max_retries,
                          tasks.metadata, tasks.shas[at])  # fmt: skip
            self.tasks[task_id] = row
            if plan.unique_key is not None:
                self._keys[plan.task_name, plan.unique_key] = row
            rows.append(row)
        return Written(tasks.ids[0], False) if isinstance(send, SendOne) else None, rows

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
        sent = SentSignal(signal_id, signal.workflow_id, signal.name, json.loads(signal.value), signal.path)
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
                    self.release(row)

    def _list(self, row: Row, *, is_committed: bool) -> None:
        if isinstance(row, RunRow):
            self._sends.add_run(row.started, is_committed=is_committed)
        elif isinstance(row, SignalRow):
            self._sends.add_signal(row.sent, is_committed=is_committed)
        else:
            call = read_call(row.definition, row.args, row.kwargs)
            self._sends.add(row.sent, call, is_committed=is_committed)


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
