"""The service that writes ends: batches, lost answers, results that cannot be stored, lost claims, locked rows."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import asyncpg
import pytest

from horsies import PostgresConfig, ResilienceConfig
from horsies.status import TaskStatus
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.database.transition import Transition
from horsies_worker.finish.finalizer import MAX_BYTES, MAX_ROWS, Finalizer
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.hands import Hands, attempts, end_of, running
from tests.support.postgres import Database
from tests.support.refusals import refusing, updates_of
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

S = TaskStatus
QUICK = ResilienceConfig(reconnect_initial_ms=10, reconnect_max_ms=100)
QUERIES = Queries(None, Identity("worker-1", "host-1", 4711))


# -- the finalizer ---------------------------------------------------------------------------------------------


class Done(list[tuple[str, int]]):
    """The keys that the finalizer reported as done."""


@asynccontextmanager
async def finalizing(url: str) -> AsyncIterator[tuple[Finalizer, Done]]:
    """Run the service on its own session, as a worker does."""
    session = Session(PostgresConfig(url), "finalize", QUERIES)
    done = Done()
    finalizer = Finalizer(session, QUICK, on_done=done.extend)
    task = asyncio.create_task(finalizer.run())
    try:
        yield finalizer, done
        assert not task.done(), "the loop ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()


async def drained(finalizer: Finalizer) -> None:
    await asyncio.wait_for(finalizer.drained(), 20)


def fill_running(db: Database, count: int) -> list[dict[str, Any]]:
    """Insert RUNNING tasks with one statement."""
    rows = db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, claimed_at, started_at, claimed_by_worker_id, worker_pid,"
        " claim_generation) SELECT to_char(i, 'FM0000'), 'add', 'RUNNING', now(), now(), 'worker-1', 1, 1"
        f" FROM generate_series(1, {count}) AS i RETURNING id"
    )
    return [{"id": row[0], "claim_generation": 1, "retry_count": 0, "max_retries": 0} for row in rows]


def count_statements(monkeypatch: pytest.MonkeyPatch) -> list[list[Transition]]:
    """Record every batch that is tried, in order."""
    batches: list[list[Transition]] = []
    real = Queries.finalize_own

    async def recorded(self: Queries, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
        batches.append(list(batch))
        return await real(self, connection, batch)

    monkeypatch.setattr(Queries, "finalize_own", recorded)
    return batches


async def test_ends_that_gather_go_into_one_statement(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = count_statements(monkeypatch)
    rows = fill_running(db, 700)
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row))
        assert finalizer.backlog == 700
        await drained(finalizer)
    assert [len(batch) for batch in batches] == [MAX_ROWS, MAX_ROWS, 100]
    assert [end.task_id for batch in batches for end in batch] == [row["id"] for row in rows]
    assert done == [(row["id"], 1) for row in rows]
    assert (finalizer.written, finalizer.lost, finalizer.backlog) == (700, 0, 0)


async def test_a_batch_is_bounded_by_its_bytes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = count_statements(monkeypatch)
    sizes = [0.4, 0.4, 0.4, 3, 0.1, 0.1]
    async with finalizing(db.url) as (finalizer, _):
        for size, row in zip(sizes, fill_running(db, len(sizes)), strict=True):
            finalizer.add(end_of(row, result=f'{{"ok":"{"x" * int(size * MAX_BYTES)}"}}'))
        await drained(finalizer)
    assert [len(batch) for batch in batches] == [2, 1, 1, 2]
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}


POISON = {
    "NUL": '{"ok":"\\u0000"}'.replace("\\u0000", "\x00"),
    "lone surrogate": '{"ok":"\ud800"}',
    # the driver repeats the value in its message, and reports a lost connection with these words
    "lone surrogate and treacherous words": '{"ok":"the connection was closed, terminated and lost \ud800"}',
}


@pytest.mark.parametrize("poison", POISON)
async def test_one_bad_row_among_300(
    db: Database, poison: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batches = count_statements(monkeypatch)
    rows = fill_running(db, 300)
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row, result=POISON[poison] if row["id"] == "0123" else '{"ok":1}'))
        await drained(finalizer)
    assert len(batches) <= 2 + 2 * 9
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 299
    bad = factories.read(db, "0123")
    assert (bad["status"], bad["error_code"]) == ("FAILED", "WORKER_SERIALIZATION_ERROR")
    assert "could not store the result" in bad["result"]
    assert sorted(done) == sorted((row["id"], 1) for row in rows)
    assert "0123" in caplog.text


async def test_every_row_bad(db: Database) -> None:
    async with finalizing(db.url) as (finalizer, done):
        for row in fill_running(db, 40):
            finalizer.add(end_of(row, result="\x00"))
        await drained(finalizer)
    assert set(db.execute("SELECT error_code FROM horsies_tasks")) == {("WORKER_SERIALIZATION_ERROR",)}
    assert len(done) == 40


async def test_a_row_that_accepts_no_end_is_left_and_logged(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The result is not at fault: the row of its attempt exists already, which no worker writes."""
    rows = fill_running(db, 10)
    factories.attempt(db, "0005", 1)
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row))
        await drained(finalizer)
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 9
    assert len(done) == 10
    assert finalizer.lost == 1
    assert ("0005", 1) in finalizer.recent, "it has run, and must not be returned as one that never started"
    assert [record.levelname for record in caplog.records if "cannot be ended" in record.message] == ["CRITICAL"]
    db.execute("DELETE FROM horsies_tasks WHERE id = '0005'")


async def test_a_row_that_a_trigger_refuses_waits_apart_and_keeps_its_result(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batches = count_statements(monkeypatch)
    rows = fill_running(db, 300)
    async with finalizing(db.url) as (finalizer, done):
        with refusing(db, updates_of("0123"), code="P0001"):
            for row in rows[:299]:
                finalizer.add(end_of(row))
            await eventually_async(lambda: len(done) == 298)
            finalizer.add(end_of(rows[299]))
            await eventually_async(lambda: len(done) == 299)
            assert [len(batch) for batch in batches if rows[299]["id"] in {end.task_id for end in batch}] == [1]
            assert [end.task_id for end in finalizer.unwritten()] == ["0123"]
            session = Session(PostgresConfig(db.url), "stage", QUERIES)
            await finalizer.stage_late(session, 0.0)  # raises nothing
            await session.close()
        await drained(finalizer)
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 300
    assert len(done) == 300
    assert "the database refuses its end: RaiseError: no; trying again in 1 s" in caplog.text


async def test_half_of_a_split_that_meets_an_outage_is_tried_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written halves are done once, the others stay; no end is lost or written twice."""
    batches = count_statements(monkeypatch)
    rows = fill_running(db, 64)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, done):
            cut_when(monkeypatch, proxy, lambda: len(batches) == 4)
            for row in rows:
                finalizer.add(end_of(row, result="\x00" if row["id"] == "0050" else '{"ok":1}'))
            await drained(finalizer)
    assert proxy.cuts == 1
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 63
    assert factories.read(db, "0050")["error_code"] == "WORKER_SERIALIZATION_ERROR"
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 64
    assert sorted(done) == sorted((row["id"], 1) for row in rows)
    assert finalizer.lost == 0


def cut_when(monkeypatch: pytest.MonkeyPatch, proxy: ChaosProxy, now: Callable[[], bool]) -> None:
    real = Queries.finalize_own

    async def watched(self: Queries, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
        if now():
            proxy.cut_at("INSERT INTO horsies_task_attempts")
        return await real(self, connection, batch)

    monkeypatch.setattr(Queries, "finalize_own", watched)


# -- answers that were lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("status", [S.COMPLETED, S.FAILED, S.PENDING, S.CANCELLED])
async def test_a_lost_answer_leaves_exactly_one_attempt(db: Database, when: When, status: S) -> None:
    """The statement was committed or never arrived; the worker cannot know which."""
    rows = [running(db, max_retries=1) for _ in range(3)]
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, done):
            proxy.cut_at("INSERT INTO horsies_task_attempts", when)
            for row in rows:
                finalizer.add(end_of(row, status, retry_delay_ms=60_000))
            await drained(finalizer)
        assert proxy.cuts == 1
    assert [len(attempts(db, row["id"])) for row in rows] == [1, 1, 1]
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {(status.value,)}
    assert sorted(done) == sorted((row["id"], 1) for row in rows)
    assert finalizer.lost == 0


async def test_a_lost_answer_about_an_attempt_that_never_started(db: Database) -> None:
    """It left no attempt to find it by, and must not count as lost."""
    row = running(db)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, _):
            proxy.cut_at("INSERT INTO horsies_task_attempts")
            finalizer.add(end_of(row, S.CANCELLED, recorded=None, error_code="TASK_CANCELLED"))
            await drained(finalizer)
    assert factories.read(db, row["id"])["status"] == "CANCELLED"
    assert finalizer.lost == 0


async def test_an_outage_while_it_looks_for_missing_ends(db: Database) -> None:
    """The second try must not take the ends that the first statement wrote for lost."""
    rows = [running(db) for _ in range(4)]
    db.execute("UPDATE horsies_tasks SET claim_generation = 2 WHERE id = %s", rows[0]["id"])
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, done):
            proxy.cut_at("SELECT x.id, t.status")
            for row in rows:
                finalizer.add(end_of(row))
            await drained(finalizer)
        assert proxy.cuts == 1
    assert (finalizer.written, finalizer.lost) == (3, 1)
    assert sorted(done) == sorted((row["id"], 1) for row in rows)


async def test_a_lost_answer_then_the_retry_of_the_same_task_ends(db: Database, hands: Hands) -> None:
    """Two ends of one task wait at once: of the first attempt, whose answer was lost, and of the second."""
    row = running(db, max_retries=1)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, done):
            proxy.cut_at("INSERT INTO horsies_task_attempts")
            finalizer.add(end_of(row, S.PENDING))
            await eventually_async(lambda: factories.read(db, row["id"])["status"] == "PENDING")
            (again,) = await hands.claim()
            finalizer.add(end_of(again))
            await drained(finalizer)
    assert factories.read(db, row["id"])["status"] == "COMPLETED"
    assert [a["outcome"] for a in attempts(db, row["id"])] == ["FAILED", "COMPLETED"]
    assert sorted(done) == [(row["id"], 1), (row["id"], 2)]
    assert finalizer.lost == 0


async def test_an_end_that_is_reported_twice_is_written_once(db: Database) -> None:
    row = running(db)
    async with finalizing(db.url) as (finalizer, done):
        finalizer.add(end_of(row))
        finalizer.add(end_of(row, S.FAILED))
        await drained(finalizer)
    assert factories.read(db, row["id"])["status"] == "COMPLETED"
    assert done == [(row["id"], 1)]


# -- lost claims, locked rows-----------------------------------------------------------------------------------


async def test_a_result_of_a_lost_claim_is_dropped_and_logged(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    rows = [running(db), running(db, claimed_by_worker_id="worker-2"), running(db, claim_generation=7)]
    rows[2]["claim_generation"] = 6
    gone = {"id": "gone", "claim_generation": 1, "retry_count": 0, "max_retries": 0}
    before = db.execute("SELECT id, xmin::text FROM horsies_tasks WHERE id <> %s ORDER BY id", rows[0]["id"])
    async with finalizing(db.url) as (finalizer, done):
        with caplog.at_level(logging.WARNING, "horsies.worker"):
            for row in (*rows, gone):
                finalizer.add(end_of(row))
            await drained(finalizer)
    assert (finalizer.written, finalizer.lost) == (1, 3)
    assert caplog.text.count("CLAIM_LOST") == 3
    assert len(done) == 4
    assert db.execute("SELECT id, xmin::text FROM horsies_tasks WHERE id <> %s ORDER BY id", rows[0]["id"]) == before


async def test_a_locked_row_delays_no_other_and_is_written_when_free(db: Database) -> None:
    rows = fill_running(db, 50)
    holder = await asyncpg.connect(db.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT 1 FROM horsies_tasks WHERE id IN ('0001', '0030') FOR UPDATE")
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row))
        finalizer.give_back([("gone", 1)])
        await eventually_async(lambda: finalizer.backlog == 2)
        assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 48
        finalizer.add(end_of(running(db, id="later")))
        await eventually_async(lambda: factories.read(db, "later")["status"] == "COMPLETED", timeout=5)
        await transaction.rollback()
        await drained(finalizer)
    await holder.close()
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}
    assert len(done) == 52
    assert finalizer.lost == 0


async def test_a_row_that_was_changed_in_between_is_written_by_the_next_try(db: Database) -> None:
    """A cancel request changes the row after the statement took its snapshot."""
    rows = fill_running(db, 200)
    stop = asyncio.Event()

    async def disturb() -> None:
        connection = await asyncpg.connect(db.url)
        while not stop.is_set():
            await connection.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE status = 'RUNNING'")
        await connection.close()

    async with finalizing(db.url) as (finalizer, done):
        disturbing = asyncio.create_task(disturb())
        for row in rows:
            finalizer.add(end_of(row))
            await asyncio.sleep(0.001)
        await drained(finalizer)
        stop.set()
        await disturbing
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}
    assert (finalizer.written, finalizer.lost, len(done)) == (200, 0, 200)


# -- the loop --------------------------------------------------------------------------------------------------


async def test_hand_backs_are_not_starved_by_ends(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = count_statements(monkeypatch)
    rows = fill_running(db, 3 * MAX_ROWS + 5)
    async with finalizing(db.url) as (finalizer, _):
        for row in rows[5:]:
            finalizer.add(end_of(row))
        finalizer.give_back([(row["id"], 1) for row in rows[:3]])
        finalizer.give_back([(row["id"], 1) for row in rows[3:5]])
        assert finalizer.returning() == {row["id"] for row in rows[:5]}
        await eventually_async(lambda: not finalizer.returning(), interval=0)
        assert len(batches) <= 3
        await drained(finalizer)
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING' AND enqueued_at <= now()") == 5


@pytest.mark.parametrize("when", When)
async def test_a_hand_back_whose_answer_was_lost(db: Database, when: When) -> None:
    row = running(db)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, done):
            proxy.cut_at("ELSE 'PENDING' END", when)
            finalizer.give_back([(row["id"], 1)])
            await drained(finalizer)
        assert proxy.cuts == 1
    assert factories.read(db, row["id"])["status"] == "PENDING"
    assert done == [(row["id"], 1)]


async def test_an_unexpected_error_does_not_end_the_loop(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fill_running(db, 3)
    failures = iter([RuntimeError("a bug"), KeyError("another"), asyncpg.UndefinedTableError("a migration")])
    real = Queries.finalize_own

    async def failing(self: Queries, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
        if error := next(failures, None):
            raise error
        return await real(self, connection, batch)

    monkeypatch.setattr(Queries, "finalize_own", failing)
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row))
        await drained(finalizer)
    assert caplog.text.count("failed unexpectedly") == 3
    assert len(done) == 3


async def test_results_wait_for_a_database_that_is_away(db: Database) -> None:
    """They count as unwritten, so that the heartbeats cover their tasks and stage them."""
    rows = fill_running(db, 5)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, _):
            proxy.cut_at("INSERT INTO horsies_task_attempts", When.UNSENT)
            proxy.set(proxy.mode.CUT)
            for row in rows:
                finalizer.add(end_of(row))
            await asyncio.sleep(0.3)
            assert finalizer.backlog == 5
            direct = Session(PostgresConfig(db.url), "heartbeat", QUERIES)
            await finalizer.stage_late(direct, 0.2)
            staged = db.execute("SELECT id, updated_at FROM horsies_tasks WHERE finalizing_at IS NOT NULL ORDER BY id")
            assert [id for id, _ in staged] == [row["id"] for row in rows]
            await finalizer.stage_late(direct, 0.2)  # each once
            await direct.close()
            assert db.execute("SELECT id, updated_at FROM horsies_tasks ORDER BY id") == staged
            assert len(finalizer.unwritten()) == 5
            proxy.trap = None
            proxy.set(proxy.mode.PASS)
            await drained(finalizer)
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}


async def test_new_ends_during_a_statement_are_no_reason_to_pause(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many ends arrive as are written. That is progress; only locked rows make the finalizer wait."""
    for name in ("MIN_LOCK_WAIT_S", "MAX_LOCK_WAIT_S"):
        monkeypatch.setattr(f"horsies_worker.finish.finalizer.{name}", 60.0)
    rows = fill_running(db, 40)
    later = iter(rows[10:])
    real = Queries.finalize_own
    async with finalizing(db.url) as (finalizer, done):

        async def joined(self: Queries, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
            for row in islice(later, len(batch)):
                finalizer.add(end_of(row))
            return await real(self, connection, batch)

        monkeypatch.setattr(Queries, "finalize_own", joined)
        for row in rows[:10]:
            finalizer.add(end_of(row))
        await drained(finalizer)
    assert done == [(row["id"], 1) for row in rows]
