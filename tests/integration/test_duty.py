"""Who listens, who is woken, and whether a producer notifies: sessions are stepped through every order."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies import TaskSendError
from horsies.ids import new_id
from horsies_worker.claim.duty import BACKUPS, Group
from horsies_worker.database.queries import Queries
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.apps import add_task, async_app_on
from tests.support.factories import NOW, ago, ahead
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

QUEUES = ["default"]
GROUP = Group(None, QUEUES, ["add"])
KEY = GROUP.key
SQL = Queries(None, Identity()).sql


@dataclass(eq=False)
class Member:
    """The direct connection of one worker."""

    connection: Any
    heard: list[str] = field(default_factory=list)
    is_backup: bool = False
    place: int = 1

    async def wait(self, *, patience_s: float = 20, slower: int = 1) -> str:
        self.is_backup, answer = await self.connection.fetchrow(
            SQL("wait_for_duty"), KEY, self.place, ["task_new"], QUEUES, ["add"], slower,
            timedelta(seconds=patience_s), self.is_backup,
        )  # fmt: skip
        return answer

    async def leave(
        self, *, has_lock: bool = True, only_if_awaited: bool = True, is_awake: bool = False
    ) -> bool:  # fmt: skip
        return await self.connection.fetchval(SQL("leave_duty"), KEY, QUEUES, has_lock, only_if_awaited, is_awake)

    async def set_awake(self, is_awake: bool) -> None:
        await self.connection.execute(SQL("set_awake"), QUEUES, is_awake)

    async def sees_task(self) -> bool:
        """What a scan would find."""
        return await self.connection.fetchval("SELECT EXISTS (SELECT FROM horsies_tasks WHERE status = 'PENDING')")

    async def hears(self) -> bool:
        """Whether a notification has arrived: the answer to a statement comes behind those sent before."""
        await self.connection.execute("SELECT 1")
        return bool(self.heard)


@asynccontextmanager
async def members(db: Database, count: int) -> AsyncIterator[list[Member]]:
    made: list[Member] = []
    try:
        for number in range(count):
            member = Member(await asyncpg.connect(db.url), place=1 + number % BACKUPS)
            await member.connection.add_listener("task_new", lambda *news, heard=member.heard: heard.append(news[3]))
            await member.connection.execute("UNLISTEN *")
            made.append(member)
        yield made
    finally:
        for member in made:
            member.connection.terminate()


async def send(connection: Any, task_id: str | None = None, queue: str = "default") -> str:
    """As the client sends."""
    task_id = task_id or new_id()
    await connection.execute(
        "CALL horsies_send_task($1, NULL, '{}', 'sha', 'add', $2, 100, now(), NULL, interval '0', NULL, NULL, 0, NULL)",
        task_id, queue,
    )  # fmt: skip
    return task_id


async def waiting_for_a_lock(db: Database, count: int) -> None:
    def waits() -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
        return db.execute(sql)[0][0] == count

    await eventually_async(waits)


# -- turns -----------------------------------------------------------------------------------------------------


async def test_one_worker_of_a_group_listens_and_the_others_are_not_woken(db: Database) -> None:
    async with members(db, 6) as (first, *others):
        assert await first.wait() == "duty"
        waiting = [asyncio.ensure_future(other.wait()) for other in others]
        await waiting_for_a_lock(db, 5)
        async with members(db, 1) as (producer,):
            sent = await send(producer.connection)
            await eventually_async(lambda: bool(first.heard))
            db.execute("DELETE FROM horsies_tasks")  # it was claimed, so it is not late
        assert first.heard == [sent]
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()


async def test_a_worker_that_leaves_wakes_exactly_one_other(db: Database) -> None:
    async with members(db, 6) as (first, *others):
        await first.wait()
        waiting = [asyncio.ensure_future(other.wait()) for other in others]
        await waiting_for_a_lock(db, 5)
        assert await first.leave()
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == ["duty"]
        await waiting_for_a_lock(db, 4)  # one of those behind has the place of the backup
        for task in left:
            task.cancel()


async def test_without_a_worker_in_line_the_duty_is_kept(db: Database) -> None:
    async with members(db, 2) as (first, second):
        assert await first.wait() == "duty"
        assert not await first.leave()
        assert await second.wait(patience_s=0.1) == ""
        assert await first.leave(only_if_awaited=False)
        assert await second.wait() == "duty"


async def test_a_worker_that_dies_on_duty_or_in_line_passes_it_on(db: Database) -> None:
    async with members(db, 4) as (first, second, third, fourth):
        await first.wait()
        waiting = [asyncio.ensure_future(other.wait()) for other in (second, third)]
        await waiting_for_a_lock(db, 2)
        second.connection.terminate()  # its place, and its turn, must not be lost
        first.connection.terminate()
        assert await waiting[1] == "duty"
        waiting[0].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        third.connection.terminate()
        assert await fourth.wait() == "duty"


async def test_workers_of_other_queues_or_names_are_other_groups(db: Database) -> None:
    keys = {
        group.key
        for group in (
            GROUP, Group("elsewhere", QUEUES, ["add"]), Group(None, ["mail"], ["add"]), Group(None, QUEUES, ["sub"]),
            Group(None, [*QUEUES, "add"], []),
        )
    }  # fmt: skip
    assert len(keys) == 5
    assert all(key & 0xFF == 0 and -(2**63) <= key < 2**63 for key in keys)
    assert Group(None, ["a", "b"], ["x", "y"]).key == Group(None, ["b", "a"], ["y", "x"]).key


# -- late tasks ------------------------------------------------------------------------------------------------


async def test_a_task_that_the_worker_on_duty_leaves_is_found_by_a_backup(db: Database) -> None:
    async with members(db, 3) as (frozen, backup, producer):
        await frozen.wait()
        waiting = asyncio.ensure_future(backup.wait())
        await waiting_for_a_lock(db, 1)
        await send(producer.connection)
        assert await waiting == "late"
        assert backup.is_backup
        # it acts for the other one: it listens, and producers know
        await send(producer.connection)
        assert await backup.hears()
        assert await backup.leave(has_lock=False)


async def test_with_every_backup_frozen_the_others_find_it(db: Database) -> None:
    """The worker on duty does not claim, and the backups do not look."""
    async with members(db, 3 + BACKUPS) as (frozen, *others, producer):
        await frozen.wait()
        backups = [asyncio.ensure_future(other.wait(slower=1_000)) for other in others[:BACKUPS]]
        await waiting_for_a_lock(db, BACKUPS)
        last = asyncio.ensure_future(others[BACKUPS].wait())
        await waiting_for_a_lock(db, BACKUPS + 1)
        await send(producer.connection)
        assert await last == "late"
        for task in backups:
            task.cancel()


@pytest.mark.parametrize(
    "columns",
    [
        {"enqueued_at": ahead(minutes=1)}, {"task_name": "unknown"}, {"queue_name": "paused"}, {"queue_name": "other"},
        {"enqueued_at": ago(minutes=1)},
    ],
    ids=["future", "unknown name", "paused queue", "other queue", "waits for another reason"],
)  # fmt: skip
async def test_what_no_worker_should_have_taken_is_not_late(db: Database, columns: dict[str, Any]) -> None:
    factories.insert(db, "horsies_queue_state", queue_name="paused", paused_at=NOW)
    factories.task(db, **{"enqueued_at": ago(seconds=1), **columns})
    late = "SELECT horsies_has_late_task('{default,paused}', '{add}', 1)"
    assert not db.execute(late)[0][0]
    factories.task(db, enqueued_at=ago(seconds=1), priority=99)
    assert db.execute(late)[0][0]


# -- whether a producer notifies -------------------------------------------------------------------------------


async def test_producers_notify_a_worker_that_sleeps_and_none_that_is_awake(db: Database) -> None:
    async with members(db, 3) as (worker, producer, other):
        await other.connection.execute("LISTEN task_new")
        sent = await send(producer.connection)
        assert await other.hears(), "without a worker on duty other listeners are notified"
        other.heard.clear()
        await worker.wait()
        sent = await send(producer.connection)
        # both, before what they heard is cleared: the server tells each session when that one's process gets to it
        assert await worker.hears()
        assert await other.hears()
        assert worker.heard == [sent]
        await worker.set_awake(True)
        worker.heard.clear()
        other.heard.clear()
        await send(producer.connection)
        assert not await worker.hears()
        assert not await other.hears()
        await send(producer.connection, queue="elsewhere")
        assert await worker.hears()
        worker.heard.clear()
        await worker.set_awake(False)
        await send(producer.connection)
        assert await worker.hears()


async def test_one_that_is_awake_does_not_silence_one_that_sleeps(db: Database) -> None:
    """Also if the first is frozen for ever."""
    async with members(db, 3) as (awake, asleep, producer):
        await awake.wait()
        await awake.set_awake(True)
        await asleep.connection.fetchrow(
            SQL("wait_for_duty"), KEY + 256, 1, ["task_new"], QUEUES, [], 1, timedelta(seconds=9), False
        )
        await send(producer.connection)
        assert await asleep.hears()


async def test_a_foreign_session_that_holds_the_locks_costs_notifications_only(db: Database) -> None:
    async with members(db, 3) as (foreign, worker, producer):
        for state in ("asleep", "awake"):
            await foreign.connection.execute(
                f"SELECT pg_advisory_lock(hashtextextended('horsies {state} ' || current_schema() || ' default', 0))"
            )
        assert await worker.wait() == "duty"
        await send(producer.connection)
        assert await worker.hears()
        await worker.set_awake(True)
        await worker.set_awake(False)
        worker.heard.clear()
        await send(producer.connection)
        assert await worker.hears()


def orders(*sequences: Sequence[str]) -> list[tuple[str, ...]]:
    """Every order in which the steps of several sessions can follow each other."""
    names = [number for number, steps in enumerate(sequences) for _ in steps]
    found: list[tuple[str, ...]] = []
    for order in sorted(set(itertools.permutations(names))):
        left = [iter(steps) for steps in sequences]
        found.append(tuple(next(left[number]) for number in order))
    return found


PRODUCER = ("insert", "commit", "tell")
CALLER = ("begin", "insert_with_trigger", "commit")


@dataclass(eq=False)
class Scene:
    """A worker that goes to sleep, or on duty, and a producer, each on its own session."""

    worker: Member
    producer: Any
    former: Member
    found: bool = False
    task_id: str = field(default_factory=new_id)

    async def insert(self) -> None:
        await self.producer.execute("BEGIN")
        await self.producer.execute("SELECT set_config('horsies.notify', 'off', true)")
        await self._write()

    async def begin(self) -> None:
        await self.producer.execute("BEGIN")

    async def insert_with_trigger(self) -> None:
        await self._write()

    async def _write(self) -> None:
        await self.producer.execute(
            "INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs, sent_at, enqueued_at, enqueue_sha)"
            " VALUES ($1, 'add', 'default', 100, '{}', now(), statement_timestamp(), 'sha')", self.task_id,
        )  # fmt: skip

    async def commit(self) -> None:
        await self.producer.execute("COMMIT")

    async def tell(self) -> None:
        await self.producer.execute("SELECT horsies_notify_sent('default', $1)", self.task_id)

    async def sleep(self) -> None:
        await self.worker.set_awake(False)

    async def go_on_duty(self) -> None:
        assert await self.worker.wait() == "duty"

    async def former_leaves(self) -> None:
        assert await self.former.leave(only_if_awaited=False)

    async def former_is_deaf(self) -> None:
        await self.former.connection.execute("UNLISTEN *")

    async def look(self) -> None:
        self.found = self.found or await self.worker.sees_task()


@pytest.mark.parametrize("producer", [PRODUCER, CALLER], ids=["send", "in a transaction"])
@pytest.mark.parametrize(
    "worker",
    [("sleep", "look"), ("go_on_duty", "look"), ("former_leaves", "former_is_deaf", "go_on_duty", "look")],
    ids=["goes to sleep", "goes on duty", "takes over"],
)
async def test_no_order_of_steps_loses_a_wake_up(
    db: Database, worker: Sequence[str], producer: Sequence[str]
) -> None:  # fmt: skip
    """When all steps are done, the worker has seen the task, or hears of it."""
    tried = orders(worker, producer)
    assert len(tried) >= 10
    for order in tried:
        async with members(db, 3) as (sleeper, former, sender):
            scene = Scene(sleeper, sender.connection, former)
            if "sleep" in worker:
                await sleeper.wait()
                await sleeper.set_awake(True)
            if "former_leaves" in worker:
                await former.wait()
            for step in order:
                await getattr(scene, step)()
            assert scene.found or await sleeper.hears(), order
        db.execute("DELETE FROM horsies_tasks")


async def test_the_lock_is_what_the_order_depends_on(db: Database) -> None:
    """The same steps with a look before the lock do lose a wake-up: the test above can fail."""
    lost = 0
    for order in orders(("look", "sleep"), PRODUCER):
        async with members(db, 2) as (sleeper, sender):
            scene = Scene(sleeper, sender.connection, sleeper)
            await sleeper.wait()
            await sleeper.set_awake(True)
            for step in order:
                await getattr(scene, step)()
            lost += not scene.found and not await sleeper.hears()
        db.execute("DELETE FROM horsies_tasks")
    assert lost > 0


# -- sends -----------------------------------------------------------------------------------------------------


RAISES = """CREATE OR REPLACE FUNCTION {name} LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'too many notifications' USING ERRCODE = '{code}'; END $$"""


@pytest.mark.parametrize("code", ["54000", "57014"], ids=["queue of notifications full", "cancelled"])
async def test_a_send_that_fails_after_its_commit_is_known_to_be_done(db: Database, code: str) -> None:
    db.execute(RAISES.format(name="horsies_notify_sent(queue_name text, task_id text) RETURNS boolean", code=code))
    async with async_app_on(db) as app:
        add = add_task(app)
        one = await add.send_async(1, 2)
        many = await add.send_many_async([add.call(1, 2), add.call(3, 4)])
    found = {row[0] for row in db.execute("SELECT id FROM horsies_tasks")}
    assert found == {handle.task_id for handle in (one, *many)}


async def test_a_send_that_is_cancelled_before_its_commit_is_known_to_be_undone(db: Database) -> None:
    db.execute(RAISES.format(name="refuse() RETURNS trigger", code="57014"))
    db.execute("CREATE TRIGGER refuse BEFORE INSERT ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION refuse()")
    async with async_app_on(db) as app:
        add = add_task(app)
        for sending in (add.send_async(1, 2), add.send_many_async([add.call(1, 2), add.call(3, 4)])):
            with pytest.raises(TaskSendError, match=r"refused it .* is not enqueued"):
                await sending
    assert db.execute("SELECT FROM horsies_tasks") == []
