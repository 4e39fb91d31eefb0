"""Rows that must not exist: refused by the database itself, whoever writes them."""

import psycopg
import pytest
from sqlalchemy import DateTime

from horsies_schema.models import Base
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

BASE = {"id": "'a'", "task_name": "'t'"}
OWNED = {"claimed_by_worker_id": "'w'", "claimed_at": "now()"}
RUNNING = {"status": "'RUNNING'", **OWNED, "started_at": "now()", "worker_pid": "1"}
CLAIMED = {"status": "'CLAIMED'", "claimed": "true", **OWNED, "claim_expires_at": "now()"}
COMPLETED = {"status": "'COMPLETED'", "completed_at": "now()", "terminal_at": "now()", "result": "'{}'"}
FAILED = {"status": "'FAILED'", "failed_at": "now()", "terminal_at": "now()", "result": "'{}'", "error_code": "'X'"}


def insert(db: Database, row: dict[str, str], table: str = "horsies_tasks") -> None:
    columns = {**BASE, **row} if table == "horsies_tasks" else row
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})")


LEGAL = {
    "pending": {},
    "future": {"enqueued_at": "now() + interval '1 y'"},
    "claimed": CLAIMED,
    "running": RUNNING,
    "staged": {**RUNNING, "finalizing_at": "now()", "result": "'{}'"},
    "completed": COMPLETED,
    "failed": FAILED,
    "expired": {**FAILED, "status": "'EXPIRED'"},
    "cancelled": {"status": "'CANCELLED'", "terminal_at": "now()", "result": "'{}'", "error_code": "'X'"},
    "longest queue": {"queue_name": "repeat('q', 52)"},
}

ILLEGAL = {
    "unknown status": {"status": "'REQUEUED'"},
    "lower case status": {"status": "'running'"},
    "negative retries": {"retry_count": "-1"},
    "more retries than allowed": {"retry_count": "2", "max_retries": "1"},
    "absurd retries": {"max_retries": "1000000000"},
    "priority 0": {"priority": "0"},
    "priority 101": {"priority": "101"},
    "priority a million": {"priority": "1000000"},
    "null queue": {"queue_name": "NULL"},
    "empty queue": {"queue_name": "''"},
    "queue of 53": {"queue_name": "repeat('q', 53)"},
    "queue with quotes": {"queue_name": "'x\"; DROP TABLE horsies_tasks; --'"},
    "queue with newline": {"queue_name": "E'a\\nb'"},
    "queue with trailing newline": {"queue_name": "E'a\\n'"},
    "queue with emoji": {"queue_name": "'🐎'"},
    "empty name": {"task_name": "''"},
    "name of 256": {"task_name": "repeat('n', 256)"},
    "id of 37": {"id": "repeat('i', 37)"},
    "empty unique key": {"unique_key": "''"},
    "claimed flag without the state": {"claimed": "true"},
    "claimed state without the flag": {**CLAIMED, "claimed": "false"},
    "claimed by nobody": {**CLAIMED, "claimed_by_worker_id": "NULL"},
    "claimed without lease": {**CLAIMED, "claim_expires_at": "NULL"},
    "claimed and started": {**CLAIMED, "started_at": "now()"},
    "pending with an owner": {"claimed_by_worker_id": "'w'"},
    "pending with a start": {"started_at": "now()"},
    "pending with a result": {"result": "'{}'"},
    "pending with an error": {"error_code": "'X'"},
    "pending with an end": {"terminal_at": "now()"},
    "running without an owner": {**RUNNING, "claimed_by_worker_id": "NULL"},
    "running with a lease": {**RUNNING, "claim_expires_at": "now()"},
    "running with a result but no mark": {**RUNNING, "result": "'{}'"},
    "completed with an error": {**COMPLETED, "error_code": "'X'"},
    "completed and failed": {**COMPLETED, "failed_at": "now()"},
    "completed without an end": {**COMPLETED, "terminal_at": "NULL"},
    "failed without a code": {**FAILED, "error_code": "NULL"},
    "failed without a result": {**FAILED, "result": "NULL"},
    "failed and completed": {**FAILED, "completed_at": "now()"},
    "expired without a code": {**FAILED, "status": "'EXPIRED'", "error_code": "NULL"},
    "cancelled and completed": {
        "status": "'CANCELLED'",
        "terminal_at": "now()",
        "result": "'{}'",
        "completed_at": "now()",
    },
    "started after its deadline": {**RUNNING, "good_until": "now()"},
}


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.breaks("A2")
def test_legal_rows_are_accepted(db: Database, name: str) -> None:
    insert(db, LEGAL[name])
    assert db.value("SELECT count(*) FROM horsies_tasks") == 1


def test_illegal_rows_are_refused(db: Database) -> None:
    accepted = []
    for name, row in ILLEGAL.items():
        try:
            insert(db, row)
        except (psycopg.errors.IntegrityError, psycopg.errors.DataError):
            continue
        accepted.append(name)
        db.execute("DELETE FROM horsies_tasks")
    assert accepted == []


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"task_name": "''"}, "names"),
        ({"queue_name": "'no spaces'"}, "queue_name"),
        ({"priority": "0"}, "priority"),
        ({"retry_count": "1"}, "retries"),
        ({**RUNNING, "good_until": "now() - interval '1 s'"}, "good_until"),
        ({**RUNNING, "claimed_by_worker_id": "NULL"}, "state"),
        ({"status": "'REQUEUED'"}, "state"),
    ],
)
def test_the_rule_that_a_row_breaks_is_named(db: Database, row: dict[str, str], rule: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=f"breaks the rule '{rule}'") as refused:
        insert(db, row)
    assert refused.value.diag.constraint_name == f"ck_horsies_tasks_{rule}"


# -- times ---------------------------------------------------------------------------------------

ROWS = {
    "horsies_tasks": {
        **BASE, "status": "'CANCELLED'", "terminal_at": "now()", "result": "'{}'", "claimed_by_worker_id": "'w'",
        "claimed_at": "now()", "started_at": "now()", "good_until": "now() + interval '1 d'", "failed_at": "now()",
    },
    "horsies_task_attempts": {
        "task_id": "'a'", "attempt": "1", "outcome": "'COMPLETED'", "started_at": "now()",
        "finished_at": "now() + interval '1 d'",
    },
    "horsies_heartbeats": {"task_id": "'a'", "sender_id": "'w'", "role": "'runner'"},
    "horsies_worker_states": {
        "worker_id": "'w'", "hostname": "'h'", "pid": "1", "processes": "1", "worker_started_at": "now()",
    },
    "horsies_worker_instances": {
        "worker_id": "'w'", "period_ms": "5000", "judged_dead_at": "now()", "judged_by": "'v'",
    },
    "horsies_task_sets": {"sha": "'s'", "names": "'{}'"},
    "horsies_task_names": {"task_name": "'n'", "first_known_at": "now()", "last_known_at": "now()"},
    "horsies_schedule_state": {"schedule_name": "'s'"},
    "horsies_schedules": {"name": "'d'", "task_name": "'t'", "pattern": "'{}'"},
    "horsies_schedule_runs": {
        "schedule_name": "'s'", "place": "1", "entry": "1", "slot": "now()", "last_slot": "now()", "fired_at": "now()",
        "skipped": "'missed'",
    },
    "horsies_schedulers": {
        "id": "'i'", "hostname": "'h'", "pid": "1", "tasks": "'{}'", "workflows": "'{}'", "schedules": "'{}'",
    },
    "horsies_queue_state": {"queue_name": "'q'"},
    "horsies_limits": {"name": "'l'"},
    "horsies_rate_limits": {"name": "'q'", "key": "'g'", "free_at": "now()"},
    "horsies_unique_keys": {
        "task_name": "'t'", "key": "'k'", "task_id": "'a'", "first_at": "now()", "until": "now()",
    },
    "horsies_workflows": {"id": "'w'", "name": "'n'", "status": "'FAILED'", "completed_at": "now()"},
    "horsies_workflow_tasks": {
        "id": "'n'", "workflow_id": "'w'", "task_index": "0", "node_id": "'first'", "task_name": "'t'",
        "kind": "'sleep'", "status": "'WAITING'",
    },
    "horsies_workflow_signals": {
        "id": "'s'", "workflow_id": "'w'", "name": "'n'", "value": "'1'", "consumed_by": "'n'", "consumed_at": "now()",
    },
}  # fmt: skip
TIMES = [
    (table.name, column.name)
    for table in Base.metadata.tables.values()
    for column in table.columns
    if isinstance(column.type, DateTime)
]
UNREADABLE = (
    "-infinity",
    "infinity",
    "4713-01-01 BC",
    "1969-12-31 23:59:59+00",
    "9000-01-01 00:00:01+00",
    "294276-01-01",
)


@pytest.mark.breaks(
    "T4", "T5", "T6", "T7", "T8", "A1", "A2", "A3", "A4", "W1", "W2", "W3", "W4", "W6", "W8", "G1", "G4", "G5",
)  # fmt: skip
def test_times_that_no_program_can_read_are_refused_in_every_column(db: Database) -> None:
    assert len(TIMES) == 73
    for table, row in ROWS.items():
        insert(db, row, table)
    accepted = []
    for table, column in TIMES:
        fit = "now() + interval '2 d'" if column in ("good_until", "finished_at") else "now()"
        if (table, column) == ("horsies_tasks", "completed_at"):
            db.execute("UPDATE horsies_tasks SET status = 'COMPLETED', completed_at = now(), failed_at = NULL")
        db.execute(f"UPDATE {table} SET {column} = {fit}")
        for time in UNREADABLE:
            try:
                db.execute(f"UPDATE {table} SET {column} = %s", time)
            except psycopg.errors.CheckViolation:
                continue
            accepted.append((table, column, time))
        if (table, column) == ("horsies_tasks", "completed_at"):
            db.execute("UPDATE horsies_tasks SET status = 'CANCELLED', completed_at = NULL")
    assert accepted == []


@pytest.mark.parametrize("column", ["sent_at", "enqueued_at", "good_until"])
@pytest.mark.parametrize("time", UNREADABLE)
def test_the_rule_for_times_is_named(db: Database, column: str, time: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="breaks the rule 'time_range'") as refused:
        insert(db, {column: f"'{time}'"})
    assert refused.value.diag.constraint_name == "ck_horsies_tasks_time_range"


@pytest.mark.parametrize("ttl", ["-1 s", "1001 years"])
def test_the_life_of_a_node_is_bounded(db: Database, ttl: str) -> None:
    insert(db, ROWS["horsies_workflows"], "horsies_workflows")
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(db, {**ROWS["horsies_workflow_tasks"], "ttl": f"interval '{ttl}'"}, "horsies_workflow_tasks")


@pytest.mark.parametrize("period", [0, 3_600_001, 2_147_483_647])
def test_the_period_of_beats_is_bounded(db: Database, period: int) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(db, {**ROWS["horsies_worker_instances"], "period_ms": str(period)}, "horsies_worker_instances")


ATTEMPT = {"task_id": "'a'", "attempt": "1", "outcome": "'COMPLETED'", "started_at": "now()", "finished_at": "now()"}


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "'RETRIED'"},
        {"attempt": "0"},
        {"finished_at": "now() - interval '1 s'"},
        {"error_code": "'X'"},
        {"outcome": "'FAILED'"},
        {"will_retry": "true"},
        {"task_id": "'nobody'"},
    ],
)
def test_illegal_attempts_are_refused(db: Database, change: dict[str, str]) -> None:
    insert(db, COMPLETED)
    with pytest.raises(psycopg.errors.IntegrityError):
        insert(db, {**ATTEMPT, **change}, "horsies_task_attempts")
    insert(db, ATTEMPT, "horsies_task_attempts")
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(db, ATTEMPT, "horsies_task_attempts")
    db.execute("DELETE FROM horsies_tasks")
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 0


@pytest.mark.breaks("A2")
def test_a_unique_key_binds_only_while_the_task_lives(db: Database) -> None:
    insert(db, {"unique_key": "'k'"})
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(db, {"id": "'b'", "unique_key": "'k'"})
    insert(db, {"id": "'c'", "unique_key": "'k'", "task_name": "'other'"})
    db.execute(f"UPDATE horsies_tasks SET {', '.join(f'{k} = {v}' for k, v in COMPLETED.items())} WHERE id = 'a'")
    insert(db, {"id": "'b'", "unique_key": "'k'"})


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("horsies_heartbeats", {"task_id": "'a'", "sender_id": "'w'", "role": "'boss'"}),
        ("horsies_queue_state", {"queue_name": "'a b'"}),
        ("horsies_schedule_state", {"schedule_name": "'s'", "run_count": "-1"}),
        ("horsies_schedule_state", {"schedule_name": "'s'", "run_count": "1"}),
        ("horsies_workflows", {"id": "'w'", "name": "'n'", "status": "'READY'"}),
        ("horsies_workflows", {"id": "'w'", "name": "'n'", "status": "'COMPLETED'"}),
        ("horsies_workflows", {"id": "'w'", "name": "'n'", "completed_at": "now()"}),
        ("horsies_workflows", {"id": "'w'", "name": "'n'", "on_error": "'ignore'"}),
        ("horsies_workflows", {"id": "'w'", "name": "'n'", "depth": "1"}),
    ],
)
def test_illegal_rows_of_other_tables_are_refused(db: Database, table: str, row: dict[str, str]) -> None:
    with pytest.raises(psycopg.errors.IntegrityError):
        insert(db, row, table)


NODE = {"id": "'n'", "workflow_id": "'w'", "task_index": "0", "node_id": "'first'", "task_name": "'t'"}


@pytest.mark.parametrize(
    "change",
    [
        {"dependencies": "'{0}'"},
        {"join_type": "'some'"},
        {"join_type": "'quorum'"},
        {"min_success": "1"},
        {"status": "'CANCELLED'"},
        {"task_index": "-1"},
        {"workflow_id": "'nobody'"},
    ],
)
def test_illegal_nodes_are_refused(db: Database, change: dict[str, str]) -> None:
    insert(db, {"id": "'w'", "name": "'n'"}, "horsies_workflows")
    with pytest.raises(psycopg.errors.IntegrityError):
        insert(db, {**NODE, **change}, "horsies_workflow_tasks")
    insert(db, {**NODE, "task_id": "'t1'"}, "horsies_workflow_tasks")
    with pytest.raises(psycopg.errors.UniqueViolation):
        insert(
            db,
            {**NODE, "id": "'m'", "task_index": "1", "node_id": "'second'", "task_id": "'t1'"},
            "horsies_workflow_tasks",
        )


def test_identities_go_beyond_32_bits(db: Database) -> None:
    db.execute("SELECT setval(pg_get_serial_sequence('horsies_heartbeats', 'id'), 2147483647)")
    insert(db, {"task_id": "'a'", "sender_id": "'w'", "role": "'runner'"}, "horsies_heartbeats")
    assert db.value("SELECT max(id) FROM horsies_heartbeats") == 2**31


# -- policies ------------------------------------------------------------------------------------

RATE = '{"limit": 10, "per_seconds": 1.5, "burst": 2}'
SOUND_POLICIES = [
    "{}",
    '{"max_concurrency": 1}',
    '{"max_concurrency": 1000000, "fair": false, "limits": ["stripe"]}',
    f'{{"rate": {RATE}}}',
    '{"max_concurrency": null, "rate": null, "limits": []}',
]
MALFORMED_POLICIES = [
    "null", "[]", "1", '"fair"', '{"speed": 1}', '{"max_concurrency": 0}', '{"max_concurrency": 1000001}',
    '{"max_concurrency": 1.5}', '{"max_concurrency": 1.0}', '{"max_concurrency": "1"}', '{"max_concurrency": true}',
    '{"fair": null}', '{"fair": "yes"}', '{"limits": null}', '{"limits": "stripe"}', '{"limits": [1]}',
    '{"limits": [["stripe"]]}', '{"limits": {"stripe": 1}}', '{"rate": 5}', '{"rate": {}}', '{"rate": [1, 1]}',
    '{"rate": {"limit": 10, "per_seconds": 1}}', '{"rate": {"limit": 10, "per_seconds": 1, "burst": null}}',
    '{"rate": {"limit": 10, "per_seconds": 1, "burst": 11}}', '{"rate": {"limit": 10, "per_seconds": 0, "burst": 1}}',
    '{"rate": {"limit": 10, "per_seconds": 2678401, "burst": 1}}',
    '{"rate": {"limit": 10, "per_seconds": "1", "burst": 1}}', '{"rate": {"limit": 1.0, "per_seconds": 1, "burst": 1}}',
    '{"rate": {"limit": 10, "per_seconds": 1, "burst": 1, "key": 1}}',
]  # fmt: skip
POLICY_ROWS = {"horsies_queue_state": {"queue_name": "'q'"}, "horsies_limits": {"name": "'l'"}}


@pytest.mark.parametrize("table", POLICY_ROWS)
@pytest.mark.parametrize("part", ["declared", "override"])
def test_malformed_policies_are_refused(db: Database, table: str, part: str) -> None:
    """The claim casts what is in them: one that it cannot cast would stop the queue."""
    insert(db, POLICY_ROWS[table], table)
    accepted = []
    for policy in MALFORMED_POLICIES:
        try:
            db.execute(f"UPDATE {table} SET {part} = %s::jsonb", policy)
        except psycopg.errors.CheckViolation:
            continue
        accepted.append(policy)
    assert accepted == []
    for policy in SOUND_POLICIES:
        db.execute(f"UPDATE {table} SET {part} = %s::jsonb", policy)
    db.execute(f"UPDATE {table} SET {part} = NULL")


def test_an_override_wins_field_by_field(db: Database) -> None:
    insert(
        db,
        {
            **POLICY_ROWS["horsies_queue_state"],
            "declared": """'{"max_concurrency": 5, "fair": false, "limits": ["stripe"]}'""",
            "override": """'{"max_concurrency": null, "limits": []}'""",
        },
        "horsies_queue_state",
    )
    found = db.execute("SELECT policy, is_limited FROM horsies_queue_state")
    assert found == [({"max_concurrency": None, "fair": False, "limits": []}, False)]
    db.execute("UPDATE horsies_queue_state SET override = NULL")
    assert db.value("SELECT is_limited FROM horsies_queue_state")
    with pytest.raises(psycopg.errors.GeneratedAlways):
        db.execute("UPDATE horsies_queue_state SET policy = '{}'")
