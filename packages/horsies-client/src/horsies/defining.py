"""Registers tasks: what `@app.task` and `@app.declare` return, and what they check at import."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypedDict, TypeVar, cast, overload

from horsies._checks import Checks, shown
from horsies._runtime import AppRuntime
from horsies._text import short
from horsies.config import QueueMode
from horsies.errors import ConfigurationError, TaskDefinitionError
from horsies.exception_codes import ExceptionCodes, ExceptionMapper
from horsies.groups import GroupBy, can_be_key, check_group_by
from horsies.options import TaskOptions, check_name
from horsies.registry import TaskDefinition
from horsies.result import TaskError, TaskResult
from horsies.retry import RetryPolicy
from horsies.tasks import AsyncTaskFunction, Sender, TaskFunction, TaskStub

if TYPE_CHECKING:
    from horsies.batch_limits import BatchLimits
    from horsies.codec import TaskCodec
    from horsies.uniqueness import OnConflict

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class TaskSettings(TypedDict, total=False):
    """The options of `@app.task(task_name=...)`, except for `group_by`; `Horsies.task` says what they are."""

    queue_name: str | None
    retry_policy: RetryPolicy | None
    timeout_ms: int | None
    priority: int | None
    good_until: datetime | timedelta | None
    run_ahead: bool
    metadata: Mapping[str, Any] | None
    unique_for: timedelta | None
    unique_by_args: bool | None
    debounce: timedelta | None
    max_wait: timedelta | None
    on_conflict: "OnConflict | None"
    store_result: bool
    keep_for: timedelta | None
    exception_mapper: ExceptionMapper | None
    default_unhandled_error_code: str | None


class TaskDecorator(Protocol):
    """What `@app.task(...)` returns. It keeps the signature, and tells `async def` from `def`."""

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTaskFunction[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, TaskResult[T, TaskError]], /) -> TaskFunction[P, T]: ...


class StubDecorator(Protocol):
    """What `@app.declare(...)` returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /) -> TaskStub[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, TaskResult[T, TaskError]], /) -> TaskStub[P, T]: ...


class TaskLike(Protocol[P, Q, R_co]):
    """A function that takes the parameters Q, and can also be called as P. A type checker finds Q in the task, so that
    the task keeps its own types and defaults, and compares P, the parameters of its `group_by`, with them."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R_co: ...


class GroupedTaskDecorator(Protocol[P]):
    """What `@app.task(..., group_by=function)` returns."""

    @overload
    def __call__(
        self, fn: TaskLike[P, Q, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTaskFunction[Q, T]: ...
    @overload
    def __call__(self, fn: TaskLike[P, Q, TaskResult[T, TaskError]], /) -> TaskFunction[Q, T]: ...
    # For mypy, which does not find Q where P is the same.
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTaskFunction[P, T]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, TaskResult[T, TaskError]], /
    ) -> TaskFunction[P, T]: ...


class GroupedStubDecorator(Protocol[P]):
    """What `@app.declare(..., group_by=function)` returns."""

    @overload
    def __call__(self, fn: TaskLike[P, Q, Coroutine[Any, Any, TaskResult[T, TaskError]]], /) -> TaskStub[Q, T]: ...
    @overload
    def __call__(self, fn: TaskLike[P, Q, TaskResult[T, TaskError]], /) -> TaskStub[Q, T]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> TaskStub[P, T]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, TaskResult[T, TaskError]], /
    ) -> TaskStub[P, T]: ...


def define(
    app: AppRuntime,
    name: str,
    fn: Callable[..., Any],
    options: TaskOptions,
    *,
    is_stub: bool,
    batch: "BatchLimits | None" = None,
) -> TaskDefinition:
    """Register a function as a task; a definition that cannot work is a TaskDefinitionError with all its problems."""
    from horsies.codec import TaskCodec

    location = location_of(fn)
    if isinstance(fn, Sender):
        raise TaskDefinitionError(
            str(name), "it is a task already", "decorate the plain function once", location=location
        )
    checks = Checks(f"task {short(str(name))!r} ({location})")
    check_name(checks, "name", name)
    options.check(checks)
    taker, group_by = fn, options.group_by
    if batch is not None:
        from horsies.batch_limits import group_by_item, item_taker

        batch.check(checks)
        taker, group_by = item_taker(), None if group_by is None else group_by_item(group_by)
    check_group_by(checks, options.group_by, taker)
    options, exception_codes = _with_codes(app, options, fn, checks)
    queues = app.config.queue_names
    if options.queue_name is not None and options.queue_name not in queues:
        checks.add(
            "queue_name",
            f"{short(str(options.queue_name))!r} is not a queue of this app",
            f"use one of: {', '.join(queues)}",
        )
    elif options.queue_name is None and app.config.queue_mode is QueueMode.CUSTOM:
        checks.add("queue_name", "this app has queues of its own", f"name one of: {', '.join(queues)}")
    try:
        checks.finish()
    except ConfigurationError as error:
        text = "; ".join(f"{problem.where.rpartition('.')[2]}: {problem.why}" for problem in error.problems)
        fix = "; ".join(problem.fix for problem in error.problems)
        raise TaskDefinitionError(str(name), text, fix, location=location) from None
    read = TaskCodec.from_function if batch is None else TaskCodec.from_batch_function
    codec = read(fn, task_name=name, location=location)
    if options.group_by is not None:
        _refuse_odd_key(codec, options.group_by)
    definition = TaskDefinition(
        name=name,
        fn=fn,
        is_async=inspect.iscoroutinefunction(fn),
        is_stub=is_stub,
        codec=codec,
        options=options,
        location=location,
        batch=batch,
        exception_codes=exception_codes,
    )
    if group_by is not None:
        definition = replace(definition, group_by=GroupBy(name, group_by, definition.signature()))
    app.registry.add(definition)
    return definition


def _with_codes(
    app: AppRuntime, options: TaskOptions, fn: Callable[..., Any], checks: Checks
) -> tuple[TaskOptions, ExceptionCodes]:
    """The options with a retry policy that lists codes only, and the codes of the task's exceptions."""
    codes, policy = app.config.exception_codes, options.retry_policy
    if any(
        problem.where.rpartition(".")[2].startswith(("exception_mapper", "default_un")) for problem in checks.problems
    ):
        return options, codes  # a wrong mapping cannot be used
    codes = codes.of_task(options.exception_mapper, options.default_unhandled_error_code)
    if not isinstance(policy, RetryPolicy):
        return options, codes
    codes, policy = codes.settle(policy, checks)
    policy.check_codes(checks, codes.mapper, codes.default, getattr(inspect.unwrap(fn), "__globals__", {}))
    return replace(options, retry_policy=policy), codes


def _refuse_odd_key(codec: "TaskCodec", group_by: object) -> None:
    """Refuse a `group_by` that names a parameter whose values cannot be keys: every send would fail."""
    from horsies.codec.errors import type_name

    signature = codec.signature
    for parameter in (*signature.positional_only, *signature.positional_or_keyword, *signature.keyword_only):
        if parameter.name == group_by and not can_be_key(parameter.annotation):
            why = f"group_by: parameter {group_by!r} is a {type_name(parameter.annotation)}, which is no key"
            fix = "name a parameter that is a str, an int or a UUID, or give a function that returns one"
            raise TaskDefinitionError(signature.task_name, why, fix, location=signature.location)


def refuse_no_name(decorator: str, name: object) -> None:
    """Refuse `@app.task` without parentheses, which would silently replace the function by a decorator, and a name that
    is none."""
    if callable(name):
        called = getattr(name, "__name__", type(name).__name__)
        raise TaskDefinitionError(
            called, f"@app.{decorator} needs a name", f'write @app.{decorator}("{called}")', location=location_of(name)
        )
    if not isinstance(name, str):
        why = f"name: must be a string, got {shown(name)}"
        raise TaskDefinitionError(short(str(name)), why, f'write @app.{decorator}("name")')


def name_of_task(name: str | None, task_name: str | None) -> str:
    """The name of a task, which is given as `name` or as `task_name`."""
    if name is not None and task_name is not None:
        raise TaskDefinitionError(short(str(name)), "it has a name and a task_name", "give one of the two")
    given = name if task_name is None else task_name
    refuse_no_name("task", given)
    return cast("str", given)


def location_of(fn: object) -> str:
    fn = getattr(fn, "__func__", fn)  # of a classmethod or a staticmethod
    code = getattr(inspect.unwrap(cast("Callable[..., Any]", fn)) if callable(fn) else fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "unknown place"
