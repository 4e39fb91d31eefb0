"""`claim_next_batch`: more of the same, and nothing else."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from horsies_worker.database.queries import Hint, NextRequest
from tests.support import factories
from tests.support.factories import ago, ahead
from tests.support.hands import Hands
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

EVER = datetime(2000, 1, 1, tzinfo=UTC)


async def more(hands: Hands, limit: int = 100, *, names: Sequence[str] = ("add",), since: datetime = EVER) -> list[Any]:
    request = NextRequest(Hint("default", 100, since), limit, names, ["add", "poll"])
    return list(await hands.queries.claim_next(hands.connection, request, pooled=False))


async def test_it_writes_what_a_whole_claim_writes(db: Database) -> None:
    one, two = factories.task(db, claim_generation=3, kwargs='{"a":1}'), factories.task(db, claim_generation=3)
    async with Hands.on(db) as hands:
        (whole,) = await hands.claim(1)
        (row,) = await more(hands)
    assert (whole["id"], row["id"]) == (one, two)
    assert set(whole.keys()) - set(row.keys()) == {"enqueued_at"}  # a whole claim is sorted by it
    given = {"status", "claim_generation", "queue_name", "priority", "retry_count", "max_retries", "is_workflow_task"}
    assert {name: row[name] for name in given} == {name: whole[name] for name in given}
    own = {"id", "kwargs", "sent_at", "enqueued_at", "created_at", "claimed_at", "started_at", "updated_at"}
    first, second = factories.read(db, one), factories.read(db, two)
    assert {k: v for k, v in first.items() if k not in own} == {k: v for k, v in second.items() if k not in own}
    assert second["claimed_at"] == second["started_at"] == second["updated_at"]


async def test_the_oldest_come_first_and_the_hint_moves_on(db: Database) -> None:
    for minutes in (3, 1, 2):
        factories.task(db, id=f"{minutes}", enqueued_at=ago(minutes=minutes))
    async with Hands.on(db) as hands:
        rows = await more(hands, 2)
        assert [row["id"] for row in rows] == ["3", "2"]
        assert {row["since"] for row in rows} == {factories.read(db, "3")["enqueued_at"], None}
        assert [row["id"] for row in await more(hands, 2, since=rows[0]["since"])] == ["1"]
        assert await more(hands, 2, since=rows[0]["since"]) == []


async def test_only_one_queue_and_one_priority(db: Database) -> None:
    factories.task(db, queue_name="mail")
    factories.task(db, priority=1)
    factories.task(db, enqueued_at=ahead(seconds=60))
    mine = factories.task(db)
    async with Hands.on(db) as hands:
        assert [row["id"] for row in await more(hands)] == [mine]


async def test_what_needs_more_thought_is_left_as_it_is(db: Database) -> None:
    """Overdue, of another kind, or of a workflow: scanned, and not written."""
    left = [
        factories.task(db, good_until=ago(seconds=1), enqueued_at=ago(minutes=9)),
        factories.task(db, task_name="poll", enqueued_at=ago(minutes=8)),
        factories.task(db, is_workflow_task=True, enqueued_at=ago(minutes=7)),
    ]
    plain = factories.task(db, good_until=ahead(minutes=1), enqueued_at=ago(minutes=6))
    factories.task(db, id="beyond", enqueued_at=ago(minutes=5))
    before = [factories.read(db, task) for task in left]
    async with Hands.on(db) as hands:
        assert [row["id"] for row in await more(hands, 4)] == [plain]
    assert [factories.read(db, task) for task in left] == before
    assert factories.read(db, "beyond")["status"] == "PENDING"
    db.execute("UPDATE horsies_tasks SET is_workflow_task = false")  # there is no such workflow


async def test_unknown_names_do_not_count_and_are_not_locked(db: Database) -> None:
    for number in range(5):
        factories.task(db, id=f"ghost {number}", task_name="ghost", enqueued_at=ago(minutes=9))
    mine = [factories.task(db, enqueued_at=ago(minutes=minutes)) for minutes in (8, 7)]
    async with Hands.on(db) as hands, Hands.on(db, "worker-2") as other, hands.connection.transaction():
        assert [row["id"] for row in await more(hands, 2)] == mine
        assert len(await other.claim(9, sync_names=["ghost"])) == 5


async def test_what_others_hold_is_passed_over(db: Database) -> None:
    held = factories.task(db, enqueued_at=ago(minutes=2))
    free = factories.task(db)
    with psycopg.connect(db.url) as other:
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        async with Hands.on(db) as hands:
            assert [row["id"] for row in await more(hands)] == [free]


async def test_two_workers_never_get_the_same(db: Database) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name)"
        " SELECT to_char(i, 'FM0000'), 'add' FROM generate_series(1, 2000) AS i"
    )
    async with Hands.on(db, "one") as one, Hands.on(db, "two") as two:

        async def take(hands: Hands) -> list[str]:
            found: list[str] = []
            while rows := await more(hands, 20):
                found += [row["id"] for row in rows]
            return found

        first, second = await asyncio.gather(take(one), take(two))
    assert first
    assert second
    assert sorted(first + second) == [f"{number:04}" for number in range(1, 2001)]
