"""Gives claimed rows to the pool or the buffer, and counts the places that are free there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horsies.events import TaskRecovered, TasksClaimed
from horsies.registry import Registry
from horsies_worker.child.jobs import Job
from horsies_worker.children.pool import ChildPool
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

    def __post_init__(self) -> None:
        self._definitions = {task.name: task for task in self.registry if not task.is_stub}

    def places(self) -> Places:
        room = self.pool.room()
        return Places(
            room.sync, room.ahead, room.asynchronous, len(self.buffer), len(self.owned), self.finalizer.backlog,
            self.pool.short_names() if room.ahead else frozenset(),
        )  # fmt: skip

    def dispatch(self, rows: Sequence[Mapping[str, Any]], *, is_stopped: bool) -> None:
        """Start RUNNING rows and buffer CLAIMED ones. A worker that stops returns both."""
        running: list[ClaimedTask] = []
        waiting: list[ClaimedTask] = []
        for row in rows:
            if row["status"] in ("RUNNING", "CLAIMED"):
                task = claimed_task(row, self._definitions[row["task_name"]], run_ahead=self.run_ahead)
                (running if row["status"] == "RUNNING" else waiting).append(task)
                continue
            is_expired = row["status"] == "EXPIRED"
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
        if is_stopped:
            self.finalizer.give_back([(task.job.task_id, task.job.generation) for task in (*running, *waiting)])
            return
        self.owned.add(running)
        self.owned.add(waiting)
        self.buffer.add(waiting)
        if running:
            jobs = [task.job for task in running]
            self.started(jobs)
            self.pool.submit(jobs)
