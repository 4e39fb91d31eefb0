"""Functions with Django's own decorator."""

from django.contrib.contenttypes.models import ContentType
from django.tasks import TaskContext, task


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(priority=50)
async def shout(text: str) -> str:
    await ContentType.objects.acount()
    return text.upper()


@task(takes_context=True)
def flaky(context: TaskContext, times: int) -> str:
    if context.attempt <= times:
        raise ConnectionError(f"attempt {context.attempt}")
    return f"{context.task_result.id} {context.attempt}"


@task
def fail() -> None:
    raise ValueError("no")


@task
def unreadable() -> object:
    return object()
