# pyright: strict
"""A task that completes itself returns what `complete` returns: the ok result of the value's type."""

from typing import Any, Never, assert_type

from horsies import TaskError, TaskResult, current_task
from tests.typing.tasks import app

connection: Any = None

assert_type(current_task().complete(connection, 5), TaskResult[int, Never])


@app.task("completes_itself")
def completes_itself(n: int) -> TaskResult[int, TaskError]:
    if n < 0:
        return TaskResult(err=TaskError("NEGATIVE"))
    return current_task().complete(connection, n)


@app.task("completes_itself_async")
async def completes_itself_async() -> TaskResult[list[str], TaskError]:
    return await current_task().complete_async(connection, ["a"])


@app.task("completes_without_a_value")
def completes_without_a_value() -> TaskResult[None, TaskError]:
    return current_task().complete(connection, None)


@app.task("completes_wrongly")
def completes_wrongly() -> TaskResult[int, TaskError]:
    return current_task().complete(connection, "five")  # type: ignore[arg-type]
