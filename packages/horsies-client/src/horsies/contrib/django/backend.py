# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""The backend of `django.tasks` (Django 6.0): functions with Django's `@task` run on horsies.

    TASKS = {"default": {"BACKEND": "horsies.contrib.django.backend.HorsiesBackend"}}

Each function is a task of horsies under its dotted path, so that commands, dashboard and metrics name it. Arguments and
return values are JSON, as Django says. Other modules of horsies never import this one: Django 5.2 has no django.tasks.
"""

import inspect
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from django.core.checks import Error
from django.tasks import TaskContext, TaskResult, TaskResultStatus  # type: ignore[import-not-found]
from django.tasks.backends.base import BaseTaskBackend  # type: ignore[import-not-found]
from django.tasks.base import Task, TaskError  # type: ignore[import-not-found]
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist  # type: ignore[import-not-found]
from django.tasks.signals import task_enqueued, task_started  # type: ignore[import-not-found]
from django.utils import timezone
from django.utils.json import normalize_json  # type: ignore[import-not-found]
from django.utils.module_loading import import_string

from horsies import TaskError as HorsiesError, TaskResult as HorsiesResult
from horsies.context import current_task
from horsies.contrib.django.project import project_app
from horsies.contrib.django.task_signals import SIGNALS
from horsies.errors import TaskDefinitionError
from horsies.status import TaskStatus

_OPTIONS: Final = ("retry_policy", "timeout_ms", "keep_for", "store_result")
_registered: Final[dict[str, Any]] = {}
"""The tasks of horsies by the dotted path of their function. Django makes a backend for each thread."""
_STATES: Final = {
    TaskStatus.PENDING: TaskResultStatus.READY,
    TaskStatus.CLAIMED: TaskResultStatus.READY,
    TaskStatus.RUNNING: TaskResultStatus.RUNNING,
    TaskStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
}


class TaskNotCompleted(Exception):
    """The class of an error that is no exception of the function: cancelled, expired, timed out, crashed."""


class HorsiesBackend(BaseTaskBackend):
    """`OPTIONS` may have `retry_policy`, `timeout_ms`, `keep_for` and `store_result`, as `@app.task` has."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if "QUEUES" not in params:
            self.queues = set(project_app().config.queue_names)

    def check(self, **_others: Any) -> list[Any]:
        known = set(project_app().config.queue_names)
        found = [
            Error(
                f"TASKS[{self.alias!r}] has the queue {queue!r}, which HORSIES does not have.",
                hint=f"Its queues are {', '.join(sorted(known))}: add it to CUSTOM_QUEUES, or remove it.",
                id="horsies.E003",
            )
            for queue in sorted(self.queues - known)
        ]
        return found + [
            Error(f"TASKS[{self.alias!r}]['OPTIONS'] has {name!r}.", hint=f"It may have {', '.join(_OPTIONS)}.",
                  id="horsies.E004")
            for name in self.options if name not in _OPTIONS
        ]  # fmt: skip

    def validate_task(self, task: Any) -> None:
        """Refuse what horsies cannot run, and make the function a task of horsies: Django calls this at its
        definition."""
        super().validate_task(task)
        if task.module_path in _registered:
            return
        options = {name: value for name, value in self.options.items() if name in _OPTIONS}
        app = project_app()
        if not app.config.has_queue(task.queue_name):
            raise InvalidTask(f"Queue '{task.queue_name}' is not one of HORSIES: {', '.join(app.config.queue_names)}.")
        try:
            define = app.task(task.module_path, queue_name=task.queue_name, **options)
            _registered[task.module_path] = define(cast("Any", _runner(task)))
        except TaskDefinitionError as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        result = _result(task, "", self.alias, TaskResultStatus.READY, args, kwargs)
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        sender = _registered[task.module_path].with_options(
            queue_name=task.queue_name, priority=horsies_priority(task.priority), eta=run_after
        )
        handle = sender.send(args=result.args, kwargs=result.kwargs)
        object.__setattr__(result, "id", handle.task_id)
        object.__setattr__(result, "enqueued_at", timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read on Django's own connection, so that a test sees what its transaction has sent."""
        from horsies.contrib.django.models import Attempt, Task as TaskRow

        row = TaskRow.objects.filter(pk=result_id).first()
        task = None if row is None else _task_of(row.task_name)
        if row is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        envelopes = project_app().envelopes
        _, kwargs = envelopes.unwrap_call(row.args, row.kwargs, row.task_name)
        call = _json(kwargs) or {}
        attempts = list(Attempt.objects.filter(task_id=row.pk).order_by("attempt"))
        state = TaskStatus(row.status)
        text = None if row.result is None else _json(envelopes.unwrap_result(row.result, row.task_name))
        result = _result(
            task, row.pk, self.alias, _STATES.get(state, TaskResultStatus.FAILED), call.get("args", []),
            call.get("kwargs", {}), enqueued_at=row.sent_at,
            started_at=attempts[0].started_at if attempts else row.started_at,
            last_attempted_at=row.started_at or (attempts[-1].started_at if attempts else None),
            finished_at=row.terminal_at,
        )  # fmt: skip
        result.worker_ids.extend(one.worker_id or "" for one in attempts)
        if state is TaskStatus.RUNNING:
            result.worker_ids.append(row.claimed_by_worker_id or "")
        result.errors.extend(_errors(attempts, state, text))
        if state is TaskStatus.COMPLETED:
            object.__setattr__(result, "_return_value", (text or {}).get("ok"))
        return result


def horsies_priority(priority: int) -> int:
    """Django's 100 (first) to -100 (last) as 1 (first) to 100 (last): two neighbours share one."""
    return 1 + (100 - int(priority)) * 99 // 200


def _runner(task: Any) -> Callable[..., Any]:
    """The function that a worker calls."""
    func = task.func

    def begin(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        context = current_task()
        now = timezone.now()
        result = _result(task, context.task_id, task.backend, TaskResultStatus.RUNNING, args, kwargs,
                         started_at=now, last_attempted_at=now)  # fmt: skip
        result.worker_ids.extend([f"{socket.gethostname()}:{os.getpid()}"] * context.attempt)
        context.state[SIGNALS] = result
        task_started.send(HorsiesBackend, task_result=result)
        return [TaskContext(task_result=result), *args] if task.takes_context else args

    if inspect.iscoroutinefunction(func):

        async def run_async(args: list[Any], kwargs: dict[str, Any]) -> HorsiesResult[Any, HorsiesError]:
            return HorsiesResult(ok=normalize_json(await func(*begin(args, kwargs), **kwargs)))

        return run_async

    def run(args: list[Any], kwargs: dict[str, Any]) -> HorsiesResult[Any, HorsiesError]:
        return HorsiesResult(ok=normalize_json(func(*begin(args, kwargs), **kwargs)))

    return run


def _result(task: Any, task_id: str, backend: str, status: Any, args: Any, kwargs: Any, **times: Any) -> Any:
    moments = {"enqueued_at": None, "started_at": None, "finished_at": None, "last_attempted_at": None, **times}
    return TaskResult(
        task=task, id=task_id, status=status, args=list(args), kwargs=dict(kwargs), backend=backend, errors=[],
        worker_ids=[], **moments,
    )  # fmt: skip


def _task_of(path: str) -> Any:
    """Django's task of this path; None for a task that horsies itself defines, or that is gone."""
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if isinstance(found, Task) else None


def _errors(attempts: list[Any], state: TaskStatus, text: Any) -> list[Any]:
    found = [
        TaskError(exception_class_path=_class_of(one.error_message), traceback=one.error_message or one.error_code)
        for one in attempts
        if one.error_code is not None
    ]
    err = text.get("err") if isinstance(text, dict) else None
    if isinstance(err, dict):
        data = err.get("data")
        if isinstance(data, dict) and "traceback" in data and found:
            path = str(data.get("type", ""))
            found[-1] = TaskError(exception_class_path=_full(path), traceback=str(data["traceback"]))
        elif not found:
            told = f"{err.get('error_code')}: {err.get('message')}"
            found.append(TaskError(exception_class_path=_NOT_COMPLETED, traceback=told))
    elif state.is_terminal and state is not TaskStatus.COMPLETED and not found:
        found.append(TaskError(exception_class_path=_NOT_COMPLETED, traceback=str(state)))
    return found


_NOT_COMPLETED: Final = f"{__name__}.{TaskNotCompleted.__name__}"


def _class_of(message: str | None) -> str:
    """The class in `module.Class: text`, as the worker words an exception."""
    name = (message or "").partition(":")[0].strip()
    return _full(name) if name.replace(".", "").replace("_", "").isalnum() else _NOT_COMPLETED


def _full(name: str) -> str:
    path = name if "." in name else f"builtins.{name}"
    try:
        found = import_string(path)
    except ImportError:
        return _NOT_COMPLETED
    return path if inspect.isclass(found) and issubclass(found, BaseException) else _NOT_COMPLETED


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
