# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Sends `task_finished` of `django.tasks` (Django 6.0) from workers. Django 5.2 has no django.tasks."""

from typing import Final

from django.db import connections
from django.tasks import TaskResultStatus  # type: ignore[import-not-found]
from django.tasks.base import TaskError  # type: ignore[import-not-found]
from django.tasks.signals import task_finished  # type: ignore[import-not-found]
from django.utils import timezone

from horsies.middleware import AttemptEnd, Middleware


class DjangoTaskSignals(Middleware):
    """Tells the receivers when a task of Django has ended for good. `backend` keeps the task's result in the state of
    the attempt."""

    def on_attempt_end(self, end: AttemptEnd) -> None:
        held = end.context.state.pop(self, None)
        if held is None or end.retry_expected:
            return
        from horsies.contrib.django.backend import HorsiesBackend

        ok = end.outcome == "ok" and end.result is not None and end.result.err is None
        object.__setattr__(held, "status", TaskResultStatus.SUCCESSFUL if ok else TaskResultStatus.FAILED)
        object.__setattr__(held, "finished_at", timezone.now())
        if ok and end.result is not None:
            object.__setattr__(held, "_return_value", end.result.ok)
        elif end.exception is not None:
            kind = type(end.exception)
            path = f"{kind.__module__}.{kind.__qualname__}"
            held.errors.append(TaskError(exception_class_path=path, traceback=str(end.exception)))
        try:
            task_finished.send(HorsiesBackend, task_result=held)
        finally:
            connections.close_all()  # those of this thread, which a receiver may have opened


SIGNALS: Final = DjangoTaskSignals()
