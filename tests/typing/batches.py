# pyright: strict
"""The result of a batch is that of its `then`."""

from typing import Any, assert_type

from horsies import BatchHandle, BatchProgress, BatchSummary, TaskError, TaskResult, WorkflowStatus
from tests.typing.tasks import app


@app.task("resize")
def resize(image: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{image}")


@app.task("publish")
async def publish(image: int, *, is_public: bool = False) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("album_done")
def album_done(summary: BatchSummary, title: str = "") -> TaskResult[float, TaskError]:
    return TaskResult(ok=summary.completed / summary.total)


@app.task("no_summary")
def no_summary(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


calls = [resize.call(1), resize.call(2)]
assert_type(app.batch(calls, then=album_done), BatchHandle[float])
assert_type(app.batch(calls), BatchHandle[None])
assert_type(app.batch([resize.call(1), publish.call(1, is_public=True)], name="mixed"), BatchHandle[None])
assert_type(app.batch(resize.call(n) for n in range(3)), BatchHandle[None])
assert_type(app.batch_handle("x"), BatchHandle[Any])
assert_type(app.batch_handle("x", album_done), BatchHandle[float])

app.batch(calls, then=no_summary)  # type: ignore[arg-type]
app.batch([resize, 5])  # type: ignore[list-item]


async def use() -> None:
    batch = await app.batch_async(calls, then=album_done)
    assert_type(batch, BatchHandle[float])
    assert_type(await batch.get_async(timeout_ms=1), TaskResult[float, TaskError])
    assert_type(batch.get(timeout_ms=1), TaskResult[float, TaskError])
    assert_type(await batch.progress_async(), BatchProgress | None)
    assert_type(await batch.status_async(), WorkflowStatus | None)
    assert_type([result async for result in batch.results_async()], list[TaskResult[Any, TaskError]])
    assert_type(list(batch.results()), list[TaskResult[Any, TaskError]])
    assert_type(await batch.cancel_async(), bool)
