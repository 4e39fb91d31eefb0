"""Events of single services, which in a worker would take hours or a broken database."""

from typing import Any

import pytest

from horsies import PostgresConfig, RecoveryConfig, ResilienceConfig, TaskError, TaskResult, WorkflowStatus
from horsies.events import (
    DatabaseLost,
    DatabaseRegained,
    Event,
    ResultDropped,
    RowsPruned,
    TaskRecovered,
    WorkflowEnded,
)
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session, Sessions
from horsies_worker.events.bus import EventBus
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.identity import Identity
from horsies_worker.liveness.reaper import Reaper
from horsies_worker.liveness.recovery import Recovery
from horsies_worker.retention.pruner import Pruner
from horsies_worker.workflows.advance import Advancer
from tests.support import factories
from tests.support.apps import add_task, make_app
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.engine import Engine
from tests.support.factories import ago
from tests.support.hands import end_of, running
from tests.support.postgres import Database
from tests.support.refusals import refusing
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

QUERIES = Queries(None, Identity("worker-1", "host-1", 4711))
OLD = ago(days=40)


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def bus(told: list[Event]) -> EventBus:
    made = EventBus()
    made.subscribe(Event, told.append)
    return made


async def ping(session: Session) -> Any:
    return await session.run(lambda connection: connection.fetchval("SELECT 1"))


async def test_pruned_rows(db: Database, bus: EventBus, told: list[Event]) -> None:
    for _ in range(3):
        task = factories.task(db, "COMPLETED")
        db.execute(
            f"UPDATE horsies_tasks SET terminal_at = {OLD}, created_at = {OLD}, enqueued_at = {OLD}, "
            f"claimed_at = {OLD}, started_at = {OLD} WHERE id = %s", task,
        )  # fmt: skip
    app = make_app(db, recovery=RecoveryConfig(terminal_record_retention_hours=24 * 30))
    session = Session(app.config.broker, "pruner", QUERIES)
    pruner = Pruner(session, app.config, bus)
    await pruner.run_once()
    assert told == [RowsPruned("tasks", 3)]
    await pruner.run_once()
    assert len(told) == 1


async def test_a_result_that_the_database_refuses(db: Database, bus: EventBus, told: list[Event]) -> None:
    task = running(db)
    session = Session(PostgresConfig(db.url), "finalize", QUERIES, bus=bus)
    finalizer = Finalizer(session, ResilienceConfig(), bus, on_done=lambda _: None)
    with refusing(db, "BEFORE UPDATE ON horsies_tasks FOR EACH ROW", code="22000"):
        finalizer.add(end_of(task))
        while finalizer.backlog:
            await finalizer.run_once()
    await session.close()
    assert told == [ResultDropped(task["id"], 1, "refused")]


async def test_a_task_that_expired(db: Database, bus: EventBus, told: list[Event]) -> None:
    task = factories.task(db, enqueued_at=ago(minutes=9), good_until=ago(minutes=1))
    app = make_app(db)
    add_task(app)
    session = Session(app.config.broker, "reaper", QUERIES)
    reaper = Reaper(session, app.config, Recovery(QUERIES, app.registry, bus=bus), checks=session)
    await reaper.run_once()
    await session.close()
    assert told == [TaskRecovered(task, "expired")]


async def test_the_end_of_a_workflow_as_it_was_written(db: Database, bus: EventBus, told: list[Event]) -> None:
    """The step would end it COMPLETED; the statement finds its output too large."""
    limits: dict[str, Any] = {"payload_max_bytes": 10_000, "payload_warn_bytes": 1_000}
    app = make_app(db, **limits)

    @app.task("long")
    def long() -> TaskResult[str, TaskError]:
        raise NotImplementedError

    node = long.node(node_id="only")()
    session = Session(app.config.broker, "workflows", QUERIES)
    async with app, Engine.on(db, ["long"], **limits) as engine:
        handle = await app.workflow("w", [node], output=node).start_async()
        engine.advancers[:] = [Advancer(session, app.config, bus)]
        await engine.drain(lambda _name, _given: "y" * 20_000)
        await session.close()
        assert told == [WorkflowEnded(handle.workflow_id, "w", "FAILED")]
        assert await handle.status_async() is WorkflowStatus.FAILED


# -- sessions ------------------------------------------------------------------------------------


async def fail(session: Session) -> None:
    with pytest.raises(Exception):  # noqa: B017  (the driver's own, many kinds)
        await ping(session)


async def test_a_session_that_is_not_used_again_tells_of_the_end_of_its_outage(
    db: Database, bus: EventBus, told: list[Event]
) -> None:
    with ChaosProxy(db.url) as proxy:
        sessions = Sessions(PostgresConfig(proxy.url), QUERIES, bus)
        for one in (sessions.claim, sessions.heartbeat, sessions.reaper):
            await ping(one)
        proxy.set(Mode.CUT)
        await eventually_async(lambda: proxy.open == 0)
        for one in (sessions.reaper, sessions.claim, sessions.reaper):
            await fail(one)
        assert [event.session for event in told if isinstance(event, DatabaseLost)] == ["reaper", "claim"]
        assert not sessions.is_connected
        proxy.set(Mode.PASS)
        await ping(sessions.claim)
        assert isinstance(told[-1], DatabaseRegained)
        assert told[-1].session == "claim"
        assert sessions.is_connected  # although the reaper has not been needed since
        sessions.end_unused_outages(60.0)
        assert len(told) == 3  # it may still be between two tries
        sessions.end_unused_outages(0.0)
        assert isinstance(told[-1], DatabaseRegained)
        assert told[-1].session == "reaper"
        await sessions.close(2.0)


async def test_a_session_that_borrows_a_connection_has_the_database_again(
    db: Database, bus: EventBus, told: list[Event]
) -> None:
    with ChaosProxy(db.url) as proxy:
        sessions = Sessions(PostgresConfig(proxy.url), QUERIES, bus)
        await ping(sessions.finalize)  # no other connection is open that it could borrow
        proxy.set(Mode.CUT)
        await eventually_async(lambda: proxy.open == 0)
        await fail(sessions.finalize)
        proxy.set(Mode.PASS)
        await ping(sessions.claim)
        await ping(sessions.finalize)
        assert [type(event) for event in told] == [DatabaseLost, DatabaseRegained]
        await sessions.close(2.0)


async def test_no_password_is_told(bus: EventBus, told: list[Event]) -> None:
    session = Session(PostgresConfig("postgresql://u:hunter2@127.0.0.1:1/d"), "claim", QUERIES, bus=bus)
    await fail(session)
    (lost,) = told
    assert isinstance(lost, DatabaseLost)
    assert lost.reason
    assert "hunter2" not in lost.reason
