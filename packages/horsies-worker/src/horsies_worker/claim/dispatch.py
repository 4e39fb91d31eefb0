"""Gives claimed rows to the pool or the buffer, and counts the places that are free there."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from horsies.events import TaskRecovered, TasksClaimed
from horsies.registry import Registry
from horsies_worker.child.jobs import Job, Room
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.batch_room import BatchRoom
from horsies_worker.claim.buffer import Buffer
from horsies_worker.claim.claimed_task import ClaimedTask, OwnedTasks, claimed_task
from horsies_worker.claim.state import Places
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.output.log_context import about, log


@dataclass(eq=False)
class Dispatcher:
    registry: Registry
    pool: ChildPool
    owned: OwnedTasks
    buffer: Buffer
    finalizer: Finalizer
    run_ahead: bool
    tasks_ended: Callable[[Sequence[str]], None] = lambda _: None
    bus: EventBus = SILENT
    started: Callable[[Sequence[Job]], None] = lambda _: None
    on_room: Callable[[], None] = lambda: None
    reserved: int = field(default=0, init=False)
    _was_short: bool = field(default=False, init=False)
    """Places were asked for while some were reserved."""

    def __post_init__(self) -> None:
        self._definitions = {task.name: task for task in self.registry if not task.is_stub}
        self._batches = BatchRoom(self._definitions.values())

    def places(self) -> Places:
        room, taken = self.pool.room(), self.reserved
        if taken:
            self._was_short = True
            room = Room(max(0, room.sync - taken), max(0, room.ahead - taken), max(0, room.asynchronous - taken))
        places = Places(
            room.sync, room.ahead, room.asynchronous, len(self.buffer), len(self.owned) + taken, self.finalizer.backlog,
            self.pool.short_names() if room.ahead else frozenset(),
        )  # fmt: skip
        if not self._batches.has_tasks or taken:
            return places
        gathering = self.pool.gathering
        return self._batches.places(places, room, gathering.room(is_async=False), gathering.room(is_async=True))

    @contextmanager
    def reserving(self, limit: int) -> Generator[None]:
        """Keep the two claimers from counting the same places: one has sent a claim for so many tasks."""
        self.reserved += limit
        try:
            yield
        finally:
            self.reserved -= limit
            if self._was_short:
                self._was_short = False
                self.on_room()

    def dispatch(self, rows: Sequence[Mapping[str, Any]], *, is_stopped: bool, grouped_at: float | None = None) -> None:
        """Start RUNNING rows and buffer CLAIMED ones. A worker that stops returns both. `grouped_at`: when the claim
        was sent, for a claim of grouped tasks."""
        running: list[ClaimedTask] = []
        waiting: list[ClaimedTask] = []
        for row in rows:
            status = row["status"]
            if status in ("RUNNING", "CLAIMED"):
                task = claimed_task(row, self._definitions[row["task_name"]], run_ahead=self.run_ahead)
                if grouped_at is not None:
                    task.grouped(row, grouped_at)
                (running if status == "RUNNING" else waiting).append(task)
                continue
            is_expired = status == "EXPIRED"
            what = (
                "expired before it could start"
                if is_expired
                else "WORKFLOW_STOPPED, waits until its workflow is resumed"
            )
            log.info("task %s (%s): %s", row["id"], row["task_name"], what, extra=about(row["id"], row["task_name"]))
            if is_expired:
                self.bus.emit(TaskRecovered(row["id"], "expired"))
            if is_expired and row["is_workflow_task"]:
                self.tasks_ended([row["id"]])
        if running or waiting:
            self.bus.emit(TasksClaimed(len(running) + len(waiting)))
        running = self._without_rewound(running, are_running=True)
        waiting = self._without_rewound(waiting, are_running=False)
        if is_stopped:
            self.give_back((*running, *waiting))
            return
        self.owned.add(running)
        self.owned.add(waiting)
        self.buffer.add(waiting)
        if running:
            self.start([task.job for task in running])

    def _without_rewound(self, tasks: list[ClaimedTask], *, are_running: bool) -> list[ClaimedTask]:
        """Return these claims without those of tasks that this worker has already, under a claim that is not older.

        Then the database has forgotten the former claim: it was restored to an earlier moment, or a standby took over
        that had not received it. Under the same generation, the run that goes on ends under the new claim, and a second
        one would be too many. Otherwise the former run is stopped, and the claim goes back to its queue unused: the
        next one has a higher generation.
        """
        left_out: set[str] = set()
        for task in self.owned.known(tasks):
            job = task.job
            owned = self.owned.get(job.task_id)
            if owned is None or owned.job.generation < job.generation:
                continue
            former = owned.job
            left_out.add(job.task_id)
            goes_on = are_running and former.generation == job.generation
            log.warning(
                "task %s (%s): the database has lost the claim under which it runs here, as after a failover to an "
                "asynchronous standby or a restore; it is claimed again, and %s", job.task_id, job.task_name,
                "goes on" if goes_on else "its former run is stopped", extra=about(job.task_id, job.task_name),
            )  # fmt: skip
            if goes_on:
                self.owned.add(
                    [task]
                )  # a heartbeat that is under way knows the former claim, and must not stop this one
            else:
                self.pool.abandon(former.task_id, former.generation)
                self.buffer.drop([former.task_id])
                self.owned.drop([former])
                self.give_back([task])
        return [task for task in tasks if task.job.task_id not in left_out] if left_out else tasks

    def start(self, jobs: Sequence[Job]) -> None:
        """Give RUNNING jobs to the pool. Those of batch tasks are gathered into calls; where they come first, a call
        gets its place before the other jobs do."""
        self.started(jobs)
        if not self._batches.has_tasks:
            self.pool.submit(jobs)
            return
        members = [job for job in jobs if job.gather is not None]
        self._batches.claimed(members)
        others = [job for job in jobs if job.gather is None]
        if members and jobs[0].gather is None:
            self.pool.submit(others)
            others = []
        if members:
            self.pool.gather(members)
        if others:
            self.pool.submit(others)

    def give_back(self, tasks: Sequence[ClaimedTask]) -> None:
        """Return tasks that have not started to their queues."""
        self.finalizer.give_back([(task.job.task_id, task.job.generation) for task in tasks])
