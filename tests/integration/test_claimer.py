"""The service that turns free slots into running tasks, on a real database; the pool is a stand-in."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import AppConfig, CustomQueueConfig, PostgresConfig, QueueMode, ResilienceConfig, TaskError, TaskResult
from horsies.app import Horsies
from horsies_worker import lookout as lookout_module
from horsies_worker.claim_settings import claim_settings
from horsies_worker.claimer import CAPPED_REST, Claimer
from horsies_worker.finalizer import Finalizer
from horsies_worker.held import Held
from horsies_worker.identity import Identity
from horsies_worker.jobs import Job, Room
from horsies_worker.queries import ClaimRequest, NextRequest, Queries
from horsies_worker.reconciler import Reconciler
from horsies_worker.session import CLAIM_SETTINGS, Session
from horsies_worker.starter import Starter
from tests.support import factories, invariants
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.factories import ago, ahead
from tests.support.hands import Hands, end_of
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


@dataclass
class Pool:
    """Has so many places, and keeps what it is given until the test takes it out."""

    sync: int = 2
    asynchronous: int = 0
    ahead: int = 0
    short: frozenset[str] = frozenset()
    jobs: list[Job] = field(default_factory=list)

    def room(self) -> Room:
        busy = sum(not job.is_async for job in self.jobs)
        waiting = sum(job.is_async for job in self.jobs)
        free = max(0, self.sync - busy)
        return Room(free, max(0, self.ahead - max(0, busy - self.sync)), max(0, self.asynchronous - waiting))

    def short_names(self) -> frozenset[str]:
        return self.short

    def submit(self, jobs: list[Job]) -> None:
        self.jobs += jobs

    @property
    def ids(self) -> list[str]:
        return [job.task_id for job in self.jobs]


@dataclass
class Yard:
    db: Database
    claimer: Claimer
    pool: Pool
    held: Held
    starter: Starter
    finalizer: Finalizer
    requests: list[ClaimRequest | NextRequest]

    def finish(self, *ids: str) -> None:
        """These ended well; their places are free."""
        for job in [job for job in self.pool.jobs if job.task_id in (ids or self.pool.ids)]:
            self.pool.jobs.remove(job)
            row = {"id": job.task_id, "claim_generation": job.generation, "retry_count": 0, "max_retries": 0}
            self.finalizer.add(end_of(row))
        self.claimer.on_room()

    async def has(self, *ids: str, timeout: float = 4) -> None:
        await eventually_async(lambda: sorted(self.pool.ids) == sorted(ids), timeout=timeout, interval=0.005)


@asynccontextmanager
async def claiming(
    db: Database, pool: Pool, *, url: str | None = None, poll_ms: int = 5_000,
    max_per_worker: int | None = None, hears: bool = False, knows_add: bool = True, worker_id: str = "worker-1",
    **config: Any,
) -> AsyncIterator[Yard]:  # fmt: skip
    app = Horsies(
        AppConfig(
            PostgresConfig(url or db.url),
            resilience=ResilienceConfig(reconnect_initial_ms=10, reconnect_max_ms=100, notify_poll_interval_ms=poll_ms),
            **config,
        )
    )

    queue = None if app.config.queue_mode is QueueMode.DEFAULT else app.config.queue_names[0]

    if knows_add:

        @app.task("add", queue_name=queue)
        def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
            return TaskResult(ok=a + b)

    @app.task("noop", queue_name=queue)
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    if pool.asynchronous:

        @app.task("poll")
        async def poll() -> TaskResult[None, TaskError]:
            return TaskResult(ok=None)

    queries = Queries(None, Identity(worker_id, "host-1", 4711))
    session = Session(app.config.broker, "claim", settings=CLAIM_SETTINGS)
    writing = Session(PostgresConfig(db.url), "finalize", settings=CLAIM_SETTINGS)
    held = Held()
    the_pool: Any = pool

    def on_done(keys: Any) -> None:
        held.drop(task.job for key in keys if (task := held.find(*key)) is not None)
        claimer.look_everywhere() if app.config.cluster_wide_cap or config.get("custom_queues") else claimer.on_room()

    finalizer = Finalizer(writing, queries, app.config.resilience, on_done=on_done)
    starter = Starter(session, queries, the_pool, held)
    settings = claim_settings(
        app.config, queues=app.config.queue_names, max_batch=None, max_per_worker=max_per_worker, run_ahead=True
    )
    claimer = Claimer(
        settings, app.config, app.registry, session, queries, the_pool, held, starter, finalizer,
        Reconciler(session, queries, held, finalizer), on_contact=lambda: None,
    )  # fmt: skip
    requests: list[ClaimRequest | NextRequest] = []
    real = claimer._claim

    async def recorded(request: ClaimRequest | NextRequest) -> Any:
        requests.append(request)
        return await real(request)

    claimer._claim = recorded  # type: ignore[method-assign]
    listener = await asyncpg.connect(db.url)
    if hears:
        await listener.add_listener("task_new", lambda *_: claimer.on_news())
    services = [asyncio.create_task(claimer.run()), asyncio.create_task(finalizer.run())]
    try:
        yield Yard(db, claimer, pool, held, starter, finalizer, requests)
        assert not any(service.done() for service in services)
    finally:
        claimer.stop()
        await asyncio.wait_for(services[0], 10)
        services[1].cancel()
        await asyncio.gather(*services, return_exceptions=True)
        for connection in (session, writing, listener):
            await connection.close()


# -- room ------------------------------------------------------------------------------------------------------


async def test_it_takes_as_many_as_there_is_room_for_and_more_when_there_is(db: Database) -> None:
    tasks = [factories.task(db, id=f"{number}", enqueued_at=ago(minutes=9 - number)) for number in range(5)]
    async with claiming(db, Pool(sync=2)) as yard:
        await yard.has(*tasks[:2])
        assert len(yard.held) == 2
        yard.finish("0")
        await yard.has("1", "2")
        yard.finish()
        await yard.has("3", "4")
        yard.finish()
        await yard.has()
        await asyncio.wait_for(yard.finalizer.drained(), 30)
        assert len(yard.held) == 0
        await eventually_async(lambda: yard.claimer._idle)
        assert yard.claimer.statements <= 2 * 4  # each wake: what there was, and that there is no more
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}


async def test_a_notification_wakes_it_at_once(db: Database) -> None:
    async with claiming(db, Pool()) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        task = factories.task(db)
        yard.claimer.on_news()
        await yard.has(task)
        yard.finish()


async def test_without_a_notification_the_poll_finds_it(db: Database) -> None:
    async with claiming(db, Pool(), poll_ms=1_000) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        task = factories.task(db)
        await yard.has(task)
        yard.finish()


async def test_a_delayed_task_starts_when_it_is_due(db: Database) -> None:
    task = factories.task(db, enqueued_at=ahead(seconds=0.6))
    async with claiming(db, Pool()) as yard:
        await yard.has(task)
        stored = factories.read(db, task)
        assert (
            0 <= (stored["started_at"] - stored["enqueued_at"]).total_seconds() < 2
        )  # not a poll of five seconds later
        yard.finish()


async def test_an_idle_worker_asks_for_nothing(db: Database) -> None:
    async with claiming(db, Pool()) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        before = yard.claimer.statements
        yard.claimer.on_room()
        await asyncio.sleep(0.3)
        assert yard.claimer.statements == before


async def test_what_is_handed_ahead_comes_in_the_order_of_its_priority(db: Database) -> None:
    queues = [CustomQueueConfig(name="a", priority=50), CustomQueueConfig(name="b", priority=50)]
    for number, (queue, priority, minutes) in enumerate(
        [("a", 50, 5), ("b", 50, 4), ("a", 50, 3), ("b", 1, 1), ("a", 9, 2), ("b", 50, 6)]
    ):
        factories.task(
            db, id=str(number), task_name="noop", queue_name=queue, priority=priority, enqueued_at=ago(minutes=minutes)
        )
    pool = Pool(sync=1, ahead=10, short=frozenset({"noop"}))
    async with claiming(db, pool, queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await yard.has(*"012345")
        assert pool.ids == ["3", "4", "5", "0", "1", "2"]
        yard.finish()


async def test_a_worker_holds_no_more_than_its_limit(db: Database) -> None:
    for number in range(9):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=5), max_per_worker=3) as yard:
        await yard.has("0", "1", "2")
        await asyncio.sleep(0.1)
        assert len(yard.pool.jobs) == 3
        yard.finish("1")
        await yard.has("0", "2", "3")
        yard.finish()
        await yard.has("4", "5", "6")


async def test_results_that_wait_for_the_database_hold_the_claims_back(db: Database) -> None:
    """And when they are written the claims go on, without waiting for a poll."""
    for number in range(9):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=3), max_claim_batch=1) as yard:
        await yard.has("0", "1", "2")
        held = yard.finalizer._write
        gate = asyncio.Event()

        async def waiting(batch: Any) -> None:
            await gate.wait()
            await held(batch)

        yard.finalizer._write = waiting  # type: ignore[method-assign]
        yard.finish("0", "1")
        await asyncio.sleep(0.2)
        assert yard.pool.ids == ["2"]
        gate.set()
        await yard.has("2", "3", "4")


# -- the buffer ------------------------------------------------------------------------------------------------


async def test_the_buffer_is_started_before_anything_new(db: Database) -> None:
    for number in range(6):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=1), prefetch_buffer=2, claim_lease_ms=60_000) as yard:
        await yard.has("0")
        await eventually_async(lambda: len(yard.starter) == 2)
        assert dict(db.execute("SELECT id, status FROM horsies_tasks WHERE claimed")) == {
            "1": "CLAIMED",
            "2": "CLAIMED",
        }
        yard.finish()
        await yard.has("1")
        await eventually_async(lambda: [task.job.task_id for task in yard.starter.waiting()] == ["2", "3"])


# -- kinds -----------------------------------------------------------------------------------------------------


async def test_synchronous_tasks_do_not_hide_async_ones(db: Database) -> None:
    for number in range(30):
        factories.task(db, id=f"sync {number:02}", enqueued_at=ago(minutes=60 - number))
    factories.task(db, id="async", task_name="poll")
    async with claiming(db, Pool(sync=1, asynchronous=5)) as yard:
        await yard.has("sync 00", "async")


async def test_what_one_worker_passes_over_another_can_take_at_the_same_time(db: Database) -> None:
    """A claim that only has async places does not lock the synchronous tasks that it looks at."""
    factories.task(db, id="sync")
    factories.task(db, id="async", task_name="poll")
    async with Hands.on(db, "asynchronous") as one, Hands.on(db) as two:
        transaction = one.connection.transaction()
        await transaction.start()
        names = {"async_names": ["poll"], "other_names": ["add"]}
        assert len(await one.claim(5, room_sync=0, room_async=5, **names)) == 1
        assert [row["id"] for row in await two.claim(5, **names)] == ["sync"]
        await transaction.rollback()


# -- where it looks --------------------------------------------------------------------------------------------


async def test_a_backlog_is_worked_off_by_hints_and_everything_else_is_found_within_a_second(db: Database) -> None:
    """An older task, and a more urgent one, that appear behind the hints' back: without any notification."""
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, priority, enqueued_at) SELECT to_char(i, 'FM0000'), 'add', 50,"
        " now() - interval '1 hour' + i * interval '1 ms' FROM generate_series(1, 9000) AS i"
    )
    async with claiming(db, Pool(sync=5)) as yard:
        began = time.monotonic()
        while time.monotonic() - began < 0.4:
            await eventually_async(lambda: len(yard.pool.jobs) == 5, interval=0)
            yard.finish()
        hinted = [request for request in yard.requests if not request.discover]
        assert len(hinted) > 0.8 * len(yard.requests)
        factories.task(db, id="older", priority=50, enqueued_at=ago(days=1))
        factories.task(db, id="urgent", priority=1)
        placed, found = time.monotonic(), dict[str, float]()
        while len(found) < 2 and time.monotonic() - placed < 5:
            await eventually_async(lambda: len(yard.pool.jobs) == 5, interval=0)
            found |= {id: time.monotonic() - placed for id in yard.pool.ids if id in ("older", "urgent")}
            yard.finish()
        assert found.keys() == {"older", "urgent"}
        assert max(found.values()) < 2.5  # within a second of looking by hints, and what a busy machine adds


async def test_while_a_discovery_is_slow_tasks_are_found_by_hints(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's long transaction keeps thousands of dead entries at the front of the queue."""
    monkeypatch.setattr(lookout_module, "SLOW_S", 0.001)
    monkeypatch.setattr(lookout_module, "SHARE", 1_000)
    with psycopg.connect(db.url) as holder:
        holder.execute("SELECT txid_current()")
        db.execute(
            "INSERT INTO horsies_tasks (id, task_name, enqueued_at) SELECT 'dead ' || i, 'add', now() - interval '1 h'"
            " FROM generate_series(1, 5000) AS i"
        )
        db.execute("UPDATE horsies_tasks SET enqueued_at = now() + interval '1 day'")
        async with claiming(db, Pool(sync=2)) as yard:
            first = factories.task(db)
            yard.claimer.on_news()
            await yard.has(first)
            yard.finish()
            for _ in range(20):
                task = factories.task(db)
                yard.claimer.on_news()
                await yard.has(task)
                yard.finish()
            discoveries = [request for request in yard.requests if request.discover]
            assert len(discoveries) <= 4
            await asyncio.wait_for(yard.finalizer.drained(), 30)


# -- pause and caps --------------------------------------------------------------------------------------------


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail"), CustomQueueConfig(name="video")]
    control: Mapping[str, Any] = Queries(None, Identity())._statements
    async with claiming(db, Pool(sync=5), queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        db.execute(control["pause_queue"].sql.replace("$1", "'mail'"))
        yard.claimer.on_queue_state()
        factories.task(db, id="mail", queue_name="mail")
        factories.task(db, id="video", queue_name="video")
        yard.claimer.on_news()
        await yard.has("video")
        yard.finish()
        await yard.has()
        yard.claimer.on_news()
        await asyncio.sleep(0.1)
        assert yard.pool.ids == []
        db.execute(control["resume_queue"].sql.replace("$1", "'mail'"))
        yard.claimer.on_queue_state()
        await yard.has("mail")
        yard.finish()


async def test_a_cap_is_used_again_as_soon_as_it_is_free(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", max_concurrency=2)]
    for number in range(6):
        factories.task(db, id=str(number), queue_name="mail", enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=5), queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await yard.has("0", "1")
        for pair in (("2", "3"), ("4", "5")):
            yard.finish()
            await yard.has(*pair)
        yard.finish()
    assert invariants.check(db, qcap=2) == []


@pytest.mark.parametrize("cap", ["queue", "cluster"])
async def test_a_place_under_a_cap_that_another_worker_frees_is_taken_at_once(db: Database, cap: str) -> None:
    """Not at the next poll."""
    queues = [CustomQueueConfig(name="mail", max_concurrency=1 if cap == "queue" else None)]
    held = factories.task(db, "RUNNING", queue_name="mail", claimed_by_worker_id="worker-2")
    waiting = factories.task(db, queue_name="mail")
    config = {"cluster_wide_cap": 1} if cap == "cluster" else {}
    async with claiming(
        db, Pool(sync=5), poll_ms=60_000, queue_mode=QueueMode.CUSTOM, custom_queues=queues, **config
    ) as yard:
        listener = await asyncpg.connect(db.url)
        await listener.add_listener("task_done", lambda *_: yard.claimer.on_place_freed())
        await eventually_async(lambda: yard.claimer._is_capped and yard.claimer._idle)
        assert yard.pool.ids == []
        factories.finish(db, held)
        await yard.has(waiting)
        yard.finish()
        await listener.close()


async def test_ends_elsewhere_are_no_news_where_no_cap_is_reached(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", max_concurrency=9)]
    async with claiming(db, Pool(sync=5), poll_ms=60_000, queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        before = yard.claimer.statements
        for _ in range(20):
            yard.claimer.on_place_freed()
        await asyncio.sleep(0.1)
        assert yard.claimer.statements == before


async def test_many_ends_elsewhere_do_not_keep_a_capped_claimer_busy(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", max_concurrency=1)]
    factories.task(db, "RUNNING", queue_name="mail", claimed_by_worker_id="worker-2")
    factories.task(db, queue_name="mail")
    async with claiming(db, Pool(sync=5), poll_ms=60_000, queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.claimer._is_capped and yard.claimer._idle)
        before, began = yard.claimer.statements, time.monotonic()
        while time.monotonic() - began < 0.5:
            yard.claimer.on_place_freed()
            await asyncio.sleep(0.001)
        # a claim under the lock takes a millisecond at least
        assert yard.claimer.statements - before <= 2 + 0.5 / (CAPPED_REST * 0.001)


# -- names that this process does not know -----------------------------------------------------------------


def fill_ghosts(
    db: Database, count: int, enqueued_at: str = "now() - interval '1 minute'", priority: int = 100
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, priority, enqueued_at)"
        f" SELECT 'ghost ' || i, 'ghost', {priority}, {enqueued_at} FROM generate_series(1, {count}) AS i"
    )


async def test_a_worker_that_does_not_know_the_name_takes_nothing_from_one_that_does(db: Database) -> None:
    db.execute("INSERT INTO horsies_tasks (id, task_name) SELECT i, 'add' FROM generate_series(1, 300) AS i")
    async with (
        claiming(db, Pool(sync=50), hears=True, knows_add=False, worker_id="stranger") as stranger,
        claiming(db, Pool(sync=5), hears=True) as knower,
    ):
        while db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'"):
            await eventually_async(lambda: bool(knower.pool.jobs) or knower.claimer._idle, interval=0)
            knower.finish()
            await asyncio.wait_for(knower.finalizer.drained(), 30)
        assert stranger.pool.ids == []
    assert db.execute("SELECT status, claim_generation, count(*) FROM horsies_tasks GROUP BY 1, 2") == [
        ("COMPLETED", 1, 300)
    ]


async def test_tasks_of_unknown_names_are_not_touched(db: Database) -> None:
    tasks = [
        factories.task(db, task_name="ghost"),
        factories.task(db, task_name="ghost", good_until=ago(seconds=1), enqueued_at=ago(minutes=1)),
        factories.task(db, task_name="ghost", enqueued_at=ahead(seconds=0.2)),
    ]
    before = [factories.read(db, task) for task in tasks]
    async with claiming(db, Pool(), poll_ms=1_000, prefetch_buffer=3, claim_lease_ms=60_000) as yard:
        await hears_of(yard, factories.task(db))
        await asyncio.sleep(0.3)
        yard.claimer.on_news()
        await calm(yard)
    assert [factories.read(db, task) for task in tasks] == before
    db.execute("DELETE FROM horsies_tasks WHERE good_until IS NOT NULL")


async def test_ready_and_coming_tasks_of_unknown_names_leave_a_worker_at_rest(db: Database) -> None:
    fill_ghosts(db, 500)
    db.execute("UPDATE horsies_tasks SET enqueued_at = now() + random() * interval '2 s' WHERE random() < 0.5")
    async with claiming(db, Pool(), poll_ms=60_000) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        before = yard.claimer.statements
        await asyncio.sleep(0.5)
        assert yard.claimer.statements - before <= 2


async def test_beside_unknown_names_known_tasks_start_at_once_and_full_scans_are_rare(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout_module, "SLOW_S", 0.0)  # as if there were a hundred thousand of them
    monkeypatch.setattr(lookout_module, "QUICK_S", 0.0)
    monkeypatch.setattr(lookout_module, "SHARE", 1_000_000)
    fill_ghosts(db, 2_000)
    real = lookout_module.Lookout.saw

    def saw(self: Any, rows: Any, look: Any, *, took_s: float) -> int:
        """Looks from the floor are quick, on a busy machine too."""
        return real(self, rows, look, took_s=took_s if look is lookout_module.Look.FULL else -1.0)

    monkeypatch.setattr(lookout_module.Lookout, "saw", saw)
    async with claiming(db, Pool(sync=2), poll_ms=60_000) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        for priority in (100, 1, 50, 100, 100):
            await hears_of(yard, factories.task(db, priority=priority))
            await eventually_async(lambda: yard.claimer._idle)
        full = [one for one in yard.requests if isinstance(one, ClaimRequest) and one.discover and one.floor is None]
        assert len(full) <= 2  # how long the first takes says nothing


async def test_what_comes_back_behind_the_floor_is_found_by_the_next_full_scan(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout_module, "SLOW_S", 0.0)
    monkeypatch.setattr(lookout_module, "SHARE", 100)
    fill_ghosts(db, 1_500)
    async with claiming(db, Pool(sync=2), poll_ms=60_000) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        task = factories.task(db, enqueued_at=ago(hours=1))
        yard.claimer.on_news()
        await yard.has(task, timeout=20)  # not a poll of a minute later
        yard.finish()


# -- trouble ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", When)
async def test_a_claim_whose_answer_was_lost_is_given_back_and_made_again(db: Database, when: When) -> None:
    """RUNNING in the database, in nobody's hands: not left to the reaper, which would call it a crash."""
    tasks = [factories.task(db) for _ in range(3)]
    with ChaosProxy(db.url) as proxy:
        proxy.cut_at("UPDATE horsies_tasks t\\s+SET status = c.status", when)
        async with claiming(db, Pool(sync=3), url=proxy.url, hears=True) as yard:
            await yard.has(*tasks)
            assert proxy.cuts == 1
            yard.finish()
            await asyncio.wait_for(yard.finalizer.drained(), 30)
    assert db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1") == [("COMPLETED", 3)]
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 3


async def test_an_unexpected_error_does_not_end_the_loop(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([RuntimeError("a bug"), KeyError("another")])
    real = Queries.claim

    async def failing(self: Queries, *args: Any, **kwargs: Any) -> Any:
        if error := next(failures, None):
            raise error
        return await real(self, *args, **kwargs)

    monkeypatch.setattr(Queries, "claim", failing)
    task = factories.task(db)
    async with claiming(db, Pool()) as yard:
        await yard.has(task)
        yard.finish()


# -- what is heard while idle ----------------------------------------------------------------------------------


async def a_first_one(yard: Yard) -> None:
    """The worker has run a task and is idle: it knows where the last one came from."""
    await eventually_async(lambda: yard.claimer._idle)
    await hears_of(yard, factories.task(yard.db))
    await calm(yard)


async def hears_of(yard: Yard, *ids: str) -> None:
    yard.claimer.on_news()
    await yard.has(*ids)
    yard.finish()
    await asyncio.wait_for(yard.finalizer.drained(), 30)


async def calm(yard: Yard) -> None:
    """Until it has looked everywhere again and found nothing."""
    await eventually_async(lambda: bool(yard.requests[-1].discover) and yard.claimer._idle)


async def test_one_task_at_a_time_costs_one_statement_each(db: Database) -> None:
    async with claiming(db, Pool(sync=2)) as yard:
        await a_first_one(yard)
        before = len(yard.requests)
        for _ in range(5):
            await hears_of(yard, factories.task(db))
        asked = yard.requests[before:]
        assert sum(isinstance(request, NextRequest) for request in asked) >= 5
        await calm(yard)
        # in between it may have been calm for a moment, on a slow machine; but never twice for one task
        assert len(yard.requests) - before <= 5 * 2 + 1


async def test_one_notification_for_many_finds_them_all(db: Database) -> None:
    async with claiming(db, Pool(sync=9)) as yard:
        await a_first_one(yard)
        tasks = [factories.task(db) for _ in range(7)]
        await hears_of(yard, *tasks)


async def test_as_many_as_were_heard_of_are_taken_at_once(db: Database) -> None:
    async with claiming(db, Pool(sync=9)) as yard:
        await a_first_one(yard)
        before = len(yard.requests)
        tasks = [factories.task(db) for _ in range(3)]
        yard.claimer.on_news()
        yard.claimer.on_news()
        await hears_of(yard, *tasks)
        first = yard.requests[before]
        assert isinstance(first, NextRequest)
        assert first.limit == 4


@pytest.mark.parametrize(
    "elsewhere",
    [{"priority": 1}, {"good_until": ago(seconds=1)}, {"enqueued_at": ago(days=1)}],
)
async def test_what_is_not_where_the_last_one_was_is_found_at_once(db: Database, elsewhere: dict[str, Any]) -> None:
    async with claiming(db, Pool(sync=2)) as yard:
        await a_first_one(yard)
        task = factories.task(db, **elsewhere)
        yard.claimer.on_news()
        await eventually_async(lambda: factories.read(db, task)["status"] != "PENDING", timeout=2, interval=0.005)
        yard.finish()


async def test_news_of_two_places_are_both_followed(db: Database) -> None:
    async with claiming(db, Pool(sync=4)) as yard:
        await a_first_one(yard)
        here, there = factories.task(db), factories.task(db, priority=1)
        yard.claimer.on_news()
        await hears_of(yard, here, there)


async def test_a_look_everywhere_is_not_put_off_for_ever(db: Database) -> None:
    """Somebody sends one task after the other; an urgent one came back without a word to anybody."""
    async with claiming(db, Pool(sync=1)) as yard:
        await a_first_one(yard)
        factories.task(db, id="urgent", priority=1)
        began = time.monotonic()
        while "urgent" not in yard.pool.ids and time.monotonic() - began < 10:
            yard.finish()
            factories.task(db)
            yard.claimer.on_news()
            await eventually_async(lambda: bool(yard.pool.ids), interval=0)
        assert time.monotonic() - began < 5
        yard.finish()


async def test_a_streak_ends_where_its_queue_is_paused(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", priority=5)]
    control: Mapping[str, Any] = Queries(None, Identity())._statements
    async with claiming(db, Pool(sync=5), queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.claimer._idle)
        await hears_of(yard, factories.task(db, queue_name="mail"))
        await calm(yard)
        db.execute(control["pause_queue"].sql.replace("$1", "'mail'"))
        yard.claimer.on_queue_state()
        await eventually_async(lambda: yard.claimer._paused == {"mail"})
        factories.task(db, queue_name="mail")
        yard.claimer.on_news()
        await asyncio.sleep(0.1)
        assert yard.pool.ids == []


# -- kinds of which there is nothing ---------------------------------------------------------------------------


async def test_places_of_one_kind_are_filled_without_looking_for_the_other(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry with sync and async tasks, a queue with sync ones only: one statement per place that comes free."""
    monkeypatch.setattr(lookout_module, "SLOW_S", 60.0)  # a discovery that is slow here says nothing
    for number in range(40):
        factories.task(db, id=f"{number:02}", enqueued_at=ago(seconds=100 - number))
    async with claiming(db, Pool(sync=1, asynchronous=50)) as yard:
        await yard.has("00")
        before = len(yard.requests)
        for number in range(1, 31):
            yard.finish()
            await yard.has(f"{number:02}")
        asked = yard.requests[before:]
        assert sum(isinstance(request, NextRequest) for request in asked) >= 20
        assert len(asked) <= 45  # thirty, and a look at everything each second
        yard.finish()


async def test_news_end_the_belief_that_there_is_nothing_of_a_kind(db: Database) -> None:
    for number in range(5):
        factories.task(db, id=f"{number}", enqueued_at=ago(seconds=10 - number))
    async with claiming(db, Pool(sync=1, asynchronous=5)) as yard:
        await yard.has("0")
        yard.finish()
        await yard.has("1")
        poll = factories.task(db, task_name="poll")
        yard.claimer.on_news()
        await yard.has("1", poll)
        yard.finish()
        await eventually_async(lambda: yard.pool.ids == ["2"])
        yard.finish()


async def test_a_delayed_task_is_on_time_although_the_last_look_was_for_one_kind_only(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout_module, "SLOW_S", 60.0)
    factories.task(db, id="first", enqueued_at=ago(seconds=9))
    async with claiming(db, Pool(sync=1, asynchronous=5), poll_ms=60_000) as yard:
        await yard.has("first")
        await eventually_async(lambda: yard.claimer._none_async)  # it has looked for the other kind
        late = factories.task(db, enqueued_at=ahead(seconds=1))
        yard.finish()
        await yard.has(late, timeout=20)
        yard.finish()


async def test_what_found_no_room_is_claimed_when_there_is_some_again(db: Database) -> None:
    """Nothing of a kind was found; then some came, and more than there were places."""
    factories.task(db, id="sync", enqueued_at=ago(seconds=9))
    async with claiming(db, Pool(sync=1, asynchronous=2), poll_ms=60_000) as yard:
        await yard.has("sync")
        tasks = [factories.task(db, id=f"poll {number}", task_name="poll") for number in range(5)]
        yard.claimer.on_news()
        await yard.has("sync", *tasks[:2])
        yard.finish("sync")
        await yard.has(*tasks[:2])
        yard.finish()
        await yard.has(*tasks[2:4])
        yard.finish()
        await yard.has(tasks[4])
        yard.finish()


async def test_a_backlog_that_came_with_one_notification_is_worked_off(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it came, nothing of either kind was there; that is no longer to be believed."""
    monkeypatch.setattr(lookout_module, "SLOW_S", 60.0)
    async with claiming(db, Pool(sync=2, asynchronous=5), poll_ms=60_000) as yard:
        await a_first_one(yard)
        db.execute("INSERT INTO horsies_tasks (id, task_name) SELECT i, 'add' FROM generate_series(1, 6) AS i")
        yard.claimer.on_news()
        for pair in (("1", "2"), ("3", "4"), ("5", "6")):
            await yard.has(*pair)
            yard.finish()
