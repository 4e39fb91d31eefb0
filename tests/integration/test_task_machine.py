"""Hypothesis plays workers, a reaper, operators and the clock on real rows; a pure model says what they become."""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from horsies._pg.statements import load
from horsies.ids import new_id
from horsies.status import AttemptOutcome, TaskStatus
from horsies.testing.passing_time import Timeline, move_times
from horsies_worker.child.outcome import OutcomeKind
from horsies_worker.database.queries import EXPIRED_RESULT
from horsies_worker.database.session import Session
from horsies_worker.liveness.recovery import Recovery
from tests.support import invariants
from tests.support.hands import Hands, end_of
from tests.support.interleaving.plays import app
from tests.support.models.tasks import CLAIMED_STALE_S, LEASE_S, RUNNING_STALE_S, Model, Task
from tests.support.postgres import Database

T = TypeVar("T")
EXAMPLES = int(os.environ.get("HORSIES_TEST_FUZZ", "0"))
WORKERS = ("w1", "w2")
DELAYS = st.sampled_from([0.0, 0.0, 90.0])


class Ground:
    """What all examples share: a database, connections and the loop on which they live."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.loop = asyncio.new_event_loop()
        self.connection = self.run(asyncpg.connect(db.url))
        self.app = app(db)
        self.control = load("horsies._pg", "control.sql", None)
        self.line = Timeline()
        self.number = 0
        self.session = Session(self.app.config.broker, "clock", Hands(None, _identity("clock")).queries)

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(action)

    def close(self) -> None:
        self.run(self.session.close())
        self.run(self.connection.close())
        self.loop.close()


def _identity(name: str) -> Any:
    from horsies_worker.identity import Identity

    return Identity(name, "host-1", 4711)


ground: Ground


class TaskMachine(RuleBasedStateMachine):
    """Each worker remembers every claim that it ever made, also those that it has lost since."""

    @initialize()
    def begin(self) -> None:
        ground.number += 1
        self.queue = f"m{ground.number}"
        self.model = Model()
        self.hands = {name: Hands(ground.connection, _identity(f"{name}-{self.queue}")) for name in WORKERS}
        self.claims: list[tuple[str, dict[str, Any]]] = []

    def worker_id(self, name: str) -> str:
        return self.hands[name].identity.worker_id

    # -- rules ---------------------------------------------------------------------------------------

    @rule(retries=st.integers(0, 2), delay=DELAYS, ttl=st.sampled_from([None, None, 60.0, 1000.0]))
    def send(self, retries: int, delay: float, ttl: float | None) -> None:
        task_id = new_id()
        ground.run(
            ground.connection.execute(
                "INSERT INTO horsies_tasks (id, task_name, queue_name, kwargs, max_retries, enqueued_at, good_until)"
                " VALUES ($1, 'add', $2, '{\"a\":1}', $3, statement_timestamp() + $4::interval,"
                " statement_timestamp() + $5::interval)",
                task_id,
                self.queue,
                retries,
                timedelta(seconds=delay),
                None if ttl is None else timedelta(seconds=ttl),
            )
        )
        due, until = self.model.now + delay, None if ttl is None else self.model.now + ttl
        self.model.tasks[task_id] = Task(task_id, retries, due, until)

    @precondition(lambda self: self.model.in_state("PENDING"))
    @rule(name=st.sampled_from(WORKERS), ahead=st.booleans())
    def claim(self, name: str, ahead: bool) -> None:
        room = {"room_sync": 0, "prefetch": 100} if ahead else {}
        rows = ground.run(
            self.hands[name].claim(100, lease_ms=LEASE_S * 1000, discover=[self.queue], **room),
        )
        assert {row["id"]: row["status"] for row in rows} == self.model.claim(self.worker_id(name), 100, ahead=ahead)
        self.claims += [(name, dict(row)) for row in rows if row["status"] in ("CLAIMED", "RUNNING")]

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        name, row = data.draw(st.sampled_from(self.claims))
        found = ground.run(self.hands[name].start([row])).get(row["id"])
        assert found == self.model.start(self.worker_id(name), row["id"], row["claim_generation"])

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=st.sampled_from(["ok", "ok", "error", "retry", "snooze", "crash"]), delay=DELAYS)
    def finish(self, data: st.DataObject, how: str, delay: float) -> None:
        name, row = data.draw(st.sampled_from(self.claims))
        fields: dict[str, Any] = {"retry_delay_ms": int(delay * 1000)}
        if how == "snooze":
            fields |= {"recorded": None, "kind": OutcomeKind.SNOOZED}
        elif how == "crash":
            fields |= {"recorded": AttemptOutcome.WORKER_FAILURE, "error_code": "WORKER_CRASHED"}
        status = {"ok": TaskStatus.COMPLETED, "error": TaskStatus.FAILED}.get(how, TaskStatus.PENDING)
        end = end_of(row, status, **({} if how == "ok" else fields))
        written = ground.run(self.hands[name].finalize([end])).get(row["id"])
        worker, generation = self.worker_id(name), row["claim_generation"]
        assert written == self.model.finish(worker, row["id"], generation, how, delay if how != "ok" else 0.0)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        name, row = data.draw(st.sampled_from(self.claims))
        beats = [(row["id"], row["claim_generation"], "runner", 4712, "child-1")]
        owned = ground.run(self.hands[name].queries.beat(ground.connection, beats))
        assert (row["id"] in owned) == self.model.beat(self.worker_id(name), row["id"], row["claim_generation"])

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def stage(self, data: st.DataObject) -> None:
        name, row = data.draw(st.sampled_from(self.claims))
        if self.model.tasks[row["id"]].staged:
            return  # a worker stages an end once
        staged = ground.run(self.hands[name].queries.stage(ground.connection, [end_of(row)]))
        assert (row["id"] in staged) == self.model.stage(self.worker_id(name), row["id"], row["claim_generation"])

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def hand_back(self, data: st.DataObject) -> None:
        name, row = data.draw(st.sampled_from(self.claims))
        moved = ground.run(self.hands[name].hand_back([row]))
        assert (row["id"] in moved) == self.model.hand_back(self.worker_id(name), row["id"], row["claim_generation"])

    @rule(seconds=st.sampled_from([50.0, 200.0, 700.0]))
    def advance(self, seconds: float) -> None:
        ground.run(move_times(ground.app, ground.session, ground.line, timedelta(seconds=seconds)))
        self.model.now += seconds

    @rule()
    def reap(self) -> None:
        queries = self.hands["w1"].queries

        async def sweep() -> None:
            connection = ground.connection
            async with connection.transaction():
                await connection.fetch(queries.sql("expire_overdue"), EXPIRED_RESULT, 100)
                claimed, running = timedelta(seconds=CLAIMED_STALE_S), timedelta(seconds=RUNNING_STALE_S)
                await connection.fetch(queries.sql("requeue_silent_claims"), claimed, 100)
                stale = await connection.fetch(queries.sql("stale_running"), running, running, 100)
                await Recovery(queries, ground.app.registry).end(connection, stale, "no sign of life")

        ground.run(sweep())
        self.model.reap()

    @precondition(lambda self: self.model.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.model.tasks)))
        rows = ground.run(ground.connection.fetch(ground.control["cancel_tasks"].sql, [task]))
        assert (rows[0]["outcome"] if rows else None) == self.model.cancel(task)

    @precondition(lambda self: self.model.in_state("FAILED", "CANCELLED", "EXPIRED", "COMPLETED"))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.model.tasks)))
        rows = ground.run(ground.connection.fetch(ground.control["retry_batch"].sql, [task], None))
        assert bool(rows) == self.model.retry(task)

    @precondition(lambda self: self.model.in_state("CLAIMED"))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.model.tasks)))
        rows = ground.run(ground.connection.fetch(ground.control["requeue_claimed_batch"].sql, [task]))
        assert bool(rows) == self.model.requeue(task)

    @rule()
    def pause_or_resume(self) -> None:
        statement = "resume_queue" if self.model.paused else "pause_queue"
        ground.run(ground.connection.fetch(ground.control[statement].sql, self.queue))
        self.model.paused = not self.model.paused

    # -- the verdict ---------------------------------------------------------------------------------

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        rows = ground.run(
            ground.connection.fetch(
                "SELECT t.id, t.status, t.claim_generation, t.retry_count,"
                " CASE WHEN t.status IN ('CLAIMED', 'RUNNING') THEN t.claimed_by_worker_id END AS owner,"
                " ARRAY(SELECT a.outcome FROM horsies_task_attempts a WHERE a.task_id = t.id ORDER BY a.attempt)"
                " FROM horsies_tasks t WHERE t.queue_name = $1",
                self.queue,
            )
        )
        found = {row["id"]: tuple(row)[1:] for row in rows}
        assert found == {task.id: task.shown for task in self.model.tasks.values()}

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        broken = [one for one in invariants.check(ground.db, slack_s=1e6, settled=False) if one.id in self.model.tasks]
        assert broken == []


@pytest.fixture
def on_ground(db: Database) -> Iterator[None]:
    global ground
    ground = Ground(db)
    yield
    ground.close()


@pytest.mark.breaks("T7", "T8")  # time passes, and no sweep follows
@pytest.mark.usefixtures("on_ground")
@pytest.mark.timeout(36_000)
def test_statements_do_what_the_model_says() -> None:
    run_state_machine_as_test(
        TaskMachine,
        settings=settings(
            max_examples=EXAMPLES or 25,
            stateful_step_count=60 if EXAMPLES else 25,
            derandomize=not EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # to shrink takes minutes, and the steps of an example say enough
            suppress_health_check=list(HealthCheck),
        ),
    )
