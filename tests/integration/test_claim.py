"""From PENDING into a worker's hands, and back: order, kinds, caps, fences."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from horsies_worker.database.queries import DUE_LOOK, EXPIRED_RESULT, Hint, NextRequest
from tests.support import factories, invariants
from tests.support.factories import NOW, ago, ahead
from tests.support.hands import Hands, Row
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


def ids(rows: Sequence[Row]) -> list[str]:
    return [row["id"] for row in rows]


def fill(db: Database, count: int, **columns: str) -> None:
    """So many tasks in one statement; a column is an expression over the number `i`."""
    places, values = "".join(f", {name}" for name in columns), "".join(f", {value}" for value in columns.values())
    db.execute(
        f"INSERT INTO horsies_tasks (id, task_name{places})"
        f" SELECT to_char(i, 'FM0000'), 'add'{values} FROM generate_series(1, {count}) AS i"
    )


async def next_due(hands: Hands, *queues: str, names: Sequence[str] = ("add",), since_s: float = 0.0) -> float | None:
    return (await hands.queries.next_due(hands.connection, queues, names, since_s=since_s)).due_s


def statuses(db: Database) -> dict[str, str]:
    return dict(db.execute("SELECT id, status FROM horsies_tasks"))


# -- which ones ------------------------------------------------------------------------------------------------


async def test_tasks_come_by_priority_then_age_then_id_over_all_queues(db: Database, hands: Hands) -> None:
    rng = random.Random(4)
    queues = ["mail", "video", "default"]
    for number in rng.sample(range(60), 60):
        factories.task(
            db, id=f"{number:02}", queue_name=rng.choice(queues), priority=rng.choice([1, 50, 100]),
            enqueued_at=ago(minutes=rng.choice([1, 2, 3])),
        )  # fmt: skip
    # tasks that were inserted by different statements have different times: make them equal where they were meant to be
    db.execute("UPDATE horsies_tasks SET enqueued_at = date_trunc('minute', enqueued_at)")
    order = [row[0] for row in db.execute("SELECT id FROM horsies_tasks ORDER BY priority, enqueued_at, id")]
    claimed: list[str] = []
    while rows := await hands.claim(7, discover=queues):
        assert sorted(ids(rows)) == sorted(order[len(claimed) : len(claimed) + 7])
        claimed += ids(rows)
    assert sorted(claimed) == sorted(order)


async def test_a_claim_starts_the_task_in_the_same_write(db: Database, hands: Hands) -> None:
    task = factories.task(db, kwargs='{"a":1}', task_options='{"timeout_ms":5}', claim_generation=6)
    (row,) = await hands.claim()
    assert (row["id"], row["status"], row["claim_generation"]) == (task, "RUNNING", 7)
    assert (row["task_name"], row["args"], row["kwargs"]) == ("add", None, '{"a":1}')
    assert (row["task_options"], row["retry_count"], row["max_retries"]) == ('{"timeout_ms":5}', 0, 0)
    stored = factories.read(db, task)
    assert (stored["claimed_by_worker_id"], stored["worker_hostname"], stored["worker_pid"]) == (
        "worker-1", "host-1", None,
    )  # fmt: skip
    assert stored["claimed_at"] == stored["started_at"] == stored["updated_at"]
    assert stored["claim_expires_at"] is None
    assert await hands.claim() == []


async def test_every_claim_bumps_the_generation(db: Database, hands: Hands) -> None:
    task = factories.task(db)
    for generation in range(1, 5):
        rows = await hands.claim()
        assert rows[0]["claim_generation"] == generation
        await hands.hand_back(rows)
    assert factories.read(db, task)["claim_generation"] == 4


async def test_the_future_is_left_alone_until_it_is_due(db: Database, hands: Hands) -> None:
    factories.task(db, id="later", priority=1, enqueued_at=ahead(seconds=0.4))
    factories.task(db, id="now", priority=100)
    assert ids(await hands.claim()) == ["now"]
    due = await next_due(hands, "default")
    assert due is not None
    assert 0 < due < 0.4
    await asyncio.sleep(due + 0.001)
    assert ids(await hands.claim()) == ["later"]
    assert await next_due(hands, "default") is None


async def test_the_next_due_time_is_the_first_of_all_queues_and_priorities(db: Database, hands: Hands) -> None:
    for priority, minutes in ((1, 9), (5, 3), (100, 6)):
        factories.task(db, queue_name="mail", priority=priority, enqueued_at=ahead(minutes=minutes))
        factories.task(db, queue_name="mail", priority=priority, enqueued_at=ago(minutes=minutes))
    factories.task(db, queue_name="video", enqueued_at=ahead(minutes=1))
    assert (await next_due(hands, "mail") or 0) // 1 == 179
    assert (await next_due(hands, "mail", "video") or 0) // 1 == 59
    assert await next_due(hands, "default") is None


async def test_a_task_that_became_ready_after_the_last_scan_is_due(db: Database, hands: Hands) -> None:
    factories.task(db, enqueued_at=ago(seconds=5))
    assert await next_due(hands, "default", since_s=4) is None
    due = await next_due(hands, "default", since_s=60)
    assert due is not None
    assert -60 < due <= -5


async def test_the_next_due_time_is_of_a_known_name(db: Database, hands: Hands) -> None:
    factories.task(db, task_name="ghost", enqueued_at=ahead(minutes=1))
    assert await next_due(hands, "default") is None
    factories.task(db, enqueued_at=ahead(minutes=2))
    assert (await next_due(hands, "default") or 0) // 1 == 119


async def test_many_future_tasks_of_unknown_names_are_read_so_far_and_no_further(db: Database, hands: Hands) -> None:
    fill(db, DUE_LOOK + 1, enqueued_at="now() + i * interval '1 minute'")
    db.execute("UPDATE horsies_tasks SET task_name = 'ghost'")
    assert (await next_due(hands, "default") or 0) // 60 == DUE_LOOK - 1
    assert (await next_due(hands, "default", names=["ghost"]) or 0) // 60 == 0


async def test_many_ready_tasks_of_unknown_names_are_a_crowd(db: Database, hands: Hands) -> None:
    async def is_crowded() -> bool:
        return (await hands.queries.next_due(hands.connection, ["default"], ["add"], since_s=0)).is_crowded

    assert not await is_crowded()
    fill(db, DUE_LOOK, enqueued_at="now() - interval '1 minute'")
    db.execute("UPDATE horsies_tasks SET task_name = 'ghost'")
    assert await is_crowded()
    db.execute("DELETE FROM horsies_tasks WHERE id = '0001'")
    assert not await is_crowded()


async def test_what_is_overdue_is_consumed_once_and_uses_no_place(db: Database, hands: Hands) -> None:
    heard: list[str] = []
    listener = await asyncpg.connect(db.url)
    await listener.add_listener("task_done", lambda *message: heard.append(message[3]))
    for number in range(3):
        factories.task(db, id=f"late {number}", good_until=ago(seconds=1), enqueued_at=ago(minutes=1))
    factories.task(db, id="in time", good_until=ahead(minutes=1))
    rows = await hands.claim(4, room_sync=1)
    assert {row["id"]: row["status"] for row in rows} == {
        "late 0": "EXPIRED", "late 1": "EXPIRED", "late 2": "EXPIRED", "in time": "RUNNING",
    }  # fmt: skip
    stored = factories.read(db, "late 0")
    assert (stored["result"], stored["error_code"]) == (EXPIRED_RESULT, "TASK_EXPIRED")
    assert stored["failed_at"] == stored["terminal_at"] is not None
    assert (stored["claimed_by_worker_id"], stored["claimed_at"], stored["claim_generation"]) == (None, None, 1)
    await eventually_async(lambda: sorted(heard) == ["late 0", "late 1", "late 2"])
    await listener.close()
    assert await hands.claim() == []


# -- kinds and places ------------------------------------------------------------------------------------------

NAMES: dict[str, Any] = {"async_names": ["poll"], "short_names": ["noop"], "sync_names": ["add", "noop"]}


@pytest.mark.parametrize(
    ("line", "room", "expected"),
    [
        # each kind by its own places, in order
        ("poll poll poll", {"room_async": 2}, "R R -"),
        ("add add add", {"room_sync": 2}, "R R -"),
        ("add poll add poll", {"room_sync": 1, "room_async": 1}, "R R - -"),
        # short ones take the slots that others leave, and stand in line behind them
        ("noop noop noop", {"room_sync": 2}, "R R -"),
        ("noop noop noop noop", {"room_sync": 1, "room_ahead": 2}, "R R R -"),
        ("add noop noop noop", {"room_sync": 1, "room_ahead": 2}, "R R R -"),
        ("noop noop noop add", {"room_sync": 1, "room_ahead": 2}, "R R - R"),
        ("add noop", {"room_sync": 1}, "R -"),
        ("add add noop", {"room_ahead": 1}, "- - R"),
        # a kind without room does not stand in the way of another
        ("add add add poll", {"room_async": 1}, "- - - R"),
        ("poll poll add", {"room_sync": 1}, "- - R"),
        # beyond the places: a buffer, in order, of any kind
        ("add poll add poll", {"room_sync": 1, "prefetch": 2}, "R C C -"),
        ("poll add add", {"room_sync": 1, "prefetch": 1}, "C R -"),
        ("noop noop noop", {"room_sync": 1, "room_ahead": 1, "prefetch": 5}, "R R C"),
        # a name that is not known here is left in line, and hides nothing
        ("ghost add", {"room_sync": 1}, "- R"),
        ("ghost ghost poll", {"room_async": 1, "prefetch": 1}, "- - R"),
        ("ghost ghost ghost add poll", {"room_sync": 1, "room_async": 1, "limit": 2, "look": 2}, "- - - R R"),
        # the limit is a limit
        ("add add add", {"room_sync": 3, "limit": 2}, "R R -"),
        ("add poll add", {"room_sync": 1, "room_async": 1, "prefetch": 1, "limit": 2}, "R R -"),
        # no further than it looks
        ("add add add poll", {"room_async": 1, "look": 3, "limit": 1}, "- - - -"),
    ],
)
async def test_places(db: Database, hands: Hands, line: str, room: dict[str, int], expected: str) -> None:
    for number, name in enumerate(line.split()):
        factories.task(db, id=str(number), task_name=name, enqueued_at=ago(minutes=9 - number))
    given = {"limit": 100, "room_sync": 0, "room_ahead": 0, "room_async": 0, "prefetch": 0, **room}
    rows = await hands.claim(**{**NAMES, **given})
    short = {"RUNNING": "R", "CLAIMED": "C", "PENDING": "-"}
    assert " ".join(short[status] for _, status in sorted(statuses(db).items())) == expected
    assert {row["id"]: row["status"] for row in rows} == {
        id: status for id, status in statuses(db).items() if status != "PENDING"
    }


async def test_the_buffer_has_a_lease(db: Database, hands: Hands) -> None:
    task = factories.task(db)
    (row,) = await hands.claim(room_sync=0, prefetch=1, lease_ms=5_000)
    assert row["status"] == "CLAIMED"
    stored = factories.read(db, task)
    assert (stored["claim_expires_at"] - stored["claimed_at"]).total_seconds() == 5
    assert (stored["started_at"], stored["worker_pid"], stored["claimed_by_worker_id"]) == (None, None, "worker-1")


# -- hints -----------------------------------------------------------------------------------------------------


async def test_a_hint_is_the_oldest_task_that_was_seen_there(db: Database, hands: Hands) -> None:
    """Also one that was passed over: the next claim must find it by the hint."""
    factories.task(db, id="sync", enqueued_at=ago(minutes=5))
    factories.task(db, id="async", task_name="poll", enqueued_at=ago(minutes=4))
    (row,) = await hands.claim(room_sync=0, room_async=5, **NAMES)
    assert (row["id"], row["since"]) == ("async", factories.read(db, "sync")["enqueued_at"])
    hint = Hint("default", 100, row["since"])
    assert ids(await hands.claim(discover=(), hints=[hint])) == ["sync"]


async def test_a_hinted_claim_sees_its_pairs_only_and_a_discovery_the_rest(db: Database, hands: Hands) -> None:
    factories.task(db, id="first", enqueued_at=ago(minutes=5))
    (row,) = await hands.claim(1)
    hint = Hint("default", 100, row["since"])
    factories.task(db, id="next", enqueued_at=ago(minutes=4))
    factories.task(db, id="older", enqueued_at=ago(minutes=9))
    factories.task(db, id="urgent", priority=1)
    assert ids(await hands.claim(discover=(), hints=[hint])) == ["next"]
    assert await hands.claim(discover=(), hints=[hint]) == []
    assert set(ids(await hands.claim())) == {"older", "urgent"}


async def test_a_claim_takes_nothing_from_a_paused_queue(db: Database, hands: Hands) -> None:
    """Of which no worker needs to be told: it holds for the next claim, whichever statement that is."""
    factories.insert(db, "horsies_queue_state", queue_name="mail", paused_at=NOW)
    factories.insert(db, "horsies_queue_state", queue_name="video", paused_at=None)
    factories.task(db, queue_name="mail", enqueued_at=ago(minutes=1))
    resumed = factories.task(db, queue_name="video")
    hint = Hint("mail", 100, datetime.now(UTC) - timedelta(minutes=9))
    assert ids(await hands.claim(discover=["mail", "video"], hints=[hint])) == [resumed]
    assert await hands.claim(discover=(), hints=[hint]) == []
    repeated = NextRequest(hint, 1, None, ["add"])
    assert await hands.queries.claim_next(hands.connection, repeated, pooled=False) == []
    db.execute("UPDATE horsies_queue_state SET paused_at = NULL")
    assert len(await hands.queries.claim_next(hands.connection, repeated, pooled=False)) == 1


# -- caps ------------------------------------------------------------------------------------------------------


async def claimers(stack: AsyncExitStack, db: Database, count: int) -> list[Hands]:
    return [await stack.enter_async_context(Hands.on(db, f"worker-{number}")) for number in range(count)]


IN_FLIGHT = "SELECT queue_name, count(*) FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY 1"


async def test_caps_of_queues_are_never_exceeded_and_are_used(db: Database) -> None:
    """Eight claimers, caps 10 and 5, three priorities each."""
    caps = {"mail": 10, "video": 5}
    fill(db, 450, queue_name="CASE i % 3 WHEN 0 THEN 'video' ELSE 'mail' END", priority="1 + 49 * (i % 2 + i % 5 % 2)")
    seen: list[dict[str, int]] = []
    stop = asyncio.Event()

    async def claim(hands: Hands) -> Sequence[Row]:
        return await hands.claim(8, discover=["mail", "video"], queue_caps=caps)

    async def work(hands: Hands, rows: Sequence[Row]) -> None:
        """Tasks end all the time, until there are none."""
        while rows or await hands.connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'"):
            await asyncio.sleep(random.uniform(0, 0.01))
            await hands.end(rows)
            rows = await claim(hands)

    async def watch() -> None:
        connection = await asyncpg.connect(db.url)
        while not stop.is_set():
            seen.append(dict(await connection.fetch(IN_FLIGHT)))
        await connection.close()

    async with AsyncExitStack() as stack:
        workers = await claimers(stack, db, 8)
        first = [await asyncio.gather(*map(claim, workers)) for _ in range(2)]
        assert dict(db.execute(IN_FLIGHT)) == caps
        watching = asyncio.create_task(watch())
        held = [[*one, *two] for one, two in zip(*first, strict=True)]
        await asyncio.gather(*(work(hands, rows) for hands, rows in zip(workers, held, strict=True)))
        stop.set()
        await watching
    assert all(counts.get(queue, 0) <= cap for counts in seen for queue, cap in caps.items())
    assert set(statuses(db).values()) == {"COMPLETED"}
    assert invariants.check(db, qcap=caps) == []


async def test_within_a_cap_the_higher_priority_comes_first(db: Database, hands: Hands) -> None:
    for priority in (100, 50, 1):
        for number in range(3):
            factories.task(db, id=f"{priority}/{number}", queue_name="mail", priority=priority)
    factories.task(db, id="elsewhere", priority=100)
    caps = {"mail": 4, "video": 1}
    rows = await hands.claim(discover=["mail", "default", "video"], queue_caps=caps)
    assert sorted(ids(rows)) == ["1/0", "1/1", "1/2", "50/0", "elsewhere"]
    assert await hands.claim(discover=["mail"], queue_caps=caps) == []
    await hands.end([row for row in rows if row["id"] == "1/0"])
    assert ids(await hands.claim(discover=["mail"], queue_caps=caps)) == ["50/1"]


async def test_a_full_queue_does_not_keep_others_waiting(db: Database, hands: Hands) -> None:
    for number in range(20):
        factories.task(db, id=f"mail {number}", queue_name="mail", priority=1)
    factories.task(db, id="other")
    caps = {"mail": 2}
    first = await hands.claim(5, discover=["mail", "default"], queue_caps=caps)
    assert len(first) == 2
    assert ids(await hands.claim(5, discover=["mail", "default"], queue_caps=caps)) == ["other"]


async def test_a_claim_under_a_cap_prepares_its_statements_before_it_takes_the_lock(db: Database) -> None:
    """The first call of a statement is two round trips. A worker that is frozen between them would keep the lock of the
    caps, and with it every claim, for as long as it is frozen: neither statement_timeout nor
    idle_in_transaction_session_timeout ends such a session."""
    factories.task(db)
    async with Hands.on(db, "capped") as hands:
        assert len(await hands.claim(1, cluster_cap=2)) == 1
        assert await hands.claim(1, cluster_cap=1) == []
        rows = await hands.connection.fetch("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time, name")
    prepared = [" ".join(row["statement"].split()) for row in rows]
    lock = next(at for at, text in enumerate(prepared) if "pg_advisory_xact_lock" in text)
    under_it = [text for text in prepared[lock + 1 :] if "horsies_tasks" in text]
    assert under_it == []
    assert sum("UPDATE horsies_tasks" in text for text in prepared[:lock]) == 1


async def test_the_cluster_cap_counts_everything_in_flight(db: Database) -> None:
    fill(db, 300)
    cap = 7
    factories.task(db, "CLAIMED", id="claimed elsewhere")
    factories.task(db, "RUNNING", id="running elsewhere")
    seen: list[int] = []

    async def in_flight(hands: Hands) -> int:
        return sum(dict(await hands.connection.fetch(IN_FLIGHT)).values())

    async def work(hands: Hands) -> None:
        rows: Sequence[Row] = []
        for _ in range(12):
            rows = [*rows, *await hands.claim(4, cluster_cap=cap)]
            seen.append(await in_flight(hands))
            await asyncio.sleep(random.uniform(0, 0.003))
            await hands.end(rows[:3])
            rows = rows[3:]

    async with AsyncExitStack() as stack:
        workers = await claimers(stack, db, 8)
        await asyncio.gather(*map(work, workers))
        await asyncio.gather(*(hands.claim(4, cluster_cap=cap) for hands in workers))
        assert await in_flight(workers[0]) == cap
    assert max(seen) <= cap
    assert invariants.check(db, cap=cap - 2) == []


async def test_a_frozen_claimer_does_not_stop_the_fleet(db: Database, hands: Hands) -> None:
    """It holds the lock of the caps: others give up after a second, and come again."""
    factories.task(db)
    async with Hands.on(db, "frozen") as frozen:
        transaction = frozen.connection.transaction()
        await transaction.start()
        await frozen.connection.execute(frozen.queries.sql("lock_caps").replace("$1", "1667330163"))
        with pytest.raises(asyncpg.LockNotAvailableError):
            await hands.claim(cluster_cap=5)
        assert len(await hands.claim()) == 1
        await transaction.rollback()


# -- contention ------------------------------------------------------------------------------------------------


async def test_no_task_is_ever_in_two_hands(db: Database) -> None:
    """Six claimers that give back half of what they get, and two sessions that touch waiting rows."""
    fill(db, 400, queue_name="'q' || i % 3", priority="1 + i % 4")
    queues = ["q0", "q1", "q2"]
    claims: Counter[str] = Counter()
    held: set[str] = set()
    deadline = asyncio.get_running_loop().time() + 3

    async def work(hands: Hands) -> None:
        while asyncio.get_running_loop().time() < deadline:
            rows = await hands.claim(random.choice([1, 5, 20]), discover=queues)
            assert held.isdisjoint(ids(rows))
            held.update(ids(rows))
            claims.update(ids(rows))
            await asyncio.sleep(0)
            held.difference_update(ids(rows))
            await hands.hand_back(rows)

    async def disturb(connection: Any) -> None:
        while asyncio.get_running_loop().time() < deadline:
            chosen = [f"{random.randrange(1, 401):04}" for _ in range(3)]
            await connection.execute(
                "UPDATE horsies_tasks SET updated_at = now() WHERE id IN (SELECT id FROM horsies_tasks"
                " WHERE id = ANY ($1) ORDER BY id FOR UPDATE) AND status = 'PENDING'", chosen,
            )  # fmt: skip

    async with AsyncExitStack() as stack:
        workers = await claimers(stack, db, 6)
        others = [(await stack.enter_async_context(Hands.on(db, "x"))).connection for _ in range(2)]
        await asyncio.gather(*map(work, workers), *map(disturb, others))
    assert claims.total() > 500
    assert dict(claims) == dict(db.execute("SELECT id, claim_generation FROM horsies_tasks WHERE claim_generation > 0"))


async def test_what_others_lock_is_passed_over(db: Database, hands: Hands) -> None:
    for number in range(5):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with Hands.on(db, "other") as other:
        transaction = other.connection.transaction()
        await transaction.start()
        await other.connection.execute("SELECT 1 FROM horsies_tasks WHERE id IN ('0', '2') FOR UPDATE")
        assert ids(await hands.claim(2)) == ["1", "3"]
        await transaction.rollback()
    assert ids(await hands.claim(5)) == ["0", "2", "4"]


# -- the fence -------------------------------------------------------------------------------------------------


def untouched(db: Database) -> list[Any]:
    return db.execute("SELECT id, xmin::text, ctid::text FROM horsies_tasks ORDER BY id")


@pytest.mark.parametrize("state", ["CLAIMED", "RUNNING"])
@pytest.mark.parametrize("wrong", ["generation", "owner"])
async def test_nothing_is_written_past_the_fence(db: Database, hands: Hands, state: str, wrong: str) -> None:
    task = factories.task(db, state, claim_generation=5, claimed_by_worker_id="worker-1")
    generation = 4 if wrong == "generation" else 5
    row = {"id": task, "claim_generation": generation, "retry_count": 0, "max_retries": 0}
    async with Hands.on(db, "worker-1" if wrong == "generation" else "worker-2") as stranger:
        before = untouched(db)
        assert await stranger.start([row]) == {}
        assert await stranger.hand_back([row]) == set()
        assert await stranger.end([row]) == {}
        assert await stranger.queries.beat(
            stranger.connection, [(task, generation, role, 1, "p") for role in ("runner", "claimer")]
        ) == set()  # fmt: skip
        await stranger.queries.renew_claims(stranger.connection, [(task, generation)], 60_000)
        await stranger.queries.write_progress(stranger.connection, [(task, generation, "1")])
        assert untouched(db) == before
    assert db.value("SELECT count(*) FROM horsies_heartbeats") == 0
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 0


async def test_a_start_moves_the_claim_on(db: Database, hands: Hands) -> None:
    task = factories.task(db)
    rows = await hands.claim(room_sync=0, prefetch=1)
    assert await hands.start(rows) == {task: "RUNNING"}
    stored = factories.read(db, task)
    assert (stored["status"], stored["claimed"], stored["claim_expires_at"]) == ("RUNNING", False, None)
    assert stored["started_at"] >= stored["claimed_at"]
    assert (stored["worker_pid"], stored["worker_hostname"], stored["claim_generation"]) == (None, "host-1", 1)
    assert await hands.start(rows) == {}


async def test_a_start_after_the_lease_is_refused(db: Database, hands: Hands) -> None:
    task = factories.task(db, "CLAIMED", claim_expires_at=ago(seconds=1))
    assert await hands.start([{"id": task, "claim_generation": 1}]) == {}
    assert statuses(db) == {task: "CLAIMED"}


async def test_a_start_after_the_deadline_expires_the_task(db: Database, hands: Hands) -> None:
    task = factories.task(db, "CLAIMED", good_until=ago(seconds=1))
    assert await hands.start([{"id": task, "claim_generation": 1}]) == {task: "EXPIRED"}
    stored = factories.read(db, task)
    assert (stored["result"], stored["error_code"], stored["started_at"]) == (EXPIRED_RESULT, "TASK_EXPIRED", None)
    assert stored["failed_at"] == stored["terminal_at"] is not None
    assert (stored["worker_pid"], stored["claim_expires_at"]) == (None, None)


async def test_a_start_of_many_tells_who_is_missing(db: Database, hands: Hands) -> None:
    for number in range(4):
        factories.task(db, id=str(number))
    rows = await hands.claim(room_sync=0, prefetch=4)
    db.execute("UPDATE horsies_tasks SET claim_generation = 9 WHERE id = '2'")
    db.execute(
        "UPDATE horsies_tasks SET status = 'CANCELLED', claimed = false, claim_expires_at = NULL, result = '{}',"
        " error_code = 'TASK_CANCELLED', terminal_at = now() WHERE id = '3'"
    )
    assert await hands.start(rows) == {"0": "RUNNING", "1": "RUNNING"}


# -- hand-back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["CLAIMED", "RUNNING"])
async def test_what_never_started_goes_back_to_its_place(db: Database, hands: Hands, state: str) -> None:
    task = factories.task(db, state, retry_count=2, max_retries=3, finalizing_at=None)
    before = factories.read(db, task)
    row = {"id": task, "claim_generation": 1}
    assert await hands.hand_back([row]) == {task}
    after = factories.read(db, task)
    cleared = (
        "claimed_at", "claimed_by_worker_id", "claim_expires_at", "started_at", "worker_pid", "worker_hostname",
        "worker_process_name", "result", "error_code", "terminal_at", "finalizing_at",
    )  # fmt: skip
    assert {name: after[name] for name in cleared} == dict.fromkeys(cleared)
    kept = ("enqueued_at", "retry_count", "max_retries", "claim_generation", "next_retry_at", "priority", "kwargs")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert (after["status"], after["claimed"]) == ("PENDING", False)
    assert await hands.hand_back([row]) == set()
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 2


async def test_a_hand_back_wakes_whoever_waits_for_work(db: Database, hands: Hands) -> None:
    heard: list[str] = []
    listener = await asyncpg.connect(db.url)
    await listener.add_listener("task_new", lambda *message: heard.append(message[3]))
    task = factories.task(db, "CLAIMED")
    await hands.hand_back([{"id": task, "claim_generation": 1}])
    await eventually_async(lambda: heard == [task])
    await listener.close()


async def test_an_unwanted_task_ends_instead_of_going_back(db: Database, hands: Hands) -> None:
    task = factories.task(db, "RUNNING", cancel_requested_at=NOW)
    before = factories.read(db, task)
    assert await hands.hand_back([{"id": task, "claim_generation": 1}]) == {task}
    stored = factories.read(db, task)
    assert (stored["status"], stored["error_code"], stored["started_at"]) == ("CANCELLED", "TASK_CANCELLED", None)
    assert "TASK_CANCELLED" in stored["result"]
    assert stored["enqueued_at"] == before["enqueued_at"]
    assert stored["terminal_at"] is not None


async def test_a_locked_row_is_passed_over_by_start_and_hand_back(db: Database, hands: Hands) -> None:
    for number in range(4):
        factories.task(db, id=str(number))
    rows = await hands.claim(room_sync=0, prefetch=4)
    async with Hands.on(db, "other") as other:
        transaction = other.connection.transaction()
        await transaction.start()
        await other.connection.execute("SELECT 1 FROM horsies_tasks WHERE id IN ('0', '2') FOR UPDATE")
        by_id = sorted(rows, key=lambda row: row["id"])
        assert await hands.start(by_id[:2]) == {"1": "RUNNING"}
        assert await hands.hand_back(by_id[2:]) == {"3"}
        await transaction.rollback()
    assert await hands.start(by_id[:2]) == {"0": "RUNNING"}
    assert await hands.hand_back(by_id[2:]) == {"2"}
