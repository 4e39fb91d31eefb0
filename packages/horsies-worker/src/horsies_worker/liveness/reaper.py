"""Recovers what other workers left behind: overdue tasks, stale claims, stale running tasks, halted workflows.

One reaper sweeps at a time, by a transaction lock. It calls tasks stale only after it has itself been in contact with
the database for as long as the threshold: during an outage no worker could write heartbeats.

Most sweeps find nothing. So each begins with a look at one task of each kind, on a connection that is open anyway; the
reaper opens its own when the look finds a task.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from horsies._pg.locks import REAPER_LOCK
from horsies._pg.refusals import worded
from horsies._pg.transient import is_from_driver, is_lock_timeout, is_transient
from horsies.config import AppConfig, RecoveryConfig
from horsies.operate.stale import StaleKind, threshold_of
from horsies_worker.database.checks import Checks
from horsies_worker.database.lock_watch import LockWatch
from horsies_worker.database.queries import EXPIRED_RESULT
from horsies_worker.database.session import Session
from horsies_worker.liveness.recovery import Recovery
from horsies_worker.output.log_context import about, log
from horsies_worker.service import Service
from horsies_worker.syncpoints import reached

BATCH: Final = 500
SECOND_SWEEP_S: Final = 1.0
"""After a worker has died: the time from the sweep for its workflows to the second one."""
DEFAULT_GRACE: Final = timedelta(minutes=1)
"""The grace of workflows where the setting is 0."""
_OVERDUE, _CLAIMS, _RUNNING, _WORKFLOWS = _PARTS = (
    "overdue tasks", "stale claims", "stale running tasks", "halted workflows",
)  # fmt: skip

_READS_HEARTBEATS: Final = ("require_writable", "wait_until_writable", "stale_running")
"""The statements that need the tables of the heartbeats."""


class Contact:
    """How long this process has been in unbroken contact with the database. Pure: the caller says what time it is."""

    def __init__(self, recovery: RecoveryConfig) -> None:
        # A fault that delays this process delays the heartbeats of living workers as well. They look dead after the
        # threshold less one heartbeat interval; a delay of a quarter of that is far enough from it.
        self._slow_s = (
            min(
                recovery.running_stale_threshold_ms - recovery.runner_heartbeat_interval_ms,
                recovery.claimed_stale_threshold_ms - recovery.claimer_heartbeat_interval_ms,
            )
            / 4000
        )
        self._late_s = 1.1 * recovery.check_interval_ms / 1000 + self._slow_s
        self.since: float | None = None
        self.last_answer = 0.0
        self.refused_at: float | None = None

    def refused(self, now: float) -> None:
        """The server refused to search for silent tasks, such as for a table that is missing for a while. It may have
        refused the heartbeats of living workers for the same reason."""
        self.refused_at = now

    def allows_ends(self, threshold_ms: int, now: float) -> bool:
        """Whether silence for as long as this threshold shows that a worker is dead."""
        was_refused = self.refused_at is not None and now - self.refused_at < threshold_ms / 1000
        return self.lasts(threshold_ms, now) and not was_refused

    def lost(self) -> None:
        self.since = None

    def answered(self, began: float, now: float) -> None:
        """A statement was answered. If it was slow, or came late (a frozen process, a long reconnect), contact begins
        anew: the cause may have delayed the heartbeats of all workers."""
        if self.since is None or now - self.last_answer > self._late_s or now - began > self._slow_s:
            self.since = now
        self.last_answer = now

    def lasts(self, threshold_ms: int, now: float) -> bool:
        """Whether contact has lasted for as long as this threshold."""
        return self.since is not None and now - self.since >= threshold_ms / 1000


class Reaper(Service):
    name = "reaper"

    def __init__(
        self,
        session: Session,
        config: AppConfig,
        recovery: Recovery,
        *,
        checks: Session | None = None,
        check_workflows: Callable[[Sequence[str]], None] = lambda _: None,
        look_at_clocks: Callable[[], None] = lambda: None,
    ) -> None:
        """`checks`: a session whose connection is open anyway, for the first look of a sweep. `look_at_clocks`: after
        each sweep of the active reaper, for clocks of workflows that a worker set which has died."""
        super().__init__(session, config.resilience, config.recovery.check_interval_ms / 1000)
        self._checks = Checks(checks, session)
        self._check_workflows = check_workflows
        self._look_at_clocks = look_at_clocks
        self._settings = config.recovery
        self._recovery = recovery
        self._watch = LockWatch("reaper", REAPER_LOCK, session)
        self._is_active = True
        self._sweeps_without_grace = 1
        self.contact = Contact(config.recovery)
        self._traced: dict[str, str] = {}

    def find_halted_workflows(self) -> None:
        """Sweep without the grace of workflows: a worker died, or notifications may have been missed. Sweep now, and
        once more a moment later: a sweep passes over runs that are locked, and a step of this worker may hold one."""
        self._sweeps_without_grace = 2
        self.wake()

    async def run_once(self) -> None:
        try:
            try:
                has_more = await self._checks.run(self._look)
                while has_more:
                    has_more = await self._session.run(self._sweep)
            except Exception as error:
                if not _refuses_a_statement(error):
                    raise
                await self._sweep_apart()
        except Exception:
            self.contact.lost()
            raise
        if self._is_active:
            self._watch.obtained()
            self._look_at_clocks()
            if self._sweeps_without_grace:
                asyncio.get_running_loop().call_later(SECOND_SWEEP_S, self.wake)
        else:
            await self._watch.refused()

    async def _look(self, connection: Any) -> bool:
        """Whether a sweep has something to do, or has to wait to find out."""
        try:
            return await self._sweep(connection, is_look=True)
        except Exception as error:
            if is_lock_timeout(error):  # caught here: the connection is sound
                return True
            raise

    async def _sweep_apart(self) -> None:
        """Sweep each part in a transaction of its own: the server refused a statement, and with it the whole sweep."""
        for part in _PARTS:
            try:
                while await self._session.run(partial(self._sweep, parts=(part,))):
                    pass
            except Exception as error:
                if not _refuses_a_statement(error):
                    raise
                text = worded(error)
                traced = None if self._traced.get(part) == text else error  # once, while the same error repeats
                self._traced[part] = text
                log.error(
                    "reaper: the search for %s failed; the other searches continue: %s", part, text, exc_info=traced
                )

    async def _fetch(self, connection: Any, name: str, *values: Any) -> list[Any]:
        began = time.monotonic()
        try:
            return await connection.fetch(self._queries.sql(name), *values)
        except Exception as error:
            if name in _READS_HEARTBEATS and _refuses_a_statement(error):
                self.contact.refused(time.monotonic())
            raise
        finally:
            # also for a statement that was given up: it took at least this long
            self.contact.answered(began, time.monotonic())

    def _has_contact_for(self, threshold_ms: int) -> bool:
        return self.contact.lasts(threshold_ms, time.monotonic())

    async def _sweep(self, connection: Any, parts: Sequence[str] = _PARTS, *, is_look: bool = False) -> bool:
        """One short transaction; True when there may be more to do, because a batch was full. `is_look`: neither wait
        for locks of the tables nor end running tasks, and take one task of the other kinds."""
        settings = self._settings
        limit = 1 if is_look else BATCH
        async with self._session.transaction(connection):
            await self._fetch(connection, "require_writable" if is_look else "wait_until_writable")
            (is_active,) = await self._fetch(connection, "try_reaper_lock", REAPER_LOCK)
            self._is_active = is_active[0]
            if not self._is_active:
                return False
            await reached("in_sweep")
            expired: list[Any] = []
            if _OVERDUE in parts:
                expired = await self._fetch(connection, "expire_overdue", EXPIRED_RESULT, limit)
            requeued: list[Any] = []
            with_claims = settings.auto_requeue_stale_claimed and _CLAIMS in parts
            if with_claims and self._has_contact_for(settings.claimed_stale_threshold_ms):
                threshold = threshold_of(settings, StaleKind.CLAIMED)
                requeued = await self._fetch(connection, "requeue_silent_claims", threshold, limit)
            stale: list[Any] = []
            leaves_stale = False
            with_running = settings.auto_fail_stale_running and _RUNNING in parts
            if with_running and self._has_contact_for(settings.running_stale_threshold_ms):
                stale = await self._fetch(
                    connection,
                    "stale_running",
                    threshold_of(settings, StaleKind.RUNNING),
                    threshold_of(settings, StaleKind.FINALIZING),
                    limit,
                )
                if not self.contact.allows_ends(settings.running_stale_threshold_ms, time.monotonic()):
                    stale = []  # this statement itself was slow, or the ones before it were refused
                if is_look:
                    leaves_stale, stale = bool(stale), []
                stale = await self._recovery.end(connection, stale, "no sign of life")
            halted, is_full = await self._halted_workflows(connection) if _WORKFLOWS in parts else ([], False)
        self._recovery.tasks_ended([row["id"] for row in (*expired, *stale)])
        if halted:
            log.warning("reaper: continuing %d halted workflows", len(halted))
            self._check_workflows(halted)
        self._recovery.tell("expired", expired)
        self._recovery.tell("requeued", requeued)
        self._recovery.tell("ended", stale)
        for what, rows in (("expired", expired), ("requeued a stale claim of", requeued), ("recovered", stale)):
            for row in rows:
                log.warning("reaper: %s task %s", what, row["id"], extra=about(row["id"]))
        return max(len(expired), len(requeued), len(stale)) == limit or leaves_stale or is_full

    async def _halted_workflows(self, connection: Any) -> tuple[list[str], bool]:
        """Workflows whose progress was not applied within the grace, and whether there may be more. Checking one too
        many is harmless: a step does nothing where nothing is missing."""
        grace = timedelta(milliseconds=self._settings.crashed_worker_recovery_grace_ms) or DEFAULT_GRACE
        if self._sweeps_without_grace:
            self._sweeps_without_grace -= 1
            grace = timedelta(0)
        rows = await self._fetch(connection, "unadvanced_workflows", grace, BATCH)
        stopped = await self._fetch(connection, "unsettled_stopped_workflows", grace, BATCH)
        return [row["id"] for row in (*rows, *stopped)], len(rows) == BATCH


def _refuses_a_statement(error: Exception) -> bool:
    """Whether the server refused this one statement. An outage, or a role that may no longer log in (SQLSTATE class
    28), ends the whole sweep instead."""
    is_login = str(getattr(error, "sqlstate", "")).startswith("28")
    return is_from_driver(error) and not is_transient(error) and not is_login
