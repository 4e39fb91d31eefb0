"""The end of an attempt: every edge, the immutable attempt row, lost answers, rows that cannot be stored."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies import PostgresConfig, ResilienceConfig
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.decide import Transition
from horsies_worker.finalizer import MAX_BYTES, MAX_ROWS, Finalizer
from horsies_worker.identity import Identity
from horsies_worker.queries import UNRETRIED_RESULT, Queries
from horsies_worker.session import CLAIM_SETTINGS, Session
from tests.support import factories
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.factories import NOW, ahead
from tests.support.hands import Hands, end_of, moment
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

S = TaskStatus
QUICK = ResilienceConfig(reconnect_initial_ms=10, reconnect_max_ms=100)
FUTURE, PAST = 221_845_392_000.0, 946_684_800.0


def running(db: Database, **columns: Any) -> dict[str, Any]:
    """A task in worker-1's hands, as its claim saw it."""
    task = factories.task(db, "RUNNING", **columns)
    row = factories.read(db, task)
    return {name: row[name] for name in ("id", "claim_generation", "retry_count", "max_retries")}


def attempts(db: Database, task: str) -> list[dict[str, Any]]:
    names = (
        "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message",
        "failed_reason", "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
    )  # fmt: skip
    found = db.execute(
        f"SELECT {', '.join(names)} FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt", task
    )
    return [dict(zip(names, row, strict=True)) for row in found]


# -- every edge ------------------------------------------------------------------------------------------------


async def test_completed(db: Database, hands: Hands) -> None:
    row = running(db)
    end = end_of(row, result='{"ok":[1,2]}')
    assert await hands.finalize([end]) == {row["id"]: "COMPLETED"}
    stored = factories.read(db, row["id"])
    assert (stored["status"], stored["result"], stored["error_code"]) == ("COMPLETED", '{"ok":[1,2]}', None)
    assert stored["completed_at"] == stored["terminal_at"] == stored["updated_at"]
    assert (stored["failed_at"], stored["failed_reason"], stored["retry_count"]) == (None, None, 0)
    assert (stored["worker_pid"], stored["worker_process_name"]) == (end.pid, "child-9")
    assert (stored["claimed_by_worker_id"], stored["claim_generation"]) == ("worker-1", 1)
    assert attempts(db, row["id"]) == [
        {
            "attempt": 1, "outcome": "COMPLETED", "will_retry": False, "error_code": None, "error_message": None,
            "started_at": moment(end.started), "finished_at": moment(end.finished),
            "failed_reason": None, "worker_id": "worker-1", "worker_hostname": "host-1", "worker_pid": end.pid,
            "worker_process_name": "child-9",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(AttemptOutcome.FAILED, "SMTP_DOWN"), (AttemptOutcome.WORKER_FAILURE, "WORKER_CRASHED")],
)
async def test_failed(db: Database, hands: Hands, outcome: AttemptOutcome, code: str) -> None:
    row = running(db, retry_count=1, max_retries=1)
    end = end_of(row, S.FAILED, outcome=outcome, error_code=code)
    assert await hands.finalize([end]) == {row["id"]: "FAILED"}
    stored = factories.read(db, row["id"])
    assert (stored["status"], stored["result"], stored["error_code"]) == ("FAILED", end.result, code)
    assert stored["failed_at"] == stored["terminal_at"] is not None
    assert (stored["completed_at"], stored["failed_reason"], stored["retry_count"]) == (None, "why", 1)
    last = attempts(db, row["id"])[1]
    assert (last["attempt"], last["outcome"], last["will_retry"]) == (2, outcome, False)
    assert (last["error_code"], last["error_message"], last["failed_reason"]) == (code, "as the test wanted", "why")


async def test_cancelled_while_it_ran(db: Database, hands: Hands) -> None:
    row = running(db, cancel_requested_at=NOW)
    assert await hands.end([row], status=S.CANCELLED, error_code="TASK_CANCELLED") == {row["id"]: "CANCELLED"}
    stored = factories.read(db, row["id"])
    assert (stored["status"], stored["error_code"]) == ("CANCELLED", "TASK_CANCELLED")
    assert stored["started_at"] is not None
    assert (stored["completed_at"], stored["failed_at"]) == (None, None)
    assert [(a["outcome"], a["error_code"]) for a in attempts(db, row["id"])] == [("FAILED", "TASK_CANCELLED")]


async def test_cancelled_before_user_code_began(db: Database, hands: Hands) -> None:
    row = running(db, cancel_requested_at=NOW)
    await hands.end([row], status=S.CANCELLED, error_code="TASK_CANCELLED", outcome=None, started=None)
    stored = factories.read(db, row["id"])
    assert (stored["status"], stored["started_at"]) == ("CANCELLED", None)
    assert attempts(db, row["id"]) == []


async def test_a_retry(db: Database, hands: Hands) -> None:
    row = running(db, max_retries=3, retry_count=1, progress="1", priority=7)
    before = factories.read(db, row["id"])
    assert await hands.end([row], status=S.PENDING, retry_delay_ms=90_000) == {row["id"]: "PENDING"}
    stored = factories.read(db, row["id"])
    due = stored["updated_at"] + timedelta(seconds=90)
    changed = {name: value for name, value in stored.items() if value != before[name]}
    assert changed == {
        "status": "PENDING", "retry_count": 2, "enqueued_at": due, "next_retry_at": due, "claimed_at": None,
        "claimed_by_worker_id": None, "started_at": None, "worker_pid": None, "worker_hostname": None,
        "worker_process_name": None, "updated_at": stored["updated_at"],
    }  # fmt: skip
    last = attempts(db, row["id"])[1]
    assert (last["attempt"], last["outcome"], last["will_retry"], last["error_code"]) == (
        2,
        "FAILED",
        True,
        "SMTP_DOWN",
    )
    assert last["worker_hostname"] == "host-1"


async def test_a_retry_takes_the_larger_budget_along(db: Database, hands: Hands) -> None:
    """A row that named no options is retried by the registration's policy: its own limit must allow that."""
    row = running(db)
    assert await hands.end([row], status=S.PENDING, budget=5) == {row["id"]: "PENDING"}
    stored = factories.read(db, row["id"])
    assert (stored["retry_count"], stored["max_retries"]) == (1, 5)


async def test_a_retry_beyond_the_budget_fails(db: Database, hands: Hands) -> None:
    """The row has the last word: somebody may have spent a retry that this worker does not know of."""
    row = running(db, retry_count=2, max_retries=2)
    end = end_of(row, S.PENDING, budget=1)
    assert await hands.finalize([end]) == {row["id"]: "FAILED"}
    stored = factories.read(db, row["id"])
    assert (stored["error_code"], stored["result"], stored["retry_count"]) == ("SMTP_DOWN", end.result, 2)
    assert attempts(db, row["id"])[2]["will_retry"] is False


@pytest.mark.parametrize(("good_until", "status"), [(ahead(seconds=60), "PENDING"), (ahead(seconds=20), "FAILED")])
async def test_a_retry_past_the_deadline_fails(db: Database, hands: Hands, good_until: str, status: str) -> None:
    row = running(db, max_retries=1, good_until=good_until)
    assert await hands.end([row], status=S.PENDING, retry_delay_ms=30_000) == {row["id"]: status}
    assert attempts(db, row["id"])[0]["will_retry"] is (status == "PENDING")


async def test_a_retry_of_an_unwanted_task_ends_cancelled(db: Database, hands: Hands) -> None:
    """The attempt keeps its own error; the task tells that it was cancelled."""
    row = running(db, max_retries=1, cancel_requested_at=NOW)
    assert await hands.end([row], status=S.PENDING) == {row["id"]: "CANCELLED"}
    stored = factories.read(db, row["id"])
    assert (stored["error_code"], stored["result"]) == ("TASK_CANCELLED", UNRETRIED_RESULT)
    assert (stored["retry_count"], stored["failed_at"]) == (0, None)
    assert [(a["error_code"], a["will_retry"]) for a in attempts(db, row["id"])] == [("SMTP_DOWN", False)]


async def test_an_unwanted_task_that_ended_by_itself_keeps_its_end(db: Database, hands: Hands) -> None:
    rows = [running(db, cancel_requested_at=NOW) for _ in range(2)]
    ends = [end_of(rows[0]), end_of(rows[1], S.FAILED)]
    assert await hands.finalize(ends) == {rows[0]["id"]: "COMPLETED", rows[1]["id"]: "FAILED"}


async def test_a_mark_of_a_result_in_hand_is_cleared(db: Database, hands: Hands) -> None:
    marked = {"finalizing_at": NOW, "finalizing_by_worker_id": "worker-1", "result": '{"ok":1}'}
    rows = [running(db, max_retries=1, **marked) for _ in range(2)]
    await hands.finalize([end_of(rows[0]), end_of(rows[1], S.PENDING)])
    for row in rows:
        stored = factories.read(db, row["id"])
        assert (stored["finalizing_at"], stored["finalizing_by_worker_id"]) == (None, None)


async def test_the_end_is_told_to_whoever_waits(db: Database, hands: Hands) -> None:
    heard: list[tuple[str, str]] = []
    listener = await asyncpg.connect(db.url)
    for channel in ("task_done", "task_new"):
        await listener.add_listener(channel, lambda *message: heard.append((message[2], message[3])))
    ended, retried = running(db), running(db, max_retries=1)
    await hands.finalize([end_of(ended), end_of(retried, S.PENDING)])
    await eventually_async(lambda: sorted(heard) == [("task_done", ended["id"]), ("task_new", retried["id"])])
    await listener.close()


async def test_many_of_every_kind_in_one_statement(db: Database, hands: Hands) -> None:
    ends = [
        end_of(running(db, max_retries=1, id=f"{number:03}-{status}"), status)
        for number in range(20)
        for status in (S.COMPLETED, S.FAILED, S.PENDING, S.CANCELLED)
    ]
    written = await hands.finalize(ends)
    assert written == {end.task_id: end.status.value for end in ends}
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 80
    assert await hands.finalize(ends) == {}


# -- the attempt's span ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "finished"),
    [(PAST, PAST), (FUTURE, FUTURE), (PAST, FUTURE), (FUTURE, PAST), (None, FUTURE), (None, PAST)],
)
@pytest.mark.parametrize("status", [S.COMPLETED, S.PENDING])
async def test_the_span_stays_inside_what_the_row_allows(
    db: Database, hands: Hands, started: float | None, finished: float, status: S
) -> None:
    """Whatever the worker's clock says: not before the row was started, not after this statement."""
    row = running(db, max_retries=1)
    before = factories.read(db, row["id"])
    await hands.end([row], status=status, started=started, finished=finished)
    (attempt,) = attempts(db, row["id"])
    now = factories.read(db, row["id"])["updated_at"]
    assert before["started_at"] <= attempt["started_at"] <= attempt["finished_at"] <= now
    if finished == FUTURE:
        assert attempt["finished_at"] == now
    if started in (PAST, None):
        assert attempt["started_at"] == before["started_at"]


async def test_a_clock_that_went_back_does_not_stop_the_end(db: Database, hands: Hands) -> None:
    """After a failover the row may have been started in what is now the future."""
    row = running(db, claimed_at=ahead(minutes=10), started_at=ahead(minutes=10))
    assert await hands.end([row]) == {row["id"]: "COMPLETED"}
    (attempt,) = attempts(db, row["id"])
    assert attempt["started_at"] == attempt["finished_at"]
    db.execute("UPDATE horsies_tasks SET started_at = now(), claimed_at = now(), completed_at = now()")


async def test_attempts_are_written_once_and_stay(db: Database, hands: Hands) -> None:
    row = running(db, max_retries=3)
    await hands.end([row], status=S.PENDING)
    first = attempts(db, row["id"])
    rows = await hands.claim()
    assert rows[0]["claim_generation"] == 2
    await hands.end([row], status=S.FAILED)  # a late word of the first attempt
    assert attempts(db, row["id"]) == first
    await hands.end(rows)
    assert attempts(db, row["id"])[:1] == first
    assert len(attempts(db, row["id"])) == 2


# -- the finalizer ---------------------------------------------------------------------------------------------


class Done(list[tuple[str, int]]):
    """What the finalizer reported as done."""


@asynccontextmanager
async def finalizing(url: str) -> AsyncIterator[tuple[Finalizer, Done]]:
    """The service on a session of its own, as a worker runs it."""
    session = Session(PostgresConfig(url), "finalize", settings=CLAIM_SETTINGS)
    done = Done()
    queries = Queries(None, Identity("worker-1", "host-1", 4711))
    finalizer = Finalizer(session, queries, QUICK, on_done=done.extend)
    task = asyncio.create_task(finalizer.run())
    try:
        yield finalizer, done
        assert not task.done(), "nothing may end the loop"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()


async def drained(finalizer: Finalizer) -> None:
    await asyncio.wait_for(finalizer.drained(), 20)


def fill_running(db: Database, count: int) -> list[dict[str, Any]]:
    """Cheaper than one by one."""
    rows = db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, claimed_at, started_at, claimed_by_worker_id, worker_pid,"
        " claim_generation) SELECT to_char(i, 'FM0000'), 'add', 'RUNNING', now(), now(), 'worker-1', 1, 1"
        f" FROM generate_series(1, {count}) AS i RETURNING id"
    )
    return [{"id": row[0], "claim_generation": 1, "retry_count": 0, "max_retries": 0} for row in rows]


def count_statements(monkeypatch: pytest.MonkeyPatch) -> list[list[Transition]]:
    """Every batch that was tried, in order."""
    batches: list[list[Transition]] = []
    real = Queries.finalize_own

    async def recorded(self: Queries, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
        batches.append(list(batch))
        return await real(self, connection, batch)

    monkeypatch.setattr(Queries, "finalize_own", recorded)
    return batches


async def test_what_gathers_goes_into_one_statement(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # the driver shows the value in its message, and these words are how it tells of a lost connection
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


async def test_a_row_that_takes_no_end_at_all_is_left_and_told(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Not the result is at fault: its attempt is there already, which no worker of ours writes."""
    rows = fill_running(db, 10)
    factories.attempt(db, "0005", 1)
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row))
        await drained(finalizer)
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 9
    assert len(done) == 10
    assert finalizer.lost == 1
    assert [record.levelname for record in caplog.records if "cannot be ended" in record.message] == ["CRITICAL"]
    db.execute("DELETE FROM horsies_tasks WHERE id = '0005'")


async def test_half_of_a_split_that_meets_an_outage_is_tried_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The halves that were written are done once; the others stay, and nothing is lost or written twice."""
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
    """The statement was committed, or never arrived; the worker cannot know which."""
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


async def test_a_lost_answer_about_what_never_started(db: Database) -> None:
    """It has no attempt to be found by; it is not called lost."""
    row = running(db)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, _):
            proxy.cut_at("INSERT INTO horsies_task_attempts")
            finalizer.add(end_of(row, S.CANCELLED, outcome=None, error_code="TASK_CANCELLED"))
            await drained(finalizer)
    assert factories.read(db, row["id"])["status"] == "CANCELLED"
    assert finalizer.lost == 0


async def test_an_outage_while_it_asks_what_became_of_the_missing(db: Database) -> None:
    """What the first statement wrote is not taken for lost by the second try."""
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
    """Two ends of one task in the line at once: that of the first attempt, whose answer was lost, and of the second."""
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


# -- rows of others --------------------------------------------------------------------------------------------


async def test_a_result_without_a_fence_is_dropped_and_told(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    rows = [running(db), running(db, claimed_by_worker_id="worker-2"), running(db, claim_generation=7)]
    rows[2]["claim_generation"] = 6
    gone = {"id": "nobody", "claim_generation": 1, "retry_count": 0, "max_retries": 0}
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


async def test_a_locked_row_keeps_nobody_waiting_and_is_written_when_free(db: Database) -> None:
    rows = fill_running(db, 50)
    holder = await asyncpg.connect(db.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT 1 FROM horsies_tasks WHERE id IN ('0001', '0030') FOR UPDATE")
    async with finalizing(db.url) as (finalizer, done):
        for row in rows:
            finalizer.add(end_of(row))
        finalizer.give_back([("nobody", 1)])
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
    """A cancel request of a moment ago moves the row under the statement's snapshot."""
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
        finalizer.give_back([(row["id"], 1) for row in rows[3:5]], delay_ms=5_000)
        assert finalizer.returning() == {row["id"] for row in rows[:5]}
        await eventually_async(lambda: not finalizer.returning(), interval=0)
        assert len(batches) <= 3
        await drained(finalizer)
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING' AND enqueued_at <= now()") == 3
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING' AND enqueued_at > now()") == 2


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
    """And are counted as unwritten, so that their tasks are vouched for and staged."""
    rows = fill_running(db, 5)
    with ChaosProxy(db.url) as proxy:
        async with finalizing(proxy.url) as (finalizer, _):
            proxy.cut_at("INSERT INTO horsies_task_attempts", When.UNSENT)
            proxy.set(proxy.mode.CUT)
            for row in rows:
                finalizer.add(end_of(row))
            await asyncio.sleep(0.3)
            assert finalizer.backlog == 5
            late = finalizer.waiting_longer_than(0.2)
            assert [end.task_id for end in late] == [row["id"] for row in rows]
            finalizer.staged({"0001"})
            assert len(finalizer.waiting_longer_than(0.2)) == 4
            assert len(finalizer.unwritten()) == 5
            proxy.trap = None
            proxy.set(proxy.mode.PASS)
            await drained(finalizer)
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}


async def test_new_ends_during_a_statement_are_no_reason_to_pause(db: Database) -> None:
    """As many come as are written: that is progress, not a row that somebody holds."""
    rows = fill_running(db, 400)
    loop = asyncio.get_running_loop()
    async with finalizing(db.url) as (finalizer, done):
        real_wait = finalizer._wait_for_locks
        pauses: list[float] = []

        async def counted(last_s: float) -> float:
            pauses.append(loop.time())
            return await real_wait(last_s)

        finalizer._wait_for_locks = counted  # type: ignore[method-assign]
        for row in rows:
            finalizer.add(end_of(row))
            await asyncio.sleep(0)
            while finalizer.backlog > 3:
                await asyncio.sleep(0)
        await drained(finalizer)
    assert len(done) == 400
    assert pauses == []
