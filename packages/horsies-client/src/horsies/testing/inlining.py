"""`inline`: runs every send at once, in this process, with the worker's own parts."""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from horsies._awaited import Awaited
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.handle import TaskHandle
from horsies.result import TaskFailed
from horsies.send import Send
from horsies.status import TaskStatus, WorkflowStatus
from horsies.testing.attempts import require_worker, run_row
from horsies.testing.modes import Mode, installed
from horsies.testing.sends import Sends
from horsies.testing.store import Row, RunRow, SignalRow, TaskRow
from horsies.testing.threads import in_thread, off_the_loop
from horsies.workflow.signals import SignalReceipt

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies.testing.runs import Runs
    from horsies.workflow.signals import Signal


@contextmanager
def inline(app: Horsies, *, raise_errors: bool = False) -> Generator[Sends]:
    """Inside the block, every send of this app runs before `send` returns, and `handle.get()` has its result.

    Retries follow at once; their delays, and those of the send, are recorded in its `SentTask`. Workflows run node by
    node; a sleep ends at once, and a run that waits for a signal goes on with `handle.signal(...)`. With
    `raise_errors`, a send whose task fails in the end raises the task's own exception, or `TaskFailed` for an err that
    it returned; so does the start, the signal or the `advance` with which a workflow fails.
    """
    require_worker("inline")
    mode = Inlining(app, raise_errors=raise_errors)
    with installed(app, mode):
        yield mode.sends


class Inlining(Mode):
    def __init__(self, app: Horsies, *, raise_errors: bool) -> None:
        super().__init__(app)
        self._raise_errors = raise_errors
        self._handles: dict[str, list[Awaited[Any]]] = {}
        """Of runs that have not ended: they keep the result when those end."""
        self._trees: list[Runs] = []
        """Of the runs that were started."""
        self._offset = timedelta(0)
        """The time that the test has let pass."""
        self.sends.clock = self
        self.store.keys.now = lambda: datetime.now(UTC) + self._offset

    def send(self, send: Send[Any]) -> Any:
        sent = super().send(send)
        self._keep(sent)
        return sent

    async def send_async(self, send: Send[Any]) -> Any:
        sent = await super().send_async(send)
        self._keep(sent)
        return sent

    def _keep(self, sent: Any) -> None:
        """Let the handles keep their results, for a test that asks them after the block."""
        if isinstance(sent, SignalReceipt):
            return
        for handle in cast("list[Awaited[Any]]", sent if isinstance(sent, list) else [sent]):
            is_workflow = not isinstance(handle, TaskHandle)
            if is_workflow:
                self._handles.setdefault(handle.sent_id, []).append(handle)
            seen = self.look(handle.sent_id, is_workflow=is_workflow)
            if seen is not None:
                handle.keep(seen)

    # -- running ---------------------------------------------------------------------------------

    def follow_up(self, rows: list[Row]) -> None:
        off_the_loop(partial(self._run, rows))

    async def follow_up_async(self, rows: list[Row]) -> None:
        await in_thread(partial(self._run, rows))

    def committed(self, rows: list[Row]) -> None:
        self.follow_up(rows)

    def _run(self, rows: list[Row]) -> None:
        self._raise(self._run_task(row) if isinstance(row, TaskRow) else self._move_run(row) for row in rows)

    def _raise(self, errors: Iterable[BaseException | None]) -> None:
        # after all of them: the tasks of a send_many do not depend on each other
        for error in list(errors):
            if error is not None and self._raise_errors:
                raise error

    def _run_task(self, row: TaskRow) -> BaseException | None:
        """Run a task to its end; returns why it failed."""
        try:
            outcome = run_row(self.app, row)
        finally:
            self.store.release(row)
        if row.sent.status is TaskStatus.COMPLETED:
            return None
        failed = row.sent.result
        return outcome.exception or (TaskFailed(failed.err) if failed is not None and failed.err is not None else None)

    def _move_run(self, row: RunRow | SignalRow) -> BaseException | None:
        """Start a run, or give it a signal; returns why it failed."""
        if isinstance(row, RunRow):
            from horsies.testing.runs import Runs

            tree = Runs(self.app, self.store, self._run_task, row, datetime.now(UTC) + self._offset)
            self._trees.append(tree)
            return self._watched(tree, tree.drive)
        tree = next(tree for tree in self._trees if row.run_id in tree.by_id)
        return self._watched(tree, partial(tree.signal, row.run_id, row.sent.name, row.value))

    def _watched(self, tree: "Runs", move: Callable[[], None]) -> BaseException | None:
        """Move a run; returns why it has failed with that."""
        if tree.row.started.status.is_terminal:
            return None
        move()
        started = tree.row.started
        if started.status.is_terminal:
            self._keep(self._handles.pop(started.id, []))
        if started.status is not WorkflowStatus.FAILED or started.error is None:
            return None
        failed = TaskFailed(started.error)
        failed.__cause__ = tree.first_error
        return failed

    # -- time ------------------------------------------------------------------------------------

    def advance(self, time: timedelta) -> None:
        off_the_loop(partial(self._advance, time))

    async def advance_async(self, time: timedelta) -> None:
        await in_thread(partial(self._advance, time))

    def _advance(self, time: timedelta) -> None:
        self._offset += time
        self._raise([self._watched(tree, partial(tree.advance, time)) for tree in list(self._trees)])

    # -- signals ---------------------------------------------------------------------------------

    def address(self, signal: "Signal") -> tuple[str, str | None]:
        """As the function `horsies_signal` finds it."""
        run_id = signal.workflow_id
        is_seen = signal.connection is not None or self.sends.is_committed(run_id)
        tree = next((tree for tree in self._trees if run_id in tree.by_id), None)
        if tree is None:  # a start whose transaction has not committed
            is_known = run_id in self.store.runs and is_seen
            return run_id, "NOT_STARTED" if is_known and signal.path else None if is_known else "WORKFLOW_NOT_FOUND"
        run = tree.by_id[run_id]
        for part in (signal.path or "").split("/"):
            if not part:
                continue
            node = run.by_id.get(re.sub(r"^item\[(\d+)\]$", r"item-\1", part))
            if node is None or node.child is None:
                return run.id, "NODE_NOT_FOUND" if node is None else "NOT_STARTED"
            run = node.child
        return run.id, None if run.is_open else "WORKFLOW_ENDED"

    # -- what is a StandIn -----------------------------------------------------------------------

    def look(self, sent_id: str, *, is_workflow: bool) -> "Seen | None":
        from horsies._pg.waiters import Seen

        if not self.sends.is_committed(sent_id):
            return None
        if is_workflow:
            run = self.store.runs.get(sent_id)
            if run is None:
                return None
            return Seen(run.name, run.started.status, run.result or run.error, run.definition_key)
        task = self.store.tasks.get(sent_id)
        return None if task is None else Seen(task.sent.task_name, task.sent.status, task.result)

    def node_texts(self, workflow_id: str, node_ids: Sequence[str] | None) -> Mapping[str, str | None]:
        run = self.store.runs.get(workflow_id)
        texts = {} if run is None else run.node_texts
        return {node_id: text for node_id, text in texts.items() if node_ids is None or node_id in node_ids}

    def refusal(self, what: str) -> UsageError:
        return UsageError(
            f"inside testing.inline {what} cannot be used: sends run in this process, and no database is asked. "
            "handle.get() works, status(), results() and result_for() of a workflow's handle, and the records in sends"
        )
