"""`BatchHandle`: a batch, by its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies._awaited import Awaited, err
from horsies.errors import OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.result import TaskError, TaskResult
from horsies.status import NodeStatus, WorkflowStatus

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies._runtime import AppRuntime
    from horsies.codec import TaskCodec
    from horsies.workflow.batch_reading import BatchProgress
    from horsies.workflow.run_options import Moment

R_co = TypeVar("R_co", covariant=True)
PAGE: Final = 500
"""Results per statement."""


class BatchHandle(Awaited[R_co]):
    """Refers to a batch by its id. `app.batch_handle(batch_id)` makes another one in any process."""

    __slots__ = ("_codec", "_ended_as", "batch_id")

    _is_workflow = True
    _not_found = RetrievalCode.WORKFLOW_NOT_FOUND

    def __init__(self, app: AppRuntime, batch_id: str, *, codec: TaskCodec | None = None) -> None:
        self._app = app
        self._result = None
        self._codec = codec
        self._ended_as: WorkflowStatus | None = None
        self.batch_id = batch_id

    def __repr__(self) -> str:
        return f"<BatchHandle {self.batch_id}>"

    @property
    def _id(self) -> str:
        return self.batch_id

    @property
    def _kind(self) -> str:
        return "batch"

    # -- the whole -------------------------------------------------------------------------------

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[R_co, TaskError]:
        """See `get`. The result is that of `then`; without `then`, it is ok None once all members have ended."""
        result = await super().get_async(timeout_ms)
        if self._ended_as is not None and self._app.stand_in is None:
            try:
                result = await self._read_then(result)
            except Exception as error:
                self._result = None
                return self._broker_error(error)
            self._result = result if result.is_ok() else None  # what failed may be retried
        return result

    async def _read_then(self, result: TaskResult[Any, TaskError]) -> TaskResult[Any, TaskError]:
        """Replace what the run says by what `then` says: its own error, and its value by its type."""
        status, self._ended_as = self._ended_as, None
        is_failed = result.err is not None and result.err.error_code == OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET
        if not is_failed and (status is not WorkflowStatus.COMPLETED or self._codec is not None):
            return result
        row = await self._app.get_broker().batches.then(self.batch_id)
        if row is not None and row["result"] is not None:
            return self._read(row["task_name"], row["result"])
        return result

    def _decode(self, ended: Seen) -> TaskResult[Any, TaskError]:
        self._ended_as = WorkflowStatus(ended.status)
        return self._decoded(ended, self._codec)

    def status(self) -> WorkflowStatus | None:
        """The state of the batch; None when there is no such batch. It is COMPLETED when `then` has completed, FAILED
        when `then` has failed. Without `then` it is COMPLETED when all members have ended. Members that fail do not
        fail it."""
        return self._app.run_sync("status", self.status_async)

    async def status_async(self) -> WorkflowStatus | None:
        """See `status`."""
        if self._app.stand_in is not None:
            seen = self._app.stand_in.look(self.batch_id, is_workflow=True)
            return None if seen is None else WorkflowStatus(seen.status)
        info = await self._app.get_broker().workflows.info(self.batch_id)
        return None if info is None else info.status

    def progress(self) -> BatchProgress | None:
        """How many members have ended, and how; None when there is no such batch."""
        return self._app.run_sync("progress", self.progress_async)

    async def progress_async(self) -> BatchProgress | None:
        """See `progress`."""
        return await self._app.get_broker().batches.progress(self.batch_id)

    # -- members ---------------------------------------------------------------------------------

    def results(self) -> Iterator[TaskResult[Any, TaskError]]:
        """The results of the members, in their order, read page by page. A member that has not ended has an err
        RESULT_NOT_READY."""
        after: int | None = -1
        while after is not None:
            page, after = self._app.run_sync("results", lambda at=after: self._page(at))
            yield from page

    async def results_async(self) -> AsyncIterator[TaskResult[Any, TaskError]]:
        """See `results`: `async for result in batch.results_async()`."""
        after: int | None = -1
        while after is not None:
            page, after = await self._page(after)
            for result in page:
                yield result

    async def _page(self, after: int) -> tuple[Sequence[TaskResult[Any, TaskError]], int | None]:
        """The results behind this index, and the index for the next page; None: there is none."""
        if self._app.stand_in is not None:
            texts = self._app.stand_in.node_texts(self.batch_id, None)
            return [self._untyped(text) for node_id, text in texts.items() if node_id != THEN], None
        rows = await self._app.get_broker().batches.results(self.batch_id, after, PAGE)
        return [self._member(row) for row in rows], rows[-1]["task_index"] if len(rows) == PAGE else None

    def _untyped(self, text: str | None) -> TaskResult[Any, TaskError]:
        from horsies.codec import decode_untyped_result

        return _not_ready() if text is None else decode_untyped_result(self._app.envelopes.unwrap_result(text))

    def _member(self, row: Mapping[str, Any]) -> TaskResult[Any, TaskError]:
        status = NodeStatus(row["status"])
        if not status.is_terminal:
            return _not_ready()
        if row["result"] is None:
            return err(RetrievalCode.RESULT_NOT_AVAILABLE, f"the member is {status} without a stored result")
        return self._read(row["task_name"], row["result"])

    def _read(self, task_name: str, text: str) -> TaskResult[Any, TaskError]:
        from horsies.codec import DecodeError, decode_untyped_result

        definition = self._app.registry.get(task_name)
        text = self._app.envelopes.unwrap_result(text)
        try:
            if definition is None:
                return decode_untyped_result(text, task_name=task_name)
            return definition.codec.decode_result(text)
        except DecodeError as error:
            return err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))

    # -- acting ----------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Start no more members; running ones go on. False when the batch was not running."""
        return self._app.run_sync("pause", self.pause_async)

    async def pause_async(self) -> bool:
        """See `pause`."""
        return await self._app.get_broker().workflows.pause(self.batch_id)

    def resume(self) -> bool:
        """Go on with a paused batch. False when it was not paused."""
        return self._app.run_sync("resume", self.resume_async)

    async def resume_async(self) -> bool:
        """See `resume`."""
        return await self._app.get_broker().workflows.resume(self.batch_id)

    def cancel(self) -> bool:
        """Cancel the batch: members that wait never start, running ones are asked to stop, and `then` does not run.
        False when the batch had ended."""
        return self._app.run_sync("cancel", self.cancel_async)

    async def cancel_async(self) -> bool:
        """See `cancel`."""
        return await self._app.get_broker().workflows.cancel(self.batch_id)

    def retry(self, *, deadline: Moment | None = None) -> bool:
        """Run the failed and cancelled members of a batch that failed or was cancelled again, and `then` after them.
        False when there is nothing to retry: the batch is running, or it completed. `deadline`: a
        new one; without it, the batch has none any more."""
        return self._app.run_sync("retry", lambda: self.retry_async(deadline=deadline))

    async def retry_async(self, *, deadline: Moment | None = None) -> bool:
        """See `retry`."""
        done = await self._app.get_broker().workflows.retry(self.batch_id, None, deadline)
        if done:
            self._result = None
        return done


THEN: Final = "then"
"""The id of the node of `then`."""


def _not_ready() -> TaskResult[Any, TaskError]:
    return err(RetrievalCode.RESULT_NOT_READY, "the member has not ended")
