"""The claim of tasks with a group: turns, limits of groups, rates, limits that queues share."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from horsies import AppConfig, CustomQueueConfig, GroupPolicy, Limit, PostgresConfig, QueueMode
from horsies._pg.locks import CAPS_LOCK
from horsies_worker.database.grouped_claim import Cursor, GroupedResult
from tests.support import factories, invariants
from tests.support.factories import ago, ahead
from tests.support.hands import Hands, Row
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


def fill(db: Database, groups: int, each: int, **columns: str) -> None:
    """`each` tasks in each of so many groups, in one statement; a column is an expression over `g` and `i`."""
    places, values = "".join(f", {name}" for name in columns), "".join(f", {value}" for value in columns.values())
    db.execute(
        f"INSERT INTO horsies_tasks (id, task_name, group_key, enqueued_at{places})"
        f" SELECT to_char(g, 'FM00000-') || i, 'add', 'g' || to_char(g, 'FM00000'),"
        f" statement_timestamp() - interval '1 hour' + i * interval '1 s'{values}"
        f" FROM generate_series(1, {groups}) AS g, generate_series(1, {each}) AS i"
    )


def policy(db: Database, queue: str = "default", **declared: Any) -> None:
    db.execute(
        "INSERT INTO horsies_queue_state (queue_name, declared) VALUES (%s, %s)"
        " ON CONFLICT (queue_name) DO UPDATE SET declared = excluded.declared", queue, json.dumps(declared),
    )  # fmt: skip


def shared_limit(db: Database, name: str, **declared: Any) -> None:
    db.execute("INSERT INTO horsies_limits (name, declared) VALUES (%s, %s)", name, json.dumps(declared))


def rate(limit: int, per_seconds: float, burst: int = 1) -> dict[str, Any]:
    return {"limit": limit, "per_seconds": per_seconds, "burst": burst}


def groups(rows: Sequence[Row]) -> Counter[str | None]:
    return Counter(row["group_key"] for row in rows)


def cursors(result: GroupedResult) -> dict[tuple[str, int], Cursor]:
    return {(queue, priority): cursor for queue, priority, cursor in result.report.cursors}


# -- turns -----------------------------------------------------------------------------------------------------


async def test_tasks_with_a_group_are_claimed_here_alone_and_others_not(db: Database, hands: Hands) -> None:
    grouped, plain = factories.task(db, group_key="acme"), factories.task(db)
    assert [row["id"] for row in await hands.claim()] == [plain]
    (row,), report = await hands.claim_grouped()
    assert (row["id"], row["status"], row["group_key"], row["claim_generation"]) == (grouped, "RUNNING", "acme", 1)
    assert report.is_over
    stored = factories.read(db, grouped)
    assert (stored["claimed_by_worker_id"], stored["worker_hostname"]) == ("worker-1", "host-1")
    assert stored["started_at"] == stored["claimed_at"] is not None
    invariants.check(db)


async def test_groups_take_turns_and_each_group_is_in_order(db: Database, hands: Hands) -> None:
    fill(db, 3, 10)
    rows, report = await hands.claim_grouped(6)
    assert groups(rows) == {"g00001": 2, "g00002": 2, "g00003": 2}
    assert [row["id"] for row in rows] == ["00001-1", "00002-1", "00003-1", "00001-2", "00002-2", "00003-2"]
    assert not report.is_over, "there was no room for more"


async def test_a_big_group_does_not_hold_up_small_ones(db: Database, hands: Hands) -> None:
    fill(db, 1, 500)
    for name in "xyz":
        factories.task(db, group_key=name)
    rows, report = await hands.claim_grouped(10)
    assert groups(rows) == {"g00001": 3, "x": 1, "y": 1, "z": 1}, "each group has a share of the places"
    assert not report.is_over, "the big group has tasks and places left"
    rows, _ = await hands.claim_grouped(10)
    assert groups(rows) == {"g00001": 10}


async def test_a_group_that_was_looked_at_and_has_more_tasks_is_told(db: Database, hands: Hands) -> None:
    """Its share of the places was smaller than what it could have filled."""
    fill(db, 1, 50)
    factories.task(db, group_key="x")
    looks = [("default", "x"), ("default", "g00001")]
    rows, report = await hands.claim_grouped(10, looks=looks, is_walk=False)
    assert groups(rows) == {"g00001": 5, "x": 1}
    assert [(wait.key, wait.seconds) for wait in report.waits] == [("g00001", 0)]
    policy(db, max_concurrency=5)
    assert not (await hands.claim_grouped(10, looks=looks, is_walk=False)).report.waits, "it is full"


async def test_without_fairness_a_group_fills_the_claim(db: Database, hands: Hands) -> None:
    policy(db, fair=False)
    fill(db, 3, 10)
    rows, _ = await hands.claim_grouped(10)
    assert groups(rows) == {"g00001": 10}


async def test_the_next_claim_goes_on_behind_the_cursor(db: Database, hands: Hands) -> None:
    fill(db, 10, 3)
    first = await hands.claim_grouped(4)
    assert list(groups(first.rows)) == ["g00001", "g00002", "g00003", "g00004"]
    assert not first.report.is_over
    second = await hands.claim_grouped(4, cursors=cursors(first))
    assert list(groups(second.rows)) == ["g00005", "g00006", "g00007", "g00008"]
    third = await hands.claim_grouped(4, cursors=cursors(second))
    assert list(groups(third.rows)) == ["g00009", "g00010", "g00001", "g00002"] or len(third.rows) <= 4


async def test_a_round_ends_where_it_began(db: Database, hands: Hands) -> None:
    policy(db, max_concurrency=1)
    fill(db, 10, 2)
    rows, _ = await hands.claim_grouped(100)
    assert len(rows) == 10
    at = {("default", 100): Cursor("g00004\x01", False, "g00004\x01")}
    seen = []
    for _ in range(4):
        result = await hands.claim_grouped(100, max_groups=4, cursors=at)
        seen.append((result.report.is_over, [cursor[2].key for cursor in result.report.cursors]))
        at = cursors(result)
        if result.report.is_over:
            break
    assert [over for over, _ in seen] == [False, False, True]
    assert result.report.is_throttled


async def test_higher_priorities_come_first(db: Database, hands: Hands) -> None:
    fill(db, 3, 2, priority="CASE i WHEN 1 THEN 90 ELSE 10 END")
    rows, _ = await hands.claim_grouped(4)
    assert [row["priority"] for row in rows] == [10, 10, 10, 90]


async def test_any_text_is_a_key(db: Database, hands: Hands) -> None:
    keys = ["", " ", "ä", "\U0001f40e", "a", "a\x01", "a\x01b", "A", "'; DROP", "%", "x" * 255]
    for key in keys:
        factories.task(db, group_key=key)
    rows, report = await hands.claim_grouped()
    assert sorted(groups(rows)) == sorted(keys)
    assert report.is_over


async def test_looks_come_first_and_alone_without_a_walk(db: Database, hands: Hands) -> None:
    fill(db, 50, 2)
    rows, report = await hands.claim_grouped(
        looks=[("default", "g00040"), ("default", "nothing"), ("other", "g00001")], is_walk=False
    )
    assert groups(rows) == {"g00040": 2}
    assert report.is_over
    rows, _ = await hands.claim_grouped(5, looks=[("default", "g00007")])
    assert rows[0]["group_key"] == "g00007"
    assert len(set(groups(rows))) == 5


async def test_delayed_tasks_are_not_taken_and_the_next_one_is_told(db: Database, hands: Hands) -> None:
    factories.task(db, group_key="a", enqueued_at=ahead(seconds=30))
    factories.task(db, group_key="b", enqueued_at=ahead(seconds=60))
    rows, report = await hands.claim_grouped()
    assert not rows
    assert [(wait.key, round(wait.seconds, -1)) for wait in report.waits] == [("a", 30), ("b", 60)]
    assert report.is_over
    assert not report.is_throttled


async def test_a_delayed_task_behind_a_ready_one_is_told(db: Database, hands: Hands) -> None:
    factories.task(db, group_key="a")
    factories.task(db, group_key="a", enqueued_at=ahead(seconds=30))
    rows, report = await hands.claim_grouped()
    assert len(rows) == 1
    assert [(wait.key, round(wait.seconds, -1)) for wait in report.waits] == [("a", 30)]


async def test_unknown_names_are_passed_by(db: Database, hands: Hands) -> None:
    for number in range(30):
        factories.task(db, group_key="a", task_name="other", enqueued_at=ago(minutes=60 - number))
    mine = factories.task(db, group_key="a")
    rows, report = await hands.claim_grouped()
    assert [row["id"] for row in rows] == [mine]
    assert report.is_over


async def test_a_task_without_a_place_holds_back_its_group_alone(db: Database, hands: Hands) -> None:
    factories.task(db, id="1", group_key="a", task_name="sync", enqueued_at=ago(minutes=3))
    factories.task(db, id="2", group_key="a", task_name="async", enqueued_at=ago(minutes=2))
    factories.task(db, id="3", group_key="b", task_name="async", enqueued_at=ago(minutes=1))
    rows, _ = await hands.claim_grouped(room_sync=0, room_async=5, sync_names=["sync"], async_names=["async"])
    assert [row["id"] for row in rows] == ["3"]


async def test_places_are_counted_by_kind(db: Database, hands: Hands) -> None:
    fill(db, 4, 4)
    db.execute("UPDATE horsies_tasks SET task_name = 'async' WHERE group_key IN ('g00002', 'g00004')")
    kinds = {"sync_names": ["add"], "async_names": ["async"]}
    rows, _ = await hands.claim_grouped(room_sync=3, room_async=2, **kinds)
    assert Counter(row["task_name"] for row in rows) == {"add": 3, "async": 2}
    rows, _ = await hands.claim_grouped(room_sync=1, room_ahead=2, short_names=["add"], **kinds)
    assert Counter(row["task_name"] for row in rows) == {"add": 3}


async def test_overdue_tasks_expire_and_need_no_place(db: Database, hands: Hands) -> None:
    policy(db, rate=rate(1, 60))
    late = factories.task(
        db, group_key="a", good_until=ago(seconds=1), enqueued_at=ago(minutes=2), sent_at=ago(minutes=2)
    )
    rows, _ = await hands.claim_grouped()
    assert [(row["id"], row["status"]) for row in rows] == [(late, "EXPIRED")]
    assert db.execute("SELECT * FROM horsies_rate_limits") == []
    assert factories.read(db, late)["error_code"] == "TASK_EXPIRED"
    invariants.check(db)


# -- concurrency -----------------------------------------------------------------------------------------------


async def test_a_group_never_runs_more_than_its_limit(db: Database, hands: Hands) -> None:
    policy(db, max_concurrency=2)
    fill(db, 5, 10)
    rows, _ = await hands.claim_grouped()
    assert groups(rows) == {f"g0000{n}": 2 for n in range(1, 6)}
    assert {row["frees"] for row in rows} == {"group"}
    again = await hands.claim_grouped()
    assert not again.rows
    assert again.report.is_throttled
    await hands.end(rows[:1])
    rows, _ = await hands.claim_grouped(looks=[("default", rows[0]["group_key"])], is_walk=False)
    assert len(rows) == 1


async def test_many_claims_at_once_exceed_no_limit(db: Database) -> None:
    policy(db, max_concurrency=3)
    fill(db, 4, 60)
    async with AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(Hands.on(db, f"worker-{n}")) for n in range(6)]
        most: Counter[str | None] = Counter()

        async def work(hands: Hands) -> None:
            while True:
                result = await hands.claim_grouped(4)
                if result.rows:
                    running = db.execute(
                        "SELECT group_key, count(*) FROM horsies_tasks WHERE status = 'RUNNING' GROUP BY 1"
                    )
                    for key, count in running:
                        most[key] = max(most[key], count)
                    await hands.end(result.rows)
                elif not db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'"):
                    return

        await asyncio.gather(*(work(hands) for hands in fleet))
    assert max(most.values()) <= 3
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 240


async def test_a_queue_that_another_claim_works_on_is_left(db: Database, hands: Hands) -> None:
    policy(db, max_concurrency=2)
    policy(db, "mail")
    fill(db, 1, 1)
    factories.task(db, group_key="a", queue_name="mail")
    async with Hands.on(db, "worker-2") as other, other.connection.transaction():
        await other.claim_grouped()
        rows, report = await hands.claim_grouped(queues=["default", "mail"])
        assert report.busy == ["default"]
        assert [row["queue_name"] for row in rows] == ["mail"]


async def test_the_caps_are_counted_under_the_lock_of_the_other_claims(db: Database, hands: Hands) -> None:
    fill(db, 1, 1)
    async with Hands.on(db, "worker-2") as other, other.connection.transaction():
        await other.connection.fetchval(other.queries.sql("lock_caps"), CAPS_LOCK)
        rows, report = await hands.claim_grouped(queue_caps={"default": 1})
        assert not rows
        assert report.busy == ["default"]
    assert len((await hands.claim_grouped(queue_caps={"default": 1})).rows) == 1


# -- rates -----------------------------------------------------------------------------------------------------


async def test_a_group_starts_its_burst_and_then_waits_for_tokens(db: Database, hands: Hands) -> None:
    policy(db, rate=rate(10, 60, burst=3))
    fill(db, 2, 10)
    rows, report = await hands.claim_grouped()
    assert groups(rows) == {"g00001": 3, "g00002": 3}
    assert {row["start_within"] for row in rows} == {0.6}
    spacing = 60.6 / 8
    assert {wait.key for wait in report.waits} == {"g00001", "g00002"}, "they have more tasks"
    assert all(spacing - 1 < wait.seconds <= spacing for wait in report.waits)
    rows, report = await hands.claim_grouped()
    assert not rows
    assert {wait.key for wait in report.waits} == {"g00001", "g00002"}
    assert all(spacing - 1 < wait.seconds <= spacing for wait in report.waits)
    assert report.is_throttled
    # one token later
    db.execute(
        f"UPDATE horsies_rate_limits SET free_at = free_at - interval '{spacing + 0.001} s' WHERE key = 'g00001'"
    )
    assert groups((await hands.claim_grouped()).rows) == {"g00001": 1}


async def test_a_smaller_burst_counts_what_was_started(db: Database, hands: Hands) -> None:
    policy(db, rate=rate(10, 10, burst=10))
    fill(db, 1, 30)
    assert len((await hands.claim_grouped()).rows) == 10
    policy(db, rate=rate(10, 10, burst=1))
    rows, report = await hands.claim_grouped()
    assert not rows
    assert 9 < report.waits[0].seconds <= 10.25


async def test_a_token_is_spent_for_every_start(db: Database, hands: Hands) -> None:
    policy(db, rate=rate(10, 60, burst=2))
    fill(db, 1, 5)
    rows, _ = await hands.claim_grouped()
    assert len(rows) == 2
    await hands.hand_back(rows)
    assert not (await hands.claim_grouped()).rows


async def test_a_clock_that_was_set_back_stops_nothing_for_long(db: Database, hands: Hands) -> None:
    policy(db, rate=rate(10, 10))
    fill(db, 1, 5)
    assert len((await hands.claim_grouped()).rows) == 1
    db.execute("UPDATE horsies_rate_limits SET free_at = free_at + interval '1 hour'")
    (wait,) = (await hands.claim_grouped()).report.waits
    assert wait.seconds <= 10.25 + 0.001, "a window"
    # the bucket was mended: it fills from now on
    db.execute("UPDATE horsies_rate_limits SET free_at = free_at - interval '10.3 s'")
    assert len((await hands.claim_grouped()).rows) == 1


async def test_a_shared_rate_is_mended_when_the_clock_was_set_back(db: Database, hands: Hands) -> None:
    shared_limit(db, "api", rate=rate(10, 10, burst=2))
    policy(db, limits=["api"])
    for _ in range(5):
        factories.task(db)
    assert len((await hands.claim_grouped()).rows) == 2
    db.execute("UPDATE horsies_limits SET free_at = free_at + interval '1 hour'")
    (wait,) = (await hands.claim_grouped()).report.waits
    assert wait.seconds <= 10.25 + 0.001
    db.execute("UPDATE horsies_limits SET free_at = free_at - interval '10.3 s'")
    assert len((await hands.claim_grouped()).rows) == 1


async def test_a_clock_that_was_set_forward_fills_no_bucket(db: Database, hands: Hands) -> None:
    policy(db, rate=rate(10, 10, burst=5))
    fill(db, 1, 20)
    assert len((await hands.claim_grouped()).rows) == 5
    db.execute("UPDATE horsies_rate_limits SET free_at = free_at - interval '1 hour'")
    rows, report = await hands.claim_grouped(expected_at=time.time() - 3600)
    assert not rows
    assert report.waits
    assert not (await hands.claim_grouped(expected_at=time.time() + 1)).rows


# -- limits that queues share ----------------------------------------------------------------------------------


async def test_queues_share_a_limit_with_and_without_groups(db: Database, hands: Hands) -> None:
    shared_limit(db, "stripe", max_concurrency=3)
    for queue in ("default", "mail"):
        policy(db, queue, limits=["stripe"])
    for _ in range(3):
        factories.task(db)
        factories.task(db, group_key="a", queue_name="mail")
    assert await hands.claim() == [], "the plain claim leaves the queue alone"
    rows, report = await hands.claim_grouped(2, queues=["default", "mail"])
    assert len(rows) == 2
    assert sorted(report.limited) == ["default", "mail"]
    assert {row["frees"] for row in rows} == {"limit"}
    more, report = await hands.claim_grouped(queues=["mail", "default"])
    assert len(more) == 1
    none, report = await hands.claim_grouped(queues=["mail", "default"])
    assert not none
    assert report.is_throttled
    await hands.end(rows)
    rows, _ = await hands.claim_grouped(queues=["mail", "default"])
    assert len(rows) == 2


async def test_tasks_without_a_group_have_a_share_too_and_are_told_to_be_left(db: Database, hands: Hands) -> None:
    shared_limit(db, "stripe", max_concurrency=50)
    policy(db, limits=["stripe"])
    for _ in range(20):
        factories.task(db)
    factories.task(db, group_key="a")
    rows, report = await hands.claim_grouped(10)
    assert groups(rows) == {None: 5, "a": 1}
    assert not report.is_over
    assert len((await hands.claim_grouped(10)).rows) == 10


async def test_a_shared_rate_spends_its_tokens_for_all(db: Database, hands: Hands) -> None:
    shared_limit(db, "api", rate=rate(100, 60, burst=4))
    for queue in ("default", "mail"):
        policy(db, queue, limits=["api"])
        for _ in range(5):
            factories.task(db, queue_name=queue)
    rows, report = await hands.claim_grouped(queues=["default", "mail"])
    assert len(rows) == 4
    assert {wait.queue for wait in report.waits} == {"default", "mail"}
    rows, report = await hands.claim_grouped(queues=["default", "mail"])
    assert not rows
    assert {wait.queue for wait in report.waits} == {"default", "mail"}
    assert all(0 < wait.seconds <= 60.6 / 97 for wait in report.waits)


async def test_an_override_holds_at_once(db: Database, hands: Hands) -> None:
    policy(db, max_concurrency=1)
    fill(db, 1, 10)
    assert len((await hands.claim_grouped()).rows) == 1
    db.execute("UPDATE horsies_queue_state SET override = '{\"max_concurrency\": 4}'")
    assert len((await hands.claim_grouped()).rows) == 3
    db.execute("UPDATE horsies_queue_state SET override = '{\"max_concurrency\": null}'")
    assert len((await hands.claim_grouped(2)).rows) == 2
    db.execute("UPDATE horsies_queue_state SET override = NULL")
    assert not (await hands.claim_grouped()).rows


async def test_a_paused_queue_and_caps_hold(db: Database, hands: Hands) -> None:
    fill(db, 3, 3)
    assert len((await hands.claim_grouped(queue_caps={"default": 2})).rows) == 2
    assert not (await hands.claim_grouped(queue_caps={"default": 2})).rows
    assert len((await hands.claim_grouped(cluster_cap=3)).rows) == 1
    db.execute("UPDATE horsies_queue_state SET paused_at = now()")
    db.execute(
        "INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ('default', now()) ON CONFLICT DO NOTHING"
    )
    assert not (await hands.claim_grouped()).rows


# -- what workers declare --------------------------------------------------------------------------------------


async def test_a_worker_declares_its_policies_and_tells_of_changes(
    db: Database, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    def config(most: int | None, shared: int) -> AppConfig:
        groups = None if most is None else GroupPolicy(max_concurrency=most)
        return AppConfig(
            PostgresConfig(db.url), queue_mode=QueueMode.CUSTOM, limits=[Limit("api", max_concurrency=shared)],
            custom_queues=[CustomQueueConfig("mail", groups=groups, limits=["api"]), CustomQueueConfig("plain")],
        )  # fmt: skip

    told: list[str] = []
    async with Hands.on(db, "worker-2") as other:
        await other.connection.add_listener("queue_state", lambda *notification: told.append(notification[3]))
        await hands.queries.declare_policies(hands.connection, config(1, 5))
        assert db.execute("SELECT queue_name, policy, is_limited FROM horsies_queue_state") == [
            ("mail", {"fair": True, "limits": ["api"], "max_concurrency": 1}, True)
        ], "a queue without a policy needs no row"
        assert not caplog.records
        declared = db.execute("SELECT xmin FROM horsies_queue_state UNION ALL SELECT xmin FROM horsies_limits")
        await hands.queries.declare_policies(hands.connection, config(1, 5))
        assert declared == db.execute("SELECT xmin FROM horsies_queue_state UNION ALL SELECT xmin FROM horsies_limits")
        db.execute("UPDATE horsies_queue_state SET override = '{\"max_concurrency\": 9}'")
        await hands.queries.declare_policies(hands.connection, config(None, 6))
        assert db.value("SELECT policy FROM horsies_queue_state") == {"limits": ["api"], "max_concurrency": 9}
        assert db.value("SELECT policy FROM horsies_limits") == {"max_concurrency": 6}
        warned = [record.getMessage() for record in caplog.records]
        assert [text.split(":")[0] for text in warned] == ["queue 'mail'", "limit 'api'"]
        await eventually_async(lambda: told == ["mail", "mail"])
