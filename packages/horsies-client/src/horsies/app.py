"""`Horsies`: the app. It registers tasks and workflows, sends by name, and starts workers and schedulers."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from horsies._checks import shown
from horsies._hints import APP, explained, known_options, known_settings, missing
from horsies._text import plural
from horsies.batch_limits import BatchLimits
from horsies.batch_tasks import AsyncBatchTaskFunction, BatchTaskDecorator, BatchTaskFunction
from horsies.batches.verbs import Batching
from horsies.config import AppConfig
from horsies.defining import (
    GroupedStubDecorator,
    GroupedTaskDecorator,
    StubDecorator,
    TaskDecorator,
    TaskSettings,
    define,
    location_of,
    name_of_task,
    refuse_no_name,
)
from horsies.errors import UsageError
from horsies.events import Event
from horsies.exception_codes import ExceptionMapper
from horsies.handle import TaskHandle
from horsies.lifespan import Lifespan
from horsies.options import SendOptions, TaskOptions
from horsies.retry import RetryPolicy
from horsies.send_calls import SendingMany
from horsies.tasks import AsyncTaskFunction, NamedSender, Sender, TaskFunction, TaskStub, WithOptions, changed

if TYPE_CHECKING:
    from horsies.app_schedules import AppSchedules
    from horsies.groups import GroupKey
    from horsies.schedule import TaskSchedule
    from horsies.uniqueness import OnConflict
    from horsies.workflow.defined import Workflows
    from horsies.workflow.graph import OnErrorChoice, SuccessPolicy
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.nodes import Node
    from horsies.workflow.outputless import OutputlessWorkflow
    from horsies.workflow.spec import WorkflowSpec
    from horsies.workflow.terminal import TerminalResults

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=Event)
R = TypeVar("R")
Hook = TypeVar("Hook", bound=Callable[[], None])


@known_settings
class Horsies(Batching, SendingMany, WithOptions[NamedSender]):
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
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: str | None = None,
        store_result: bool = True,
        keep_for: timedelta | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
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
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: "Callable[P, GroupKey]",
        store_result: bool = True,
        keep_for: timedelta | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
    ) -> GroupedTaskDecorator[P]: ...
    @overload
    def task(
        self, *, task_name: str, group_by: str | None = None, **options: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    @overload
    def task(
        self, *, task_name: str, group_by: "Callable[P, GroupKey]", **options: Unpack[TaskSettings]
    ) -> GroupedTaskDecorator[P]: ...
    @explained("task")
    def task(
        self,
        name: str | None = None,
        *,
        task_name: str | None = None,
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        run_ahead: bool = True,
        metadata: Mapping[str, Any] | None = None,
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: "str | Callable[..., GroupKey] | None" = None,
        store_result: bool = True,
        keep_for: timedelta | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
    ) -> Any:
        """Register a function under a name. It returns `TaskResult[T, TaskError]`. Its annotations type sends and
        results; a definition that cannot work is refused at import, with file and line. The name may also be given as
        `task_name=`.

        `group_by`: the name of a parameter, or a function with the parameters of the task that returns a str, an int, a
        UUID or None. The sender calls it with the arguments of each call: its value is the group of that task.
        `store_result=False`: the value that the task returns is not stored; errors are. `keep_for`: how long an ended
        task stays in the database; it overrides the retention.

        `unique_for`, `unique_by_args`, `debounce`, `max_wait`, `on_conflict`: as those of `with_options`, for every
        send that does not say otherwise. Nodes of workflows, members of batches and schedules leave them alone.

        `exception_mapper`, `default_unhandled_error_code`: the error codes of exceptions that escape this task; for
        the same class they replace those of `AppConfig`.
        """
        named = name_of_task(name, task_name)
        options = TaskOptions(queue_name=queue_name, retry_policy=retry_policy, timeout_ms=timeout_ms,
                              priority=priority, good_until=good_until, run_ahead=run_ahead,
                              metadata=metadata, group_by=group_by, store_result=store_result,
                              keep_for=keep_for, unique_for=unique_for,
                              unique_by_args=unique_by_args, debounce=debounce, max_wait=max_wait,
                              on_conflict=on_conflict, exception_mapper=exception_mapper,
                              default_unhandled_error_code=default_unhandled_error_code)  # fmt: skip

        def register(fn: Callable[..., Any]) -> Any:
            definition = define(self, named, fn, options, is_stub=False)
            kind = AsyncTaskFunction[..., Any] if definition.is_async else TaskFunction[..., Any]
            return kind(self, definition)

        return register

    @explained("batch_task")
    def batch_task(
        self,
        name: str,
        *,
        max_size: int = 100,
        max_wait_ms: int = 50,
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        metadata: Mapping[str, Any] | None = None,
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: "str | Callable[[Any], GroupKey] | None" = None,
        store_result: bool = True,
        keep_for: timedelta | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
    ) -> BatchTaskDecorator:
        """Register a function that works on many tasks at once: it takes a list of items and returns one TaskResult for
        each, in the same order. `send(item)` sends one task, which has its own result, retries and place in the queue.

        A worker calls the function with up to `max_size` items, and at the latest `max_wait_ms` after it took the first
        of them. `timeout_ms` is that of the call. A task that is repeated runs alone, as a list of one item.
        `group_by`: "item", or a function of the item. The other options are those of `task`, for each task by itself.
        """
        refuse_no_name("batch_task", name)
        options = TaskOptions(queue_name=queue_name, retry_policy=retry_policy, timeout_ms=timeout_ms,
                              priority=priority, good_until=good_until, run_ahead=False,
                              metadata=metadata, group_by=group_by, store_result=store_result,
                              keep_for=keep_for, unique_for=unique_for,
                              unique_by_args=unique_by_args, debounce=debounce, max_wait=max_wait,
                              on_conflict=on_conflict, exception_mapper=exception_mapper,
                              default_unhandled_error_code=default_unhandled_error_code)  # fmt: skip
        limits = BatchLimits(max_size, max_wait_ms)

        def register(fn: Callable[..., Any]) -> Any:
            definition = define(self, name, fn, options, is_stub=False, batch=limits)
            kind = AsyncBatchTaskFunction[Any, Any] if definition.is_async else BatchTaskFunction[Any, Any]
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
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: str | None = None,
        keep_for: timedelta | None = None,
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
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: "Callable[P, GroupKey]",
        keep_for: timedelta | None = None,
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
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
        group_by: "str | Callable[..., GroupKey] | None" = None,
        keep_for: timedelta | None = None,
    ) -> Any:
        """Declare a task that another code base runs, by the signature of a stub. The worker's registration decides
        retries, time-outs and what is stored; `group_by`, `keep_for`, `unique_for` and the like are those of the
        sender, and belong here."""
        refuse_no_name("declare", name)
        options = TaskOptions(queue_name=queue_name, priority=priority, good_until=good_until, metadata=metadata,
                              group_by=group_by, keep_for=keep_for, unique_for=unique_for,
                              unique_by_args=unique_by_args,
                              debounce=debounce, max_wait=max_wait, on_conflict=on_conflict)  # fmt: skip

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
        on_error: "OnErrorChoice" = "fail",
        success_policy: "SuccessPolicy | None" = None,
    ) -> "WorkflowSpec[T]": ...
    @overload
    def workflow(
        self,
        name: str,
        tasks: "Sequence[Node[Any]]",
        *,
        output: None = None,
        on_error: "OnErrorChoice" = "fail",
        success_policy: "SuccessPolicy | None" = None,
    ) -> "OutputlessWorkflow": ...
    @known_options(definition_key="nothing: the shape of the graph is its key", queue="queue_name=... of its nodes")
    def workflow(
        self,
        name: str,
        tasks: "Sequence[Node[Any]]",
        *,
        output: "Node[Any] | None" = None,
        on_error: "OnErrorChoice" = "fail",
        success_policy: "SuccessPolicy | None" = None,
    ) -> "WorkflowSpec[Any]":
        """Define a workflow of these nodes. It is validated now, and an error lists all problems.

        `output`: the node whose result is the run's result; without it, the result is that of all nodes for which no
        other node waits (`TerminalResults`). `on_error`: after a failure, `fail` lets all nodes that do
        not depend on it finish and ends the run FAILED; `pause` starts no more nodes until the run is resumed.
        `success_policy`: the nodes that must complete for the run to be COMPLETED; without it, all nodes.
        """
        from horsies.workflow.outputless import OutputlessWorkflow
        from horsies.workflow.spec import WorkflowSpec
        from horsies.workflow.terminal import TerminalResults

        settings: Any = {"on_error": on_error, "success_policy": success_policy}
        spec: WorkflowSpec[Any]
        if output is None:
            spec = OutputlessWorkflow(self, name, tasks, returns=TerminalResults, **settings)
        else:
            spec = WorkflowSpec(self, name, tasks, output=output, **settings)
        self.workflows.add(spec)
        return spec

    @property
    def workflows(self) -> "Workflows":
        """The workflows that this app has defined, by name."""
        from horsies.workflow.defined import workflows_of

        return workflows_of(self)

    @property
    def schedules(self) -> "AppSchedules":
        """The schedules that are made at run time: put, get, list, delete, pause, resume, run, and their history."""
        from horsies.app_schedules import AppSchedules

        return AppSchedules(self)

    def encode_schedule(self, schedule: "TaskSchedule") -> str:
        """The arguments of a schedule as JSON, checked against this app's tasks; for the other horsies modules."""
        from horsies.scheduled import checked_kwargs

        return checked_kwargs(self, schedule)

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
    def workflow_handle(self, workflow_id: str, spec: "OutputlessWorkflow") -> "WorkflowHandle[TerminalResults]": ...
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
