"""The tasks that this worker holds: from the claim's answer until their end is written or lost."""

from collections.abc import Iterable, Iterator

from horsies_worker.claims import ClaimedTask
from horsies_worker.jobs import Job


class Held:
    """By task id; a job of an earlier claim of the same task is not the one that is held."""

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

    def take(self, keys: Iterable[tuple[str, int]]) -> list[ClaimedTask]:
        """Hold these (id, generation) no longer; returns those that were held."""
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
