"""Threads that look while the run goes on: the rules that hold at any moment, and a machine that stands still."""

import threading
import time
from collections.abc import Callable

import psycopg

from tests.soak import settings
from tests.soak.nemesis import Struck
from tests.soak.rules import Finding
from tests.support import invariants
from tests.support.postgres import Database

EVERY_S = 5.0
BY_TIME = {"T7", "T8", "W3"}
"""Rules about how long something lasts: outages prolong it, so a row counts when it is found three times in a row."""
STALL_S = 1.0
LONGEST_TRANSACTION_S = 25.0
"""The server ends statements after 20 s and idle transactions after 5 s."""


class Snapshots(threading.Thread):
    """Judges every five seconds, in one snapshot of the database, whenever the server answers."""

    def __init__(self, db: Database) -> None:
        super().__init__(name="snapshots", daemon=True)
        self._db = db
        self._over = threading.Event()
        self._seen: dict[tuple[str, str], int] = {}
        self.count = 0
        self.unanswered = 0
        self.findings: dict[tuple[str, str], Finding] = {}

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self._look()
            except psycopg.Error:
                self.unanswered += 1

    def stop(self) -> None:
        self._over.set()
        self.join(60)

    def _look(self) -> None:
        found = invariants.check(
            self._db, slack_s=settings.CHECK_S + 10, running_stale_s=settings.STALE_S,
            finalizing_stale_s=settings.STALE_S, claimed_stale_s=settings.STALE_S, wf_grace_s=settings.GRACE_S,
            async_tasks=settings.ASYNC_TASKS, settled=False,
        )  # fmt: skip
        self.count += 1
        self._look_at_transactions()
        now = {(violation.rule, violation.id) for violation in found}
        self._seen = {key: self._seen.get(key, 0) + 1 for key in now}
        for (rule, key), times in self._seen.items():
            if (rule not in BY_TIME or times >= 3) and (rule, key) not in self.findings:
                text = f"in a snapshot at {time.time():.1f}"
                try:
                    text += f": {self._db.execute('SELECT to_jsonb(t) FROM horsies_tasks t WHERE id = %s', key)}"
                except psycopg.Error:
                    pass
                self.findings[rule, key] = Finding(rule, key, text[:2000])

    def _look_at_transactions(self) -> None:
        """No session of ours keeps a transaction open for long: what it has locked may stop the whole fleet."""
        rows = self._db.execute(
            "SELECT a.pid, a.application_name, a.state, a.wait_event_type, a.wait_event, now() - a.xact_start,"
            " left(a.query, 200), ARRAY(SELECT l.locktype || ' ' || l.mode || ' '"
            " || coalesce(l.relation::regclass::text, l.objid::text, '')"
            " FROM pg_locks l WHERE l.pid = a.pid AND l.granted), pg_blocking_pids(a.pid)"
            " FROM pg_stat_activity a WHERE a.datname = current_database() AND a.application_name LIKE 'horsies%%'"
            " AND a.xact_start < now() - make_interval(secs => %s) AND a.query NOT LIKE 'CALL horsies_wait_for_duty%%'",
            LONGEST_TRANSACTION_S,
        )
        for row in rows:
            self.findings.setdefault(("Y1", str(row[0])), Finding("Y1", str(row[0]), f"{time.time():.1f}: {row}"))


class Stalls(threading.Thread):
    """Notes when this machine did not run a thread that wanted to run: then no process can keep its promises."""

    def __init__(self, note: Callable[[Struck], None]) -> None:
        super().__init__(name="stalls", daemon=True)
        self._note = note
        self._over = threading.Event()

    def run(self) -> None:
        while True:
            before = time.time()
            if self._over.wait(0.1):
                return
            if time.time() - before > 0.1 + STALL_S:
                self._note(Struck("stall", "machine", before, time.time()))

    def stop(self) -> None:
        self._over.set()
