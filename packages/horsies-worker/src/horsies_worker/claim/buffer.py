"""Claimed tasks that wait for a free slot (CLAIMED, `prefetch_buffer` > 0); one statement starts a batch of them."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from horsies_worker.child.jobs import Job
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.claimed_task import ClaimedTask, OwnedTasks
from horsies_worker.database.session import Session
from horsies_worker.output.log_context import about, log
from horsies_worker.syncpoints import reached


@dataclass(eq=False)
class Buffer:
    session: Session
    pool: ChildPool
    owned: OwnedTasks
    tasks_ended: Callable[[Sequence[str]], None] = lambda _: None
    started: Callable[[Sequence[Job]], None] = lambda _: None
    tasks: deque[ClaimedTask] = field(default_factory=deque[ClaimedTask], init=False)

    def __len__(self) -> int:
        return len(self.tasks)

    def add(self, tasks: Iterable[ClaimedTask]) -> None:
        self.tasks.extend(tasks)

    def waiting(self) -> list[ClaimedTask]:
        return list(self.tasks)

    def take_all(self) -> list[ClaimedTask]:
        """Empty the buffer, for a worker that stops and returns these tasks."""
        tasks = self.waiting()
        self.tasks.clear()
        return tasks

    def drop(self, task_ids: Iterable[str]) -> None:
        """Forget tasks whose claim was lost."""
        gone = set(task_ids)
        self.tasks = deque(task for task in self.tasks if task.job.task_id not in gone)

    async def start(self) -> bool:
        """Start as many tasks as the pool has room for. True when other sessions hold the rows of some, so that these
        must be tried again soon."""
        while batch := self._next_batch():
            await reached("before_start")
            keys = [(task.job.task_id, task.job.generation) for task in batch]
            queries = self.session.queries
            statuses = await self.session.run(lambda connection: queries.start(connection, keys))  # noqa: B023
            missing = [key for key in keys if key[0] not in statuses]
            if missing:
                # RUNNING: an earlier statement whose answer was lost has started it. CLAIMED: another session locks it.
                statuses |= await self.session.run(lambda c: queries.read_owned(c, missing))  # noqa: B023
            started = [task for task in batch if statuses.get(task.job.task_id) == "RUNNING"]
            locked = [task for task in batch if statuses.get(task.job.task_id) == "CLAIMED"]
            for job in (task.job for task in batch if task.job.task_id not in statuses):
                log.info(
                    "task %s (%s) attempt %d: CLAIM_LOST before it started", job.task_id, job.task_name, job.attempt,
                    extra=about(job.task_id, job.task_name, job.attempt),
                )  # fmt: skip
            gone = [task for task in batch if task not in locked]
            self.drop(task.job.task_id for task in gone)
            self.owned.drop(task.job for task in gone if task not in started)
            jobs = [task.job for task in started]
            self.started(jobs)
            self.pool.submit([job for job in jobs if job.gather is None])
            self.pool.gather([job for job in jobs if job.gather is not None])
            self.tasks_ended(
                [
                    task.job.task_id
                    for task in gone
                    if task.is_workflow_task and statuses.get(task.job.task_id) == "EXPIRED"
                ]
            )
            if locked:
                return True
        return False

    def _next_batch(self) -> Sequence[ClaimedTask]:
        room = self.pool.room()
        sync, asynchronous = room.sync, room.asynchronous
        batch: list[ClaimedTask] = []
        calls: dict[str, int] = {}
        if any(task.job.gather is not None for task in self.tasks):
            calls = {**self.pool.gathering.room(is_async=False), **self.pool.gathering.room(is_async=True)}
        for task in self.tasks:
            job = task.job
            if job.gather is not None and calls.get(job.task_name, 0):
                calls[job.task_name] -= 1  # its call has a place already
            elif job.is_async and asynchronous:
                asynchronous -= 1
                calls[job.task_name] = job.gather.max_size - 1 if job.gather is not None else 0
            elif not job.is_async and sync:
                sync -= 1
                calls[job.task_name] = job.gather.max_size - 1 if job.gather is not None else 0
            else:
                continue
            batch.append(task)
        return batch
