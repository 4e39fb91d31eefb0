"""Advances workflows: collects the ends of their tasks, and takes one step per workflow and round.

`tasks_ended` is the one way by which a workflow hears that a task ended. The finalizer, the claimer (expired and
unknown tasks), the reaper and the recovery of dead workers call it; a cancel or a manual fail arrives by notification.
The ids are only hints: a step reads the true state under the workflow's lock. A needless hint costs one lookup, and
the reaper repairs a lost one after its grace.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from horsies._pg.transient import is_transient
from horsies.config import AppConfig
from horsies.envelopes import Envelopes, stored_bytes
from horsies_worker.database.checks import Checks
from horsies_worker.database.session import Session
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.service import BacklogService
from horsies_worker.syncpoints import reached
from horsies_worker.workflows.step import take_step
from horsies_worker.workflows.work import Work

BATCH: Final = 1_000
"""Ended tasks per round. Those that arrive during a round go into the next one, many to a step."""


LEASE: Final = timedelta(seconds=30)
"""When a worker that found a due workflow has died before its step, another one finds it again."""
SHORTEST_ALARM_S: Final = 0.01
"""So that a clock which stays due keeps no worker busy."""
LONGEST_ALARM_S: Final = 86_400.0


class Advancer(BacklogService):
    name = "workflows"

    def __init__(
        self, session: Session, config: AppConfig, bus: EventBus = SILENT, *, checks: Session | None = None
    ) -> None:
        """`checks`: a session whose connection is open anyway, for looks at the clocks, most of which find nothing."""
        super().__init__(session, config.resilience)
        self._checks = Checks(checks, session)
        codec, max_bytes = config.payload_codec, config.payload_max_bytes
        self._take_step = partial(
            take_step, session, max_bytes=max_bytes if codec is None else stored_bytes(max_bytes), bus=bus,
            on_clock=self.set_alarm, envelopes=Envelopes(codec),
        )  # fmt: skip
        self._tasks: dict[str, None] = {}
        self._workflows: dict[str, Work] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._has_rung = False

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
        """A notification: `w:` and a workflow id, `s:` and the id of one that has a new signal, `t:` and a task id, or
        `c:` and the seconds until a clock of a workflow comes."""
        kind, _, name = payload.partition(":")
        if kind == "w":
            self.check([name])
        elif kind == "s":
            self._add(name, Work(signals=True))
            self._wake_up()
        elif kind == "t":
            self.tasks_ended([name])
        elif kind == "c":
            with suppress(ValueError):
                self.set_alarm(float(name))

    # -- clocks ----------------------------------------------------------------------------------

    def set_alarm(self, seconds: float) -> None:
        """A clock of a workflow comes in so many seconds: look for due workflows then."""
        loop = asyncio.get_running_loop()
        when = loop.time() + min(max(SHORTEST_ALARM_S, seconds), LONGEST_ALARM_S)
        if self._alarm is None or when < self._alarm.when():
            self._cancel_alarm()
            self._alarm = loop.call_at(when, self.look_at_clocks)

    def look_at_clocks(self) -> None:
        """Look for workflows whose clocks have come. Also called by the reaper, for clocks that another worker set."""
        self._cancel_alarm()
        self._has_rung = True
        self._wake_up()

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _add(self, workflow_id: str, work: Work) -> None:
        known = self._workflows.setdefault(workflow_id, Work())
        known.task_ids += work.task_ids
        known.child_ids += work.child_ids
        known.ready |= work.ready
        known.paused |= work.paused
        known.signals |= work.signals
        known.whole |= work.whole

    def _wake_up(self) -> None:
        if self.has_backlog():
            self.backlog_added()

    # -- rounds ----------------------------------------------------------------------------------

    def has_backlog(self) -> bool:
        return bool(self._tasks or self._workflows or self._has_rung)

    async def run_once(self) -> None:
        """Take one step for every workflow with hints. An unexpected error of one step is raised after all others."""
        await self._find_workflows()
        if self._has_rung:
            await self._find_due()
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

    async def _find_due(self) -> None:
        rows = await self._checks.ask("due_workflows", BATCH, LEASE)
        due = [row["id"] for row in rows if row["id"] is not None]
        self._has_rung = len(due) == BATCH
        for workflow_id in due:
            self._add(workflow_id, Work(whole=True))
        for row in rows:
            if row["wait_s"] is not None:
                self.set_alarm(row["wait_s"])

    async def _find_workflows(self) -> None:
        batch = list(self._tasks)[:BATCH]
        if not batch:
            return
        rows = await self._session.ask("workflows_of_tasks", batch)
        for task_id in batch:
            del self._tasks[task_id]
        for row in rows:
            self._add(row["workflow_id"], Work(task_ids=[row["task_id"]]))
