"""A database without the rule for times: one row that no program can read stops neither workers nor commands."""

import pytest

from horsies import PostgresConfig
from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.factories import ago
from tests.support.hands import Hands, end_of
from tests.support.operator import Operator
from tests.support.postgres import Database

TIMES = ("4713-01-01 BC", "-infinity", "294276-01-01", "infinity")
EARLY = TIMES[:2]
pytestmark = pytest.mark.breaks(
    "T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "A1", "A2", "A3", "A4", "W1", "W3", "S1"
)


@pytest.fixture
def old_db(db: Database) -> Database:
    """As it was before the rule."""
    for table, rule in db.execute(
        """SELECT conrelid::regclass::text, conname FROM pg_constraint
            WHERE conname LIKE 'ck!_horsies!_%%!_time!_range' ESCAPE '!'
               OR conname IN ('ck_horsies_tasks_sound', 'ck_horsies_task_attempts_sound')"""
    ):
        db.execute(f"ALTER TABLE {table} DROP CONSTRAINT {rule}")
    return db


@pytest.mark.parametrize("time", EARLY)
async def test_a_claim_takes_such_a_row_along_with_the_others(old_db: Database, time: str) -> None:
    odd = factories.task(old_db, sent_at=time, enqueued_at=time, good_until="infinity")
    fine = factories.task(old_db)
    connection = await connect(connect_arguments(PostgresConfig(old_db.url)))
    try:
        hands = Hands(connection, Identity("worker-1", "host-1", 4711))
        rows = await hands.claim()
        assert [row["id"] for row in rows] == [odd, fine]
        assert rows[0]["enqueued_at"].tzinfo is not None
        assert (await hands.finalize([end_of(row) for row in rows])).keys() == {odd, fine}
    finally:
        await connection.close()


@pytest.mark.parametrize("time", TIMES)
def test_commands_show_such_rows(old_db: Database, time: str, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = factories.task(old_db, sent_at=time, enqueued_at=time, good_until=time, next_retry_at=time)
    ended = factories.task(old_db, "FAILED", sent_at=time, terminal_at=time, failed_at=time)
    old_db.execute("UPDATE horsies_task_attempts SET started_at = %s, finished_at = %s", time, time)
    factories.heartbeat(old_db, waiting, sent_at=time)
    factories.worker_state(old_db, "odd", snapshot_at=time)
    factories.worker_state(old_db, "fine", worker_started_at=time)
    factories.insert(
        old_db, "horsies_worker_instances", worker_id="fine", period_ms=5000, beat_at=time, started_at=time
    )
    factories.insert(old_db, "horsies_queue_state", queue_name="q", paused_at=time, updated_at=time)
    factories.insert(
        old_db, "horsies_schedule_state", schedule_name="s", last_run_at=time, next_run_at=time, updated_at=time
    )
    factories.insert(
        old_db, "horsies_workflows", id="w", name="w", status="FAILED", sent_at=time, started_at=time,
        completed_at=time, error="{}",
    )  # fmt: skip
    factories.insert(
        old_db, "horsies_workflow_tasks", id="n", workflow_id="w", task_index=0, node_id="n", task_name="add",
        status="FAILED", started_at=time, completed_at=time, good_until=time,
    )  # fmt: skip
    if "infinity" in time and old_db.value("SELECT current_setting('server_version_num')::int") < 170_000:
        pytest.skip("this server cannot subtract an infinite time")
    operator = Operator(old_db, capsys)
    for words in (
        ["tasks", "list"], ["tasks", "show", waiting], ["tasks", "show", ended], ["workers"], ["queues"],
        ["stale", "list"], ["schedules", "list"], ["workflows", "list"], ["workflows", "show", "w"],
    ):  # fmt: skip
        for more in ([], ["--json"]):
            ran = operator(*words, *more)
            assert (ran.code, ran.err) == (0, ""), (words, ran.err)
    told = operator("doctor", "--quiet")
    assert waiting in told.out
    assert "Traceback" not in told.err


@pytest.mark.parametrize("name", ["live_names", "served_spans", "last_known_in_queue"])
async def test_the_longest_period_of_beats_overflows_nothing(db: Database, name: str) -> None:
    db.execute("ALTER TABLE horsies_worker_instances DROP CONSTRAINT ck_horsies_worker_instances_period")
    factories.insert(
        db, "horsies_worker_instances", worker_id="w", period_ms=2**31 - 1, queues=["default"], names_sha="s",
        started_at=ago(days=1),
    )  # fmt: skip
    factories.insert(db, "horsies_task_sets", sha="s", names=["add"])
    async with Hands.on(db) as hands:
        values = {"live_names": [], "served_spans": ["default"], "last_known_in_queue": ["default", ["add"]]}[name]
        rows = await hands.connection.fetch(hands.queries.sql(name), *values)
    assert len(rows) == 1
