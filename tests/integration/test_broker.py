"""What operators do: look, cancel, retry, requeue, recover by hand, pause. Every state, every row it leaves."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

import horsies_schema
from horsies import (
    AttemptOutcome,
    BrokerError,
    CancelResult,
    ConfigurationError,
    Horsies,
    PostgresBroker,
    SendErrorCode,
    TaskFilter,
    TaskSendError,
    TaskStatus,
    UsageError,
)
from horsies.ids import new_id
from horsies.operate.views import RetryResult
from tests.support import factories, invariants
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on
from tests.support.factories import ago, ahead
from tests.support.hands import Hands
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

STATES = [status.value for status in TaskStatus]
LIVE = ["PENDING", "CLAIMED", "RUNNING"]
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"]


@pytest.fixture
async def app(db: Database) -> AsyncIterator[Horsies]:
    async with async_app_on(db) as app:
        yield app


@pytest.fixture
def broker(app: Horsies) -> PostgresBroker:
    return app.get_broker()


class Heard:
    """Notifications of some channels, as (channel, payload)."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.all: list[tuple[str, str]] = []

    async def listen(self, *channels: str) -> "Heard":
        for channel in channels:
            await self.connection.add_listener(channel, lambda _c, _p, where, what: self.all.append((where, str(what))))
        return self

    async def now(self) -> list[tuple[str, str]]:
        await self.connection.fetchval("SELECT 1")  # what was sent before comes before this answer
        return self.all


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {column: after[column] for column in after if after[column] != before[column] and column != "updated_at"}


# -- looking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATES)
async def test_info_of_every_state(db: Database, broker: PostgresBroker, status: str) -> None:
    columns = {
        "unique_key": "k",
        "progress": '{"done": 3}',
        "priority": 7,
        "metadata": '{"tenant": "acme"}',
        "group_key": "g",
        "keep_seconds": 90,
    }
    task_id = factories.task(db, status, retry_count=1, **columns)
    row = factories.read(db, task_id)
    info = await broker.get_task_info(task_id)
    assert info is not None
    assert info.status is TaskStatus(status)
    assert info.progress == {"done": 3}
    assert info.metadata == {"tenant": "acme"}
    assert info.keep_for == timedelta(seconds=90)
    detail = await broker.get_task_detail(task_id)
    assert detail is not None
    assert detail.metadata == info.metadata
    for column in info.__slots__:
        if column not in ("status", "progress", "keep_for"):
            assert getattr(info, column) == row["group_key" if column == "group" else column], column


async def test_attempts_are_told_in_order(db: Database, app: Horsies, broker: PostgresBroker) -> None:
    task_id = factories.task(db, "COMPLETED", retry_count=2)
    attempts = await broker.get_attempts(task_id)
    assert [(attempt.attempt, attempt.outcome, attempt.will_retry) for attempt in attempts] == [
        (1, AttemptOutcome.FAILED, True), (2, AttemptOutcome.FAILED, True), (3, AttemptOutcome.COMPLETED, False),
    ]  # fmt: skip
    assert attempts[0].error_code == "SMTP_DOWN"
    assert await app.handle(task_id).attempts_async() == attempts


async def test_tasks_by_metadata(db: Database, broker: PostgresBroker) -> None:
    """Numbers and booleans match by their text in JSON, a null and a missing key match no value."""
    stored = {
        "all": '{"tenant": "acme", "n": 5, "is_test": true, "share": 0.5, "huge": 1e20}', "text": '{"n": "5"}',
        "null": '{"n": null}', "nested": '{"n": {"n": 5}}', "none": None,
    }  # fmt: skip
    ids = {name: factories.task(db, metadata=value) for name, value in stored.items()}
    for wanted, found in (
        ({"tenant": "acme"}, ["all"]), ({"n": 5}, ["all", "text"]), ({"n": "5", "is_test": True}, ["all"]),
        ({"share": 0.5, "huge": 1e20}, ["all"]), ({"tenant": "acme", "n": 6}, []), ({"n": "null"}, []),
    ):  # fmt: skip
        filter = TaskFilter(metadata=wanted)
        assert {one.id for one in (await broker.list_tasks(filter)).tasks} == {ids[name] for name in found}
        assert await broker.count_tasks(filter) == len(found)
    info = await broker.get_task_info(ids["none"])
    assert info is not None
    assert info.metadata == {}


async def test_an_unknown_task(broker: PostgresBroker) -> None:
    missing = new_id()
    assert await broker.get_task_info(missing) is None
    assert await broker.get_attempts(missing) == []
    assert await broker.cancel(missing) is CancelResult.NOT_FOUND
    assert not await broker.retry(missing)
    assert not await broker.requeue(missing)


def test_the_same_without_a_loop(db: Database) -> None:
    with app_on(db) as app:
        handle = add_task(app).send(1)
        info = handle.info()
        assert info is not None
        assert info.status is TaskStatus.PENDING
        assert handle.attempts() == []
        assert handle.cancel() is CancelResult.CANCELLED
        assert handle.cancel() is CancelResult.ALREADY_ENDED


# -- cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["PENDING", "CLAIMED"])
async def test_what_has_not_started_is_cancelled_for_good(
    db: Database, conn: asyncpg.Connection, app: Horsies, broker: PostgresBroker, status: str
) -> None:
    heard = await Heard(conn).listen("task_done", "task_cancel")
    task_id = factories.task(db, status, retry_count=1, unique_key="k")
    before = factories.read(db, task_id)
    assert await broker.cancel(task_id) is CancelResult.CANCELLED
    row = factories.read(db, task_id)
    assert changed(before, row).keys() <= {
        "status", "claimed", "claim_expires_at", "result", "error_code", "failed_reason", "cancel_requested_at",
        "terminal_at",
    }  # fmt: skip
    assert (row["status"], row["error_code"]) == ("CANCELLED", "TASK_CANCELLED")
    assert row["terminal_at"] == row["cancel_requested_at"] == row["updated_at"]
    assert await heard.now() == [("task_done", task_id)]
    result = await app.handle(task_id).get_async(timeout_ms=0)
    assert result.err_value.message == "cancelled before it started"
    assert invariants.check(db) == []
    assert await broker.cancel(task_id) is CancelResult.ALREADY_ENDED
    assert factories.read(db, task_id) == row


async def test_a_running_task_is_asked_to_stop(
    db: Database, conn: asyncpg.Connection, app: Horsies, broker: PostgresBroker
) -> None:
    heard = await Heard(conn).listen("task_done", "task_cancel")
    task_id = factories.task(db, "RUNNING")
    before = factories.read(db, task_id)
    assert await broker.cancel(task_id) is CancelResult.REQUESTED
    row = factories.read(db, task_id)
    assert changed(before, row).keys() == {"cancel_requested_at"}
    assert await heard.now() == [("task_cancel", task_id)]
    assert await app.handle(task_id).cancel_async() is CancelResult.REQUESTED
    assert factories.read(db, task_id)["cancel_requested_at"] == row["cancel_requested_at"]
    assert await heard.now() == [("task_cancel", task_id)] * 2  # asked again, told again


@pytest.mark.parametrize("status", ENDED)
async def test_what_has_ended_stays_as_it_ended(db: Database, broker: PostgresBroker, status: str) -> None:
    task_id = factories.task(db, status)
    before = factories.read(db, task_id)
    assert await broker.cancel(task_id) is CancelResult.ALREADY_ENDED
    assert factories.read(db, task_id) == before


async def test_cancelling_many_says_what_became_of_each(db: Database, broker: PostgresBroker) -> None:
    ids = {status: factories.task(db, status) for status in STATES}
    missing = new_id()
    found = await broker.cancel_many([*ids.values(), missing, ids["PENDING"]])
    assert found == {
        ids["PENDING"]: CancelResult.CANCELLED,
        ids["CLAIMED"]: CancelResult.CANCELLED,
        ids["RUNNING"]: CancelResult.REQUESTED,
        **{ids[status]: CancelResult.ALREADY_ENDED for status in ENDED},
        missing: CancelResult.NOT_FOUND,
    }
    assert await broker.cancel_many([]) == {}
    # a text is one id, not its characters
    assert await broker.cancel_many(ids["FAILED"]) == {ids["FAILED"]: CancelResult.ALREADY_ENDED}
    assert (await broker.get_task_states(ids["FAILED"])).keys() == {ids["FAILED"]}
    assert (await broker.retry_tasks(missing)).keys() == {missing}
    assert (await broker.retry_many(missing), await broker.requeue_many(missing)) == (0, 0)


async def test_a_cancelled_key_is_free(db: Database, app: Horsies) -> None:
    sender = add_task(app).with_options(unique_key="k")
    first = await sender.send_async(1)
    await first.cancel_async()
    second = await sender.send_async(1)
    assert not second.is_duplicate
    assert second != first


async def test_cancels_from_everywhere_at_once(db: Database, broker: PostgresBroker) -> None:
    """Rows are locked in the order of ids: no deadlock, and one of them is the one that did it."""
    ids = [factories.task(db) for _ in range(10)]
    found = await asyncio.gather(*(broker.cancel_many(ids[turn:] + ids[:turn]) for turn in range(10)))
    for task_id in ids:
        outcomes = [one[task_id] for one in found]
        assert outcomes.count(CancelResult.CANCELLED) == 1
        assert outcomes.count(CancelResult.ALREADY_ENDED) == 9


# -- retry ---------------------------------------------------------------------------------------

RETRIED = {
    "FAILED": {"retry_count": 2, "max_retries": 5},
    "FAILED at its last try": {"retry_count": 2, "max_retries": 2},
    "FAILED by hand before": {"retry_count": 1, "manual_retries": 1},
    "CANCELLED": {"retry_count": 1},
    "CANCELLED while it ran": {"started_at": ago(seconds=1), "cancel_requested_at": ago(seconds=1), "worker_pid": 1},
    "CANCELLED while it was held": {"claimed_at": ago(seconds=1), "claimed_by_worker_id": "worker-1"},
    "EXPIRED": {},
    "EXPIRED while it was held": {"claimed_at": ago(seconds=1), "claim_expires_at": ahead(seconds=9)},
}  # fmt: skip


@pytest.mark.parametrize("name", RETRIED)
async def test_an_operators_retry(db: Database, conn: asyncpg.Connection, broker: PostgresBroker, name: str) -> None:
    """DESIGN section 2, the row of the operator's retry, column by column."""
    heard = await Heard(conn).listen("task_new", "task_done")
    status = name.split()[0]
    task_id = factories.task(db, status, progress='{"done": 1}', priority=7, **RETRIED[name])
    before = factories.read(db, task_id)
    attempts = db.value("SELECT count(*) FROM horsies_task_attempts")
    heard.all.clear()
    assert await broker.retry(task_id)
    row = factories.read(db, task_id)
    assert row["status"] == "PENDING"
    assert row["retry_count"] == attempts
    assert row["max_retries"] == max(before["max_retries"], attempts)
    assert row["manual_retries"] == before["manual_retries"] + 1
    assert row["enqueued_at"] == row["updated_at"] > before["enqueued_at"]
    cleared = {
        "good_until", "result", "error_code", "failed_reason", "failed_at", "completed_at", "terminal_at",
        "cancel_requested_at", "next_retry_at", "progress", "claimed_at", "claimed_by_worker_id", "claim_expires_at",
        "started_at", "finalizing_at", "finalizing_by_worker_id", "worker_pid", "worker_hostname",
        "worker_process_name",
    }  # fmt: skip
    assert {column for column in cleared if row[column] is not None} == set()
    assert changed(before, row).keys() <= cleared | {
        "status", "retry_count", "max_retries", "manual_retries", "enqueued_at"
    }  # fmt: skip
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == attempts  # history stays
    assert await heard.now() == [("task_new", task_id)]
    assert invariants.check(db) == []
    assert not await broker.retry(task_id)  # it is live again


async def test_a_retry_of_many_leaves_a_task_that_failed_again_meanwhile(
    db: Database, broker: PostgresBroker, conn: asyncpg.Connection
) -> None:
    """It waits for the lock of the first task. Its snapshot has not the attempt that the second one made since: with
    that number of attempts, the next one could never be written."""
    held, other = sorted(factories.task(db, "FAILED") for _ in range(2))
    async with Hands.on(db) as hands:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("SELECT FROM horsies_tasks WHERE id = $1 FOR UPDATE", held)
        waiting = asyncio.create_task(broker.retry_tasks([held, other]))
        await eventually_async(lambda: waits_for_a_lock(db))
        assert await broker.retry_tasks([other]) == {other: RetryResult.RETRIED}
        await hands.end(await hands.claim(), status=TaskStatus.FAILED)
        await transaction.rollback()
        assert await waiting == {held: RetryResult.RETRIED, other: RetryResult.CHANGED}
        assert await broker.retry_tasks([other]) == {other: RetryResult.RETRIED}
        rows = await hands.claim()
        assert await hands.end(rows) == {held: "COMPLETED", other: "COMPLETED"}


@pytest.mark.parametrize("status", [*LIVE, "COMPLETED"])
async def test_no_retry_of_what_lives_or_succeeded(db: Database, broker: PostgresBroker, status: str) -> None:
    task_id = factories.task(db, status)
    before = factories.read(db, task_id)
    assert not await broker.retry(task_id)
    assert factories.read(db, task_id) == before


@pytest.mark.breaks("W4")
async def test_a_workflows_task_is_retried_through_its_workflow(db: Database, broker: PostgresBroker) -> None:
    task_id = factories.task(db, "FAILED", is_workflow_task=True)
    assert not await broker.retry(task_id)
    assert factories.read(db, task_id)["status"] == "FAILED"


async def test_no_retry_while_another_holds_the_key(db: Database, broker: PostgresBroker) -> None:
    failed, other = factories.task(db, "FAILED", unique_key="order-7"), factories.task(db, "FAILED")
    holder = factories.task(db, unique_key="order-7")
    before = factories.read(db, failed)
    for ids in ([failed], [failed, other]):
        with pytest.raises(UsageError, match=r"another task that has not ended holds the same unique_key, and two"):
            await broker.retry_many(ids)
    assert factories.read(db, failed) == before
    assert factories.read(db, other)["status"] == "FAILED"  # all or none
    await broker.cancel(holder)
    assert await broker.retry_many([failed, other]) == 2


async def test_two_ended_tasks_of_one_key_cannot_both_come_back(db: Database, broker: PostgresBroker) -> None:
    ids = [factories.task(db, "FAILED", unique_key="k") for _ in range(2)]
    with pytest.raises(UsageError, match="unique_key"):
        await broker.retry_many(ids)
    assert await broker.retry(ids[0])


async def test_retrying_many_counts_them(db: Database, broker: PostgresBroker) -> None:
    ids = [factories.task(db, status) for status in STATES]
    assert await broker.retry_many([*ids, new_id(), ids[0]]) == 3
    assert await broker.retry_many([]) == 0


# -- requeue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATES)
async def test_requeue_takes_a_claim_away(
    db: Database, conn: asyncpg.Connection, broker: PostgresBroker, status: str
) -> None:
    heard = await Heard(conn).listen("task_new")
    task_id = factories.task(db, status)
    before = factories.read(db, task_id)
    heard.all.clear()
    assert await broker.requeue(task_id) is (status == "CLAIMED")
    row = factories.read(db, task_id)
    if status == "CLAIMED":
        lost = ("claimed", "claimed_at", "claimed_by_worker_id", "claim_expires_at")
        assert changed(before, row) == {"status": "PENDING", "claimed": False, **dict.fromkeys(lost[1:])}
        assert await heard.now() == [("task_new", task_id)]
        assert invariants.check(db) == []
    else:
        assert row == before


# -- stale tasks ---------------------------------------------------------------------------------

LONG_AGO = ago(minutes=30)
RAN_LONG = {"enqueued_at": LONG_AGO, "claimed_at": LONG_AGO, "started_at": LONG_AGO}
HELD_LONG = {"enqueued_at": LONG_AGO, "claimed_at": LONG_AGO}


async def test_silence_is_what_makes_a_task_stale(db: Database, broker: PostgresBroker) -> None:
    silent = factories.task(db, "RUNNING", **RAN_LONG)
    beating = factories.task(db, "RUNNING", **RAN_LONG)
    factories.heartbeat(db, beating, sent_at=ago(minutes=20))
    factories.heartbeat(db, beating, sent_at=ago(seconds=10))
    beat_once = factories.task(db, "RUNNING", **RAN_LONG)
    factories.heartbeat(db, beat_once, sent_at=ago(minutes=10))
    older_attempt = factories.task(db, "RUNNING", **{**RAN_LONG, "started_at": ago(minutes=20), "retry_count": 1})
    factories.heartbeat(db, older_attempt, sent_at=ago(minutes=25))  # of the attempt before
    wrong_role = factories.task(db, "RUNNING", **RAN_LONG)
    factories.heartbeat(db, wrong_role, role="claimer", sent_at=ago(seconds=10))
    finalizing = factories.task(db, "RUNNING", **RAN_LONG, finalizing_at=ago(seconds=10), result='{"ok":1}')
    held = factories.task(db, "CLAIMED", **HELD_LONG)
    held_beating = factories.task(db, "CLAIMED", **HELD_LONG)
    factories.heartbeat(db, held_beating, role="claimer", sent_at=ago(seconds=10))
    for status in STATES:
        factories.task(db, status)  # fresh

    stale = await broker.get_stale_tasks(stale_threshold_minutes=5)
    assert {task.id for task in stale} == {silent, beat_once, older_attempt, wrong_role, held}
    assert [task.last_sign for task in stale] == sorted(task.last_sign for task in stale)
    assert {task.id for task in await broker.get_stale_tasks(15)} == {silent, older_attempt, wrong_role, held}
    assert {finalizing, beating, held_beating}.isdisjoint(task.id for task in stale)
    of_older = next(task for task in stale if task.id == older_attempt)
    row = factories.read(db, older_attempt)
    assert (of_older.status, of_older.last_sign, of_older.retry_count) == (TaskStatus.RUNNING, row["started_at"], 1)
    assert of_older.claimed_by_worker_id == "worker-1"

    assert await broker.mark_stale_tasks_as_failed(300_000) == 4
    assert await broker.requeue_stale_claimed(300_000) == 1
    assert await broker.get_stale_tasks(5) == []
    for task_id in (beating, finalizing):
        assert factories.read(db, task_id)["status"] == "RUNNING"
    assert factories.read(db, held_beating)["status"] == "CLAIMED"
    assert factories.read(db, held)["status"] == "PENDING"


async def test_a_stale_running_task_fails_with_its_attempt(
    db: Database, conn: asyncpg.Connection, app: Horsies, broker: PostgresBroker
) -> None:
    heard = await Heard(conn).listen("task_done")
    task_id = factories.task(db, "RUNNING", **RAN_LONG, retry_count=1, max_retries=3)
    assert await broker.mark_stale_tasks_as_failed(stale_threshold_ms=60_000) == 1
    row = factories.read(db, task_id)
    assert (row["status"], row["error_code"], row["retry_count"]) == ("FAILED", "WORKER_CRASHED", 1)
    assert row["failed_reason"] == "no sign of life from its worker for 60000 ms; failed by hand"
    assert row["failed_at"] == row["terminal_at"]
    last = (await broker.get_attempts(task_id))[-1]
    assert (last.attempt, last.outcome, last.will_retry) == (2, AttemptOutcome.WORKER_FAILURE, False)
    assert (last.error_code, last.worker_id, last.worker_pid) == ("WORKER_CRASHED", "worker-1", 4711)
    assert (last.started_at, last.finished_at) == (row["started_at"], row["failed_at"])
    assert await heard.now() == [("task_done", task_id)]
    assert (await app.handle(task_id).get_async(0)).err_value.error_code == "WORKER_CRASHED"
    assert invariants.check(db) == []
    assert await broker.mark_stale_tasks_as_failed(60_000) == 0
    assert await broker.retry(task_id)
    assert invariants.check(db) == []


async def test_a_stale_claim_goes_back_untouched(db: Database, broker: PostgresBroker) -> None:
    task_id = factories.task(db, "CLAIMED", **HELD_LONG)
    before = factories.read(db, task_id)
    assert await broker.requeue_stale_claimed(60_000) == 1
    row = factories.read(db, task_id)
    assert (row["status"], row["retry_count"], row["enqueued_at"]) == ("PENDING", 0, before["enqueued_at"])
    assert await broker.get_attempts(task_id) == []
    assert invariants.check(db) == []


# -- lists ---------------------------------------------------------------------------------------


@pytest.mark.breaks("T7")
async def test_expired_tasks_swept_or_not(db: Database, broker: PostgresBroker) -> None:
    overdue = factories.task(db, good_until=ago(minutes=2))
    held = factories.task(db, "CLAIMED", good_until=ago(minutes=1))
    older = factories.task(db, "EXPIRED", terminal_at=ago(minutes=9))
    newer = factories.task(db, "EXPIRED", terminal_at=ago(minutes=3))
    factories.task(db, good_until=ahead(minutes=5))
    factories.task(db)
    factories.task(db, "FAILED", good_until=ahead(minutes=5))
    found = await broker.get_expired_tasks()
    assert [task.id for task in found] == [overdue, held, newer, older]
    assert [task.status.value for task in found] == ["PENDING", "CLAIMED", "EXPIRED", "EXPIRED"]
    assert [task.id for task in await broker.get_expired_tasks(limit=3)] == [overdue, held, newer]


async def test_worker_stats_are_the_newest_of_each(db: Database, broker: PostgresBroker) -> None:
    for minutes, running in ((4, 1), (2, 2), (1, 3)):
        factories.worker_state(db, "a", snapshot_at=ago(minutes=minutes), tasks_running=running)
    factories.worker_state(db, "b", snapshot_at=ago(minutes=3), queues=["mail", "slow"], memory_usage_mb=12.5)
    factories.worker_state(db, "gone", snapshot_at=ago(minutes=30))
    found = {stats.worker_id: stats for stats in await broker.get_worker_stats()}
    assert found.keys() == {"a", "b"}
    assert found["a"].tasks_running == 3
    assert (found["b"].queues, found["b"].memory_usage_mb) == (["mail", "slow"], 12.5)
    assert {stats.worker_id for stats in await broker.get_worker_stats(60)} == {"a", "b", "gone"}


async def test_no_workers_at_all(broker: PostgresBroker) -> None:
    assert await broker.get_worker_stats() == []


# -- queues --------------------------------------------------------------------------------------


async def test_pausing_and_resuming_a_queue(db: Database, conn: asyncpg.Connection, broker: PostgresBroker) -> None:
    heard = await Heard(conn).listen("queue_state")
    await broker.pause_queue("Mail.fast-1")
    await broker.pause_queue("slow")
    first = await broker.get_paused_queues()
    assert list(first) == ["Mail.fast-1", "slow"]
    await broker.pause_queue("slow")
    assert await broker.get_paused_queues() == first  # since when does not change
    await broker.resume_queue("slow")
    await broker.resume_queue("never-paused")
    assert list(await broker.get_paused_queues()) == ["Mail.fast-1"]
    assert [what for _, what in await heard.now()] == ["Mail.fast-1", "slow", "slow", "slow", "never-paused"]


@pytest.mark.parametrize("name", ["", "a b", "q" * 53, 'x"; DROP TABLE horsies_tasks; --', "a\0", None])
async def test_a_bad_queue_name_is_refused(db: Database, broker: PostgresBroker, name: Any) -> None:
    for verb in (broker.pause_queue, broker.resume_queue):
        with pytest.raises(ConfigurationError, match="is not a queue name"):
            await verb(name)
    assert db.value("SELECT count(*) FROM horsies_queue_state") == 0


# -- the database says no ------------------------------------------------------------------------


async def test_a_drivers_exception_stays_inside(db: Database, broker: PostgresBroker) -> None:
    with pytest.raises(BrokerError, match="InvalidRowCountInLimitClauseError") as raised:
        await broker.get_expired_tasks(limit=-1)
    assert isinstance(raised.value.__cause__, asyncpg.PostgresError)
    async with async_app_on(UNREACHABLE, resilience={"send_attempts": 2}) as away:
        for verb in (away.handle(new_id()).info_async, away.get_broker().get_worker_stats):
            with pytest.raises(BrokerError, match="ConnectionRefusedError"):
                await verb()


@pytest.fixture
def accounts(db: Database) -> Iterator[dict[str, str]]:
    """URLs of accounts with the least rights of each role."""
    prefix = f"b{uuid.uuid4().hex[:8]}_"
    db.execute(horsies_schema.grants(prefix=prefix))
    parts = urlsplit(db.url)
    urls: dict[str, str] = {}
    for role in ("producer", "operator"):
        db.execute(f'CREATE ROLE "{prefix}{role}_login" LOGIN PASSWORD \'x\' IN ROLE "{prefix}{role}"')
        host = parts.netloc.rpartition("@")[2]
        urls[role] = urlunsplit(parts._replace(netloc=f"{prefix}{role}_login:x@{host}"))
    yield urls
    for role in ("producer_login", "operator_login", "producer", "worker", "viewer", "operator"):
        db.execute(f'DROP OWNED BY "{prefix}{role}"')
        db.execute(f'DROP ROLE "{prefix}{role}"')


async def test_the_producers_role_can_do_what_producers_do(db: Database, accounts: dict[str, str]) -> None:
    async with async_app_on(accounts["producer"]) as app:
        add = add_task(app)
        handle = await add.send_async(1)
        many = await add.send_many_async([(2,), (3,)])
        unique = await add.with_options(unique_key="k").send_async(4)
        assert (await add.with_options(unique_key="k").send_async(4)).task_id == unique.task_id
        assert (await add.with_options(task_id=handle.task_id).send_async(1)).task_id == handle.task_id
        factories.finish(db, handle.task_id, 1)
        assert (await handle.get_async(10_000)).ok_value == 1
        assert await many[0].cancel_async() is CancelResult.CANCELLED
        assert (await many[0].info_async()).status is TaskStatus.CANCELLED  # type: ignore[union-attr]
        running = app.handle(factories.task(db, "RUNNING"))
        assert await running.cancel_async() is CancelResult.REQUESTED
        assert await running.attempts_async() == []
        for verb in (app.get_broker().retry, app.get_broker().pause_queue):
            with pytest.raises(BrokerError, match="InsufficientPrivilegeError"):
                await verb(handle.task_id)


async def test_the_operators_role_can_do_what_operators_do(db: Database, accounts: dict[str, str]) -> None:
    async with async_app_on(accounts["operator"]) as app:
        broker = app.get_broker()
        ids = {status: factories.task(db, status) for status in STATES}
        assert await broker.cancel(ids["PENDING"]) is CancelResult.CANCELLED
        assert await broker.cancel(ids["RUNNING"]) is CancelResult.REQUESTED
        assert await broker.requeue(ids["CLAIMED"])
        assert await broker.retry_many(ids.values()) == 4
        factories.task(db, "RUNNING", **RAN_LONG)
        factories.task(db, "CLAIMED", **HELD_LONG)
        assert len(await broker.get_stale_tasks()) == 2
        assert await broker.mark_stale_tasks_as_failed(60_000) == 1
        assert await broker.requeue_stale_claimed(60_000) == 1
        await broker.pause_queue("default")
        await broker.resume_queue("default")
        assert await broker.get_worker_stats() == []
        assert await broker.get_expired_tasks() == []
        with pytest.raises(TaskSendError, match="InsufficientPrivilegeError") as raised:
            await add_task(app).send_async(1)
        assert (raised.value.code, raised.value.retryable) == (SendErrorCode.ENQUEUE_FAILED, False)
    assert invariants.check(db) == []


@pytest.mark.parametrize("value", [10**15, 10**400, float("nan"), float("inf"), -1])
async def test_a_look_back_beyond_all_dates_is_refused(broker: PostgresBroker, value: Any) -> None:
    """Not left to PostgreSQL, which would call it a timestamp out of range."""
    for verb in (
        broker.get_stale_tasks, broker.get_worker_stats,
        broker.mark_stale_tasks_as_failed, broker.requeue_stale_claimed,
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="is not a span of 0 to 100 years"):
            await verb(value)
