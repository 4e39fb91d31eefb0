"""`run` and `run_as`: one attempt of one task, as a worker runs it."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from horsies._checks import Checks, shown
from horsies.app import Horsies
from horsies.batch_tasks import AsyncBatchTaskFunction, BatchTaskFunction
from horsies.errors import ConfigurationError, UsageError
from horsies.groups import check_group
from horsies.metadata import NOTHING, decode, encode
from horsies.new_tasks import plan
from horsies.options import SendOptions, check_metadata
from horsies.result import TaskError, TaskResult
from horsies.snoozing import MAX_COUNT
from horsies.tasks import AsyncTaskFunction, Sender, TaskFunction
from horsies.testing.attempts import require_worker, run_row
from horsies.testing.calls import read_call
from horsies.testing.modes import installed
from horsies.testing.records import SentTask
from horsies.testing.store import TaskRow
from horsies.testing.threads import in_thread, off_the_loop

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen

P = ParamSpec("P")
T = TypeVar("T")


def run(task: Sender[P, T], /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
    """Run one attempt of the task and return its result.

    Arguments and result go through the codec, and the call through middleware, the app's mapping of exceptions and
    `current_task()`. An exception becomes an err, as on a worker. Retries are not made, and `timeout_ms` is not
    enforced. Without `recorded` or `inline`, a send inside the task is a UsageError. A batch task is called with a list
    of this one item.
    """
    return OneTask(task).__call__(*args, **kwargs)


async def run_async(task: Sender[P, T], /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
    """See `run`."""
    return await OneTask(task).run_async(*args, **kwargs)


def run_as(
    task: Sender[P, T],
    /,
    *,
    attempt: int = 1,
    metadata: Mapping[str, Any] | None = None,
    group: str | None = None,
    snoozes: int = 0,
) -> "OneTask[P, T]":
    """Run the task as this attempt, with this metadata beside that of its registration, and in this group; None: what
    its `group_by` says. `run_as(task, attempt=3)(...)`, or `await run_as(task, attempt=3).run_async(...)`. `snoozes`:
    how often the task has snoozed before."""
    return OneTask(task, attempt, metadata, group, snoozes)


class OneTask(Generic[P, T]):
    """One attempt of a task that is ready to run."""

    def __init__(
        self,
        task: Sender[P, T],
        attempt: int = 1,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        snoozes: int = 0,
    ) -> None:
        require_worker("run")
        if not isinstance(task, TaskFunction | AsyncTaskFunction | BatchTaskFunction | AsyncBatchTaskFunction):
            why = f"task {task.name!r} has no body here" if hasattr(task, "definition") else f"{shown(task)} is no task"
            raise UsageError(f"testing.run takes a function with @app.task: {why}")
        checks = Checks("run_as")
        checks.integer("attempt", attempt, 1, 1_001)
        checks.integer("snoozes", snoozes, 0, MAX_COUNT)
        check_metadata(checks, metadata)
        check_group(checks, group)
        if checks.problems:
            raise ConfigurationError(checks.problems, subject=checks.subject)
        self._task = cast("Sender[P, T]", task)
        self._attempt = attempt
        self._metadata = metadata or NOTHING
        self._group = group
        self._snoozes = snoozes

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run it."""
        return off_the_loop(partial(self._run, args, kwargs))

    async def run_async(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run it without blocking the event loop."""
        return await in_thread(partial(self._run, args, kwargs))

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TaskResult[T, TaskError]:
        app, definition = cast("Horsies", self._task.app), self._task.definition
        call = definition.codec.encode_call(args, kwargs, limits=app.payload_limits)
        made = plan(app.config, definition.name, definition, SendOptions(group=self._group))
        metadata = encode({**made.default_metadata, **self._metadata})
        new = made.tasks([call])
        args_json, kwargs_json = new.args[0], new.kwargs[0]
        read = read_call(definition, args_json, kwargs_json, app.envelopes, task_name=definition.name)
        sent = SentTask(
            id=new.ids[0], task_name=definition.name, args=read.args, kwargs=read.kwargs,
            arguments=read.arguments, queue_name=made.queue_name, priority=made.priority, delay=None, eta=None,
            good_until=None, unique_key=None, metadata=decode(metadata), group=made.group_of(args, kwargs),
        )  # fmt: skip
        row = TaskRow(sent, definition, args_json, kwargs_json, made.task_options, made.max_retries, metadata)
        with _sends_refused(app):
            run_row(app, row, first_attempt=self._attempt, snoozes=self._snoozes, only_one=True)
        return cast("TaskResult[T, TaskError]", sent.result)


@contextmanager
def _sends_refused(app: Horsies) -> Generator[None]:
    if app.stand_in is not None and not isinstance(app.stand_in, Refusing):
        yield
        return
    with installed(app, Refusing()):
        yield


class Refusing:
    """Refuses every send: `run` has no database."""

    def send(self, send: Any) -> Any:
        raise self.refusal(f"a send ({send.label})")

    async def send_async(self, send: Any) -> Any:
        raise self.refusal(f"a send ({send.label})")

    def look(self, sent_id: str, *, is_workflow: bool) -> "Seen | None":
        raise self.refusal("a wait for a result")

    def node_texts(self, workflow_id: str, node_ids: Sequence[str] | None) -> Mapping[str, str | None]:
        raise self.refusal("a wait for a result")

    def refusal(self, what: str) -> UsageError:
        return UsageError(
            f"testing.run runs one task without a database, where {what} cannot work: call it inside "
            "testing.recorded(app), which keeps sends, or testing.inline(app), which runs them"
        )
