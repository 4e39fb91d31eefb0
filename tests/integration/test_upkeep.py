"""Signs of life for what a worker holds: beats, leases, progress, staged results; and who wants what stopped.

The database is real; only the pool is a stand-in, which says what runs and records what it is asked.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies import RecoveryConfig, ResilienceConfig, RetryPolicy
from horsies.options import TaskOptions
from horsies_worker.claims import ClaimedTask
from horsies_worker.finalizer import MAX_BYTES, Finalizer
from horsies_worker.held import Held
from horsies_worker.identity import Identity
from horsies_worker.jobs import Job, Room
from horsies_worker.queries import Queries
from horsies_worker.session import CLAIM_SETTINGS, Session
from horsies_worker.starter import Starter
from horsies_worker.upkeep import MAX_CLAIM_LEASES, Upkeep
from tests.support import factories
from tests.support.apps import make_app
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.factories import NOW
from tests.support.hands import Hands, end_of, moment
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

Key = tuple[str, int]
LEASE_MS = 60_000
AWAY = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)


@dataclass
class Pool:
    """Says that these jobs run, each in a child of its own, and records what is asked of it."""

    jobs: dict[Key, Job] = field(default_factory=dict)
    abandoned: list[Key] = field(default_factory=list)
    cancelled: list[Key] = field(default_factory=list)
    submitted: list[Key] = field(default_factory=list)

    def alive(self) -> list[Job]:
        return list(self.jobs.values())

    def running(self) -> list[Job]:
        return list(self.jobs.values())

    def places(self) -> dict[Key, tuple[int, str]]:
        return {key: (1_000 + number, f"child-{number}") for number, key in enumerate(sorted(self.jobs))}

    def abandon(self, task_id: str, generation: int) -> None:
        self.abandoned.append((task_id, generation))
        self.jobs.pop((task_id, generation), None)

    def cancel(self, task_id: str, generation: int) -> None:
        self.cancelled.append((task_id, generation))

    def room(self) -> Room:
        return Room(0, 0, 0)

    def submit(self, jobs: list[Job]) -> None:
        self.submitted += [(job.task_id, job.generation) for job in jobs]


@dataclass
class Watch:
    """The upkeep with what it looks after."""

    db: Database
    upkeep: Upkeep
    pool: Pool
    held: Held
    starter: Starter
    finalizer: Finalizer
    lost: list[Key]

    def hold(self, status: str = "RUNNING", *, options: TaskOptions | None = None, **columns: Any) -> str:
        """A task in this worker's hands: running in a child, or in the buffer."""
        task = factories.task(self.db, status, **columns)
        job = Job(task, columns.get("claim_generation", 1), 1, "add", None, None)
        claimed = ClaimedTask(job, "default", 0, 2 if options else 0, options or TaskOptions())
        self.held.add([claimed])
        if status == "RUNNING":
            self.pool.jobs[job.task_id, job.generation] = job
        else:
            self.starter.hold([claimed])
        return task

    def age(self, seconds: float = 300) -> None:
        """As if everything that it remembers had happened so much earlier."""
        for memory in (self.upkeep._first_seen, self.upkeep._last_beat):
            for key in memory:
                memory[key] -= seconds
        self.upkeep._next_cancel_poll -= seconds

    async def beat(self) -> None:
        """A tick that finds every beat due: the first one only notes what is there."""
        await self.upkeep.run_once()
        self.age()
        await self.upkeep.run_once()

    def beats(self, task: str) -> list[tuple[Any, ...]]:
        return self.db.execute(
            "SELECT role, sender_id, hostname, pid FROM horsies_heartbeats WHERE task_id = %s ORDER BY id", task
        )


@asynccontextmanager
async def watching(db: Database, url: str | None = None, **recovery: Any) -> AsyncIterator[Watch]:
    app = make_app(
        url or db,
        recovery=RecoveryConfig(**recovery),
        resilience={"notify_poll_interval_ms": 1_000},
    )
    session = Session(app.config.broker, "upkeep", settings=CLAIM_SETTINGS)
    queries = Queries(None, Identity("worker-1", "host-1", 4711))
    pool: Any = Pool()
    held = Held()
    starter = Starter(session, queries, pool, held)
    lost: list[Key] = []

    def on_lost(job: Job) -> None:
        lost.append((job.task_id, job.generation))
        held.drop([job])

    finalizer = Finalizer(session, queries, ResilienceConfig(), on_done=lambda keys: None)
    upkeep = Upkeep(
        app.config, session, queries, pool, held, starter, finalizer, worker_pid=4711, lease_ms=LEASE_MS,
        on_lost=on_lost,
    )  # fmt: skip
    try:
        yield Watch(db, upkeep, pool, held, starter, finalizer, lost)
    finally:
        await session.close()


# -- beats -----------------------------------------------------------------------------------------------------


async def test_what_runs_gets_a_beat_that_names_its_child(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        await watch.beat()
        (pid, name) = watch.pool.places()[task, 1]
    assert watch.beats(task) == [("runner", "worker-1", "host-1", pid)]
    stored = factories.read(db, task)
    assert (stored["worker_pid"], stored["worker_process_name"]) == (pid, name)


async def test_very_short_tasks_cost_no_beat_and_long_ones_one_per_interval(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        await watch.upkeep.run_once()
        assert watch.beats(task) == []
        watch.age(1.1)
        await watch.upkeep.run_once()
        assert len(watch.beats(task)) == 1
        for seconds, expected in ((28, 1), (3, 2), (1, 2)):
            watch.age(seconds)
            await watch.upkeep.run_once()
            assert len(watch.beats(task)) == expected


@pytest.mark.parametrize(
    "harm",
    [
        "claim_generation = 2",
        "claimed_by_worker_id = 'worker-2'",
        "status = 'FAILED', failed_at = now(), terminal_at = now(), result = '{}', error_code = 'WORKER_CRASHED'",
        "status = 'PENDING', claimed_at = NULL, claimed_by_worker_id = NULL, started_at = NULL",
    ],
)
async def test_a_task_that_was_lost_is_stopped(db: Database, harm: str) -> None:
    """Its child is told to stop, its result will be dropped, and it gets no beat."""
    async with watching(db) as watch:
        lost, mine = watch.hold(), watch.hold()
        db.execute(f"UPDATE horsies_tasks SET {harm} WHERE id = %s", lost)
        if "FAILED" in harm:
            factories.attempt(db, lost, 1, started_at=NOW)
        await watch.beat()
        assert watch.pool.abandoned == watch.lost == [(lost, 1)]
        assert watch.beats(lost) == []
        assert len(watch.beats(mine)) == 1
        assert watch.held.get(lost) is None


async def test_a_task_whose_end_is_on_its_way_is_not_lost(db: Database) -> None:
    """It ended, or went back, between the look at the pool and the answer to the beat."""
    async with watching(db) as watch:
        ended, returned = watch.hold(), watch.hold()
        db.execute("UPDATE horsies_tasks SET claim_generation = 2")
        await watch.upkeep.run_once()
        watch.age()
        row = {"id": ended, "claim_generation": 1, "retry_count": 0, "max_retries": 0}
        watch.finalizer.add(end_of(row))
        watch.finalizer.give_back([(returned, 1)])
        await watch.upkeep.run_once()
        assert watch.pool.abandoned == []


async def test_a_result_in_hand_is_vouched_for(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        watch.pool.jobs.clear()
        end = end_of({"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0})
        watch.finalizer.add(end)
        await watch.beat()
    assert watch.beats(task) == [("runner", "worker-1", "host-1", end.pid)]


async def test_a_claim_in_the_buffer_keeps_its_lease(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold("CLAIMED")
        db.execute("UPDATE horsies_tasks SET claim_expires_at = now() + interval '1 s'")
        before = factories.read(db, task)
        await watch.beat()
    assert watch.beats(task) == [("claimer", "worker-1", "host-1", 4711)]
    stored = factories.read(db, task)
    assert stored["claim_expires_at"] - before["claim_expires_at"] > timedelta(milliseconds=LEASE_MS - 2_000)
    assert stored["status"] == "CLAIMED"


async def test_a_claim_is_not_renewed_for_ever(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """F23: held by a worker that lives and never starts it."""
    async with watching(db) as watch:
        task = watch.hold("CLAIMED")
        await watch.beat()
        before = factories.read(db, task)["claim_expires_at"]
        assert len(watch.beats(task)) == 1
        watch.age(MAX_CLAIM_LEASES * LEASE_MS / 1000)
        await watch.upkeep.run_once()
        await watch.upkeep.run_once()
    assert len(watch.beats(task)) == 1
    assert factories.read(db, task)["claim_expires_at"] == before
    assert caplog.text.count("its claim is not renewed") == 1


async def test_a_lost_claim_leaves_the_buffer(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold("CLAIMED", claim_generation=1)
        db.execute("UPDATE horsies_tasks SET claim_generation = 2")
        await watch.beat()
        assert watch.lost == [(task, 1)]
        assert len(watch.starter) == 0


async def test_a_claim_that_is_being_started_is_not_lost(db: Database) -> None:
    """The start is committed, its answer not yet here: the buffer still has the task."""
    async with watching(db) as watch, Hands.on(db) as hands:
        task = watch.hold("CLAIMED")
        await watch.upkeep.run_once()
        watch.age()
        assert await hands.start([{"id": task, "claim_generation": 1}]) == {task: "RUNNING"}
        await watch.upkeep.run_once()
        assert (watch.lost, len(watch.starter)) == ([], 1)


async def test_beats_do_not_wait_for_a_locked_row(db: Database) -> None:
    holder = await asyncpg.connect(db.url)
    async with watching(db) as watch:
        locked, claimed, free = watch.hold(), watch.hold("CLAIMED"), watch.hold()
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM horsies_tasks WHERE id = ANY ($1) FOR UPDATE", [locked, claimed])
        await asyncio.wait_for(watch.beat(), 3)
        assert [len(watch.beats(task)) for task in (locked, claimed, free)] == [1, 1, 1]
        assert watch.pool.abandoned == []
        await transaction.rollback()
    await holder.close()


async def test_a_thousand_tasks_are_one_statement(db: Database) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, claimed_at, started_at, claimed_by_worker_id, worker_pid,"
        " claim_generation) SELECT i::text, 'add', 'RUNNING', now(), now(), 'worker-1', 1, 1"
        " FROM generate_series(1, 1000) AS i"
    )
    async with watching(db) as watch:
        watch.pool.jobs = {(str(i), 1): Job(str(i), 1, 1, "add", None, None) for i in range(1, 1_001)}
        await watch.beat()
    assert db.value("SELECT count(DISTINCT sent_at) FROM horsies_heartbeats") == 1
    assert db.value("SELECT count(*) FROM horsies_heartbeats") == 1_000


# -- cancel ----------------------------------------------------------------------------------------------------


async def test_a_cancel_request_is_found_by_the_poll_and_asked_for_once(db: Database) -> None:
    async with watching(db) as watch:
        wanted, other = watch.hold(), watch.hold()
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", wanted)
        await watch.upkeep.run_once()
        assert watch.pool.cancelled == [(wanted, 1)]
        watch.age(2)
        await watch.upkeep.run_once()
        assert watch.pool.cancelled == [(wanted, 1)]
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", other)
        await watch.upkeep.run_once()
        assert watch.pool.cancelled == [(wanted, 1)]
        watch.age(2)
        await watch.upkeep.run_once()
        assert watch.pool.cancelled == [(wanted, 1), (other, 1)]


async def test_a_cancel_request_is_found_by_its_notification(db: Database) -> None:
    async with watching(db) as watch:
        task, unmarked = watch.hold(), watch.hold()
        await watch.upkeep.run_once()
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", task)
        for hint in (task, unmarked, "somebody else's"):
            watch.upkeep.on_cancel(hint)
        await watch.upkeep.run_once()
        assert watch.pool.cancelled == [(task, 1)]


async def test_a_notification_wakes_the_loop(db: Database) -> None:
    async with watching(db) as watch:
        watch.upkeep._interval_s = 600
        task = watch.hold()
        loop = asyncio.create_task(watch.upkeep.run())
        await eventually_async(lambda: watch.upkeep._first_seen)
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now()")
        watch.upkeep.on_cancel(task)
        await eventually_async(lambda: watch.pool.cancelled == [(task, 1)])
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


# -- progress --------------------------------------------------------------------------------------------------


async def test_the_newest_progress_is_written(db: Database) -> None:
    async with watching(db) as watch:
        task, lost = watch.hold(), watch.hold()
        db.execute("UPDATE horsies_tasks SET claim_generation = 2 WHERE id = %s", lost)
        for text in ('{"done":1}', '{"done":2}'):
            for job in watch.pool.alive():
                watch.upkeep.on_progress(job, text)
        await watch.upkeep.run_once()
        assert factories.read(db, task)["progress"] == {"done": 2}
        assert factories.read(db, lost)["progress"] is None
        db.execute("UPDATE horsies_tasks SET progress = NULL")
        await watch.upkeep.run_once()
        assert factories.read(db, task)["progress"] is None


async def test_progress_of_a_locked_row_is_written_later(db: Database) -> None:
    holder = await asyncpg.connect(db.url)
    async with watching(db) as watch:
        task = watch.hold()
        (job,) = watch.pool.alive()
        watch.upkeep.on_progress(job, "1")
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM horsies_tasks FOR UPDATE")
        await asyncio.wait_for(watch.upkeep.run_once(), 3)
        await transaction.rollback()
        await watch.upkeep.run_once()
    await holder.close()
    assert factories.read(db, task)["progress"] == 1


async def test_one_value_that_cannot_be_stored_takes_no_other_along(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(db) as watch:
        tasks = [watch.hold() for _ in range(7)]
        for job in watch.pool.alive():
            watch.upkeep.on_progress(job, "9" * 200_000 if job.task_id == tasks[3] else "1")
        await watch.upkeep.run_once()
    assert [factories.read(db, task)["progress"] for task in tasks] == [1, 1, 1, None, 1, 1, 1]
    assert f"task {tasks[3]}: its progress cannot be stored" in caplog.text


async def test_progress_outlives_an_outage(db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url) as watch:
            task = watch.hold()
            (job,) = watch.pool.alive()
            await watch.upkeep.run_once()
            proxy.set(Mode.CUT)
            watch.upkeep.on_progress(job, "1")
            with pytest.raises(AWAY):
                await watch.upkeep.run_once()
            proxy.set(Mode.PASS)
            await watch.upkeep.run_once()
            assert factories.read(db, task)["progress"] == 1


# -- results in hand -------------------------------------------------------------------------------------------


def late(watch: Watch, task: str, **fields: Any) -> None:
    """A result that has been waiting to be written for three seconds."""
    row = {"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0}
    watch.finalizer.add(end_of(row, **fields))
    watch.finalizer._ends[task, 1].since -= 3
    watch.pool.jobs.pop((task, 1))


async def test_a_result_that_waits_is_staged_with_its_span_and_process(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        late(watch, task, result='{"ok":42}', pid=31, process_name="child-31")
        (end,) = watch.finalizer.unwritten()
        await watch.upkeep.run_once()
        stored = factories.read(db, task)
        assert (stored["status"], stored["result"]) == ("RUNNING", '{"ok":42}')
        assert (stored["finalizing_by_worker_id"], stored["worker_pid"]) == ("worker-1", 31)
        assert (stored["started_at"], stored["finalizing_at"]) == (moment(end.started), moment(end.finished))
        await watch.upkeep.run_once()
        assert factories.read(db, task) == stored


async def test_a_fresh_result_is_not_staged(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        watch.finalizer.add(end_of({"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0}))
        await watch.upkeep.run_once()
    assert factories.read(db, task)["finalizing_at"] is None


async def test_a_mark_that_could_not_be_set_is_set_later(db: Database) -> None:
    """The row was locked; the database was away."""
    holder = await asyncpg.connect(db.url)
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url) as watch:
            task = watch.hold()
            late(watch, task)
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("SELECT 1 FROM horsies_tasks FOR UPDATE")
            await asyncio.wait_for(watch.upkeep.run_once(), 3)
            await transaction.rollback()
            proxy.set(Mode.CUT)
            with pytest.raises(AWAY):
                await watch.upkeep.run_once()
            proxy.set(Mode.PASS)
            await watch.upkeep.run_once()
    await holder.close()
    assert factories.read(db, task)["finalizing_at"] is not None


async def test_large_results_are_staged_a_statement_at_a_time(db: Database) -> None:
    async with watching(db) as watch:
        tasks = [watch.hold() for _ in range(3)]
        for task in tasks:
            late(watch, task, result=f'{{"ok":"{"x" * MAX_BYTES}"}}')
        for expected in (1, 2, 3):
            await watch.upkeep.run_once()
            assert db.value("SELECT count(*) FROM horsies_tasks WHERE finalizing_at IS NOT NULL") == expected


async def test_what_cannot_be_staged_does_not_stop_the_beats(db: Database) -> None:
    async with watching(db) as watch:
        poisoned, healthy = watch.hold(), watch.hold()
        late(watch, poisoned, result="\x00")
        for seconds in (0, 2):
            watch.age(seconds)
            with pytest.raises(asyncpg.CharacterNotInRepertoireError):
                await watch.upkeep.run_once()
    assert [len(watch.beats(task)) for task in (poisoned, healthy)] == [1, 1]


async def test_a_staged_result_of_a_lost_task_is_not_written(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        late(watch, task)
        db.execute("UPDATE horsies_tasks SET claim_generation = 2")
        before = factories.read(db, task)
        await watch.upkeep.run_once()
        assert factories.read(db, task) == before


# -- cut off ---------------------------------------------------------------------------------------------------


async def test_cut_off_for_longer_than_the_threshold_stops_what_others_may_run(db: Database) -> None:
    retried = TaskOptions(retry_policy=RetryPolicy.fixed(1, max_retries=2, auto_retry_for=["WORKER_CRASHED"]))
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url) as watch:
            shared, own = watch.hold(options=retried), watch.hold()
            await watch.upkeep.run_once()
            proxy.set(Mode.CUT)
            for seconds, expected in ((0, []), (290, []), (20, [(shared, 1)])):
                watch.upkeep._last_contact -= seconds
                watch.age()
                with pytest.raises(AWAY):
                    await watch.upkeep.run_once()
                assert watch.pool.abandoned == expected
            assert watch.held.get(own) is not None
