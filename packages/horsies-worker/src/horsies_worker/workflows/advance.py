"""Advances workflows: collects the ends of their tasks, and takes one step per workflow and round.

`tasks_ended` is the one way by which a workflow hears that a task ended. The finalizer, the claimer (expired and
unknown tasks), the reaper and the recovery of dead workers call it; a cancel or a manual fail arrives by notification.
The ids are only hints: a step reads the true state under the workflow's lock. A needless hint costs one lookup, and
the reaper repairs a lost one after its grace.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from horsies._pg.transient import is_transient
from horsies.config import AppConfig
from horsies_worker.database.session import Session
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.service import BacklogService
from horsies_worker.syncpoints import reached
from horsies_worker.workflows.step import Work, take_step

BATCH: Final = 1_000
"""Ended tasks per round. Those that arrive during a round go into the next one, many to a step."""


class Advancer(BacklogService):
    name = "workflows"

    def __init__(self, session: Session, config: AppConfig, bus: EventBus = SILENT) -> None:
        super().__init__(session, config.resilience)
        self._take_step = partial(take_step, session, max_bytes=config.payload_max_bytes, bus=bus)
        self._tasks: dict[str, None] = {}
        self._workflows: dict[str, Work] = {}

    # -- hints -----------------------------------------------------------------------------------

    def tasks_ended(self, task_ids: Iterable[str]) -> None:
        """These tasks have ended. Tasks that belong to no workflow, or went back to the queue, are ignored."""
        self._tasks |= dict.fromkeys(task_ids)
        self._wake_up()

    def check(self, workflow_ids: Iterable[str]) -> None:
        """These workflows may have stopped half-way: check everything that is under way in them."""
        for workflow_id in workflow_ids:
            self._add(workflow_id, Work(whole=True))
        self._wake_up()

    def on_step(self, payload: str) -> None:
        """A notification: `w:` and a workflow id, or `t:` and a task id."""
        kind, _, name = payload.partition(":")
        if kind == "w":
            self.check([name])
        elif kind == "t":
            self.tasks_ended([name])

    def _add(self, workflow_id: str, work: Work) -> None:
        known = self._workflows.setdefault(workflow_id, Work())
        known.task_ids += work.task_ids
        known.child_ids += work.child_ids
        known.ready |= work.ready
        known.paused |= work.paused
        known.whole |= work.whole

    def _wake_up(self) -> None:
        if self.has_backlog():
            self.backlog_added()

    # -- rounds ----------------------------------------------------------------------------------

    def has_backlog(self) -> bool:
        return bool(self._tasks or self._workflows)

    async def run_once(self) -> None:
        """Take one step for every workflow with hints. An unexpected error of one step is raised after all others."""
        await self._find_workflows()
        await reached("before_workflow_phase")
        unexpected: Exception | None = None
        for workflow_id in list(self._workflows):
            work = self._workflows.pop(workflow_id)
            try:
                following = await self._session.run(
                    lambda connection: self._take_step(connection, workflow_id, work)  # noqa: B023  (awaited here)
                )
            except Exception as error:
                if is_transient(error):  # repeat the step, together with what arrives meanwhile
                    self._add(workflow_id, work)
                    raise
                unexpected = unexpected or error
                continue
            for next_id, next_work in following.items():
                self._add(next_id, next_work)
        if unexpected is not None:
            raise unexpected

    async def _find_workflows(self) -> None:
        batch = list(self._tasks)[:BATCH]
        if not batch:
            return
        rows = await self._session.ask("workflows_of_tasks", batch)
        for task_id in batch:
            del self._tasks[task_id]
        for row in rows:
            self._add(row["workflow_id"], Work(task_ids=[row["task_id"]]))
