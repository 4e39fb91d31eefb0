"""`Horsies`: one configuration, one registry, one database. Nothing is opened before the first use."""

import atexit
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, cast, overload

from horsies._checks import Checks
from horsies._hints import APP, explained, missing
from horsies._loading import load_verbs
from horsies._text import plural
from horsies.config import AppConfig, PostgresConfig, QueueMode
from horsies.errors import ConfigurationError, TaskDefinitionError, UsageError
from horsies.handle import TaskHandle
from horsies.options import SendOptions, TaskOptions, check_task_name
from horsies.registry import Registry, TaskDefinition
from horsies.result import TaskError, TaskResult
from horsies.retry import RetryPolicy
from horsies.tasks import AsyncTaskFunction, NamedSender, Seconds, Sender, TaskFunction, TaskStub, merged

if TYPE_CHECKING:
    from horsies._pg.pool import Database
    from horsies.broker import PostgresBroker
    from horsies.codec import PayloadLimits
    from horsies.sync import BackgroundLoop
    from horsies.workflow.defined import Workflows
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.nodes import Node
    from horsies.workflow.spec import OnError, SuccessPolicy, WorkflowSpec

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Hook = TypeVar("Hook", bound=Callable[[], None])


class TaskDecorator(Protocol):
    """What `@app.task(...)` returns: keeps the signature, and knows `async def` from `def`."""

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


class Horsies:
    """An application's door to its tasks."""

    def __init__(self, config: AppConfig | None = None) -> None:
        if config is None:
            config = AppConfig(PostgresConfig())
        if not isinstance(config, AppConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"Horsies takes an AppConfig, not a {type(config).__name__}")
        self.config = config
        self.registry = Registry()
        self.child_start_hooks: list[Callable[[], None]] = []
        self._database: Database | None = None
        self._broker: PostgresBroker | None = None
        self._limits: PayloadLimits | None = None
        self._background: BackgroundLoop | None = None
        self._workflows: Workflows | None = None

    def __repr__(self) -> str:
        return f"<Horsies {plural(len(self.registry), 'task')}, {self.config.broker!r}>"

    if not TYPE_CHECKING:  # a type checker would take every name for known

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, APP, "app")

    # -- defining --------------------------------------------------------------------------------

    @explained("task")
    def task(
        self,
        name: str,
        *,
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        run_ahead: bool = True,
    ) -> TaskDecorator:
        """Register a function under a name. It returns `TaskResult[T, TaskError]`; everything is typed by its
        annotations, and whatever cannot work is refused here, at import, with file and line."""
        _refuse_bare("task", name)
        options = TaskOptions(queue_name=queue_name, retry_policy=retry_policy, timeout_ms=timeout_ms,
                              priority=priority, good_until=good_until, run_ahead=run_ahead)  # fmt: skip

        def register(fn: Callable[..., Any]) -> Any:
            definition = self._define(name, fn, options, is_stub=False)
            kind = AsyncTaskFunction[..., Any] if definition.is_async else TaskFunction[..., Any]
            return kind(self, definition)

        return cast("TaskDecorator", register)

    @explained("declare")
    def declare(
        self,
        name: str,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
    ) -> StubDecorator:
        """Declare a task that another code base runs: the signature of a stub, typed like the real one.
        Retries and time-outs are the worker's registration's."""
        _refuse_bare("declare", name)
        options = TaskOptions(queue_name=queue_name, priority=priority, good_until=good_until)

        def register(fn: Callable[..., Any]) -> Any:
            return TaskStub[..., Any](self, self._define(name, fn, options, is_stub=True))

        return cast("StubDecorator", register)

    @overload
    def workflow(
        self,
        name: str,
        tasks: "Sequence[Node[Any]]",
        *,
        output: "Node[T]",
        on_error: "OnError" = "fail",
        success_policy: "SuccessPolicy | None" = None,
    ) -> "WorkflowSpec[T]": ...
    @overload
    def workflow(
        self,
        name: str,
        tasks: "Sequence[Node[Any]]",
        *,
        output: None = None,
        on_error: "OnError" = "fail",
        success_policy: "SuccessPolicy | None" = None,
    ) -> "WorkflowSpec[None]": ...
    def workflow(
        self,
        name: str,
        tasks: "Sequence[Node[Any]]",
        *,
        output: "Node[Any] | None" = None,
        on_error: "OnError" = "fail",
        success_policy: "SuccessPolicy | None" = None,
    ) -> "WorkflowSpec[Any]":
        """A workflow of these nodes, checked now: everything that is wrong with it is told at once.

        `output`: the node whose result is the run's. `on_error`: after a failure, `fail` lets all that does not depend
        on it finish and ends FAILED, `pause` starts nothing more until somebody looks. `success_policy`: what has to
        complete for a run to count as COMPLETED; without one, everything.
        """
        from horsies.workflow.spec import WorkflowSpec

        spec = WorkflowSpec(self, name, tasks, output=output, on_error=on_error, success_policy=success_policy)
        self.workflows.add(spec)
        return spec

    @property
    def workflows(self) -> "Workflows":
        """The workflows that this app has defined, by name."""
        if self._workflows is None:
            from horsies.workflow.defined import Workflows

            self._workflows = vars(self).setdefault("_first_workflows", Workflows())
        return cast("Workflows", self._workflows)

    def on_child_start(self, hook: Hook) -> Hook:
        """Run `hook()` in every child process of a worker before its first task: open pools, warm caches."""
        self.child_start_hooks.append(hook)
        return hook

    def _define(self, name: str, fn: Callable[..., Any], options: TaskOptions, *, is_stub: bool) -> TaskDefinition:
        from horsies.codec import TaskCodec

        location = _location(fn)
        if isinstance(fn, Sender):
            raise TaskDefinitionError(
                str(name), "it is a task already", "decorate the plain function once", location=location
            )
        checks = Checks(f"task {name!r} ({location})")
        check_task_name(checks, "name", name)
        options.check(checks)
        if isinstance(options.retry_policy, RetryPolicy):
            config = self.config
            options.retry_policy.check_codes(checks, config.exception_mapper, config.default_unhandled_error_code)
        queues = self.config.queue_names
        if options.queue_name is not None and options.queue_name not in queues:
            checks.add(
                "queue_name", f"{options.queue_name!r} is not a queue of this app", f"use one of: {', '.join(queues)}"
            )
        elif options.queue_name is None and self.config.queue_mode is QueueMode.CUSTOM:
            checks.add("queue_name", "this app has queues of its own", f"name one of: {', '.join(queues)}")
        try:
            checks.finish()
        except ConfigurationError as error:
            text = "; ".join(f"{problem.where.rpartition('.')[2]}: {problem.why}" for problem in error.problems)
            fix = "; ".join(problem.fix for problem in error.problems)
            raise TaskDefinitionError(str(name), text, fix, location=location) from None
        definition = TaskDefinition(
            name=name,
            fn=fn,
            is_async=inspect.iscoroutinefunction(fn),
            is_stub=is_stub,
            codec=TaskCodec.from_function(fn, task_name=name, location=location),
            options=options,
            location=location,
        )
        self.registry.add(definition)
        return definition

    # -- sending and waiting ---------------------------------------------------------------------

    def with_options(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        good_until: datetime | timedelta | None = None,
        delay: Seconds | timedelta | None = None,
        eta: datetime | None = None,
        unique_key: str | None = None,
        task_id: str | None = None,
        connection: Any = None,
    ) -> NamedSender:
        """Options for a send by name; see `TaskFunction.with_options`."""
        options = merged(SendOptions(), priority=priority, queue_name=queue_name, good_until=good_until, delay=delay,
                         eta=eta, unique_key=unique_key, task_id=task_id, connection=connection)  # fmt: skip
        return NamedSender(self, options)

    def send(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Enqueue a task by name; its code need not be importable here."""
        return NamedSender(self, SendOptions()).send(task_name, *args, **kwargs)

    async def send_async(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """See `send`."""
        return await NamedSender(self, SendOptions()).send_async(task_name, *args, **kwargs)

    @overload
    def handle(self, task_id: str) -> TaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str, task: Sender[Any, T]) -> TaskHandle[T]: ...
    def handle(self, task_id: str, task: Sender[Any, Any] | None = None) -> TaskHandle[Any]:
        """The handle of a task that was sent elsewhere. Name the task to have it typed."""
        definition = self.registry.get(task.name) if task is not None else None
        return TaskHandle(self, task_id, definition=definition)

    @overload
    def workflow_handle(self, workflow_id: str) -> "WorkflowHandle[Any]": ...
    @overload
    def workflow_handle(self, workflow_id: str, spec: "WorkflowSpec[T]") -> "WorkflowHandle[T]": ...
    def workflow_handle(self, workflow_id: str, spec: "WorkflowSpec[Any] | None" = None) -> "WorkflowHandle[Any]":
        """The handle of a run that was started elsewhere. Its output is typed when this app defines the workflow in
        the same shape; name it to have the handle typed as well."""
        from horsies.workflow.handle import WorkflowHandle

        return WorkflowHandle(self, workflow_id, spec=spec)

    def get_broker(self) -> "PostgresBroker":
        """Monitoring, and recovery by hand."""
        if self._broker is None:
            from horsies.broker import PostgresBroker

            self._broker = PostgresBroker(self.database, self.config)
        return self._broker

    # -- running ---------------------------------------------------------------------------------

    def run_worker(self, locator: str, **options: Any) -> int:
        """Run a worker for this app in this process until a signal stops it; returns its exit code.

        `locator` (`module:attribute`) is how its child processes find this app. Options are those of
        `horsies worker`, such as `processes=4`.
        """
        try:
            from horsies_worker.options import WorkerOptions
            from horsies_worker.running import run_worker
        except ImportError:
            raise UsageError("app.run_worker() needs the package horsies-worker: pip install horsies-worker") from None
        return run_worker(self, WorkerOptions(locator=locator, **options))

    def run_scheduler(self, **options: Any) -> int:
        """Run a scheduler for this app in this process until a signal stops it; returns its exit code.

        Options are those of `horsies scheduler`, such as `log_level="DEBUG"`.
        """
        try:
            from horsies_worker.options import SchedulerOptions
            from horsies_worker.scheduler.process import run_scheduler
        except ImportError:
            raise UsageError(
                "app.run_scheduler() needs the package horsies-worker: pip install horsies-worker"
            ) from None
        return run_scheduler(self, SchedulerOptions(**options))

    # -- life ------------------------------------------------------------------------------------

    @property
    def database(self) -> "Database":
        """For our siblings: the connections."""
        database = self._database
        if database is None:
            from horsies._pg.pool import Database

            # atomic, as in run_sync: a second one, made by another thread at once, would never be closed
            database = vars(self).setdefault("_first_database", Database(self.config.broker, self.config.resilience))
            self._database = database
        return database

    @property
    def schema(self) -> str | None:
        return self.config.broker.schema

    @property
    def payload_limits(self) -> "PayloadLimits":
        if self._limits is None:
            from horsies.codec import PayloadLimits

            self._limits = PayloadLimits(self.config.payload_warn_bytes, self.config.payload_max_bytes)
        return self._limits

    def run_sync(self, verb: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """For our siblings: run a coroutine for a caller that has no loop."""
        background = self._background
        if background is None:
            load_verbs(verb)
            from horsies.sync import BackgroundLoop

            # setdefault is atomic: of two threads that come here at once, both get the first one's
            background = vars(self).setdefault("_first_background", BackgroundLoop(self._close_here))
            self._background = background
        return background.run(verb, work)

    def close(self) -> None:
        """Close the connections of the synchronous verbs. Happens at exit by itself."""
        if self._background is not None:
            self._background.close()

    async def aclose(self) -> None:
        """Close the connections of the running loop, and those of the synchronous verbs."""
        await self._close_here()
        import asyncio

        await asyncio.to_thread(self.close)

    async def _close_here(self) -> None:
        if self._database is not None:
            await self._database.close_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _refuse_bare(decorator: str, name: object) -> None:
    """`@app.task` without its parentheses would quietly replace the function by a decorator."""
    if callable(name):
        called = getattr(name, "__name__", type(name).__name__)
        raise TaskDefinitionError(
            called, f"@app.{decorator} needs a name", f'write @app.{decorator}("{called}")', location=_location(name)
        )


def _location(fn: object) -> str:
    code = getattr(inspect.unwrap(cast("Callable[..., Any]", fn)) if callable(fn) else fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "unknown place"


def _close_at_exit() -> None:
    sync = sys.modules.get("horsies.sync")
    if sync is not None:
        sync.close_at_exit()


# Here and not at the first use of a verb: functions that the program registers later run earlier, and may still send.
atexit.register(_close_at_exit)
