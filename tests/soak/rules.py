"""The judge after the drain: the rows and the ledger against the rules of `tests/support/invariants.sql`, and against
what the workload promises of each kind of send."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg

from tests.soak import settings
from tests.soak.app import f
from tests.soak.ledger import Line, Run, runs_of
from tests.soak.nemesis import Struck
from tests.soak.workload import ALWAYS_COMPLETED
from tests.support import invariants
from tests.support.limits_app import most_in_window
from tests.support.postgres import Database

SLACK_S: Final = 6.0


class Finding(NamedTuple):
    rule: str
    id: str
    """Of the task, workflow or schedule, or the key of the ledger."""
    text: str = ""


_CRASH_END = """CASE WHEN a.outcome = 'WORKER_FAILURE' OR a.error_code = 'WORKER_CRASHED'
                     THEN COALESCE((SELECT max(h.sent_at) FROM horsies_heartbeats h WHERE h.task_id = a.task_id
                                     AND h.role = 'runner' AND h.sent_at BETWEEN a.started_at AND a.finished_at),
                                   a.started_at)
                     ELSE a.finished_at END"""

SQL: Final[Mapping[str, str]] = {
    # more tasks of a group at once than its limit
    "A8": f"""
WITH e AS (SELECT t.group_key g, a.started_at at, 1 d
             FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id WHERE t.queue_name = 'grouped'
           UNION ALL SELECT t.group_key, {_CRASH_END}, -1
             FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id WHERE t.queue_name = 'grouped'),
     s AS (SELECT g, sum(d) OVER (PARTITION BY g ORDER BY at, d) n FROM e)
SELECT g, max(n)::text FROM s WHERE n > {settings.GROUP_CAP} GROUP BY g""",
    # a slot of a schedule with two tasks
    "S2": """SELECT kwargs::json ->> 'name', sent_at::text FROM horsies_tasks WHERE task_name = 'tick'
              GROUP BY kwargs::json ->> 'name', sent_at HAVING count(*) > 1""",
    # the transaction of a task that completes itself, and its end
    "C1": """
SELECT t.id, t.status || ', business rows ' || w.written || ', completed attempts ' || a.completed FROM horsies_tasks t
 CROSS JOIN LATERAL (SELECT count(*) AS written, min(attempt) AS attempt FROM business b WHERE b.task_id = t.id) AS w
 CROSS JOIN LATERAL (SELECT count(*) AS completed, min(attempt) AS attempt FROM horsies_task_attempts a
                      WHERE a.task_id = t.id AND a.outcome = 'COMPLETED') AS a
 WHERE t.task_name = 'completes'
   AND (w.written <> (t.status = 'COMPLETED')::int OR a.completed <> w.written
        OR w.attempt IS DISTINCT FROM a.attempt)""",
    # two tasks of one unique key that live at the same time. created_at is the start of a transaction, which may have
    # waited for the end of the other task
    "U1": """
SELECT a.id, 'beside ' || b.id || ' of key ' || a.unique_key FROM horsies_tasks a JOIN horsies_tasks b
    ON b.task_name = a.task_name AND b.unique_key = a.unique_key AND b.id <> a.id
   AND b.created_at > a.created_at AND b.created_at < coalesce(a.terminal_at, 'infinity') - interval '5 s'""",
    # one send, two rows
    "L9": """SELECT k, task_name FROM (
              SELECT task_name, coalesce(kwargs::json ->> 'k', kwargs::json -> 'item' ->> 'k') AS k
              FROM horsies_tasks WHERE NOT is_workflow_task) AS sent WHERE k IS NOT NULL
              GROUP BY task_name, k HAVING count(*) > 1""",
    # after the drain nothing is left that is not a schedule's future
    "D1": """SELECT id, status || ' ' || task_name FROM horsies_tasks WHERE terminal_at IS NULL
             UNION ALL SELECT id, status || ' ' || name FROM horsies_workflows
                        WHERE status NOT IN ('COMPLETED', 'FAILED', 'CANCELLED')""",
}


def load(db: Database, sends: Sequence[Mapping[str, Any]], lines: Sequence[Line]) -> None:
    """Make the tables that the L rules read. A duplicate of a unique key is no task of its own, and one that may be
    replaced has no key of its own."""
    sent: dict[int, tuple[int, str | None, str, bool, float]] = {}
    for entry in sends:
        is_task = not entry["kind"].startswith("wf:") and entry["kind"] != "replaced" and not entry.get("duplicate")
        if entry["phase"] in ("ok", "unknown") and is_task:
            sent[entry["k"]] = (entry["k"], entry["id"], entry["kind"], entry["phase"] == "ok", entry["at"])
    with psycopg.connect(db.url) as connection:
        connection.execute("DROP TABLE IF EXISTS chaos_sent, chaos_ledger")
        connection.execute(invariants.LEDGER_TABLES)
        with connection.cursor() as cursor:
            with cursor.copy("COPY chaos_sent (k, task_id, kind, acked, at) FROM STDIN") as copy:
                for k, task_id, kind, acked, at in sent.values():
                    copy.write_row((k, task_id, kind, acked, _time(at)))
            with cursor.copy("COPY chaos_ledger (k, run, phase, pid, at) FROM STDIN") as copy:
                for line in lines:
                    copy.write_row((line.k, line.run, line.phase, line.pid, _time(line.at)))
        connection.execute("CREATE INDEX ON chaos_ledger (k)")  # without it, one rule took minutes for an hour
        connection.execute("ANALYZE")


def _time(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat()


def judge(
    db: Database, sends: Sequence[Mapping[str, Any]], lines: Sequence[Line], struck: Sequence[Struck]
) -> tuple[list[Finding], int]:
    """What is wrong, and the number of overlaps inside windows of freezes and partitions, which are allowed."""
    load(db, sends, lines)
    runs = runs_of(list(lines))
    found = [
        Finding(violation.rule, violation.id)
        for violation in invariants.check(
            db, slack_s=SLACK_S, running_stale_s=settings.STALE_S, finalizing_stale_s=settings.STALE_S,
            claimed_stale_s=settings.STALE_S, wf_grace_s=settings.GRACE_S, cap=settings.CLUSTER_CAP,
            qcap=dict(settings.QUEUE_CAPS), async_tasks=settings.ASYNC_TASKS,
        )
        if violation.rule != "L6"
    ]  # fmt: skip
    for rule, statement in SQL.items():
        found += [Finding(rule, str(key), str(text)) for key, text in db.execute(statement)]
    found += missing_slots(db) + ends_of_tasks(db) + ends_of_workflows(db, sends) + pauses(db, struck)
    found += rate(runs) + false_crashes(db, struck) + rolled_back(db, sends) + replaced(sends, lines)
    overlaps = overlapping(runs)
    allowed = [pair for pair in overlaps if is_documented(*pair, struck)]
    found += [
        Finding("L6", str(old.k), f"run {old.run} (pid {old.pid}) from {old.started:.3f} to {old.ended or 0:.3f}, "
                f"run {new.run} (pid {new.pid}) from {new.started:.3f}")
        for old, new in overlaps if (old, new) not in allowed
    ]  # fmt: skip
    return found, len(allowed)


def overlapping(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pairs of runs of one key of which the second began before the end of the first was written."""
    by_key: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        by_key[run.k].append(run)
    return [
        (old, new)
        for of_key in by_key.values()
        for old in of_key
        for new in of_key
        if old.started < new.started and old.ended is not None and new.started < old.ended
    ]


def is_documented(old: Run, new: Run, struck: Sequence[Struck]) -> bool:
    """The older run belongs to a worker that was frozen or cut off, and the newer one began in that window or at most
    one threshold after it. A machine that stood still as a whole is such a window for all."""
    return any(
        (fault.kind == "stall" or (fault.kind in ("freeze", "blackhole") and old.pid in fault.pids))
        and old.started <= fault.ended
        and fault.began <= new.started <= fault.ended + settings.STALE_S
        for fault in struck
    )


def rolled_back(db: Database, sends: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Tasks whose sender has rolled back."""
    ids = [entry["id"] for entry in sends if entry["phase"] == "rolled_back"]
    found = db.execute("SELECT id, status FROM horsies_tasks WHERE id = ANY(%s)", ids)
    return [Finding("N1", task_id, f"{status}, and its sender has rolled back") for task_id, status in found]


def replaced(sends: Sequence[Mapping[str, Any]], lines: Sequence[Line]) -> list[Finding]:
    """Of sends that replace each other the last one has run."""
    last: dict[str, Mapping[str, Any]] = {}
    for entry in sends:
        if "key" in entry:
            last[entry["key"]] = entry
    ended = {line.k for line in lines if line.phase == "end"}
    return [
        Finding("V1", entry["id"], f"the last send of {key}, k={entry['k']}, has not run")
        for key, entry in last.items()
        if entry["phase"] == "ok" and entry["k"] not in ended
    ]


def missing_slots(db: Database) -> list[Finding]:
    found: list[Finding] = []
    for name, seconds in {**settings.SCHEDULES, **settings.STORED_SCHEDULES}.items():
        first, last, count = db.execute(
            "SELECT min(sent_at), max(sent_at), count(*) FROM horsies_tasks"
            " WHERE task_name = 'tick' AND kwargs::json ->> 'name' = %s", name,
        )[0]  # fmt: skip
        expected = (last - first).total_seconds() / seconds + 1 if count else 1
        if count < expected:
            found.append(Finding("S3", name, f"{count} tasks for {expected:.0f} slots"))
    return found


def ends_of_tasks(db: Database) -> list[Finding]:
    """Each kind has its ends, and each result is f(k)."""
    found: list[Finding] = []
    rows = db.execute(
        """SELECT s.k, s.kind, t.id, t.status, t.result, t.error_code, t.snoozes,
                  (SELECT array_agg(a.outcome || ':' || coalesce(a.error_code, '') ORDER BY a.attempt)
                     FROM horsies_task_attempts a WHERE a.task_id = t.id)
             FROM chaos_sent s JOIN horsies_tasks t ON t.id = s.task_id"""
    )
    for k, kind, task_id, status, result, code, snoozes, attempts in rows:
        told = f"{kind} k={k} {status} {code or ''} {attempts or []}"
        if status == "COMPLETED" and json.loads(result).get("ok") != f(k):
            found.append(Finding("E1", task_id, f"{told}: {result[:100]}"))
        if not _is_expected(kind, status, code, attempts or [], snoozes):
            found.append(Finding("K1", task_id, told))
    return found


def _is_expected(kind: str, status: str, code: str | None, attempts: Sequence[str], snoozes: int) -> bool:
    if kind in ALWAYS_COMPLETED:
        if kind == "flaky" and attempts.count("FAILED:BUSY") > 1:
            return False
        if kind == "dies_once" and "WORKER_FAILURE:WORKER_CRASHED" not in attempts:
            return False
        return status == "COMPLETED" and (kind != "snoozes" or snoozes >= 2)
    match kind:
        case "once":
            return status == "COMPLETED" or (status, code) == ("FAILED", "WORKER_CRASHED")
        case "poison":
            return (status, code, len(attempts)) == ("FAILED", "WORKER_CRASHED", 3)
        case "expiring":
            # a crash of an attempt that began in time, and whose repetition would have come too late
            return status in ("COMPLETED", "EXPIRED") or (status, code) == ("FAILED", "WORKER_CRASHED")
        case _:
            return status in ("COMPLETED", "CANCELLED")


def ends_of_workflows(db: Database, sends: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found: list[Finding] = []
    rows = {row[0]: row[1:] for row in db.execute("SELECT id, status, result, error FROM horsies_workflows")}
    undone = dict(
        db.execute(
            "SELECT workflow_id, count(*) FROM horsies_workflow_tasks WHERE compensates IS NOT NULL"
            " AND status = 'COMPLETED' GROUP BY 1"
        )
    )
    for entry in sends:
        if entry["kind"].startswith("wf:") and entry["phase"] == "ok":
            status, result, error = rows.get(entry["id"], ("lost", None, None))
            told = f"{entry['kind']} k={entry['k']} {status} {(result or '')[:80]} {(error or '')[:200]}"
            if status != entry["status"]:
                found.append(Finding("F1", entry["id"], told))
            elif entry["value"] is not None and json.loads(result).get("ok") != entry["value"]:
                found.append(Finding("F2", entry["id"], told))
            elif undone.get(entry["id"], 0) < entry["undone"]:
                found.append(Finding("F3", entry["id"], f"{told}: {undone.get(entry['id'], 0)} undone"))
    return found


def pauses(db: Database, struck: Sequence[Struck]) -> list[Finding]:
    """Nothing of a paused queue started from a second after the pause on, until the first resume: that of a pause which
    began before this one ends both. What was claimed before the pause may start later, behind a slow or frozen task."""
    found: list[Finding] = []
    done = [fault.detail for fault in struck if fault.kind == "pause_queue" and "resumed" in fault.detail]
    for fault in struck:
        if fault.kind == "pause_queue" and "resumed" in fault.detail:
            resumed = min(
                one["resumed"]
                for one in done
                if one["queue"] == fault.detail["queue"] and one["resumed"] > fault.detail["paused"]
            )
            rows = db.execute(
                "SELECT a.task_id, a.started_at::text FROM horsies_task_attempts a"
                " JOIN horsies_tasks t ON t.id = a.task_id WHERE t.queue_name = %s"
                " AND a.started_at > %s::timestamptz + interval '1 second'"
                " AND a.started_at < %s::timestamptz AND (t.claimed_at > %s::timestamptz"
                " OR EXISTS (SELECT FROM horsies_task_attempts l WHERE l.task_id = t.id AND l.attempt > a.attempt))",
                fault.detail["queue"], fault.detail["paused"], resumed, fault.detail["paused"],
            )  # fmt: skip
            found += [
                Finding("P1", task_id, f"started at {at}, in the pause of {fault.detail}") for task_id, at in rows
            ]
    return found


def false_crashes(db: Database, struck: Sequence[Struck]) -> list[Finding]:
    """Tasks that were taken from a worker that lived, and that no fault had kept from saying so."""
    hit = {fault.worker_id for fault in struck if fault.kind in ("kill_parent", "kill_worker", "freeze", "blackhole")}
    rows = db.execute(
        "SELECT task_id, worker_id, failed_reason, created_at::text FROM horsies_task_attempts"
        " WHERE outcome = 'WORKER_FAILURE' AND failed_reason ~ 'no sign of life|its worker died'"
    )
    return [
        Finding("Z1", task_id, f"of worker {worker_id} at {at}: {reason}")
        for task_id, worker_id, reason, at in rows
        if worker_id not in hit
    ]


def rate(runs: Sequence[Run]) -> list[Finding]:
    limit, seconds = settings.RATE
    most = most_in_window([run.started for run in runs if run.group == "rated:"], seconds)
    return [Finding("R1", "rated", f"{most} starts in {seconds:g} s")] if most > limit else []
