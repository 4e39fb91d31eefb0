"""Advances workflows: collects the ends of their tasks, and takes one step per workflow and round.

`tasks_ended` is the one way by which a workflow hears that a task ended. The finalizer, the claimer (expired and
unknown tasks), the reaper and the recovery of dead workers call it; a cancel or a manual fail arrives by notification.
The ids are only hints: a step reads the true state under the workflow's lock. A needless hint costs one lookup, and
the reaper repairs a lost one after its grace.

A run that another session has locked waits apart (`locked.py`): a transaction that stays open must not hold up the
others.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from horsies._pg.locks import holder
from horsies._pg.transient import is_lock_timeout, is_transient
from horsies._text import span
from horsies.config import AppConfig
from horsies.envelopes import Envelopes, stored_bytes
from horsies_worker.database.checks import Checks
from horsies_worker.database.session import Session
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.output.log_context import log
from horsies_worker.service import BacklogService
from horsies_worker.syncpoints import reached
from horsies_worker.workflows.locked import RETRIES, RETRY_WAIT_MS, LockedRuns, RunLocked
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
        self,
        session: Session,
        config: AppConfig,
        bus: EventBus = SILENT,
        *,
        checks: Session | None = None,
        waits_for_locks: bool = False,
    ) -> None:
        """`checks`: a session whose connection is open anyway, for looks at the clocks, most of which find nothing.
        `waits_for_locks`: as long as the session's own settings let it, for a caller without other work."""
        super().__init__(session, config.resilience)
        self._checks = Checks(checks, session)
        codec, max_bytes = config.payload_codec, config.payload_max_bytes
        self._take_step = partial(
            take_step, session, max_bytes=max_bytes if codec is None else stored_bytes(max_bytes), bus=bus,
            on_clock=self.set_alarm, envelopes=Envelopes(codec),
        )  # fmt: skip
        self._tasks: dict[str, None] = {}
        self._workflows: dict[str, Work] = {}
        self._locked = LockedRuns()
        self._waits_for_locks = waits_for_locks
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
        if workflow_id in self._locked:
            self._locked.add(workflow_id, work)
        else:
            self._workflows.setdefault(workflow_id, Work()).add(work)

    def _wake_up(self) -> None:
        if self.has_backlog():
            self.backlog_added()

    # -- rounds ----------------------------------------------------------------------------------

    def has_backlog(self) -> bool:
        return bool(self._has_work or self._locked)

    @property
    def _has_work(self) -> bool:
        return bool(self._tasks or self._workflows or self._has_rung)

    async def run_once(self) -> None:
        """Take one step for every workflow with hints. An unexpected error of one step is raised after all others."""
        await self._find_workflows()
        if self._has_rung:
            await self._find_due()
        await reached("before_workflow_phase")
        unexpected: Exception | None = None
        for workflow_id in list(self._workflows):
            unexpected = await self._step(workflow_id, self._workflows.pop(workflow_id)) or unexpected
        if self._locked:
            unexpected = await self._retry_locked() or unexpected
        if unexpected is not None:
            raise unexpected
        if self._locked and not self._has_work:
            await self._wait_for_locks()

    async def _step(self, workflow_id: str, work: Work, lock_wait_ms: int | None = None) -> Exception | None:
        """Take one step; returns an unexpected error. `lock_wait_ms`: of a run that was found locked before."""
        is_retry = lock_wait_ms is not None
        limit = None if self._waits_for_locks else f"{lock_wait_ms or self._locked.lock_wait_ms}ms"
        unexpected: Exception | None = None
        following: dict[str, Work] = {}
        try:
            following = await self._session.run(lambda connection: self._take(connection, workflow_id, work, limit))
        except RunLocked:
            self._locked.hold(workflow_id, work, time.monotonic())
            return None
        except Exception as error:
            if is_transient(error):  # repeat the step, together with what arrives meanwhile
                self._add(workflow_id, work)
                raise
            unexpected = error
        if is_retry:
            self._add_again(workflow_id)
        for next_id, next_work in following.items():
            self._add(next_id, next_work)
        return unexpected

    async def _take(self, connection: Any, workflow_id: str, work: Work, lock_wait: str | None) -> dict[str, Work]:
        try:
            return await self._take_step(connection, workflow_id, work, lock_wait=lock_wait)
        except Exception as error:
            # told apart here, inside the action: the connection is sound, and is not dropped as after an outage
            if lock_wait is not None and is_lock_timeout(error):
                raise RunLocked(workflow_id) from error
            raise

    # -- runs that other sessions have locked ----------------------------------------------------

    def _add_again(self, workflow_id: str) -> None:
        """This run has been stepped after it was locked; the next step checks what has come meanwhile."""
        if (more := self._locked.release(workflow_id)) != Work():
            self._add(workflow_id, more)

    async def _retry_locked(self) -> Exception | None:
        """Step the runs that are locked no longer. Returns an unexpected error of a step."""
        unexpected: Exception | None = None
        if due := self._locked.due(time.monotonic()):
            found = await self._session.ask("unlocked_workflows", due)
            free = {row["id"] for row in found}
            self._locked.still_locked([one for one in due if one not in free], time.monotonic())
            for workflow_id in [one for one in due if one in free][:RETRIES]:
                work = self._locked.take_work(workflow_id)
                unexpected = await self._step(workflow_id, work, RETRY_WAIT_MS) or unexpected
        if late := self._locked.to_tell(time.monotonic()):
            await self._tell_late(late)
        return unexpected

    async def _wait_for_locks(self) -> None:
        """Other sessions have locked all runs that have something to do: wait until the next look, or for new work."""
        self._wake.clear()
        try:
            async with asyncio.timeout(max(0.0, self._locked.next_s(time.monotonic()))):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _tell_late(self, workflow_ids: list[str]) -> None:
        """Name the sessions that keep runs from going on."""
        try:
            rows = await self._session.ask("workflow_holders", workflow_ids[:BATCH])
        except Exception as error:
            log.debug("workflows: the holder of a lock could not be read", exc_info=error)
            rows = []
        unnamed = set(workflow_ids)
        for row in rows:
            unnamed -= set(row["ids"])
            since = f" for {span(row['age'])}" if row["age"] is not None else ""
            log.warning(
                "%s waits: %s has locked %s rows in a transaction that has been open%s; other workflows go on. It "
                "should commit or roll back; to end it: SELECT pg_terminate_backend(%d)",
                _named(row["ids"]), holder(row), "its" if len(row["ids"]) == 1 else "their", since, row["pid"],
            )  # fmt: skip
        if unnamed:
            waited = max(self._locked.waited_s(one, time.monotonic()) for one in unnamed)
            log.warning(
                "%s waits: a session that cannot be named has locked its rows for %.0f s; other workflows go on",
                _named(sorted(unnamed)), waited,
            )  # fmt: skip

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


def _named(workflow_ids: list[str]) -> str:
    more = len(workflow_ids) - 1
    return f"workflow {workflow_ids[0]}" + (f" (and {more:,} more)" if more else "")
