"""`inline`: runs every send at once, in this process, with the worker's own parts."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from horsies._awaited import Awaited
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.handle import TaskHandle
from horsies.result import TaskFailed
from horsies.send import Send
from horsies.status import TaskStatus, WorkflowStatus
from horsies.testing.attempts import in_thread, off_the_loop, require_worker, run_row
from horsies.testing.modes import Mode, installed
from horsies.testing.sends import Sends
from horsies.testing.store import Row, RunRow, TaskRow

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen


@contextmanager
def inline(app: Horsies, *, raise_errors: bool = False) -> Generator[Sends]:
    """Inside the block, every send of this app runs before `send` returns, and `handle.get()` has its result.

    Retries follow at once; their delays, and those of the send, are recorded in its `SentTask`. Workflows run node by
    node. With `raise_errors`, a send whose task fails in the end raises the task's own exception, or `TaskFailed` for
    an err that it returned; so does the start of a workflow that fails.
    """
    require_worker("inline")
    mode = Inlining(app, raise_errors=raise_errors)
    with installed(app, mode):
        yield mode.sends


class Inlining(Mode):
    def __init__(self, app: Horsies, *, raise_errors: bool) -> None:
        super().__init__(app)
        self._raise_errors = raise_errors

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
        for handle in cast("list[Awaited[Any]]", sent if isinstance(sent, list) else [sent]):
            seen = self.look(handle.sent_id, is_workflow=not isinstance(handle, TaskHandle))
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
        errors = [self._run_workflow(row) if isinstance(row, RunRow) else self._run_task(row) for row in rows]
        if self._raise_errors:  # after all of them: the tasks of a send_many do not depend on each other
            for error in errors:
                if error is not None:
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

    def _run_workflow(self, row: RunRow) -> BaseException | None:
        from horsies.testing.runs import Runs

        runs = Runs(self.app, self.store, self._run_task)
        runs.run(row)
        if row.started.status is not WorkflowStatus.FAILED or row.started.error is None:
            return None
        failed = TaskFailed(row.started.error)
        failed.__cause__ = runs.first_error
        return failed

    # -- what is a StandIn -----------------------------------------------------------------------

    def look(self, sent_id: str, *, is_workflow: bool) -> "Seen | None":
        from horsies._pg.waiters import Seen

        if not self.sends.is_committed(sent_id):
            return None
        if is_workflow:
            run = self.store.runs.get(sent_id)
            if run is None:
                return None
            return Seen(run.started.name, run.started.status, run.result or run.error, run.data["definition_key"])
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
