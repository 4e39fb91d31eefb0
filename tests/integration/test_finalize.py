"""The statements that end an attempt: every edge, the immutable attempt row and its times."""

from datetime import timedelta

import asyncpg
import psycopg
import pytest

from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.database.queries import UNRETRIED_RESULT
from tests.support import factories
from tests.support.factories import NOW, ago, ahead
from tests.support.hands import Hands, attempts, end_of, moment, running
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

S = TaskStatus
FUTURE, PAST = 221_845_392_000.0, 946_684_800.0


# -- every edge ------------------------------------------------------------------------------------------------


async def test_completed(db: Database, hands: Hands) -> None:
    row = running(db)
    end = end_of(row, result='{"ok":[1,2]}')
    assert await hands.finalize([end]) == {row["id"]: "COMPLETED"}
    stored = factories.read(db, row["id"])
    assert (stored["status"], stored["result"], stored["error_code"]) == ("COMPLETED", '{"ok":[1,2]}', None)
    assert stored["completed_at"] == stored["terminal_at"] == stored["updated_at"]
    assert (stored["failed_at"], stored["failed_reason"], stored["retry_count"]) == (None, None, 0)
    assert (stored["worker_pid"], stored["worker_process_name"]) == (end.outcome.pid, "child-9")
    assert (stored["claimed_by_worker_id"], stored["claim_generation"]) == ("worker-1", 1)
    assert attempts(db, row["id"]) == [
        {
            "attempt": 1, "outcome": "COMPLETED", "will_retry": False, "error_code": None, "error_message": None,
            "started_at": moment(end.started), "finished_at": moment(end.finished),
            "failed_reason": None, "worker_id": "worker-1", "worker_hostname": "host-1", "worker_pid": end.outcome.pid,
            "worker_process_name": "child-9",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("together", [1, 3])
async def test_one_task_is_completed_like_many(db: Database, hands: Hands, together: int) -> None:
    """The statement for a single end writes the same row and attempt under the same fence as the one for many."""
    rows = [running(db, retry_count=1, max_retries=1, finalizing_at=NOW) for _ in range(together)]
    ends = [end_of(row, result='{"ok":7}', pid=9, started=PAST, finished=PAST) for row in rows]
    assert await hands.finalize(ends) == {row["id"]: "COMPLETED" for row in rows}
    for row in rows:
        stored = factories.read(db, row["id"])
        assert stored["completed_at"] == stored["terminal_at"] == stored["updated_at"]
        assert [stored[name] for name in ("status", "result", "worker_pid", "worker_process_name", "retry_count")] == [
            "COMPLETED", '{"ok":7}', 9, "child-9", 1,
        ]  # fmt: skip
        assert (stored["finalizing_at"], stored["finalizing_by_worker_id"]) == (None, None)
        last = attempts(db, row["id"])[-1]
        assert (last["attempt"], last["outcome"], last["will_retry"], last["worker_pid"]) == (2, "COMPLETED", False, 9)
        assert last["started_at"] == last["finished_at"] == stored["started_at"]
    assert await hands.finalize(ends) == {}


@pytest.mark.parametrize("together", [1, 3])
async def test_an_ok_end_without_a_claim_changes_nothing(db: Database, hands: Hands, together: int) -> None:
    lost = [running(db, claim_generation=2) for _ in range(together)]
    others = [running(db, claimed_by_worker_id="worker-2") for _ in range(together)]
    locked = [running(db) for _ in range(together)]
    assert await hands.finalize([end_of({**row, "claim_generation": 1}) for row in lost]) == {}
    assert await hands.finalize([end_of(row) for row in others]) == {}
    with psycopg.connect(db.url) as other:
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = ANY (%s) FOR UPDATE", [[row["id"] for row in locked]])
        assert await hands.finalize([end_of(row) for row in locked]) == {}
    for row in (*lost, *others, *locked):
        assert factories.read(db, row["id"])["status"] == "RUNNING"
        assert attempts(db, row["id"]) == []


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(AttemptOutcome.FAILED, "SMTP_DOWN"), (AttemptOutcome.WORKER_FAILURE, "WORKER_CRASHED")],
)
async def test_failed(db: Database, hands: Hands, outcome: AttemptOutcome, code: str) -> None:
    row = running(db, retry_count=1, max_retries=1)
    end = end_of(row, S.FAILED, recorded=outcome, error_code=code)
    assert await hands.finalize([end]) == {row["id"]: "FAILED"}
    stored = factories.read(db, row["id"])
    assert (stored["status"], stored["result"], stored["error_code"]) == ("FAILED", end.outcome.result, code)
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
    await hands.end([row], status=S.CANCELLED, error_code="TASK_CANCELLED", recorded=None, started=None)
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


async def test_a_retry_stores_the_larger_budget(db: Database, hands: Hands) -> None:
    """A row without options is retried by the registered policy, so its own limit must allow that."""
    row = running(db)
    assert await hands.end([row], status=S.PENDING, budget=5) == {row["id"]: "PENDING"}
    stored = factories.read(db, row["id"])
    assert (stored["retry_count"], stored["max_retries"]) == (1, 5)


async def test_a_retry_beyond_the_budget_fails(db: Database, hands: Hands) -> None:
    """The row decides: another worker may have used a retry that this worker does not know of."""
    row = running(db, retry_count=2, max_retries=2)
    end = end_of(row, S.PENDING, budget=1)
    assert await hands.finalize([end]) == {row["id"]: "FAILED"}
    stored = factories.read(db, row["id"])
    assert (stored["error_code"], stored["result"], stored["retry_count"]) == ("SMTP_DOWN", end.outcome.result, 2)
    assert attempts(db, row["id"])[2]["will_retry"] is False


@pytest.mark.parametrize(("good_until", "status"), [(ahead(seconds=60), "PENDING"), (ahead(seconds=20), "FAILED")])
async def test_a_retry_past_the_deadline_fails(db: Database, hands: Hands, good_until: str, status: str) -> None:
    row = running(db, max_retries=1, good_until=good_until)
    assert await hands.end([row], status=S.PENDING, retry_delay_ms=30_000) == {row["id"]: status}
    assert attempts(db, row["id"])[0]["will_retry"] is (status == "PENDING")


async def test_a_retry_after_a_cancel_request_ends_cancelled(db: Database, hands: Hands) -> None:
    """The attempt keeps its own error; the task says that it was cancelled."""
    row = running(db, max_retries=1, cancel_requested_at=NOW)
    assert await hands.end([row], status=S.PENDING) == {row["id"]: "CANCELLED"}
    stored = factories.read(db, row["id"])
    assert (stored["error_code"], stored["result"]) == ("TASK_CANCELLED", UNRETRIED_RESULT)
    assert (stored["retry_count"], stored["failed_at"]) == (0, None)
    assert [(a["error_code"], a["will_retry"]) for a in attempts(db, row["id"])] == [("SMTP_DOWN", False)]


async def test_a_task_that_ended_despite_a_cancel_request_keeps_its_end(db: Database, hands: Hands) -> None:
    rows = [running(db, cancel_requested_at=NOW) for _ in range(2)]
    ends = [end_of(rows[0]), end_of(rows[1], S.FAILED)]
    assert await hands.finalize(ends) == {rows[0]["id"]: "COMPLETED", rows[1]["id"]: "FAILED"}


async def test_the_end_clears_a_staged_result(db: Database, hands: Hands) -> None:
    marked = {"finalizing_at": NOW, "finalizing_by_worker_id": "worker-1", "result": '{"ok":1}'}
    rows = [running(db, max_retries=1, **marked) for _ in range(2)]
    await hands.finalize([end_of(rows[0]), end_of(rows[1], S.PENDING)])
    for row in rows:
        stored = factories.read(db, row["id"])
        assert (stored["finalizing_at"], stored["finalizing_by_worker_id"]) == (None, None)


async def test_the_end_notifies_waiters(db: Database, hands: Hands) -> None:
    heard: list[tuple[str, str]] = []
    listener = await asyncpg.connect(db.url)
    for channel in ("task_done", "task_new"):
        await listener.add_listener(channel, lambda *message: heard.append((message[2], message[3])))
    ended, retried = running(db), running(db, max_retries=1)
    await hands.finalize([end_of(ended), end_of(retried, S.PENDING)])
    await eventually_async(lambda: sorted(heard) == [("task_done", ended["id"]), ("task_new", retried["id"])])
    await listener.close()


async def test_ends_of_every_kind_in_one_statement(db: Database, hands: Hands) -> None:
    ends = [
        end_of(running(db, max_retries=1, id=f"{number:03}-{status}"), status)
        for number in range(20)
        for status in (S.COMPLETED, S.FAILED, S.PENDING, S.CANCELLED)
    ]
    written = await hands.finalize(ends)
    assert written == {end.task_id: end.status.value for end in ends}
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 80
    assert await hands.finalize(ends) == {}


# -- the attempt's times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "finished"),
    [(PAST, PAST), (FUTURE, FUTURE), (PAST, FUTURE), (FUTURE, PAST), (None, FUTURE), (None, PAST)],
)
@pytest.mark.parametrize("status", [S.COMPLETED, S.PENDING])
async def test_times_stay_between_the_start_of_the_row_and_now(
    db: Database, hands: Hands, started: float | None, finished: float, status: S
) -> None:
    """A worker's clock can place an attempt neither before the start of its row nor after the statement."""
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


async def test_an_attempt_ends_although_the_clock_went_back(db: Database, hands: Hands) -> None:
    """After a failover, the start of the row may lie in the future."""
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
    await hands.end([row], status=S.FAILED)  # a late report of the first attempt
    assert attempts(db, row["id"]) == first
    await hands.end(rows)
    assert attempts(db, row["id"])[:1] == first
    assert len(attempts(db, row["id"])) == 2


async def test_a_result_is_staged_although_user_code_began_after_the_deadline(db: Database, hands: Hands) -> None:
    """The claim was in time, and the job waited in its child. A row that starts after its deadline is refused."""
    row = running(db, started_at=ago(seconds=9), claimed_at=ago(seconds=9), enqueued_at=ago(seconds=9),
                  created_at=ago(seconds=9), good_until=ago(seconds=5))  # fmt: skip
    assert await hands.queries.stage(hands.connection, [end_of(row)]) == {row["id"]}
    stored = factories.read(db, row["id"])
    assert stored["started_at"] < stored["good_until"] < stored["finalizing_at"]
