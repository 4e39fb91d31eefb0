"""Snoozed tasks in the database: the row, the claim after it, workflows, and what ends them meanwhile."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import TaskError, TaskResult, TaskStatus, WorkflowStatus, current_task, from_node, snooze, testing
from horsies.options import TaskOptions
from horsies.snoozing import Snooze
from horsies_worker.child.outcome import OutcomeKind, snoozed_outcome
from horsies_worker.database.transition import Transition
from horsies_worker.finish.decide import decide
from tests.support import factories
from tests.support.apps import make_app
from tests.support.factories import ago, ahead
from tests.support.hands import Hands, attempts, running
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

MINUTE = timedelta(minutes=1)


def snoozed(row: dict[str, Any], delay_ms: int = 60_000) -> Transition:
    outcome = snoozed_outcome(Snooze(delay_ms))
    assert outcome.kind is OutcomeKind.SNOOZED
    return decide(
        task_id=row["id"], generation=row["claim_generation"], attempt=row["retry_count"] + 1, options=TaskOptions(),
        budget=row["max_retries"], outcome=outcome, started=1_704_067_200.0, finished=1_704_067_201.0,
        random=lambda: 0.5,
    )  # fmt: skip


# -- the statement ---------------------------------------------------------------------------------


async def test_it_waits_again_without_an_attempt(db: Database, hands: Hands) -> None:
    row = running(db, retry_count=1, max_retries=1)
    history = attempts(db, row["id"])
    assert await hands.finalize([snoozed(row)]) == {row["id"]: "PENDING"}
    stored = factories.read(db, row["id"])
    assert (stored["retry_count"], stored["max_retries"], stored["snoozes"], stored["crash_count"]) == (1, 1, 1, 0)
    assert stored["enqueued_at"] - stored["updated_at"] == MINUTE
    assert [stored[name] for name in ("claimed_by_worker_id", "started_at", "result", "error_code", "worker_pid")] == (
        [None] * 5
    )
    assert stored["next_retry_at"] is None
    assert attempts(db, row["id"]) == history
    assert await hands.finalize([snoozed(row)]) == {}, "one end of one claim generation"


async def test_a_cancelled_task_ends(db: Database, hands: Hands) -> None:
    row = running(db, cancel_requested_at=ago(seconds=1))
    assert await hands.finalize([snoozed(row)]) == {row["id"]: "CANCELLED"}
    stored = factories.read(db, row["id"])
    assert (stored["error_code"], stored["snoozes"]) == ("TASK_CANCELLED", 0)
    assert stored["terminal_at"] is not None


async def test_the_count_stops_at_its_highest_number(db: Database, hands: Hands) -> None:
    row = running(db, snoozes=32_767)
    assert await hands.finalize([snoozed(row)]) == {row["id"]: "PENDING"}
    assert factories.read(db, row["id"])["snoozes"] == 32_767


async def test_a_claim_tells_the_count(db: Database, hands: Hands) -> None:
    factories.task(db, snoozes=7)
    (row,) = await hands.claim()
    assert (row["snoozes"], row["retry_count"]) == (7, 0)
    factories.task(db, snoozes=8, group_key="g")
    (row,) = (await hands.claim_grouped()).rows
    assert row["snoozes"] == 8


async def test_a_grouped_claim_tells_the_count_of_a_task_that_came_while_it_ran(db: Database, hands: Hands) -> None:
    """The function sees what was committed after the statement around it began."""
    with psycopg.connect(db.url) as other:
        # a claim that notices a step of the clock writes it down, and so waits for another one that does
        other.execute("INSERT INTO horsies_rate_limits (name, key, free_at) VALUES ('', '', now())")
        claim = asyncio.create_task(hands.claim_grouped(expected_at=0))
        await eventually_async(lambda: waits_for_a_lock(db, "%claim_grouped%"))
        task_id = factories.task(db, snoozes=9, group_key="g")
        other.commit()
        (row,) = (await claim).rows
    assert (row["id"], row["snoozes"]) == (task_id, 9)


# -- tasks and workflows on a real database ----------------------------------------------------------


@pytest.fixture
def kit(db: Database) -> Iterator[Any]:
    with make_app(db.url) as app, testing.real(app, in_place=True) as database:
        yield app, database


def test_it_runs_when_its_time_has_come(kit: Any) -> None:
    app, database = kit

    @app.task("poll")
    def poll(until: int) -> TaskResult[tuple[int, int], TaskError]:
        here = current_task()
        if here.snoozes < until:
            return snooze(minutes=5)
        return TaskResult(ok=(here.attempt, here.snoozes))

    handle = poll.send(2)
    report = database.drain()
    assert (report.snoozed, report.attempts, report.retried) == (1, 0, 0)
    assert handle.info().status is TaskStatus.PENDING
    assert database.drain().snoozed == 0, "it is not due"
    database.advance(timedelta(minutes=5))
    assert database.drain().snoozed == 1
    database.advance(timedelta(minutes=5))
    assert database.drain().completed == 1
    assert handle.get(timeout_ms=0) == TaskResult(ok=(1, 2))
    assert len(handle.attempts()) == 1
    assert handle.info().snoozes == 2


def test_it_expires_when_its_good_until_passes_meanwhile(kit: Any) -> None:
    app, database = kit

    @app.task("late")
    def late() -> TaskResult[int, TaskError]:
        return snooze(minutes=5)

    handle = late.with_options(good_until=timedelta(minutes=2)).send()
    database.drain()
    database.advance(timedelta(minutes=5))
    database.drain()
    assert handle.info().status is TaskStatus.EXPIRED
    assert handle.get(timeout_ms=0).err_value.error_code == "TASK_EXPIRED"


def test_a_cancel_ends_a_snoozed_task_at_once(kit: Any) -> None:
    app, database = kit

    @app.task("doze")
    def doze() -> TaskResult[int, TaskError]:
        return snooze(minutes=5)

    handle = doze.send()
    database.drain()
    assert handle.cancel() == "CANCELLED"
    assert handle.get(timeout_ms=0).err_value.error_code == "TASK_CANCELLED"


def test_a_node_stays_open_and_its_run_goes_on_later(kit: Any) -> None:
    app, database = kit

    @app.task("poll")
    def poll() -> TaskResult[int, TaskError]:
        return snooze(minutes=5) if current_task().snoozes < 1 else TaskResult(ok=20)

    @app.task("double")
    def double(value: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * value)

    @app.task("item")
    def item(value: int) -> TaskResult[int, TaskError]:
        return snooze(minutes=5) if value == 2 and not current_task().snoozes else TaskResult(ok=value)

    first = poll.node()()
    chain = app.workflow("chain", [first, last := double.node()(from_node(first))], output=last)
    run = chain.start()
    handles = item.send_many([(1,), (2,), (3,)])
    database.drain()
    assert run.status() is WorkflowStatus.RUNNING
    assert [handle.info().status.value for handle in handles] == ["COMPLETED", "PENDING", "COMPLETED"]
    run.pause()
    database.advance(timedelta(minutes=6))
    database.drain()
    assert run.status() is WorkflowStatus.PAUSED
    run.resume()
    database.drain()
    assert run.get(timeout_ms=0) == TaskResult(ok=40)
    assert handles[1].get(timeout_ms=0) == TaskResult(ok=2)


def test_a_deadline_ends_the_run_of_a_snoozed_node(kit: Any) -> None:
    app, database = kit

    @app.task("doze")
    def doze() -> TaskResult[int, TaskError]:
        return snooze(hours=5)

    node = doze.node()()
    run = app.workflow("bounded", [node], output=node).start(deadline=timedelta(hours=1))
    database.drain()
    database.advance(timedelta(hours=2))
    database.drain()
    assert run.status() is WorkflowStatus.FAILED
    assert run.get(timeout_ms=0).err_value.error_code == "WORKFLOW_DEADLINE"


def test_a_retry_by_hand_counts_snoozes_and_crashes_anew(db: Database, operator: Any) -> None:
    task = factories.task(db, "FAILED", snoozes=9, crash_count=3, good_until=ahead(minutes=1))
    assert operator("tasks", "retry", task).code == 0
    stored = factories.read(db, task)
    assert (stored["status"], stored["snoozes"], stored["crash_count"]) == ("PENDING", 0, 0)
