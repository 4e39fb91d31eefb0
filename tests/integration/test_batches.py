"""Batches on a database: the engine moves them on, handles read them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import BatchProgress, BatchSummary, Horsies, TaskError, TaskResult, TaskSendError, WorkflowStatus
from horsies.batches import handle as handles
from horsies.operate.session import NEEDS_OPERATOR
from horsies.workflow.continuing import continue_text
from tests.support.apps import app_on, async_app_on
from tests.support.engine import Engine, dying_at
from tests.support.hands import end_of
from tests.support.operator import Operator
from tests.support.postgres import Database
from tests.support.roles import accounts

pytestmark = pytest.mark.shared_database

NAMES = ["double", "report"]
Number = TaskResult[int, TaskError]


def register(app: Horsies) -> SimpleNamespace:
    @app.task("double")
    def double(n: int) -> Number:
        return TaskResult(ok=2 * n)

    @app.task("report")
    def report(summary: BatchSummary, note: str = "") -> TaskResult[BatchSummary, TaskError]:
        return TaskResult(ok=summary)

    return SimpleNamespace(app=app, double=double, report=report)


def answer(name: str, given: Any) -> Any:
    """Numbers are doubled, those that are divisible by 5 fail, and `then` returns its summary."""
    if name == "report":
        return given["summary"]
    return TaskError("FIVE", "as the test wanted") if given["n"] % 5 == 0 else 2 * given["n"]


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with async_app_on(db) as app, Engine.on(db, NAMES) as engine:
        tasks = register(app)
        tasks.engine, tasks.db = engine, db
        yield tasks


async def test_then_runs_once_with_the_summary(t: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "PAGE", 4)  # several pages
    batch = await t.app.batch_async([t.double.call(n) for n in range(1, 13)], then=t.report, name="doubles")
    assert await batch.status_async() is WorkflowStatus.RUNNING
    assert await batch.progress_async() == BatchProgress(WorkflowStatus.RUNNING, 12, 0, 0, 0, 0, 0, 12)
    assert {result.err_value.error_code async for result in batch.results_async()} == {"RESULT_NOT_READY"}
    rows = await t.engine.claim(5)
    assert await batch.progress_async() == BatchProgress(WorkflowStatus.RUNNING, 12, 0, 0, 0, 0, 5, 7)
    t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
    await t.engine.advance()
    progress = await batch.progress_async()
    assert (progress.ended, progress.completed, progress.failed, progress.waiting) == (5, 4, 1, 7)
    assert (await batch.get_async(0)).err_value.error_code == "WAIT_TIMEOUT"
    assert await t.engine.drain(answer) == 7 + 1
    summary = BatchSummary(batch.batch_id, total=12, completed=10, failed=2, cancelled=0)
    assert (await batch.get_async(1_000)).ok == summary
    for again in (t.app.batch_handle(batch.batch_id), t.app.batch_handle(batch.batch_id, t.report)):
        assert (await again.get_async(1_000)).ok == summary
    results = [result async for result in batch.results_async()]
    assert [result.ok for result in results if result.is_ok()] == [2 * n for n in range(1, 13) if n % 5]
    assert [at for at, result in enumerate(results, 1) if result.is_err()] == [5, 10]
    assert await batch.progress_async() == BatchProgress(WorkflowStatus.COMPLETED, 12, 12, 10, 2, 0, 0, 0)
    assert t.db.value("SELECT count(*) FROM horsies_tasks WHERE task_name = 'report'") == 1


async def test_without_then_it_completes_whatever_its_members_do(t: SimpleNamespace) -> None:
    batch = await t.app.batch_async(t.double.call(n) for n in (5, 10))
    await t.engine.drain(answer)
    result = await batch.get_async(1_000)
    assert result.is_ok()
    assert result.ok is None
    assert (await t.app.batch_handle(batch.batch_id).get_async(1_000)).ok is None
    assert await batch.progress_async() == BatchProgress(WorkflowStatus.COMPLETED, 2, 2, 0, 2, 0, 0, 0)


async def test_a_failed_then_fails_the_batch_with_its_own_error_and_can_be_retried(t: SimpleNamespace) -> None:
    batch = await t.app.batch_async([t.double.call(n) for n in (1, 5)], then=t.report)
    await t.engine.drain(lambda name, given: TaskError("NO_PAPER", "x") if name == "report" else answer(name, given))
    assert await batch.status_async() is WorkflowStatus.FAILED
    for one in (batch, t.app.batch_handle(batch.batch_id)):
        assert (await one.get_async(1_000)).err_value.error_code == "NO_PAPER"
    told = t.db.value("SELECT error FROM horsies_workflows")
    assert "then: NO_PAPER: x, and 1 more" in told
    # the retry runs the failed member again as well, and `then` after it
    assert await batch.retry_async()
    assert await t.engine.drain(lambda name, given: given["summary"] if name == "report" else 7) == 2
    summary = (await t.app.batch_handle(batch.batch_id).get_async(1_000)).ok
    assert summary == {"batch_id": batch.batch_id, "total": 2, "completed": 2, "failed": 0, "cancelled": 0} or (
        summary == BatchSummary(batch.batch_id, 2, 2, 0, 0)
    )


async def test_a_cancelled_member_counts_as_such(t: SimpleNamespace) -> None:
    batch = await t.app.batch_async([t.double.call(n) for n in (1, 2, 5)], then=t.report)
    task_id = t.db.value("SELECT id FROM horsies_tasks WHERE kwargs = '{\"n\":2}'")
    await t.app.handle(task_id).cancel_async()
    await t.engine.drain(answer)
    assert (await batch.get_async(1_000)).ok == BatchSummary(batch.batch_id, 3, 1, 1, 1)
    assert (await batch.progress_async()).cancelled == 1


async def test_pause_resume_and_cancel(t: SimpleNamespace) -> None:
    batch = await t.app.batch_async([t.double.call(n) for n in (1, 2)], then=t.report)
    assert await batch.pause_async()
    assert not await batch.pause_async()
    assert not await t.engine.claim()
    assert await batch.status_async() is WorkflowStatus.PAUSED
    assert await batch.resume_async()
    assert not await batch.resume_async()
    rows = await t.engine.claim(1)
    assert len(rows) == 1
    assert await batch.cancel_async()
    assert not await batch.cancel_async()
    t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
    await t.engine.drain(answer)
    assert (await batch.get_async(1_000)).err_value.error_code == "WORKFLOW_CANCELLED"
    assert await batch.progress_async() == BatchProgress(WorkflowStatus.CANCELLED, 2, 2, 1, 0, 1, 0, 0)
    assert t.db.value("SELECT count(*) FROM horsies_tasks WHERE task_name = 'report'") == 0
    # a retry runs what was cancelled, then `then`
    assert await batch.retry_async()
    await t.engine.drain(answer)
    assert (await t.app.batch_handle(batch.batch_id, t.report).get_async(1_000)).ok == BatchSummary(
        batch.batch_id, 2, 2, 0, 0
    )


async def test_a_retry_while_then_is_being_stopped_waits_for_the_members(t: SimpleNamespace) -> None:
    batch = await t.app.batch_async([t.double.call(n) for n in (1, 5)], then=t.report)
    rows = await t.engine.claim()
    t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
    await t.engine.advance()
    (then,) = await t.engine.claim()
    assert await batch.cancel_async()
    assert await batch.retry_async()
    # `then` stops after the retry, and the failed member has not run again
    failed = lambda *_: TaskError("TASK_CANCELLED", "stopped")  # noqa: E731
    t.engine.advancers[0].tasks_ended(await t.engine.end([then], failed))
    await t.engine.advance()
    assert t.db.execute("SELECT status, deps_left FROM horsies_workflow_tasks WHERE node_id = 'then'") == [
        ("PENDING", 1)
    ]
    t.engine.advancers[0].check([batch.batch_id])  # the notification of the retry
    await t.engine.advance()
    rows = await t.engine.claim()
    assert {row["task_name"] for row in rows} == {"double"}
    t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
    await t.engine.advance()
    await t.engine.drain(answer)
    assert (await t.app.batch_handle(batch.batch_id, t.report).get_async(1_000)).ok == BatchSummary(
        batch.batch_id, 2, 1, 1, 0
    )


async def test_a_batch_for_later_and_a_deadline(t: SimpleNamespace) -> None:
    later = await t.app.batch_async([t.double.call(1)], then=t.report, start_at=0.3)
    assert await later.status_async() is WorkflowStatus.PENDING
    late = await t.app.batch_async([t.double.call(1)], then=t.report, start_at=3600, deadline=0.1)
    assert not await t.engine.claim()
    await asyncio.sleep(0.35)
    await t.engine.drain(answer)
    assert (await later.get_async(1_000)).ok == BatchSummary(later.batch_id, 1, 1, 0, 0)
    assert await late.cancel_async()


async def test_a_start_with_the_same_id_is_the_same_batch(t: SimpleNamespace) -> None:
    batch_id = str(uuid.uuid4())

    async def start(*numbers: int, **options: Any) -> Any:
        return await t.app.batch_async([t.double.call(n) for n in numbers], batch_id=batch_id, **options)

    first = await start(1, 2, then=t.report)
    assert await start(1, 2, then=t.report) == first
    assert t.db.value("SELECT count(*) FROM horsies_workflow_tasks") == 3
    for numbers, options in (((1, 3), {"then": t.report}), ((1, 2), {}), ((1, 2), {"then": t.report, "priority": 5})):
        with pytest.raises(TaskSendError, match=r"PAYLOAD_MISMATCH.*batch id .* is taken by another list of calls"):
            await start(*numbers, **options)
    await t.engine.drain(answer)
    assert (await (await start(1, 2, then=t.report)).get_async(1_000)).ok.total == 2


async def test_one_live_batch_per_unique_key(t: SimpleNamespace) -> None:
    first = await t.app.batch_async([t.double.call(1)], unique_key="k")
    assert await t.app.batch_async([t.double.call(2)], unique_key="k") == first
    assert await t.app.batch_async([t.double.call(2)], unique_key="k", name="other") != first
    await t.engine.drain(answer)
    assert await t.app.batch_async([t.double.call(2)], unique_key="k") != first


async def test_the_callers_transaction(t: SimpleNamespace) -> None:
    connection = await asyncpg.connect(t.db.url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        batch = await t.app.batch_async([t.double.call(1)], then=t.report, connection=connection)
        assert await batch.progress_async() is None
        await transaction.rollback()
        assert t.db.value("SELECT (SELECT count(*) FROM horsies_tasks) + (SELECT count(*) FROM horsies_workflows)") == 0
        async with connection.transaction():
            batch = await t.app.batch_async([t.double.call(1)], then=t.report, connection=connection)
        assert (await batch.progress_async()).total == 1
    finally:
        await connection.close()


def test_without_an_event_loop(db: Database) -> None:
    with app_on(db) as app, psycopg.connect(db.url) as connection:
        tasks = register(app)
        batch = app.batch([tasks.double.call(1)], then=tasks.report, connection=connection)
        connection.rollback()
        assert batch.status() is None
        assert batch.progress() is None
        assert list(batch.results()) == []
        batch = app.batch([tasks.double.call(1)], then=tasks.report)
        assert batch.status() is WorkflowStatus.RUNNING
        assert f"{batch.progress()}".startswith("0 of 1 members ended")
        assert batch.pause()
        assert batch.resume()
        assert batch.cancel()
        assert batch.get(1_000).err_value.error_code == "WORKFLOW_CANCELLED"
        assert [result.err_value.error_code for result in batch.results()] == ["WORKFLOW_CANCELLED"]


async def test_workers_that_die_in_the_middle_of_steps(t: SimpleNamespace) -> None:
    import random

    chance = random.Random(7)
    points = dict.fromkeys(("workflow_locked", "workflow_settled", "workflow_enqueued", "before_workflow_commit"), 0.1)
    batches = [
        await t.app.batch_async([t.double.call(n) for n in range(1, size)], then=t.report) for size in (2, 30, 300)
    ]
    async with dying_at(points, chance):
        for _ in range(40):
            if rows := await t.engine.claim(chance.randint(1, 40)):
                chance.choice(t.engine.advancers).tasks_ended(await t.engine.end(rows, answer))
            await t.engine.advance()
    await t.engine.drain(answer)
    for batch, size in zip(batches, (2, 30, 300), strict=True):
        failed = (size - 1) // 5
        assert (await batch.get_async(1_000)).ok == BatchSummary(batch.batch_id, size - 1, size - 1 - failed, failed, 0)
    assert t.db.value("SELECT count(*) FROM horsies_tasks WHERE task_name = 'report'") == 3


async def test_the_end_of_a_member_reads_no_list_of_all_members(t: SimpleNamespace) -> None:
    """The row of `then` stays as small as it was for one member."""
    for size in (1, 2_000):
        await t.app.batch_async((t.double.call(n) for n in range(size)), then=t.report)
    sizes = t.db.execute(
        "SELECT max(pg_column_size(n.*)) - min(pg_column_size(n.*)) FROM horsies_workflow_tasks n"
        " WHERE node_id = 'then'"
    )
    assert sizes[0][0] <= 8
    assert t.db.execute("SELECT deps_left FROM horsies_workflow_tasks WHERE node_id = 'then' ORDER BY 1") == [
        (1,), (2_000,),
    ]  # fmt: skip


async def test_show_tells_the_progress_of_a_batch(t: SimpleNamespace, operator: Operator) -> None:
    batch = await t.app.batch_async((t.double.call(n) for n in range(1, 300)), then=t.report, name="doubles")
    rows = await t.engine.claim(10)
    t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
    await t.engine.advance()
    text = (await asyncio.to_thread(operator, "workflows", "show", batch.batch_id)).out
    assert "10 of 299 members ended: 8 completed, 2 failed, 289 waiting" in text
    assert "member-4: FIVE" in text
    assert len(text.splitlines()) < 20
    assert "then report: PENDING" in text
    told = await asyncio.to_thread(operator.json, "workflows", "show", batch.batch_id)
    assert told["batch"]["failed"] == 2
    assert told["then"]["status"] == "PENDING"
    assert "nodes" not in told
    drawn = (await asyncio.to_thread(operator, "workflows", "show", batch.batch_id, "--mermaid")).out
    assert "members -->" in drawn


def test_a_viewer_sees_the_progress_and_no_error(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    with app_on(db) as app:
        tasks = register(app)
        batch = app.batch([tasks.double.call(1), tasks.double.call(2)], then=tasks.report)
    db.execute(
        """UPDATE horsies_workflow_tasks SET status = 'FAILED', completed_at = now(), task_id = NULL,
                  error = '{"err":{"error_code":"SECRET"}}' WHERE node_id = 'member-0'"""
    )
    db.execute("UPDATE horsies_tasks SET is_workflow_task = false WHERE kwargs = '{\"n\":1}'")
    with accounts(db) as roles:
        hand = Operator(roles["viewer"], capsys)
        shown = hand("workflows", "show", batch.batch_id)
        assert shown.code == 0, shown.err
        assert "1 of 2 members ended: 0 completed, 1 failed, 1 waiting" in shown.out
        assert NEEDS_OPERATOR in shown.out
        assert "SECRET" not in shown.out + shown.err
        assert hand.json("workflows", "show", batch.batch_id)["batch"]["total"] == 2


async def test_then_may_continue_in_a_workflow(t: SimpleNamespace) -> None:
    """The batch keeps its members: the workflow runs inside the node of `then`."""
    batch = await t.app.batch_async([t.double.call(n) for n in (1, 2)], then=t.report)
    rows = await t.engine.claim()
    t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
    await t.engine.advance()
    rows = await t.engine.claim()
    inner = t.app.workflow("inner", [node := t.double.node()(4)], output=node)
    text, _ = continue_text(inner, int)
    await t.engine.hands.finalize([end_of(rows[0], result=text)])
    t.engine.advancers[0].tasks_ended([rows[0]["id"]])
    await t.engine.advance()
    await t.engine.drain(answer)
    assert (await t.app.get_broker().workflows.results(batch.batch_id, ["then"])) == {"then": '{"ok":8}'}
    assert await batch.progress_async() == BatchProgress(WorkflowStatus.COMPLETED, 2, 2, 2, 0, 0, 0, 0)
