"""A pure model of the rows of tasks: what each statement of a worker, a reaper and an operator makes of them."""

from dataclasses import dataclass, field
from typing import Final

RUNNING_STALE_S: Final = 300
CLAIMED_STALE_S: Final = 120
LEASE_S: Final = 600
REGISTERED_RETRIES: Final = 3
"""Of the task, as the worker that recovers it knows it."""
LIVE: Final = ("PENDING", "CLAIMED", "RUNNING")


@dataclass
class Task:
    id: str
    max_retries: int
    due: float
    good_until: float | None
    status: str = "PENDING"
    generation: int = 0
    owner: str | None = None
    retry_count: int = 0
    attempts: list[str] = field(default_factory=list)
    cancel_requested: bool = False
    sign: float = 0.0
    """The last sign of life."""
    lease: float = 0.0
    staged: bool = False
    crash_retries: bool = True
    order: int = 0

    @property
    def shown(self) -> tuple[str, int, int, str | None, list[str]]:
        """What is compared with the row and its attempts."""
        owner = self.owner if self.status in ("CLAIMED", "RUNNING") else None
        return self.status, self.generation, self.retry_count, owner, self.attempts


@dataclass
class Model:
    now: float = 0.0
    paused: bool = False
    tasks: dict[str, Task] = field(default_factory=dict)

    def in_state(self, *statuses: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.status in statuses]

    def is_overdue(self, task: Task) -> bool:
        return task.good_until is not None and task.good_until <= self.now

    # -- workers -------------------------------------------------------------------------------------

    def claim(self, worker: str, limit: int, *, ahead: bool) -> dict[str, str]:
        """What a claim takes, by id."""
        if self.paused:
            return {}
        ready = [task for task in self.in_state("PENDING") if task.due <= self.now]
        taken: dict[str, str] = {}
        for task in sorted(ready, key=lambda task: (task.due, task.id))[:limit]:
            task.generation += 1
            if self.is_overdue(task):
                task.status = "EXPIRED"
            else:
                task.status, task.owner = ("CLAIMED" if ahead else "RUNNING"), worker
                task.sign, task.lease = self.now, self.now + LEASE_S
            taken[task.id] = task.status
        return taken

    def owns(self, worker: str, task_id: str, generation: int, *statuses: str) -> Task | None:
        task = self.tasks[task_id]
        is_own = task.owner == worker and task.generation == generation and task.status in statuses
        return task if is_own else None

    def start(self, worker: str, task_id: str, generation: int) -> str | None:
        task = self.owns(worker, task_id, generation, "CLAIMED")
        if task is None or task.lease <= self.now:
            return None
        task.status = "EXPIRED" if self.is_overdue(task) else "RUNNING"
        task.sign = self.now
        return task.status

    def beat(self, worker: str, task_id: str, generation: int) -> bool:
        task = self.owns(worker, task_id, generation, "RUNNING")
        if task is not None:
            task.sign = self.now
        return task is not None

    def stage(self, worker: str, task_id: str, generation: int) -> bool:
        task = self.owns(worker, task_id, generation, "RUNNING")
        if task is not None:
            task.staged = True
            task.sign = self.now
        return task is not None

    def finish(self, worker: str, task_id: str, generation: int, how: str, delay: float) -> str | None:
        task = self.owns(worker, task_id, generation, "RUNNING")
        return None if task is None else self._end(task, how, delay)

    def _end(self, task: Task, how: str, delay: float) -> str:
        task.staged = False
        if how == "ok":
            return self._ended(task, "COMPLETED", "COMPLETED")
        if how == "error":
            return self._ended(task, "FAILED", "FAILED")
        outcome = {"retry": "FAILED", "crash": "WORKER_FAILURE", "snooze": None}[how]
        if task.cancel_requested:
            return self._ended(task, "CANCELLED", outcome)
        if how != "snooze":
            assert outcome is not None
            is_late = task.good_until is not None and task.good_until <= self.now + delay
            if is_late or task.retry_count >= task.max_retries:
                return self._ended(task, "FAILED", outcome)
            task.attempts.append(outcome)
            task.retry_count += 1
        task.status, task.owner, task.due = "PENDING", None, self.now + delay
        return "PENDING"

    def _ended(self, task: Task, status: str, outcome: str | None) -> str:
        if outcome is not None:
            task.attempts.append(outcome)
        task.status = status
        return status

    def hand_back(self, worker: str, task_id: str, generation: int) -> bool:
        task = self.owns(worker, task_id, generation, "CLAIMED", "RUNNING")
        if task is None:
            return False
        task.status = "CANCELLED" if task.cancel_requested else "PENDING"
        task.owner, task.staged = None, False
        return True

    # -- others --------------------------------------------------------------------------------------

    def reap(self) -> None:
        for task in self.in_state("PENDING", "CLAIMED"):
            if self.is_overdue(task):
                task.status = "EXPIRED"
        for task in self.in_state("CLAIMED"):
            if self.now - task.sign > CLAIMED_STALE_S:
                task.status, task.owner = "PENDING", None
        for task in self.in_state("RUNNING"):
            if self.now - task.sign > RUNNING_STALE_S:
                task.max_retries = max(task.max_retries, REGISTERED_RETRIES)
                self._end(task, "ok" if task.staged else "crash", 0.0)

    def cancel(self, task_id: str) -> str | None:
        task = self.tasks[task_id]
        if task.status in ("PENDING", "CLAIMED"):
            task.status, task.cancel_requested = "CANCELLED", True
            return "CANCELLED"
        if task.status == "RUNNING":
            task.cancel_requested = True
            return "REQUESTED"
        return None

    def retry(self, task_id: str) -> bool:
        task = self.tasks[task_id]
        if task.status not in ("FAILED", "CANCELLED", "EXPIRED"):
            return False
        task.retry_count = len(task.attempts)
        task.max_retries = max(task.max_retries, task.retry_count)
        task.status, task.owner, task.due, task.good_until = "PENDING", None, self.now, None
        task.cancel_requested = task.staged = False
        return True

    def requeue(self, task_id: str) -> bool:
        task = self.tasks[task_id]
        if task.status != "CLAIMED":
            return False
        task.status, task.owner = "PENDING", None
        return True
