"""Hints for names of other task queues: what to write instead."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar, cast

from horsies.errors import TaskDefinitionError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

_SEND: Final = "{it}.send(...)"
_LATER: Final = "{it}.schedule(seconds, ...), or {it}.with_options(delay=..., queue_name=...).send(...)"
_NODE: Final = "{it}.node()(...) in a workflow (app.workflow), or {it}.call(...) for send_many"
_HERE: Final = "{it}(...), which calls the function here and now"

SENDER: Final[Mapping[str, str]] = {
    "delay": _SEND, "apply_async": f"{_SEND}; with options {{it}}.with_options(delay=..., queue_name=...).send(...)",
    "apply": _HERE, "run": _HERE, "call_local": _HERE, "s": _NODE, "si": _NODE, "signature": _NODE, "subtask": _NODE,
    "message": _NODE, "starmap": _NODE, "map": "{it}.node().map(items)",
    "chunks": "{it}.send_many([{it}.call(...), ...])",
    "send_with_options": f"{{it}}.with_options(...).send(...); for later {_LATER}",
    "message_with_options": "{it}.with_options(...).send(...)",
    "defer": _SEND, "defer_async": "await {it}.send_async(...)", "batch_defer": "{it}.send_many([{it}.call(...), ...])",
    "configure": "{it}.with_options(...)", "options": "{it}.with_options(...)",
    "enqueue": _SEND, "enqueue_at": "{it}.schedule(moment, ...)", "enqueue_in": "{it}.schedule(seconds, ...)",
    "kiq": "await {it}.send_async(...)", "submit": _SEND, "start": _SEND, "queue": _SEND,
    "retry": "return TaskResult(err=TaskError(code)) with the code in the retry_policy's auto_retry_for",
    "request": "current_task() inside the task", "update_state": "current_task().report_progress(...) inside the task",
    "fn": "{it}(...), which calls the function here and now",
}  # fmt: skip

_GET: Final = "{it}.get(timeout_ms=...)"
HANDLE: Final[Mapping[str, str]] = {
    "result": _GET, "wait": _GET, "join": _GET, "get_result": _GET, "return_value": _GET,
    "wait_result": "await {it}.get_async(timeout_ms=...)",
    "ready": "{it}.get(timeout_ms=0), an err WAIT_TIMEOUT while it has not ended; or {it}.info()",
    "successful": "{it}.get(...).is_ok()", "failed": "{it}.get(...).is_err()", "state": "{it}.info().status",
    "status": "{it}.info().status", "is_finished": "{it}.info().status.is_terminal",
    "traceback": "{it}.get(...).err_value.data", "id": "{it}.{id}", "revoke": "{it}.cancel()", "abort": "{it}.cancel()",
    "delete": "{it}.cancel()", "forget": "nothing: results are pruned by themselves",
}  # fmt: skip

WORKFLOW: Final[Mapping[str, str]] = dict.fromkeys(
    ("send", "delay", "apply_async", "run", "enqueue", "submit"), "{it}.start()"
) | {
    "send_async": "await {it}.start_async()",
    "start_workflow": "{it}.start()",
    "signal": "handle = {it}.start(), then handle.signal(...): signals go to a run",
}

DEFINITION: Final[Mapping[str, str]] = WORKFLOW | {
    "start": "{it}.start()", "start_async": "await {it}.start_async()", "node": "{it}.node()",
}  # fmt: skip

APP: Final[Mapping[str, str]] = {
    "send_task": 'app.send("task_name", ...)', "enqueue": 'app.send("task_name", ...)',
    "conf": "app.config, which is made before: Horsies(AppConfig(...))",
    "autodiscover_tasks": "import the modules that define tasks in the module of the app",
    "actor": '@app.task("name")',
    "signature": "task.node()(...) in a workflow (app.workflow)", "worker_main": 'app.run_worker("module:app")',
    "start": 'app.run_worker("module:app")', "periodic_task": "AppConfig(schedule=ScheduleConfig([TaskSchedule(...)]))",
    "periodic": "AppConfig(schedule=ScheduleConfig([TaskSchedule(...)]))",
}  # fmt: skip

_OPTIONS: Final[Mapping[str, str]] = {
    "queue": "queue_name=...",
    "bind": "current_task() inside the task", "pass_context": "current_task() inside the task",
    **dict.fromkeys(
        ("max_retries", "autoretry_for", "auto_retry_for", "retry", "retries", "retry_backoff", "default_retry_delay",
         "retry_kwargs", "min_backoff", "max_backoff", "retry_when", "throws"),
        "retry_policy=RetryPolicy.exponential(1, max_retries=3, auto_retry_for=[...])",
    ),
    **dict.fromkeys(("time_limit", "soft_time_limit", "timeout", "job_timeout"), "timeout_ms=..., in milliseconds"),
    **dict.fromkeys(("expires", "ttl", "max_age"), "good_until=timedelta(...)"),
    **dict.fromkeys(("countdown", "eta", "delay"), "with_options(delay=...) or schedule(...) where it is sent"),
    **dict.fromkeys(("ignore_result", "acks_late", "store_results"), "nothing: leave it out"),
}  # fmt: skip


#: The options of `@app.task` that a send and a node do not have.
_OF_TASK: Final = ("retry_policy", "timeout_ms")


def missing(owner: object, name: str, hints: Mapping[str, str], it: str, **words: str) -> AttributeError:
    """The AttributeError of a missing name, with what to write instead where that is known."""
    told = f"type object {owner.__name__!r}" if isinstance(owner, type) else f"{type(owner).__name__!r} object"
    told += f" has no attribute {name!r}"
    if (hint := hints.get(name)) is not None:
        told += f": write {hint.format(it=it, **words)}"
    return AttributeError(told, name=name, obj=owner)


def known_options(arguments: str | None = None, /, **hints: str) -> Callable[[F], F]:
    """Wrap a method of a task, an app or a handle that takes options by name, so that it explains unknown ones.
    `hints`: what to write instead, where that is not what `@app.task` says. `arguments`: where positional arguments
    belong, for a method that takes none."""

    def wrap(method: F) -> F:
        named = cast("Any", method)
        code = named.__code__
        known = dict.fromkeys((*code.co_varnames[1 : code.co_argcount], *(named.__kwdefaults__ or ())))

        def instead(name: str) -> str | None:
            hint = hints.get(name)
            if hint is None and (hint := _OPTIONS.get(name)) is not None:
                option = hint.partition("=")[0]
                if option in _OF_TASK:
                    hint += ", as an option of @app.task"
                elif option == "with_options(delay":  # a node has no such option, and is not sent
                    hint = None
            return hint and f"; instead of {name} use {hint}"

        @wraps(method)
        def call(self: Any, /, *args: Any, **options: Any) -> Any:
            if args and arguments is not None:
                its = ", ".join(f"{name}=" for name in known)
                raise UsageError(f"{self!r}: {named.__name__} takes only {its}; {arguments}")
            if options.keys() <= known.keys():
                return method(self, *args, **options)
            unknown = [name for name in options if name not in known]
            told = "".join(filter(None, map(instead, unknown)))
            raise UsageError(
                f"{self!r}: {named.__name__} does not know {', '.join(unknown)} (its options: {', '.join(known)}){told}"
            )

        return cast("F", call)

    return wrap


def explained(decorator: str) -> Callable[[F], F]:
    """Wrap a method that returns a decorator, so that it explains a missing name and options of other task queues."""

    def wrap(method: F) -> F:
        @wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            foreign = {name: _OPTIONS[name] for name in options if name in _OPTIONS}
            if (args or "name" in options) and not foreign:
                return method(self, *args, **options)
            named = str(args[0] if args else options.get("name", "")) if foreign else ""

            def refuse(fn: object) -> Any:
                called = named or getattr(fn, "__name__", type(fn).__name__)
                code = getattr(fn, "__code__", None)
                at = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None
                if not foreign:
                    fix = f'write @app.{decorator}("{called}")'
                    raise TaskDefinitionError(called, f"@app.{decorator}() needs a name", fix, location=at)
                why = f"@app.{decorator} does not know {', '.join(foreign)}"
                fix = "; ".join(f"instead of {name} use {instead}" for name, instead in foreign.items())
                raise TaskDefinitionError(called, why, fix, location=at)

            if foreign and args and callable(args[0]):  # @app.task without parentheses cannot have options
                refuse(args[0])
            return refuse

        return cast("F", call)

    return wrap
