"""A claimed task, the options under which it runs, and the tasks that this worker owns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, Self

from horsies.options import REGISTERED, TaskOptions
from horsies.registry import TaskDefinition
from horsies_worker.child.jobs import Job
from horsies_worker.output.log_context import log

_columns = itemgetter(
    "id", "claim_generation", "retry_count", "task_name", "args", "kwargs", "queue_name", "ready_at", "metadata",
    "snoozes", "max_retries", "task_options", "is_workflow_task",
)  # fmt: skip
START_SHARE: Final = 0.6
"""A task with a rate starts within this share of the slack after its claim was sent."""


@dataclass(slots=True)
class ClaimedTask:
    """The row as the claim returned it, with its options resolved."""

    job: Job
    max_retries: int
    """The retries of all attempts together: those of the row, or of the registration for a row without options."""
    options: TaskOptions
    is_workflow_task: bool = False
    frees: str | None = None
    """What its end frees a place of: `group`, `cap` or `limit` (of several queues); None: of nothing counted."""

    def grouped(self, row: Mapping[str, Any], sent_at: float) -> Self:
        """Add what only the claim of grouped tasks returns. `sent_at`: when that was sent, on the monotonic clock."""
        job, within_s = self.job, row["start_within"]
        job.group, self.frees = row["group_key"], row["frees"]
        if within_s is not None:
            # The rest is for the time between the child's look at its clock and the start of user code.
            job.start_by, job.run_ahead = sent_at + START_SHARE * within_s, False
        return self


def claimed_task(row: Mapping[str, Any], definition: TaskDefinition, *, run_ahead: bool) -> ClaimedTask:
    """Build the job from a claimed row. Arguments stay JSON text."""
    (
        task_id, generation, retry_count, name, args, kwargs, queue_name, ready_at, metadata, snoozes, budget, text,
        is_workflow_task,
    ) = _columns(row)  # fmt: skip
    options, is_registered = options_of(name, text, definition.options)
    if is_registered:
        budget = max(budget, definition.options.max_retries)
    # By position, except for the last ones: this runs once per task.
    job = Job(
        task_id, generation, retry_count + 1, name, args, kwargs, options.timeout_ms, definition.is_async,
        run_ahead and options.run_ahead, queue_name, ready_at, metadata, snoozes=snoozes,
        stores_result=options.store_result, gather=definition.batch,
    )  # fmt: skip
    return ClaimedTask(job, budget, options, is_workflow_task)


def options_of(task_name: str, text: str | None, registered: TaskOptions) -> tuple[TaskOptions, bool]:
    """The options of a row with this text, and whether they are those of the worker's registration, but for what the
    text names. Rows are untrusted: when the options cannot be read, the worker logs that and uses the registered ones,
    so that a bad row still ends."""
    if text is None:
        return registered, True
    try:
        parsed = _parsed(text)
    except (ValueError, RecursionError) as error:  # nested deeper than the parser goes
        log.warning("task %r: cannot read the options of its row, using the registered ones: %s", task_name, error)
        return registered, text.startswith(REGISTERED)
    own, is_registered = parsed
    return (replace(registered, store_result=own.store_result), True) if is_registered else parsed


@lru_cache(maxsize=512)
def _parsed(text: str) -> tuple[TaskOptions, bool]:
    return TaskOptions.from_json(text), text.startswith(REGISTERED)


class OwnedTasks:
    """The tasks that this worker owns, by id: from the answer of the claim until their end is written or the claim is
    lost. Only the latest claim of a task is owned: a job of an earlier generation is not found."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[str, ClaimedTask] = {}

    def add(self, tasks: Iterable[ClaimedTask]) -> None:
        for task in tasks:
            self._tasks[task.job.task_id] = task

    def find(self, task_id: str, generation: int) -> ClaimedTask | None:
        task = self._tasks.get(task_id)
        return task if task is not None and task.job.generation == generation else None

    def get(self, task_id: str) -> ClaimedTask | None:
        return self._tasks.get(task_id)

    def known(self, tasks: Iterable[ClaimedTask]) -> list[ClaimedTask]:
        """Return those of these whose ids are owned, under any claim."""
        owned = self._tasks
        return [task for task in tasks if task.job.task_id in owned]

    def take(self, keys: Iterable[tuple[str, int]]) -> list[ClaimedTask]:
        """Remove these (id, generation); return the tasks that were owned."""
        taken: list[ClaimedTask] = []
        for key in keys:
            task = self.find(*key)
            if task is not None:
                del self._tasks[key[0]]
                taken.append(task)
        return taken

    def drop(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if self.find(job.task_id, job.generation) is not None:
                del self._tasks[job.task_id]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[ClaimedTask]:
        return iter(list(self._tasks.values()))
