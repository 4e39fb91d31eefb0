"""Hints for names of other task queues: what to write instead."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar, cast

from horsies.errors import ConfigurationError, Problem, TaskDefinitionError, UsageError

C = TypeVar("C", bound=type)
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
    "AsyncResult": "app.handle(task_id, {it})", "replace": "return Continue(workflow) inside a task of a workflow",
    "schedule_at": "{it}.schedule(moment, ...)", "schedule_in": "{it}.schedule(seconds, ...)",
    "task_name": "{it}.name",
    **dict.fromkeys(
        ("delay_on_commit", "apply_async_on_commit"),
        "{it}.with_options(connection=connection).send(...) inside of the transaction",
    ),
    **dict.fromkeys(
        ("on_failure", "on_success", "on_retry", "before_start", "after_return"),
        "a Middleware: AppConfig(middleware=[...])",
    ),
    **dict.fromkeys(
        ("retry_send", "retry_send_async", "retry_schedule", "retry_schedule_async"),
        "error.retry() of the TaskSendError that send() raised",
    ),
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
    "get_status": "{it}.info().status", "latest_result": _GET, "exc_info": "{it}.get(...).err_value.data",
    "date_done": "{it}.info()", "refresh": "{it}.info()",
    **dict.fromkeys(("name", "args", "kwargs", "retries", "worker", "queue"), "{it}.info()"),
    **dict.fromkeys(
        ("children", "parent", "collect", "then", "iterdeps", "get_leaf"),
        "a workflow (app.workflow), whose handle has tasks() and result_for(node)",
    ),
    "maybe_throw": "{it}.get(...).unwrap()", "maybe_reraise": "{it}.get(...).unwrap()",
    **dict.fromkeys(
        ("is_ok", "is_err", "ok_value", "err_value", "ok", "err", "unwrap"),
        "{it}.get(...) for its result; what send() or start() returns is the handle itself, and a refusal is raised",
    ),
}  # fmt: skip

NODE_INFO: Final[Mapping[str, str]] = {
    "result": "handle.tasks(include_results=True), whose nodes have it",
    "sub_workflow_summary": "handle.tasks(include_results=True), whose nodes have it",
    "index": "{it}.task_index", "name": "{it}.task_name", "id": "{it}.node_id",
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
    "add_periodic_task": "AppConfig(schedule=ScheduleConfig([...])), or app.schedules.put(TaskSchedule(...))",
    **dict.fromkeys(
        ("on_after_configure", "on_after_finalize", "cron", "scheduled_job", "crontab"),
        "AppConfig(schedule=ScheduleConfig([TaskSchedule(...)]))",
    ),
    **dict.fromkeys(("chain", "group", "chord", "canvas"), "app.workflow(...), or app.send_many([...])"),
    **dict.fromkeys(("current_task", "current_worker_task"), "current_task() of horsies"),
    **dict.fromkeys(("connection", "connection_for_write", "broker_connection"), "app.get_broker()"),
    "job_manager": "app.get_broker()", "events": "app.on_event(...) in each worker",
    **dict.fromkeys(("Worker", "run_worker_async"), 'app.run_worker("module:app")'),
    "Beat": 'app.run_scheduler("module:app")', "register_task": '@app.task("name")',
    "AsyncResult": "app.handle(task_id, task)", "GroupResult": "app.batch_handle(batch_id)",
    "control": "app.get_broker(), or the commands `horsies workers` and `horsies tasks`",
    "config_from_object": "Horsies(AppConfig(...))", "shared_task": '@app.task("name"), with an app that both import',
    "Task": "AppConfig(middleware=[...]) for code around every task", "configure_task": 'app.send("task_name", ...)',
    "defer": 'app.send("task_name", ...)', "tasks": "app.registry",
    "on_child_process_start": "@app.on_child_start, of a function without parameters",
    "discover_tasks": "import the modules that define tasks in the module of the app",
    "import_task_modules": "import the modules that define tasks in the module of the app",
    "expand_module_globs": "import the modules that define tasks in the module of the app",
    "list_tasks": "[task.name for task in app.registry]", "get_valid_queue_names": "app.config.queue_names",
    "get_result": "app.handle(task_id).get()", "get_result_async": "await app.handle(task_id).get_async()",
    "get_task_info": "app.handle(task_id).info()", "get_task_info_async": "await app.handle(task_id).info_async()",
    "workflow_builder": "a WorkflowDefinition with build_with, and check_with for `horsies check`",
    "check": "`horsies check module:app`", "suppress_sends": "with testing.recorded(app), of horsies.testing",
    **dict.fromkeys(("ping_workers", "list_worker_states", "get_worker_state"), "app.get_broker().get_workers()"),
    "ping_database": "app.get_broker().get_time()",
}  # fmt: skip

#: What only a send can say.
_OF_SEND: Final[Mapping[str, str]] = {
    "job_id": "task_id=...", "queueing_lock": "unique_key=...", "schedule_in": "delay=...", "schedule_at": "eta=...",
}  # fmt: skip

_OPTIONS: Final[Mapping[str, str]] = {
    "queue": "queue_name=...",
    "bind": "current_task() inside the task", "pass_context": "current_task() inside the task",
    **dict.fromkeys(
        ("max_retries", "autoretry_for", "auto_retry_for", "retry", "retries", "retry_backoff", "default_retry_delay",
         "retry_kwargs", "retry_backoff_max", "retry_jitter", "dont_autoretry_for", "min_backoff",
         "max_backoff", "retry_when", "throws"),
        "retry_policy=RetryPolicy.exponential(1, max_retries=3, auto_retry_for=[...])",
    ),
    **dict.fromkeys(("time_limit", "soft_time_limit", "timeout", "job_timeout"), "timeout_ms=..., in milliseconds"),
    **dict.fromkeys(("expires", "ttl", "max_age"), "good_until=timedelta(...)"),
    **dict.fromkeys(("countdown", "eta", "delay"), "with_options(delay=...) or schedule(...) where it is sent"),
    "ignore_result": "store_result=False", "store_results": "nothing: results are stored, unless store_result=False",
    **dict.fromkeys(("result_ttl", "result_expires", "keep_result", "retention"), "keep_for=timedelta(...)"),
    # Here too a task whose worker dies is not run again, unless its policy says so.
    **dict.fromkeys(
        ("acks_late", "reject_on_worker_lost"), "retry_policy=RetryPolicy.crashes(3), for a task that may run twice"
    ),
    "rate_limit": "CustomQueueConfig(name, limits=[...]) and AppConfig(limits=[Limit(..., rate=Rate(100, 60))])",
    "base": "AppConfig(middleware=[...])",
    "on_failure": "Middleware.on_attempt_end, or app.on_event(AttemptFailed)",
    "on_success": "Middleware.on_attempt_end",
    "link": "a workflow (app.workflow)", "link_error": "a workflow (app.workflow)",
    "depends_on": "a workflow (app.workflow)", "headers": "metadata={...}", "meta": "metadata={...}",
    "typing": "nothing: arguments are checked when they are sent",
    "pydantic": "nothing: a parameter whose annotation is a model is one",
    **dict.fromkeys(
        ("trail", "send_events", "shared", "lazy", "resultrepr_maxsize", "acks_on_failure_or_timeout", "shadow",
         "reply_to", "add_to_parent", "producer", "publisher", "delivery_mode", "mandatory", "description"),
        "nothing: leave it out",
    ),
    "store_errors_even_if_ignored": "nothing: errors are stored also with store_result=False",
    "aliases": 'app.task("old_name")(f) and app.task("new_name")(f), of the plain function',
    "unique": "unique_by_args=True", "periodic": "AppConfig(schedule=ScheduleConfig([TaskSchedule(...)]))",
    "track_started": "nothing: handle.info().status is RUNNING", "actor_name": "the first argument",
    **dict.fromkeys(("serializer", "compression"), "AppConfig(payload_codec=...)"),
    **dict.fromkeys(("routing_key", "exchange"), "queue_name=..."),
    "lock": "group_by=..., in a queue with GroupPolicy(max_concurrency=1)", "at_front": "priority=1",
    "failure_ttl": "keep_for=timedelta(...)",
    **{name: f"with_options({option}) where it is sent" for name, option in _OF_SEND.items()},
    "idempotency_key": "unique_key=..., with unique_for=timedelta(...) to keep the key after the task's end",
    **dict.fromkeys(("retention_class_key", "retain_rerun_input"), "keep_for=timedelta(...)"),
}  # fmt: skip


#: The options of `@app.task` that a node does not have, and most of them no send.
_OF_TASK: Final = ("retry_policy", "timeout_ms", "store_result", "keep_for")


#: Options of a send under their names here.
_SEND_OPTIONS: Final = frozenset(
    {"delay", "eta", "priority", "queue_name", "good_until", "task_id", "unique_key", "connection", "metadata"}
)


def misplaced_options(names: Sequence[str]) -> str:
    """What to tell of options of a send that were given as arguments of the task, here or in another task queue."""
    if not any(name in _SEND_OPTIONS or name in _OF_SEND or name in _OPTIONS for name in names):
        return "; its arguments are not given as args= and kwargs=" if {"args", "kwargs"}.intersection(names) else ""
    return "; options of a send stand before it: with_options(...).send(...)"


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
            if name in _OF_TASK and name not in hints:
                return f"; {name} is an option of @app.task"
            hint = hints.get(name)
            if hint is None and (hint := _OF_SEND.get(name, _OPTIONS.get(name))) is not None:
                option = hint.partition("=")[0]
                if option in _OF_TASK and option not in known:
                    hint += ", as an option of @app.task"
                elif option == "group_by":
                    hint = hint.replace("group_by", "group") if "group" in known else None
                elif option == "with_options(delay" or (option.isidentifier() and option not in known):
                    hint = None  # a node has no such option, and is not sent
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


def known_settings(cls: C) -> C:
    """Decorate a class of settings, so that it explains options of other task queues and of horsies 0.x. Other unknown
    ones stay a TypeError."""
    named = cast("Any", cls)
    original = named.__init__

    @wraps(original)
    def init(self: Any, /, *args: Any, **options: Any) -> None:
        try:
            original(self, *args, **options)
        except TypeError:
            problems = _foreign_settings(cls, options)
            if not problems:
                raise
            raise ConfigurationError(problems, subject=cls.__name__) from None

    named.__init__ = init
    return cls


def _foreign_settings(cls: type, options: Mapping[str, object]) -> list[Problem]:
    from horsies._setting_names import SETTINGS

    hints = SETTINGS[cls.__name__]
    problems: list[Problem] = []
    for name in options:
        if (hint := hints.get(name.lower().removeprefix("celery_"))) is not None:
            problems.append(Problem(f"{cls.__name__}.{name}", "there is no such option", hint))
    return problems


def explained(decorator: str) -> Callable[[F], F]:
    """Wrap a method that returns a decorator, so that it explains a missing name and options of other task queues."""

    def wrap(method: F) -> F:
        @wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            foreign = {name: _OPTIONS[name] for name in options if name in _OPTIONS}
            is_named = args or "name" in options or (decorator == "task" and "task_name" in options)
            if is_named and not foreign:
                return method(self, *args, **options)
            given = options.get("name", options.get("task_name", ""))
            named = str(args[0] if args else given) if foreign else ""

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
