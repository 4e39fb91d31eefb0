"""`app.batch(...)` and `app.batch_handle(...)`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, overload

from horsies._checks import shown
from horsies._hints import known_options
from horsies._runtime import AppRuntime
from horsies.errors import UsageError
from horsies.tasks import Sender, TaskCall

if TYPE_CHECKING:
    from horsies.batches.handle import BatchHandle
    from horsies.batches.start import BatchStart
    from horsies.workflow.batch_reading import BatchSummary
    from horsies.workflow.nodes import Task
    from horsies.workflow.run_options import Moment

R = TypeVar("R")


class Batching(AppRuntime):
    """The part of an app that starts batches."""

    @overload
    def batch(
        self,
        calls: Iterable[TaskCall[Any]],
        *,
        then: "Task[Concatenate[BatchSummary, ...], R]",
        name: str = "batch",
        batch_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: "Moment | None" = None,
        deadline: "Moment | None" = None,
    ) -> "BatchHandle[R]": ...
    @overload
    def batch(
        self,
        calls: Iterable[TaskCall[Any]],
        *,
        then: None = None,
        name: str = "batch",
        batch_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: "Moment | None" = None,
        deadline: "Moment | None" = None,
    ) -> "BatchHandle[None]": ...
    @known_options(workflow_id="batch_id=...", callback="then=...", chord="then=...")
    def batch(
        self,
        calls: Iterable[TaskCall[Any]],
        *,
        then: "Task[Concatenate[BatchSummary, ...], Any] | None" = None,
        name: str = "batch",
        batch_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: "Moment | None" = None,
        deadline: "Moment | None" = None,
    ) -> "BatchHandle[Any]":
        """Send these calls together, of one task or of several: `app.batch([resize.call(1), resize.call(2)])`. They are
        written in one transaction, all or none; at most 100,000.

        `then`: a task that runs once when all of them have ended, completed or not. Its first parameter takes a
        `BatchSummary`, its others have defaults. The batch completes when `then` does; without it, when all members
        have ended. `batch_id`: an id of your own, for a start that you may repeat: a UUID. `connection`: your own
        connection or session; the batch exists if and only if your transaction commits. `metadata`: small JSON values
        that every member and `then` inherit. `group`, `priority`: of all members that have none of their own, and of
        `then`. `unique_key`: one live batch of this name per key; a further start returns the handle of the live one.
        `start_at`: start later (seconds, a timedelta or an aware datetime). `deadline`: when the batch has not ended by
        then, it is stopped and fails with WORKFLOW_DEADLINE. Raises `TaskSendError`."""
        made = self._batch_start("batch", calls, then, name, batch_id, connection,
                                 (metadata, group, priority, unique_key, start_at, deadline))  # fmt: skip
        return made.announced().send()

    @overload
    async def batch_async(
        self,
        calls: Iterable[TaskCall[Any]],
        *,
        then: "Task[Concatenate[BatchSummary, ...], R]",
        name: str = "batch",
        batch_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: "Moment | None" = None,
        deadline: "Moment | None" = None,
    ) -> "BatchHandle[R]": ...
    @overload
    async def batch_async(
        self,
        calls: Iterable[TaskCall[Any]],
        *,
        then: None = None,
        name: str = "batch",
        batch_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: "Moment | None" = None,
        deadline: "Moment | None" = None,
    ) -> "BatchHandle[None]": ...
    @known_options(workflow_id="batch_id=...", callback="then=...", chord="then=...")
    async def batch_async(
        self,
        calls: Iterable[TaskCall[Any]],
        *,
        then: "Task[Concatenate[BatchSummary, ...], Any] | None" = None,
        name: str = "batch",
        batch_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: "Moment | None" = None,
        deadline: "Moment | None" = None,
    ) -> "BatchHandle[Any]":
        """See `batch`."""
        made = self._batch_start("batch_async", calls, then, name, batch_id, connection,
                                 (metadata, group, priority, unique_key, start_at, deadline))  # fmt: skip
        return await made.announced().send_async()

    def _batch_start(
        self, verb: str, calls: Any, then: Any, name: str, batch_id: str | None, connection: Any, options: Any
    ) -> "BatchStart[Any]":
        from horsies._loading import CODEC, load

        load(verb, (*CODEC, "horsies.batches.start"))
        from horsies.batches.start import BatchStart
        from horsies.workflow.run_options import RunOptions

        return BatchStart(self, verb, calls, then, name, batch_id, connection, RunOptions(*options))

    @overload
    def batch_handle(self, batch_id: str) -> "BatchHandle[Any]": ...
    @overload
    def batch_handle(self, batch_id: str, then: "Task[Concatenate[BatchSummary, ...], R]") -> "BatchHandle[R]": ...
    def batch_handle(self, batch_id: str, then: Any = None) -> "BatchHandle[Any]":
        """The handle of a batch that was started elsewhere. Pass its `then` to have the result typed."""
        from horsies.batches.handle import BatchHandle

        if then is not None and not isinstance(then, Sender):
            raise UsageError(f"app.batch_handle takes the task itself, not {shown(then)}: give the function of `then`")
        found = None if then is None else self.registry.get(then.name)
        return BatchHandle(self, batch_id, codec=None if found is None else found.codec)
