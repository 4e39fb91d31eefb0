"""Rows in any legal state, with the history that such a row has: attempts, heartbeats, snapshots of workers.

A keyword is a column; its value is bound, or spliced in when it is `Sql` (`ago(minutes=5)`, `ahead(seconds=1)`).
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row

from horsies import TaskError
from horsies.codec import encode_error
from horsies.ids import new_id
from tests.support.postgres import Database


class Sql(str):
    """An expression of SQL, not a value."""

    __slots__ = ()


def ago(**span: float) -> Sql:
    """A moment in the past, on the database's clock: `ago(minutes=5)`."""
    return Sql(f"(statement_timestamp() - interval '{timedelta(**span).total_seconds()} seconds')")


def ahead(**span: float) -> Sql:
    return Sql(f"(statement_timestamp() + interval '{timedelta(**span).total_seconds()} seconds')")


NOW = Sql("statement_timestamp()")
_HELD: Mapping[str, Any] = {
    "enqueued_at": ago(seconds=3), "claimed_at": ago(seconds=2), "claimed_by_worker_id": "worker-1",
    "claim_generation": 1,
}  # fmt: skip
_RUN: Mapping[str, Any] = {
    **_HELD, "started_at": ago(seconds=1), "worker_pid": 4711, "worker_hostname": "host-1",
    "worker_process_name": "child-1",
}  # fmt: skip


def _ended(code: str) -> Mapping[str, Any]:
    return {"terminal_at": NOW, "result": encode_error(TaskError(code, "as the test wanted")), "error_code": code}


_STATES: Mapping[str, Mapping[str, Any]] = {
    "PENDING": {},
    "CLAIMED": {**_HELD, "claimed": True, "claim_expires_at": ahead(minutes=2)},
    "RUNNING": _RUN,
    "COMPLETED": {**_RUN, "completed_at": NOW, "terminal_at": NOW, "result": '{"ok":1}'},
    "FAILED": {**_RUN, **_ended("SMTP_DOWN"), "failed_at": NOW, "failed_reason": "as the test wanted"},
    "CANCELLED": _ended("TASK_CANCELLED"),
    "EXPIRED": {**_ended("TASK_EXPIRED"), "good_until": ago(seconds=1), "failed_at": NOW},
}


def task(db: Database, status: str = "PENDING", *, schema: str | None = None, **columns: Any) -> str:
    """Insert one task with the attempts that its state and `retry_count` speak of; returns its id."""
    retries = columns.get("retry_count", 0)
    row = {
        "id": new_id(), "task_name": "add", "status": status, "kwargs": '{"a":1,"b":2}',
        "max_retries": retries, **_STATES[status], **columns,
    }  # fmt: skip
    insert(db, "horsies_tasks", schema=schema, **row)
    for number in range(1, retries + 1):
        attempt(db, row["id"], number, schema=schema, will_retry=True, started_at=ago(days=retries - number + 1))
    if status in ("COMPLETED", "FAILED") or (status == "CANCELLED" and "started_at" in columns):
        outcome = {"outcome": "COMPLETED", "error_code": None} if status == "COMPLETED" else {}
        attempt(db, row["id"], retries + 1, schema=schema, started_at=ago(seconds=1), finished_at=NOW, **outcome)
    return row["id"]


def attempt(db: Database, task_id: str, number: int = 1, *, schema: str | None = None, **columns: Any) -> None:
    """One finished attempt, by default a failed one of about a second."""
    row = {
        "task_id": task_id, "attempt": number, "outcome": "FAILED", "error_code": "SMTP_DOWN", "worker_id": "worker-1",
        "started_at": ago(minutes=1), **columns,
    }  # fmt: skip
    row.setdefault("finished_at", Sql(f"{row['started_at']} + interval '1 second'"))
    insert(db, "horsies_task_attempts", schema=schema, **row)


def workflow(
    db: Database, status: str, *, node_status: str = "COMPLETED", task_id: str | None = None, node_id: str = "n",
    **columns: Any,
) -> str:  # fmt: skip
    """Insert a run with one node; returns its id."""
    workflow_id = new_id()
    done = {"completed_at": NOW} if status in ("COMPLETED", "FAILED", "CANCELLED") else {}
    insert(db, "horsies_workflows", id=workflow_id, name="w", status=status, **done, **columns)
    insert(
        db, "horsies_workflow_tasks", id=new_id(), workflow_id=workflow_id, task_index=0, node_id=node_id,
        task_name="add", status=node_status, task_id=task_id,
    )  # fmt: skip
    return workflow_id


def graph(db: Database, status: str, *nodes: Mapping[str, Any], **columns: Any) -> str:
    """Insert a run with these nodes, each by its columns; returns its id. Nodes are n0, n1, … unless they say so."""
    workflow_id = columns.setdefault("id", new_id())
    done = {"completed_at": NOW} if status in ("COMPLETED", "FAILED", "CANCELLED") else {}
    insert(db, "horsies_workflows", **{"name": "w", "status": status, "started_at": ago(minutes=5), **done, **columns})
    for index, node in enumerate(nodes):
        plain = {"task_index": index, "node_id": f"n{index}", "task_name": "add", "status": "PENDING"}
        insert(db, "horsies_workflow_tasks", **{"id": new_id(), "workflow_id": workflow_id, **plain, **node})
    return workflow_id


def heartbeat(db: Database, task_id: str, role: str = "runner", **columns: Any) -> None:
    insert(db, "horsies_heartbeats", **{"task_id": task_id, "sender_id": "worker-1", "role": role, **columns})


def worker_state(db: Database, worker_id: str = "worker-1", **columns: Any) -> None:
    row = {
        "worker_id": worker_id, "hostname": "host-1", "pid": 4711, "processes": 2, "queues": ["default"],
        "worker_started_at": ago(hours=1), **columns,
    }  # fmt: skip
    insert(db, "horsies_worker_states", **row)


def finish(
    db: Database, task_id: str, ok: Any = None, *, error: TaskError | None = None, schema: str | None = None
) -> None:
    """End a live task as its worker would: row and attempt in one transaction, with the notification."""
    table = f'"{schema}".horsies_tasks' if schema else "horsies_tasks"
    attempts = f'"{schema}".horsies_task_attempts' if schema else "horsies_task_attempts"
    failed = error is not None
    result = encode_error(error) if error is not None else json.dumps({"ok": ok})
    db.execute(
        f"""WITH ended AS (
            UPDATE {table} SET status = %s, claimed = false, claimed_at = coalesce(claimed_at, {NOW}),
                   claim_expires_at = NULL, started_at = coalesce(started_at, {NOW}), result = %s, error_code = %s,
                   completed_at = CASE WHEN %s THEN NULL ELSE {NOW} END, failed_at = CASE WHEN %s THEN {NOW} END,
                   terminal_at = {NOW}, updated_at = {NOW}
             WHERE id = %s AND status IN ('PENDING', 'CLAIMED', 'RUNNING') RETURNING id, retry_count, started_at)
        INSERT INTO {attempts} (task_id, attempt, outcome, started_at, finished_at, error_code)
        SELECT id, retry_count + 1, %s, started_at, {NOW}, %s FROM ended""",
        "FAILED" if failed else "COMPLETED", result, error and str(error.error_code), failed, failed, task_id,
        "FAILED" if failed else "COMPLETED", error and str(error.error_code),
    )  # fmt: skip


def insert(db: Database, table: str, *, schema: str | None = None, **row: Any) -> None:
    place = f'"{schema}".{table}' if schema else table
    spliced = [value if isinstance(value, Sql) else "%s" for value in row.values()]
    bound = [value for value in row.values() if not isinstance(value, Sql)]
    db.execute(f"INSERT INTO {place} ({', '.join(row)}) VALUES ({', '.join(spliced)})", *bound)


def read(db: Database, task_id: str, *, schema: str | None = None) -> dict[str, Any]:
    """The whole row of a task, by column."""
    place = f'"{schema}".horsies_tasks' if schema else "horsies_tasks"
    with psycopg.connect(db.url, row_factory=dict_row) as connection:
        row = connection.execute(f"SELECT * FROM {place} WHERE id = %s", (task_id,)).fetchone()  # type: ignore[call-overload]
    assert row is not None, f"no task {task_id}"
    return row


def count(db: Database) -> int:
    """How many tasks there are."""
    return db.value("SELECT count(*) FROM horsies_tasks")
