"""The demo's screens agree with each other: what one counts, another lists."""

from datetime import UTC, datetime, timedelta

import pytest

import horsies_schema
from horsies.operate.views import WorkerLiveness
from horsies.status import TASK_TERMINAL_STATES, NodeStatus, TaskStatus
from horsies_tui.data.filters import Query
from horsies_tui.demo import DemoSource

NOW = 1_800_000_000.0
HOUR = timedelta(hours=1)


@pytest.fixture
def source() -> DemoSource:
    return DemoSource(clock=lambda: NOW)


async def test_counts_are_of_what_is_listed(source: DemoSource) -> None:
    found = await source.overview(HOUR)
    listed = (await source.tasks(Query(), since=None, after=None, limit=100_000)).rows
    parts = await source.breakdown(Query(), since=None)
    for status in TaskStatus:
        assert found.counts[status] == parts.statuses[status]
        if status is not TaskStatus.PENDING:  # a list of everything has the first of those that wait
            assert found.counts[status].value == sum(row.status is status for row in listed)
    assert sum(queue.ready + queue.delayed for queue in found.queues) == found.counts[TaskStatus.PENDING].value
    assert sum(queue.running for queue in found.queues) == found.counts[TaskStatus.RUNNING].value
    (tasks,) = [one for one in (await source.maintenance()).tables if one.name == "horsies_tasks"]
    assert tasks.rows == sum(count.value for count in found.counts.values())


async def test_metadata_can_be_searched(source: DemoSource) -> None:
    query = Query.parse("meta:tenant=acme")[0]
    found = (await source.tasks(query, since=None, after=None, limit=5)).rows
    assert found
    details = [await source.task(row.id) for row in found]
    assert [detail.metadata for detail in details if detail is not None] == [{"tenant": "acme"}] * 5
    parts = await source.breakdown(query, since=None)
    assert 0 < sum(count.value for count in parts.statuses.values()) < len(source.world.tasks)


async def test_rates_are_of_what_is_listed(source: DemoSource) -> None:
    found = (await source.overview(HOUR)).series
    rows = [task for task in source.world.tasks.values() if task.ended is not None and task.ended < 3_600]
    assert sum(found.done.curve) * found.slot_s == pytest.approx(len(rows))
    assert sum(found.failed.curve) * found.slot_s == pytest.approx(
        sum(task.status in ("FAILED", "EXPIRED") for task in rows)
    )
    lately = sum(task.ended is not None and task.ended < found.done.span_s for task in rows)
    assert found.done.now * found.done.span_s == pytest.approx(lately)
    assert all(sent or done for sent, done in zip(found.sent.curve[5:], found.done.curve[5:], strict=True))


async def test_times_follow_each_other(source: DemoSource) -> None:
    for task in source.world.tasks.values():
        ages = [task.sent, task.enqueued, task.claimed, task.started, task.ended]
        known = [age for age in ages if age is not None]
        assert known == sorted(known, reverse=True), task
        assert (task.ended is not None) == (task.status in TASK_TERMINAL_STATES)
        assert (task.worker is None) == (task.status in ("PENDING", "EXPIRED")), task
        assert (task.error is None) == (task.status not in ("FAILED", "CANCELLED", "EXPIRED")), task
        detail = await source.task(task.id)
        assert detail is not None
        held = task.claimed
        assert all(held is not None and beat.age.total_seconds() < held for beat in detail.heartbeats)


async def test_workers_run_what_they_serve_within_their_processes(source: DemoSource) -> None:
    workers = {line.status.worker_id: line.status for line in await source.workers()}
    for one in workers.values():
        assert one.holds_running <= one.processes
    for task in source.world.tasks.values():
        if task.worker is not None:
            assert task.queue in workers[task.worker].queues, task
    dead = [one for one in workers.values() if one.liveness is WorkerLiveness.DEAD]
    stale = await source.stale()
    assert {one.worker_id for one in stale.dead} == {one.worker_id for one in dead}
    assert len(stale.tasks) == sum(one.holds_running + one.holds_claimed for one in dead)
    assert {one.worker_id for one in stale.lost} <= {one.worker_id for one in dead if one.judged_by}


async def test_a_node_has_its_own_task(source: DemoSource) -> None:
    runs = (await source.workflows(Query(), since=None, after=None, limit=100)).rows
    for row in runs:
        detail = await source.workflow(row.id)
        assert detail is not None
        over = {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED}
        assert row.ended == sum(node.status in over for node in detail.nodes)
        for node in detail.nodes:
            task = source.world.tasks.get(node.task_id or "")
            started = node.status in (NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.RUNNING)
            assert started == (task is not None)
            if task is not None:
                assert (task.name, task.status.value, task.workflow) == (node.task_name, node.status.value, row.id)


async def test_a_schedule_ran_its_task_and_will_again(source: DemoSource) -> None:
    now = datetime.fromtimestamp(NOW, UTC)
    for row in await source.schedules():
        assert row.next_run_at is not None
        assert row.last_run_at is not None
        assert row.last_run_at <= now < row.next_run_at
        task = source.world.tasks[row.last_task_id or ""]
        assert (task.status, str(task.status)) == (row.last_task_status, row.last_status)
        assert task.ended is not None
        assert timedelta(seconds=task.enqueued) <= now - row.last_run_at
        assert row.state == ("paused" if row.paused_at else "active")


async def test_its_schema_is_at_this_release(source: DemoSource) -> None:
    (schema,) = [one for one in (await source.maintenance()).findings if one.check == "schema"]
    assert schema.what == f"at revision {horsies_schema.head()}"
