"""Tasks that use the ORM."""

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from cases.models import Note
from horsies import TaskError, TaskResult
from horsies.contrib.django import app


def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@app.task("note")
def note(text: str) -> TaskResult[int, TaskError]:
    Note.objects.create(text=text)
    return TaskResult(ok=backend_pid())


@app.task("note_async")
async def note_async(text: str) -> TaskResult[int, TaskError]:
    await Note.objects.acreate(text=text)
    return TaskResult(ok=await sync_to_async(backend_pid)())


@app.batch_task("note_all", max_size=10, max_wait_ms=20)
async def note_all(items: list[str]) -> list[TaskResult[int, TaskError]]:
    await Note.objects.abulk_create([Note(text=text) for text in items])
    pid = await sync_to_async(backend_pid)()
    return [TaskResult(ok=pid) for _ in items]


@app.task("leave_open")
def leave_open(how: str) -> TaskResult[None, TaskError]:
    """Ends inside a transaction."""
    if how == "block":
        transaction.atomic().__enter__()
    elif how == "autocommit":
        transaction.set_autocommit(False)
    else:
        connection.cursor().execute("BEGIN")
    Note.objects.create(text=how)
    if how == "exception":
        raise LookupError
    return TaskResult(ok=None)


@app.task("stopped_amid", timeout_ms=100)
def stopped_amid() -> TaskResult[None, TaskError]:
    """Is stopped while the server works."""
    connection.cursor().execute("SELECT pg_sleep(60)")
    return TaskResult(ok=None)
