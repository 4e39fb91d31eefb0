"""Findings that a step of the server's clock explains: times of one row that are out of order because the clock was set
back between two writes. Rows without a time near a step are judged as ever."""

from collections.abc import Sequence
from typing import Any, Final

from tests.soak import settings
from tests.soak.nemesis import Struck
from tests.soak.rules import Finding
from tests.support.postgres import Database

OF_ROWS: Final = frozenset({"T5", "T6", "A4", "A6", "W5", "G2", "G3", "U1", "P1"})
"""Rules that compare times of a row, of rows that depend on each other, or of a task and a pause."""
OF_CAPS: Final = frozenset({"A7", "A8"})
"""Rules that put the attempts of all tasks in order."""
NEAR_S: Final = 4.0

_TIMES = """
SELECT extract(epoch FROM at)::float8 FROM (
    SELECT unnest(ARRAY[created_at, enqueued_at, started_at, terminal_at, updated_at, next_retry_at]) FROM horsies_tasks
     WHERE id = %(id)s
    UNION ALL SELECT unnest(ARRAY[started_at, finished_at]) FROM horsies_task_attempts WHERE task_id = %(id)s
    UNION ALL SELECT unnest(ARRAY[n.started_at, n.completed_at]) FROM horsies_workflow_tasks n
     WHERE n.workflow_id = (SELECT workflow_id FROM horsies_workflow_tasks WHERE id = %(id)s)) AS times (at)
 WHERE at IS NOT NULL"""

_ATTEMPTS = """
SELECT t.queue_name, coalesce(t.group_key, ''), extract(epoch FROM a.started_at)::float8,
       extract(epoch FROM CASE WHEN a.outcome = 'WORKER_FAILURE' THEN coalesce(
           (SELECT max(h.sent_at) FROM horsies_heartbeats h WHERE h.task_id = a.task_id AND h.role = 'runner'
             AND h.sent_at BETWEEN a.started_at AND a.finished_at), a.started_at) ELSE a.finished_at END)::float8
  FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id"""


def unexplained(db: Database, findings: Sequence[Finding], struck: Sequence[Struck]) -> list[Finding]:
    windows = [(fault.began - NEAR_S, fault.ended + NEAR_S) for fault in struck if fault.kind == "clock"]
    if not windows:
        return list(findings)
    return [finding for finding in findings if not _is_explained(db, finding, windows)]


def _is_explained(db: Database, finding: Finding, windows: Sequence[tuple[float, float]]) -> bool:
    if finding.rule in OF_ROWS:
        return any(_is_near(row[0], windows) for row in _rows(db, _TIMES, finding.id))
    return finding.rule in OF_CAPS and not _caps_broken(db, windows)


def _rows(db: Database, sql: str, given: str) -> list[tuple[Any, ...]]:
    return db.execute(sql.replace("%(id)s", "%s"), given, given, given)


def _is_near(at: float, windows: Sequence[tuple[float, float]]) -> bool:
    return any(start <= at <= end for start, end in windows)


def _caps_broken(db: Database, windows: Sequence[tuple[float, float]]) -> bool:
    """More attempts at once than a cap allows, those that lie near a step left out."""
    kept = [row for row in db.execute(_ATTEMPTS) if not (_is_near(row[2], windows) or _is_near(row[3], windows))]
    of_queue = {name: [row for row in kept if row[0] == name] for name in settings.QUEUE_CAPS}
    groups = {row[1] for row in kept if row[0] == "grouped"}
    return (
        _most_at_once(kept) > settings.CLUSTER_CAP
        or any(_most_at_once(rows) > settings.QUEUE_CAPS[name] for name, rows in of_queue.items())
        or any(
            _most_at_once([row for row in kept if row[:2] == ("grouped", group)]) > settings.GROUP_CAP
            for group in groups
        )
    )


def _most_at_once(attempts: Sequence[tuple[Any, ...]]) -> int:
    changes = sorted([(row[2], 1) for row in attempts] + [(row[3], -1) for row in attempts])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
