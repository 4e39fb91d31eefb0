"""Heartbeats, leases, cancel requests, progress and staged results of the tasks that a worker owns.

The database is real; only the pool is a stand-in, which lists running jobs and records what it is asked to do.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import ResilienceConfig, RetryPolicy
from horsies.options import TaskOptions
from horsies_worker.child.jobs import Job, Room
from horsies_worker.claim.buffer import Buffer
from horsies_worker.claim.claimed_task import ClaimedTask, OwnedTasks
from horsies_worker.claim.reconcile import Reconciler
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.finish.finalizer import MAX_BYTES, STAGE_AFTER_S, Finalizer
from horsies_worker.identity import Identity
from horsies_worker.liveness.cancels import CancelRequests
from horsies_worker.liveness.heartbeats import MAX_CLAIM_LEASES, Heartbeats
from horsies_worker.liveness.progress import Progress
from tests.support import factories
from tests.support.apps import make_app
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.factories import NOW
from tests.support.hands import Hands, end_of, moment
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

Key = tuple[str, int]
LEASE_MS = 60_000
AWAY = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)


@dataclass
class Pool:
    """Runs these jobs, each in a child of its own, and records what it is asked to do."""

    jobs: dict[Key, Job] = field(default_factory=dict)
    abandoned: list[Key] = field(default_factory=list)
    cancelled: list[Key] = field(default_factory=list)
    submitted: list[Key] = field(default_factory=list)
    looks: int = 0

    def alive(self) -> list[Job]:
        return list(self.jobs.values())

    def running(self) -> list[Job]:
        self.looks += 1
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
class Clock:
    ahead: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Watch:
    """The services, and what they work on."""

    db: Database
    heartbeats: Heartbeats
    cancels: CancelRequests
    progress: Progress
    pool: Pool
    owned: OwnedTasks
    buffer: Buffer
    finalizer: Finalizer
    clock: Clock

    def hold(self, status: str = "RUNNING", *, options: TaskOptions | None = None, **columns: Any) -> str:
        """A task that this worker owns: running in a child, or in the buffer."""
        task = factories.task(self.db, status, **columns)
        job = Job(task, columns.get("claim_generation", 1), 1, "add", None, None)
        claimed = ClaimedTask(job, 2 if options else 0, options or TaskOptions())
        self.owned.add([claimed])
        if status == "RUNNING":
            self.pool.jobs[job.task_id, job.generation] = job
        else:
            self.buffer.add([claimed])
        return task

    def wait(self, seconds: float = 300) -> None:
        """Let this much time pass."""
        self.clock.ahead += seconds

    async def beat(self) -> None:
        """The first tick sees the tasks, the second finds every heartbeat due."""
        await self.heartbeats.run_once()
        self.wait()
        await self.heartbeats.run_once()

    def beats(self, task: str) -> list[tuple[Any, ...]]:
        return self.db.execute(
            "SELECT role, sender_id, hostname, pid FROM horsies_heartbeats WHERE task_id = %s ORDER BY id", task
        )


@asynccontextmanager
async def watching(
    db: Database, url: str | None = None, *, stage_after_s: float = STAGE_AFTER_S, poll_ms: int = 1_000
) -> AsyncIterator[Watch]:
    app = make_app(url or db, resilience={"notify_poll_interval_ms": poll_ms})
    session = Session(app.config.broker, "heartbeat", Queries(None, Identity("worker-1", "host-1", 4711)))
    pool: Any = Pool()
    owned = OwnedTasks()
    buffer = Buffer(session, pool, owned)
    clock = Clock()
    finalizer = Finalizer(session, ResilienceConfig(), on_done=lambda keys: None)
    progress = Progress(session, owned, lambda: heartbeats.end_idle_pause())  # noqa: PLW0108  (built later)
    heartbeats = Heartbeats(
        session, app.config, pool, owned, buffer, finalizer, lease_ms=LEASE_MS, clock=clock,
        afterwards=(partial(finalizer.stage_late, session, stage_after_s), progress.run_once),
    )  # fmt: skip
    cancels = CancelRequests(session, app.config.resilience, pool, owned, clock=clock)
    try:
        yield Watch(db, heartbeats, cancels, progress, pool, owned, buffer, finalizer, clock)
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


async def test_without_a_task_the_ticks_are_rare(db: Database) -> None:
    async with watching(db) as watch:
        idle_s = watch.heartbeats.pause_s()
        for status in ("RUNNING", "CLAIMED"):
            task = watch.hold(status)
            assert watch.heartbeats.pause_s() < idle_s / 2
            watch.owned.take([(task, 1)])
            assert watch.heartbeats.pause_s() == idle_s


async def test_progress_does_not_wait_for_the_end_of_an_idle_pause(db: Database) -> None:
    async with watching(db) as watch:
        running = asyncio.create_task(watch.heartbeats.run())
        await asyncio.sleep(0.05)  # the first tick, which finds nothing to do
        idle_s = watch.heartbeats.pause_s()
        task = watch.hold()
        async with asyncio.timeout(0.75 * idle_s):
            watch.progress.on_progress(watch.pool.jobs[task, 1], '{"page": 1}')
            while factories.read(db, task)["progress"] is None:
                await asyncio.sleep(0.01)
        running.cancel()


async def test_very_short_tasks_cost_no_beat_and_long_ones_one_per_interval(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        await watch.heartbeats.run_once()
        assert watch.beats(task) == []
        watch.wait(1.1)
        await watch.heartbeats.run_once()
        assert len(watch.beats(task)) == 1
        for seconds, expected in ((28, 1), (3, 2), (1, 2)):
            watch.wait(seconds)
            await watch.heartbeats.run_once()
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
        assert watch.pool.abandoned == [(lost, 1)]
        assert watch.beats(lost) == []
        assert len(watch.beats(mine)) == 1
        assert watch.owned.get(lost) is None


async def test_a_task_whose_end_is_on_its_way_is_not_lost(db: Database) -> None:
    """It ended, or went back, between the look at the pool and the answer to the beat."""
    async with watching(db) as watch:
        ended, returned = watch.hold(), watch.hold()
        db.execute("UPDATE horsies_tasks SET claim_generation = 2")
        await watch.heartbeats.run_once()
        watch.wait()
        row = {"id": ended, "claim_generation": 1, "retry_count": 0, "max_retries": 0}
        watch.finalizer.add(end_of(row))
        watch.finalizer.give_back([(returned, 1)])
        await watch.heartbeats.run_once()
        assert watch.pool.abandoned == []


async def test_a_result_in_hand_is_vouched_for(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        watch.pool.jobs.clear()
        end = end_of({"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0})
        watch.finalizer.add(end)
        await watch.beat()
    assert watch.beats(task) == [("runner", "worker-1", "host-1", end.outcome.pid)]


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
        watch.wait(MAX_CLAIM_LEASES * LEASE_MS / 1000)
        await watch.heartbeats.run_once()
        await watch.heartbeats.run_once()
    assert len(watch.beats(task)) == 1
    assert factories.read(db, task)["claim_expires_at"] == before
    assert caplog.text.count("its claim is not renewed") == 1


async def test_a_lost_claim_leaves_the_buffer(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold("CLAIMED", claim_generation=1)
        db.execute("UPDATE horsies_tasks SET claim_generation = 2")
        await watch.beat()
        assert watch.owned.get(task) is None
        assert len(watch.buffer) == 0


async def test_a_claim_that_is_being_started_is_not_lost(db: Database) -> None:
    """The start is committed, its answer not yet here: the buffer still has the task."""
    async with watching(db) as watch, Hands.on(db) as hands:
        task = watch.hold("CLAIMED")
        await watch.heartbeats.run_once()
        watch.wait()
        assert await hands.start([{"id": task, "claim_generation": 1}]) == {task: "RUNNING"}
        await watch.heartbeats.run_once()
        assert (watch.pool.abandoned, len(watch.buffer)) == ([], 1)


async def test_what_was_claimed_again_while_the_beat_was_under_way_is_not_stopped(db: Database) -> None:
    """The database was set back, so the heartbeat finds nothing; the next claim has the generation of the first one."""
    async with watching(db) as watch:
        task = watch.hold()
        await watch.heartbeats.run_once()
        watch.wait()
        with psycopg.connect(db.url) as restoring:
            restoring.execute("LOCK TABLE horsies_tasks")
            beat = asyncio.create_task(watch.heartbeats.run_once())
            await eventually_async(lambda: waits_for_a_lock(db), timeout=10)
            (claimed,) = watch.owned
            watch.owned.add([replace(claimed)])
            restoring.execute("UPDATE horsies_tasks SET claim_generation = 0")
        await beat
        assert watch.pool.abandoned == []
        assert watch.owned.get(task) is not None


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
        await watch.cancels.run_once()
        assert watch.pool.cancelled == [(wanted, 1)]
        watch.wait(2)
        await watch.cancels.run_once()
        assert watch.pool.cancelled == [(wanted, 1)]
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", other)
        await watch.cancels.run_once()
        assert watch.pool.cancelled == [(wanted, 1)]
        watch.wait(2)
        await watch.cancels.run_once()
        assert watch.pool.cancelled == [(wanted, 1), (other, 1)]


async def test_a_cancel_request_is_found_by_its_notification(db: Database) -> None:
    async with watching(db) as watch:
        task, unmarked = watch.hold(), watch.hold()
        await watch.cancels.run_once()
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now() WHERE id = %s", task)
        for hint in (task, unmarked, "another worker's"):
            watch.cancels.on_cancel(hint)
        await watch.cancels.run_once()
        assert watch.pool.cancelled == [(task, 1)]


async def test_a_notification_wakes_the_loop(db: Database) -> None:
    async with watching(db, poll_ms=60_000) as watch:
        task = watch.hold()
        loop = asyncio.create_task(watch.cancels.run())
        await eventually_async(lambda: watch.pool.looks >= 3)  # the first poll is over
        db.execute("UPDATE horsies_tasks SET cancel_requested_at = now()")
        watch.cancels.on_cancel(task)
        await eventually_async(lambda: watch.pool.cancelled == [(task, 1)])
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_a_poll_that_failed_is_repeated_at_once(db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url) as watch:
            task = watch.hold()
            db.execute("UPDATE horsies_tasks SET cancel_requested_at = now()")
            proxy.set(Mode.CUT)
            with pytest.raises(AWAY):
                await watch.cancels.run_once()
            proxy.set(Mode.PASS)
            await watch.cancels.run_once()
            assert watch.pool.cancelled == [(task, 1)]


# -- progress --------------------------------------------------------------------------------------------------


async def test_the_newest_progress_is_written(db: Database) -> None:
    async with watching(db) as watch:
        task, lost = watch.hold(), watch.hold()
        db.execute("UPDATE horsies_tasks SET claim_generation = 2 WHERE id = %s", lost)
        for text in ('{"done":1}', '{"done":2}'):
            for job in watch.pool.alive():
                watch.progress.on_progress(job, text)
        await watch.heartbeats.run_once()
        assert factories.read(db, task)["progress"] == {"done": 2}
        assert factories.read(db, lost)["progress"] is None
        db.execute("UPDATE horsies_tasks SET progress = NULL")
        await watch.heartbeats.run_once()
        assert factories.read(db, task)["progress"] is None


async def test_progress_of_a_locked_row_is_written_later(db: Database) -> None:
    holder = await asyncpg.connect(db.url)
    async with watching(db) as watch:
        task = watch.hold()
        (job,) = watch.pool.alive()
        watch.progress.on_progress(job, "1")
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM horsies_tasks FOR UPDATE")
        await asyncio.wait_for(watch.heartbeats.run_once(), 3)
        await transaction.rollback()
        await watch.heartbeats.run_once()
    await holder.close()
    assert factories.read(db, task)["progress"] == 1


async def test_one_value_that_cannot_be_stored_takes_no_other_along(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(db) as watch:
        tasks = [watch.hold() for _ in range(7)]
        for job in watch.pool.alive():
            watch.progress.on_progress(job, "9" * 200_000 if job.task_id == tasks[3] else "1")
        await watch.heartbeats.run_once()
    assert [factories.read(db, task)["progress"] for task in tasks] == [1, 1, 1, None, 1, 1, 1]
    assert f"task {tasks[3]}: its progress cannot be stored" in caplog.text


async def test_progress_outlives_an_outage(db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url) as watch:
            task = watch.hold()
            (job,) = watch.pool.alive()
            await watch.heartbeats.run_once()
            proxy.set(Mode.CUT)
            watch.progress.on_progress(job, "1")
            with pytest.raises(AWAY):
                await watch.heartbeats.run_once()
            proxy.set(Mode.PASS)
            await watch.heartbeats.run_once()
            assert factories.read(db, task)["progress"] == 1


# -- results in hand -------------------------------------------------------------------------------------------


def late(watch: Watch, task: str, **fields: Any) -> None:
    """A result that waits to be written."""
    row = {"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0}
    watch.finalizer.add(end_of(row, finished_mono=time.monotonic() - 3, **fields))
    watch.pool.jobs.pop((task, 1))


async def test_a_result_that_waits_is_staged_with_its_span_and_process(db: Database) -> None:
    async with watching(db, stage_after_s=0) as watch:
        task = watch.hold()
        late(watch, task, result='{"ok":42}', pid=31, process_name="child-31")
        (end,) = watch.finalizer.unwritten()
        await watch.heartbeats.run_once()
        stored = factories.read(db, task)
        assert (stored["status"], stored["result"]) == ("RUNNING", '{"ok":42}')
        assert (stored["finalizing_by_worker_id"], stored["worker_pid"]) == ("worker-1", 31)
        for column, seconds in (("started_at", end.started), ("finalizing_at", end.finished)):
            assert abs(stored[column] - moment(seconds)) <= timedelta(microseconds=1), column
        await watch.heartbeats.run_once()
        assert factories.read(db, task) == stored


async def test_a_fresh_result_is_not_staged(db: Database) -> None:
    async with watching(db) as watch:
        task = watch.hold()
        watch.finalizer.add(end_of({"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0}))
        await watch.heartbeats.run_once()
    assert factories.read(db, task)["finalizing_at"] is None


async def test_a_mark_that_could_not_be_set_is_set_later(db: Database) -> None:
    """The row was locked; the database was away."""
    holder = await asyncpg.connect(db.url)
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url, stage_after_s=0) as watch:
            task = watch.hold()
            late(watch, task)
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("SELECT 1 FROM horsies_tasks FOR UPDATE")
            await asyncio.wait_for(watch.heartbeats.run_once(), 3)
            await transaction.rollback()
            proxy.set(Mode.CUT)
            with pytest.raises(AWAY):
                await watch.heartbeats.run_once()
            proxy.set(Mode.PASS)
            await watch.heartbeats.run_once()
    await holder.close()
    assert factories.read(db, task)["finalizing_at"] is not None


async def test_large_results_are_staged_a_statement_at_a_time(db: Database) -> None:
    async with watching(db, stage_after_s=0) as watch:
        tasks = [watch.hold() for _ in range(3)]
        for task in tasks:
            late(watch, task, result=f'{{"ok":"{"x" * MAX_BYTES}"}}')
        for expected in (1, 2, 3):
            await watch.heartbeats.run_once()
            assert db.value("SELECT count(*) FROM horsies_tasks WHERE finalizing_at IS NOT NULL") == expected


async def test_what_cannot_be_staged_does_not_stop_the_beats(db: Database) -> None:
    async with watching(db, stage_after_s=0) as watch:
        retried = TaskOptions(retry_policy=RetryPolicy.fixed(1, max_retries=2, auto_retry_for=["WORKER_CRASHED"]))
        poisoned, healthy = watch.hold(), watch.hold(options=retried)
        late(watch, poisoned, result="\x00")
        for seconds, beats in ((0, 0), (2, 1), (310, 2)):
            watch.wait(seconds)
            with pytest.raises(asyncpg.CharacterNotInRepertoireError):
                await watch.heartbeats.run_once()
            assert [len(watch.beats(task)) for task in (poisoned, healthy)] == [beats, beats]
        assert watch.pool.abandoned == [], "the worker was never without contact"


async def test_a_staged_result_of_a_lost_task_is_not_written(db: Database) -> None:
    async with watching(db, stage_after_s=0) as watch:
        task = watch.hold()
        late(watch, task)
        db.execute("UPDATE horsies_tasks SET claim_generation = 2")
        before = factories.read(db, task)
        await watch.heartbeats.run_once()
        assert factories.read(db, task) == before


# -- cut off ---------------------------------------------------------------------------------------------------


async def test_cut_off_for_longer_than_the_threshold_stops_what_others_may_run(db: Database) -> None:
    retried = TaskOptions(retry_policy=RetryPolicy.fixed(1, max_retries=2, auto_retry_for=["WORKER_CRASHED"]))
    with ChaosProxy(db.url) as proxy:
        async with watching(db, proxy.url) as watch:
            shared, own = watch.hold(options=retried), watch.hold()
            await watch.heartbeats.run_once()
            proxy.set(Mode.CUT)
            for seconds, expected in ((2, []), (290, []), (20, [(shared, 1)])):
                watch.wait(seconds)
                with pytest.raises(AWAY):
                    await watch.heartbeats.run_once()
                assert watch.pool.abandoned == expected
            assert watch.owned.get(own) is not None

            # Back in contact, it is not taken for a claim whose answer was lost: that goes back to its queue uncounted.
            identity = Identity("worker-1", "host-1", 4711)
            session = Session(make_app(db).config.broker, "claim", Queries(None, identity))
            reconciler = Reconciler(session, watch.owned, watch.finalizer)
            for is_mine in (True, False):
                reconciler.doubt()
                await reconciler.settle()
                assert watch.finalizer.returning() == set()
                assert ((shared, 1) in watch.finalizer.recent) == is_mine
                # the reaper recovers it, and another worker takes it
                db.execute("UPDATE horsies_tasks SET claimed_by_worker_id = 'worker-2' WHERE id = %s", shared)
            await session.close()
