"""`Horsies`: the app. It registers tasks and workflows, sends by name, and starts workers and schedulers."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from horsies._checks import shown
from horsies._hints import APP, explained, missing
from horsies._text import plural
from horsies.batches.verbs import Batching
from horsies.config import AppConfig
from horsies.defining import (
    GroupedStubDecorator,
    GroupedTaskDecorator,
    StubDecorator,
    TaskDecorator,
    define,
    location_of,
    refuse_no_name,
)
from horsies.errors import UsageError
from horsies.events import Event
from horsies.handle import TaskHandle
from horsies.lifespan import Lifespan
from horsies.options import SendOptions, TaskOptions
from horsies.retry import RetryPolicy
from horsies.tasks import AsyncTaskFunction, NamedSender, Sender, TaskFunction, TaskStub, WithOptions, changed

if TYPE_CHECKING:
    from horsies.groups import GroupKey
    from horsies.workflow.defined import Workflows
    from horsies.workflow.graph import OnError, SuccessPolicy
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.nodes import Node
    from horsies.workflow.spec import WorkflowSpec

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=Event)
R = TypeVar("R")
Hook = TypeVar("Hook", bound=Callable[[], None])


class Horsies(Batching, WithOptions[NamedSender]):
    """An app: one configuration, its tasks and workflows, and their database."""

    def __init__(self, config: AppConfig | None = None) -> None:
        super().__init__(config)
        self.child_start_hooks: list[Callable[[], None]] = []
        self.lifespans: list[Lifespan[Any]] = []
        self.event_handlers: list[tuple[type[Event], Callable[[Any], object]]] = []

    def __repr__(self) -> str:
        return f"<Horsies {plural(len(self.registry), 'task')}, {self.config.broker!r}>"

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, APP, "app")

    # -- defining --------------------------------------------------------------------------------

    @overload
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
        metadata: Mapping[str, Any] | None = None,
        group_by: str | None = None,
    ) -> TaskDecorator: ...
    @overload
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
        metadata: Mapping[str, Any] | None = None,
        group_by: "Callable[P, GroupKey]",
    ) -> GroupedTaskDecorator[P]: ...
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
        metadata: Mapping[str, Any] | None = None,
        group_by: "str | Callable[..., GroupKey] | None" = None,
    ) -> Any:
        """Register a function under a name. It returns `TaskResult[T, TaskError]`. Its annotations type sends and
        results; a definition that cannot work is refused at import, with file and line.

        `group_by`: the name of a parameter, or a function with the parameters of the task that returns a str, an int, a
        UUID or None. The sender calls it with the arguments of each call: its value is the group of that task.
        """
        refuse_no_name("task", name)
        options = TaskOptions(queue_name=queue_name, retry_policy=retry_policy, timeout_ms=timeout_ms,
                              priority=priority, good_until=good_until, run_ahead=run_ahead,
                              metadata=metadata, group_by=group_by)  # fmt: skip

        def register(fn: Callable[..., Any]) -> Any:
            definition = define(self, name, fn, options, is_stub=False)
            kind = AsyncTaskFunction[..., Any] if definition.is_async else TaskFunction[..., Any]
            return kind(self, definition)

        return register

    @overload
    def declare(
        self,
        name: str,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        group_by: str | None = None,
    ) -> StubDecorator: ...
    @overload
    def declare(
        self,
        name: str,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        group_by: "Callable[P, GroupKey]",
    ) -> GroupedStubDecorator[P]: ...
    @explained("declare")
    def declare(
        self,
        name: str,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        group_by: "str | Callable[..., GroupKey] | None" = None,
    ) -> Any:
        """Declare a task that another code base runs, by the signature of a stub. The worker's registration decides
        retries and time-outs; `group_by` is that of the sender, and belongs here."""
        refuse_no_name("declare", name)
        options = TaskOptions(queue_name=queue_name, priority=priority, good_until=good_until, metadata=metadata,
                              group_by=group_by)  # fmt: skip

        def register(fn: Callable[..., Any]) -> Any:
            return TaskStub[..., Any](self, define(self, name, fn, options, is_stub=True))

        return register

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
        """Define a workflow of these nodes. It is validated now, and an error lists all problems.

        `output`: the node whose result is the run's result. `on_error`: after a failure, `fail` lets all nodes that do
        not depend on it finish and ends the run FAILED; `pause` starts no more nodes until the run is resumed.
        `success_policy`: the nodes that must complete for the run to be COMPLETED; without it, all nodes.
        """
        from horsies.workflow.spec import WorkflowSpec

        spec = WorkflowSpec(self, name, tasks, output=output, on_error=on_error, success_policy=success_policy)
        self.workflows.add(spec)
        return spec

    @property
    def workflows(self) -> "Workflows":
        """The workflows that this app has defined, by name."""
        from horsies.workflow.defined import workflows_of

        return workflows_of(self)

    def on_child_start(self, hook: Hook) -> Hook:
        """Run `hook()` in every child process of a worker before its first task: open pools, warm caches."""
        self.child_start_hooks.append(hook)
        return hook

    @overload
    def lifespan(self, function: Callable[[], AsyncIterator[T]], /) -> Lifespan[T]: ...
    @overload
    def lifespan(self, function: Callable[[], Iterator[T]], /) -> Lifespan[T]: ...
    def lifespan(self, function: Callable[[], Any], /) -> Lifespan[Any]:
        """Decorate a generator that opens what tasks need, yields it once, and closes it. It runs in each child process
        of a worker: up to its `yield` before the first task, the rest after the last, in reverse order. Tasks read
        `.value` of the decorated function. An async generator is for `async def` tasks."""
        lifespan = Lifespan[Any](function, location_of(function))
        self.lifespans.append(lifespan)
        return lifespan

    @overload
    def on_event(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[E], object]: ...
    @overload
    def on_event(self, kind: type[E], handler: None = None) -> Callable[[Callable[[E], R]], Callable[[E], R]]: ...
    def on_event(self, kind: type[Event], handler: Callable[[Any], object] | None = None) -> Any:
        """Call `handler(event)` in every worker and scheduler process for each event of this class (`horsies.events`;
        `Event`: of every class), on one thread beside the process's own work. When handlers cannot keep up, events are
        dropped and counted. Without a handler it is a decorator."""
        if not isinstance(kind, type) or not issubclass(kind, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"on_event takes a class of horsies.events, such as AttemptFailed, not {shown(kind)}")
        if handler is None:
            return partial(self.on_event, kind)
        if not callable(handler):
            raise UsageError(f"on_event takes a function of one event, not {shown(handler)}")
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            raise UsageError("on_event takes a plain function: handlers run on a thread that has no event loop")
        if (kind, handler) not in self.event_handlers:
            self.event_handlers.append((kind, handler))
        return handler

    # -- sending and waiting ---------------------------------------------------------------------

    def _changed(self, **changes: Any) -> NamedSender:
        return NamedSender(self, changed(SendOptions(), **changes))

    def send(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Enqueue a task by name. The worker's code need not be importable here."""
        return NamedSender(self, SendOptions()).send(task_name, *args, **kwargs)

    async def send_async(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """See `send`."""
        return await NamedSender(self, SendOptions()).send_async(task_name, *args, **kwargs)

    @overload
    def handle(self, task_id: str) -> TaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str, task: Sender[Any, T]) -> TaskHandle[T]: ...
    def handle(self, task_id: str, task: Sender[Any, Any] | None = None) -> TaskHandle[Any]:
        """The handle of a task that was sent elsewhere. Pass the task to have the result typed."""
        if task is not None and not isinstance(task, Sender):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"app.handle takes the task itself, not {shown(task)}: give the function with @app.task")
        definition = self.registry.get(task.name) if task is not None else None
        return TaskHandle(self, task_id, definition=definition)

    @overload
    def workflow_handle(self, workflow_id: str) -> "WorkflowHandle[Any]": ...
    @overload
    def workflow_handle(self, workflow_id: str, spec: "WorkflowSpec[T]") -> "WorkflowHandle[T]": ...
    def workflow_handle(self, workflow_id: str, spec: "WorkflowSpec[Any] | None" = None) -> "WorkflowHandle[Any]":
        """The handle of a run that was started elsewhere. Its output is decoded by the workflow's types when this app
        defines the workflow in the same shape; pass the workflow to have the handle typed as well."""
        from horsies.workflow.handle import WorkflowHandle

        return WorkflowHandle(self, workflow_id, spec=spec)

    # -- running ---------------------------------------------------------------------------------

    def run_worker(self, locator: str, **options: Any) -> int:
        """Run a worker for this app in this process until a signal stops it; returns its exit code.

        Its child processes find this app by `locator` (`module:attribute`). Options are those of `horsies worker`,
        such as `processes=4`.
        """
        try:
            from horsies_worker.options import WorkerOptions
            from horsies_worker.process import run_worker
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
