"""Middleware: code around every send and every attempt of an app's tasks. `docs/guides/middleware.md` explains it.

class Tenant(Middleware):
    @contextmanager
    def scope(self, ctx):
        token = tenant.set(ctx.metadata.get("tenant"))
        try:
            yield
        finally:
            tenant.reset(token)

app = Horsies(AppConfig(..., middleware=[Tenant()]))
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from horsies._checks import Checks, shown
from horsies.errors import TaskSendError

if TYPE_CHECKING:
    from horsies.context import BatchCall, TaskContext
    from horsies.result import TaskError, TaskResult

_log = logging.getLogger("horsies")

AttemptOutcomeName = Literal["ok", "error", "timeout", "cancelled", "interrupted", "snoozed"]


@dataclass(slots=True)
class Outgoing:
    """Tasks, or a run of a workflow, that are about to be written."""

    name: str
    """Of the task or the workflow."""
    ids: Sequence[str]
    """The ids of the tasks, several for `send_many`; or the id of the run."""
    queue_name: str | None
    """None for a workflow: its nodes have their own."""
    metadata: dict[str, Any]
    """`on_send` may change it. All tasks of one `send_many` share it."""
    is_workflow: bool = False
    schedule: str | None = None
    """The name of the schedule that fires."""
    from_task: "TaskContext | None" = None
    """The task in which the send happens."""
    groups: Sequence[str | None] = ()
    """The group of each task in `ids`, or of the run. A change has no effect."""
    state: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False, compare=False)
    """For middleware: what it keeps from `on_send` to `on_sent`, under a key of its own."""

    @property
    def group(self) -> str | None:
        """The group that all of these tasks have, or the run; None without one, and where the calls of a `send_many`
        have different groups."""
        return self.groups[0] if len(set(self.groups)) == 1 else None


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of one attempt, as the child process knows it."""

    context: "TaskContext"
    result: "TaskResult[Any, TaskError] | None"
    """What the task returned; None when it raised, was stopped, or was not called."""
    exception: BaseException | None
    """What the task or middleware raised; or why the stored arguments do not fit the task, which was not called."""
    outcome: AttemptOutcomeName
    duration_s: float
    retry_expected: bool
    """A forecast by the registered retry policy. The worker and the row decide: a cancelled task is not retried."""


class Middleware:
    """Override what you need. The first middleware of the list is the outermost.

    `scope` and `run_task` run inside the attempt: its timeout includes them, and a stop reaches them as it reaches user
    code. They see no crash of the process: subscribe to events for that (`app.on_event`).
    """

    def on_send(self, task: Outgoing) -> None:
        """Called before a send, a fired schedule or the start of a workflow, in the thread of the caller. It may change
        `task.metadata`. An exception refuses the send. `.retry()` of a failed send does not call it again."""

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None:
        """Called after each try of the send, and when the `on_send` of a later middleware refused it. With
        `connection=`, the caller's transaction may still roll back. Its own exceptions are logged."""

    def scope(self, ctx: "TaskContext") -> AbstractContextManager[None]:
        """Entered around every attempt, sync and async. It must not block: it would block the event loop of async
        tasks."""
        return nullcontext()

    def batch_scope(self, call: "BatchCall") -> AbstractContextManager[None]:
        """Entered once around every call of a batch task, sync and async, in place of `scope` and `run_task`: the tasks
        of one call may differ in their metadata. It must not block."""
        return nullcontext()

    def run_task(
        self, ctx: "TaskContext", call: "Callable[[], TaskResult[Any, TaskError]]"
    ) -> "TaskResult[Any, TaskError]":
        """Around `def` tasks. `call()` returns what the task returned and raises what it raised."""
        return call()

    async def run_task_async(
        self, ctx: "TaskContext", call: "Callable[[], Awaitable[TaskResult[Any, TaskError]]]"
    ) -> "TaskResult[Any, TaskError]":
        """Around `async def` tasks."""
        return await call()

    def on_attempt_end(self, end: AttemptEnd) -> None:
        """Called in the child process after the result has left it, on a thread of its own. Its exceptions are logged.
        When these calls cannot keep up, some are left out, which is logged."""


def overrides(middleware: Middleware, method: str) -> bool:
    """Whether its class, or the object itself, has a method of its own in place of Middleware's."""
    return getattr(type(middleware), method) is not getattr(Middleware, method) or method in getattr(
        middleware, "__dict__", ()
    )


HOOKS: Final = ("on_send", "on_sent", "scope", "batch_scope", "run_task", "run_task_async", "on_attempt_end")


def check_middleware(checks: Checks, given: object) -> tuple[Middleware, ...]:
    """The rule for `AppConfig(middleware=)`. Returns the list as a tuple."""
    found = checks.listed("middleware", given, "give a list of Middleware objects")
    if found is None:
        return ()
    for at, item in enumerate(found):
        if not isinstance(item, Middleware):
            fix = f"write {item.__name__}()" if isinstance(item, type) else "derive its class from horsies.Middleware"
            checks.add(f"middleware[{at}]", f"{shown(item)} is not a Middleware object", fix)
            continue
        for name in HOOKS:
            is_async = inspect.iscoroutinefunction(inspect.unwrap(getattr(item, name)))
            if is_async and name != "run_task_async":
                why = f"{type(item).__name__}.{name} is `async def`: it would never be awaited"
                fix = "write `def`" if name != "run_task" else "write `def`, and run_task_async for async tasks"
                checks.add(f"middleware[{at}]", why, fix)
    return tuple(item for item in found if isinstance(item, Middleware))


def check_kinds(checks: Checks, middleware: Iterable[Middleware], kinds: Collection[bool]) -> None:
    """Refuse middleware that would silently leave out the async tasks of an app, or the others. `kinds` has `is_async`
    of the app's tasks."""
    for item in middleware:
        for one, other, kind, is_async in (
            ("run_task", "run_task_async", "async def", True),
            ("run_task_async", "run_task", "def", False),
        ):
            if is_async in kinds and overrides(item, one) and not overrides(item, other):
                checks.add(
                    "middleware",
                    f"{type(item).__name__} has {one} and not {other}: the app's `{kind}` tasks would run without it",
                    f"write {other} as well, or use scope, which is for both",
                )


def check_batch_scopes(checks: Checks, middleware: Iterable[Middleware], batch_tasks: Sequence[str]) -> None:
    """Refuse middleware around attempts that would silently leave out the batch tasks of an app."""
    for item in middleware if batch_tasks else ():
        around = [name for name in ("scope", "run_task", "run_task_async") if overrides(item, name)]
        if around and not overrides(item, "batch_scope"):
            checks.add(
                "middleware",
                f"{type(item).__name__} has {around[0]} and not batch_scope: the batch task {batch_tasks[0]!r} would "
                "run without it",
                "write batch_scope as well: it is entered once around each call, which runs several tasks",
            )


def announce(middleware: Sequence[Middleware], task: Outgoing) -> None:
    """Call every `on_send`. An exception reaches the caller: the send is refused, and the middleware before the one
    that raised is told."""
    for at, item in enumerate(middleware):
        try:
            item.on_send(task)
        except BaseException as error:
            tell_sent(middleware[:at], task, error)
            raise


def tell_sent(middleware: Sequence[Middleware], task: Outgoing, error: BaseException | None) -> None:
    """Call every `on_sent`, innermost first."""
    if error is not None and not isinstance(error, TaskSendError):
        from horsies.errors import SendErrorCode

        error = TaskSendError(SendErrorCode.ENQUEUE_FAILED, f"{type(error).__name__}: {error}", task_ids=task.ids)
    for item in reversed(middleware):
        try:
            item.on_sent(task, error)
        except Exception:
            _log.exception("%s.on_sent failed; the send is not affected", type(item).__name__)
