"""The notification contract: who is told what, and how often."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from tests.support.postgres import Database

Heard = Callable[[str], Awaitable[list[tuple[str, str]]]]
CHANNELS = ("task_new", "task_queue_default", "task_queue_Mail.EU-1", "task_done", "workflow_done")

TERMINAL = {
    "COMPLETED": "completed_at = now(), result = '{}'",
    "FAILED": "failed_at = now(), result = '{}', error_code = 'X'",
    "EXPIRED": "failed_at = now(), result = '{}', error_code = 'X'",
    "CANCELLED": "result = '{}'",
}
RUNNING = (
    "UPDATE horsies_tasks SET status = 'RUNNING', claimed_by_worker_id = 'w', claimed_at = now(), "
    "started_at = now(), worker_pid = 1"
)


@pytest.fixture
async def heard(db: Database) -> AsyncIterator[Heard]:
    """Runs a statement and returns what was notified by it, in order."""
    listener = await asyncpg.connect(db.url)
    writer = await asyncpg.connect(db.url)
    queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def note(_connection: object, _pid: object, channel: str, payload: object) -> None:
        queue.put_nowait((channel, str(payload)))

    for channel in (*CHANNELS, "end"):
        await listener.add_listener(channel, note)

    async def run(sql: str) -> list[tuple[str, str]]:
        await writer.execute(sql)
        # commit order is delivery order: what comes before the marker is all there is
        await writer.execute("SELECT pg_notify('end', '')")
        seen: list[tuple[str, str]] = []
        while (item := await asyncio.wait_for(queue.get(), 10))[0] != "end":
            seen.append(item)
        return seen

    yield run
    await listener.close()
    await writer.close()


async def test_an_insert_tells_both_channels_the_id(heard: Heard) -> None:
    assert await heard("INSERT INTO horsies_tasks (id, task_name, queue_name) VALUES ('a', 't', 'Mail.EU-1')") == [
        ("task_new", "a"),
        ("task_queue_Mail.EU-1", "a"),
    ]


async def test_a_future_task_is_told_too(heard: Heard) -> None:
    seen = await heard(
        "INSERT INTO horsies_tasks (id, task_name, enqueued_at) VALUES ('a', 't', now() + interval '1 h')"
    )
    assert ("task_new", "a") in seen


async def test_ten_thousand_rows_in_one_statement_are_told_once_per_queue(heard: Heard) -> None:
    seen = await heard(
        "INSERT INTO horsies_tasks (id, task_name, queue_name) SELECT lpad(n::text, 36, '0'), 't', "
        "CASE n % 2 WHEN 0 THEN 'default' ELSE 'Mail.EU-1' END FROM generate_series(1, 10000) n"
    )
    assert sorted(channel for channel, _ in seen) == [
        "task_new",
        "task_new",
        "task_queue_Mail.EU-1",
        "task_queue_default",
    ]
    assert {payload for channel, payload in seen if channel == "task_new"} == {
        "1".rjust(36, "0"),
        "2".rjust(36, "0"),
    }


@pytest.mark.breaks("A2")
async def test_a_row_that_is_born_finished_is_not_news(heard: Heard) -> None:
    seen = await heard(
        "INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result) "
        "VALUES ('a', 't', 'COMPLETED', now(), now(), '{}')"
    )
    assert seen == []


async def test_claim_start_heartbeat_and_progress_notify_nothing(heard: Heard) -> None:
    await heard("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't')")
    assert (
        await heard(
            "UPDATE horsies_tasks SET status = 'CLAIMED', claimed = true, claimed_by_worker_id = 'w', "
            "claimed_at = now(), claim_expires_at = now()"
        )
        == []
    )
    assert (
        await heard(
            "UPDATE horsies_tasks SET status = 'RUNNING', claimed = false, claim_expires_at = NULL, "
            "started_at = now(), worker_pid = 1"
        )
        == []
    )
    assert await heard("UPDATE horsies_tasks SET progress = '1', updated_at = now()") == []
    assert await heard("UPDATE horsies_tasks SET finalizing_at = now(), result = '{}'") == []


@pytest.mark.parametrize("status", TERMINAL)
@pytest.mark.breaks("A2")
async def test_each_end_is_told_per_task(heard: Heard, status: str) -> None:
    await heard("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't'), ('b', 't')")
    await heard(RUNNING)
    seen = await heard(f"UPDATE horsies_tasks SET status = '{status}', terminal_at = now(), {TERMINAL[status]}")
    assert sorted(seen) == [("task_done", "a"), ("task_done", "b")]
    assert await heard("UPDATE horsies_tasks SET updated_at = now()") == []


async def test_a_return_to_pending_is_claimable_work(heard: Heard) -> None:
    await heard("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't')")
    await heard(RUNNING)
    seen = await heard(
        "UPDATE horsies_tasks SET status = 'PENDING', claimed_by_worker_id = NULL, claimed_at = NULL, started_at = NULL"
    )
    assert seen == [("task_new", "a"), ("task_queue_default", "a")]


async def test_a_rolled_back_insert_is_not_told(heard: Heard) -> None:
    assert await heard("BEGIN; INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't'); ROLLBACK") == []


async def test_a_workflow_end_is_told(heard: Heard) -> None:
    await heard("INSERT INTO horsies_workflows (id, name) VALUES ('w', 'x')")
    assert await heard("UPDATE horsies_workflows SET status = 'RUNNING'") == []
    seen = await heard("UPDATE horsies_workflows SET status = 'COMPLETED', completed_at = now()")
    assert seen == [("workflow_done", "w")]
