"""Heals what other workers left behind: overdue tasks, claims without a holder, running tasks without a sign of life.

One reaper sweeps at a time, by a transaction lock. It judges others only after it has itself been in contact with the
database for as long as the threshold: after an outage nobody's beats could land, and nobody is to blame.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from horsies._pg.transient import is_from_driver, is_transient
from horsies.config import AppConfig
from horsies.stale import StaleKind, threshold_of
from horsies_worker.child.logs import about
from horsies_worker.queries import EXPIRED_RESULT, REAPER_LOCK, Queries
from horsies_worker.recovery import Recovery
from horsies_worker.service import Service
from horsies_worker.session import SET_LOCAL_LIMITS, Session
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.worker")

BATCH: Final = 500
UNHURRIED: Final = timedelta(minutes=1)
"""The grace of workflows where the setting says 0: no hurry, but nothing stays half done for ever."""
_OVERDUE, _CLAIMS, _RUNNING, _WORKFLOWS = _PARTS = (
    "overdue tasks", "stale claims", "stale running tasks", "halted workflows",
)  # fmt: skip


class Reaper(Service):
    name = "reaper"

    def __init__(
        self,
        config: AppConfig,
        recovery: Recovery,
        session: Session,
        queries: Queries,
        *,
        on_halted: Callable[[Sequence[str]], None] = lambda _: None,
        on_ended: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._on_halted = on_halted
        self._on_ended = on_ended
        super().__init__(config.recovery.check_interval_ms / 1000, config.resilience)
        self._settings = config.recovery
        self._recovery = recovery
        self._session = session
        self._queries = queries
        self._look_now = True
        self._in_contact_since: float | None = None
        self._last_answer = 0.0
        # A fault that keeps us waiting keeps the beats of the living waiting as well. What it may last before they look
        # dead is the threshold less one interval of beats; a quarter of that is told from it by far.
        self._slow_s = (
            min(
                config.recovery.running_stale_threshold_ms - config.recovery.runner_heartbeat_interval_ms,
                config.recovery.claimed_stale_threshold_ms - config.recovery.claimer_heartbeat_interval_ms,
            )
            / 4000
        )

    def look_at_workflows(self) -> None:
        """Look at once, and without a grace, for workflows that stopped half-way: a worker died, or notifications may
        have been missed."""
        self._look_now = True
        self.wake()

    async def run_once(self) -> None:
        try:
            try:
                while await self._session.run(self._sweep):
                    pass
            except Exception as error:
                if not _refuses_a_statement(error):
                    raise
                await self._sweep_apart()
        except Exception:
            self._in_contact_since = None
            raise

    async def _sweep_apart(self) -> None:
        """The server has refused a statement, and with it the whole sweep: each part in a transaction of its own, so
        that the one that fails does not keep the others."""
        for part in _PARTS:
            try:
                while await self._session.run(partial(self._sweep, parts=(part,))):
                    pass
            except Exception as error:
                if not _refuses_a_statement(error):
                    raise
                _log.error("reaper: the search for %s failed; the others go on", part, exc_info=error)

    async def _ask(self, connection: Any, name: str, *values: Any) -> list[Any]:
        """One statement of the sweep. One that was slow, or came late (a frozen process, a long pause before the
        connection was there), counts as a loss of contact: it may have waited for a lock that stopped everybody."""
        asked = time.monotonic()
        rows = await connection.fetch(self._queries.sql(name), *values)
        now = time.monotonic()
        late = now - self._last_answer > 1.1 * self._interval_s + self._slow_s
        if self._in_contact_since is None or late or now - asked > self._slow_s:
            self._in_contact_since = now
        self._last_answer = now
        return rows

    def _may_judge(self, threshold_ms: int) -> bool:
        since = self._in_contact_since
        return since is not None and time.monotonic() - since >= threshold_ms / 1000

    async def _sweep(self, connection: Any, parts: Sequence[str] = _PARTS) -> bool:
        """One short transaction; True when a batch was full and there may be more."""
        settings = self._settings
        async with connection.transaction(isolation="read_committed"):
            if self._session.pooled:
                await connection.execute(SET_LOCAL_LIMITS)
            await self._ask(connection, "wait_until_writable")
            (is_active,) = await self._ask(connection, "try_reaper_lock", REAPER_LOCK)
            if not is_active[0]:
                return False
            await reached("in_sweep")
            expired: list[Any] = []
            if _OVERDUE in parts:
                expired = await self._ask(connection, "expire_overdue", EXPIRED_RESULT, BATCH)
            requeued: list[Any] = []
            judges_claims = settings.auto_requeue_stale_claimed and _CLAIMS in parts
            if judges_claims and self._may_judge(settings.claimed_stale_threshold_ms):
                threshold = threshold_of(settings, StaleKind.CLAIMED)
                requeued = await self._ask(connection, "requeue_silent_claims", threshold, BATCH)
            stale: list[Any] = []
            judges_running = settings.auto_fail_stale_running and _RUNNING in parts
            if judges_running and self._may_judge(settings.running_stale_threshold_ms):
                stale = await self._ask(
                    connection,
                    "stale_running",
                    threshold_of(settings, StaleKind.RUNNING),
                    threshold_of(settings, StaleKind.FINALIZING),
                    BATCH,
                )
                if not self._may_judge(settings.running_stale_threshold_ms):
                    stale = []  # that very statement was held up
                stale = await self._recovery.end(connection, stale, "no sign of life")
            halted, is_full = await self._halted_workflows(connection) if _WORKFLOWS in parts else ([], False)
        # tasks of workflows among them: nobody else has seen these ends
        self._on_ended([row["id"] for row in (*expired, *stale)])
        if halted:
            _log.warning("reaper: %d workflows stopped half-way, moving them on", len(halted))
            self._on_halted(halted)
        for what, rows in (("expired", expired), ("requeued a stale claim of", requeued), ("recovered", stale)):
            for row in rows:
                _log.warning("reaper: %s task %s", what, row["id"], extra=about(row["id"]))
        return max(len(expired), len(requeued), len(stale)) == BATCH or is_full

    async def _halted_workflows(self, connection: Any) -> tuple[list[str], bool]:
        """Those whose progress was not applied within the grace, and whether there may be more. No judgement of
        a worker: a step finds out for itself what is missing, and does nothing where nothing is."""
        grace = timedelta(milliseconds=self._settings.crashed_worker_recovery_grace_ms) or UNHURRIED
        if self._look_now:
            self._look_now = False
            grace = timedelta(0)
        rows = await self._ask(connection, "unadvanced_workflows", grace, BATCH)
        stopped = await self._ask(connection, "unsettled_stopped_workflows", grace, BATCH)
        return [row["id"] for row in (*rows, *stopped)], len(rows) == BATCH


def _refuses_a_statement(error: Exception) -> bool:
    """Not an outage, and not a role that may no longer log in (SQLSTATE class 28): those end the whole sweep."""
    is_login = str(getattr(error, "sqlstate", "")).startswith("28")
    return is_from_driver(error) and not is_transient(error) and not is_login
