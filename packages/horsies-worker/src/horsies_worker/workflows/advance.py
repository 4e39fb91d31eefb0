"""Moves workflows on when something of theirs has ended: gathers hints, and makes one step per workflow and round.

Hints come from the finalizer (tasks of ours that ended), from a notification (resumed, retried, cancelled elsewhere),
and from the reaper (whatever stopped half-way). They are only hints: a step reads what is true under the workflow's
lock, so a hint too many costs a look, and a lost one costs the reaper's grace.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from horsies._pg.backoff import Backoff
from horsies._pg.transient import is_transient
from horsies.config import AppConfig
from horsies_worker.session import Session
from horsies_worker.syncpoints import reached
from horsies_worker.workflows.step import Step, Work

_log = logging.getLogger("horsies.worker")

BATCH: Final = 1_000
"""Ends that go into one round. Whatever gathers during a round goes into the next: one step then carries many."""


class Advancer:
    def __init__(self, config: AppConfig, session: Session) -> None:
        self._session = session
        self._step = Step(config.broker.schema, max_bytes=config.payload_max_bytes, pooled=session.pooled)
        self._backoff = Backoff(config.resilience)
        self._tasks: dict[str, None] = {}
        self._workflows: dict[str, Work] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.steps = 0
        self.rounds = 0

    # -- hints -----------------------------------------------------------------------------------

    def tasks_ended(self, task_ids: Iterable[str]) -> None:
        """Tasks of workflows that are no longer under way."""
        self._tasks |= dict.fromkeys(task_ids)
        self._stir()

    def look_at(self, workflow_ids: Iterable[str]) -> None:
        """Workflows that may have stopped half-way."""
        for workflow_id in workflow_ids:
            self._add(workflow_id, Work(whole=True))
        self._stir()

    def on_step(self, payload: str) -> None:
        """A notification."""
        kind, _, name = payload.partition(":")
        if kind == "w":
            self.look_at([name])
        elif kind == "t":
            self.tasks_ended([name])

    def _add(self, workflow_id: str, work: Work) -> None:
        known = self._workflows.setdefault(workflow_id, Work())
        known.task_ids += work.task_ids
        known.child_ids += work.child_ids
        known.ready |= work.ready
        known.paused |= work.paused
        known.whole |= work.whole

    def _stir(self) -> None:
        if self._tasks or self._workflows:
            self._idle.clear()
            self._wake.set()

    # -- rounds ----------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Wait until nothing is left to do."""
        await self._idle.wait()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._tasks or self._workflows:
                try:
                    await self.run_once()
                    self._backoff.reset()
                except Exception as error:
                    delay = self._backoff.next()
                    if is_transient(error):
                        _log.warning("workflows: %s: %s; trying again in %.1f s", type(error).__name__, error, delay)
                    else:
                        _log.exception("a step of a workflow failed unexpectedly; the reaper will come back to it")
                    await asyncio.sleep(delay)
            self._idle.set()

    async def run_once(self) -> None:
        """One step for every workflow that something is known of. One whose step fails unexpectedly does not keep the
        others from theirs; its error is raised when they are done."""
        await self._find_workflows()
        await reached("before_workflow_phase")
        self.rounds += 1
        unexpected: Exception | None = None
        for workflow_id in list(self._workflows):
            work = self._workflows.pop(workflow_id)
            try:
                following = await self._session.run(
                    lambda connection: self._step.take(connection, workflow_id, work)  # noqa: B023  (awaited here)
                )
            except Exception as error:
                if is_transient(error):  # nothing is lost: the same again, with what comes meanwhile
                    self._add(workflow_id, work)
                    raise
                unexpected = unexpected or error
                continue
            self.steps += 1
            self._follow(following)
        if unexpected is not None:
            raise unexpected

    async def _find_workflows(self) -> None:
        batch = list(self._tasks)[:BATCH]
        if not batch:
            return
        rows = await self._session.run(lambda connection: self._step.fetch(connection, "workflows_of_tasks", batch))
        for task_id in batch:
            del self._tasks[task_id]
        for row in rows:
            self._add(row["workflow_id"], Work(task_ids=[row["task_id"]]))

    def _follow(self, following: Mapping[str, Work]) -> None:
        for workflow_id, work in following.items():
            self._add(workflow_id, work)
