"""Tasks held ahead of a free slot (CLAIMED, `prefetch_buffer` > 0): started in one statement when slots come free."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from horsies_worker.child.logs import about
from horsies_worker.claims import ClaimedTask
from horsies_worker.held import Held
from horsies_worker.pool import ChildPool
from horsies_worker.queries import Queries
from horsies_worker.session import Session
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.worker")


class Starter:
    def __init__(
        self,
        session: Session,
        queries: Queries,
        pool: ChildPool,
        held: Held,
        *,
        on_workflow_task_ended: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._on_workflow_task_ended = on_workflow_task_ended
        self._session = session
        self._queries = queries
        self._pool = pool
        self._held = held
        self._buffer: deque[ClaimedTask] = deque()

    def __len__(self) -> int:
        return len(self._buffer)

    def hold(self, tasks: Iterable[ClaimedTask]) -> None:
        self._buffer.extend(tasks)

    def waiting(self) -> list[ClaimedTask]:
        return list(self._buffer)

    def take_all(self) -> list[ClaimedTask]:
        """Empty the buffer: the worker leaves, and hands them back."""
        tasks = list(self._buffer)
        self._buffer.clear()
        return tasks

    def drop(self, task_ids: Iterable[str]) -> None:
        """These were lost."""
        gone = set(task_ids)
        self._buffer = deque(task for task in self._buffer if task.job.task_id not in gone)

    async def start_waiting(self) -> bool:
        """Start as many of the buffer as the pool has room for. True when some could not be started for now, because
        somebody holds their rows: come again soon."""
        while batch := self._next_batch():
            await reached("before_start")
            keys = [(task.job.task_id, task.job.generation) for task in batch]
            statuses = await self._session.run(lambda connection: self._queries.start(connection, keys))  # noqa: B023
            missing = [key for key in keys if key[0] not in statuses]
            if missing:
                # RUNNING: by an earlier try whose answer was lost; nobody else starts what is ours. CLAIMED: locked.
                read = self._queries.read_held
                statuses |= await self._session.run(lambda connection: read(connection, missing))  # noqa: B023
            started = [task for task in batch if statuses.get(task.job.task_id) == "RUNNING"]
            locked = [task for task in batch if statuses.get(task.job.task_id) == "CLAIMED"]
            for job in (task.job for task in batch if task.job.task_id not in statuses):
                _log.info(
                    "task %s (%s) attempt %d: CLAIM_LOST before it started", job.task_id, job.task_name, job.attempt,
                    extra=about(job.task_id, job.task_name, job.attempt),
                )  # fmt: skip
            gone = [task for task in batch if task not in locked]
            self.drop(task.job.task_id for task in gone)
            self._held.drop(task.job for task in gone if task not in started)
            self._pool.submit([task.job for task in started])
            self._on_workflow_task_ended(
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
        room = self._pool.room()
        sync, asynchronous = room.sync, room.asynchronous
        batch: list[ClaimedTask] = []
        for task in self._buffer:
            if task.job.is_async and asynchronous:
                asynchronous -= 1
            elif not task.job.is_async and sync:
                sync -= 1
            else:
                continue
            batch.append(task)
        return batch
