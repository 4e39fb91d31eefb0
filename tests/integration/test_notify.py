"""The notification contract: who is told what, and how often."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

import horsies_schema
from horsies._pg import channels
from horsies.ids import new_id
from tests.support import factories
from tests.support.postgres import Database
from tests.support.roles import account, accounts, login, may
from tests.support.waiting import eventually_async

Heard = Callable[[str], Awaitable[list[tuple[str, str]]]]
CHANNELS = (
    "task_new", "task_queue_default", "task_queue_Mail.EU-1", "task_done", "task_done_a", "task_done_b", "tasks_ended",
    "workflow_done", "workflow_done_w", "workflows_ended",
)  # fmt: skip

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
    assert sorted(seen) == [("task_done", "a"), ("task_done", "b"), ("task_done_a", "a"), ("task_done_b", "b")]
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
    assert seen == [("workflow_done", "w"), ("workflow_done_w", "w")]


# -- buckets, and the public channels ------------------------------------------------------------

IDS = {
    "ours": new_id(), "uuid": str(uuid.uuid4()), "short": "7", "empty": "", "upper case": "ORDER-AB", "space": "no 7 ",
    "quotes": "a'b\\\"", "umlaut": "größe", "astral": "\N{PERSON BOWING DEEPLY}", "long": "x" * 36,
}  # fmt: skip


@pytest.mark.parametrize("kind", IDS)
async def test_every_id_has_a_bucket_whatever_it_ends_in(db: Database, kind: str) -> None:
    """The client and the trigger find it by the same rule."""
    task_id = IDS[kind]
    listener = await asyncpg.connect(db.url)
    seen: list[tuple[str, object]] = []
    for channel in (channels.task_done(task_id), channels.workflow_done(task_id)):
        await listener.add_listener(channel, lambda _connection, _pid, name, payload: seen.append((name, payload)))
    factories.task(db, "RUNNING", id=task_id)
    factories.finish(db, task_id)
    db.execute("INSERT INTO horsies_workflows (id, name, status) VALUES (%s, 'x', 'RUNNING')", task_id)
    db.execute("UPDATE horsies_workflows SET status = 'COMPLETED', completed_at = now()")
    await eventually_async(lambda: len(seen) == 2)
    assert seen == [(channels.task_done(task_id), task_id), (channels.workflow_done(task_id), task_id)]
    await listener.close()


@pytest.mark.breaks("A2")
async def test_without_the_public_channels_only_buckets_hear_ids(heard: Heard) -> None:
    """Those who listened to every end hear once per transaction that a worker's tasks ended."""
    await heard("SELECT horsies_set_public_done(false)")
    await heard("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't'), ('b', 't'), ('c', 't')")
    await heard(f"{RUNNING} WHERE id <> 'c'")
    seen = await heard(f"UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), {TERMINAL['CANCELLED']}")
    assert sorted(seen) == [("task_done_a", "a"), ("task_done_b", "b"), ("tasks_ended", ""), ("tasks_ended", "w")]
    await heard("INSERT INTO horsies_workflows (id, name, status) VALUES ('w', 'x', 'RUNNING'), ('v', 'x', 'RUNNING')")
    seen = await heard("UPDATE horsies_workflows SET status = 'COMPLETED', completed_at = now()")
    assert sorted(seen) == [("workflow_done_w", "w"), ("workflows_ended", "")]
    # inserts and returns to PENDING are told as before
    seen = await heard(
        "UPDATE horsies_tasks SET status = 'PENDING', claimed_by_worker_id = NULL, claimed_at = NULL,"
        " started_at = NULL, terminal_at = NULL, result = NULL WHERE id = 'a'"
    )
    assert seen == [("task_new", "a"), ("task_queue_default", "a")]


@pytest.mark.breaks("A2")
async def test_the_public_channels_can_be_switched_on_again(db: Database, heard: Heard) -> None:
    """What fires the triggers stays the same."""
    triggers = "SELECT tgname, tgtype, tgenabled, tgnargs FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname"
    before = db.execute(triggers)
    for enabled in (True, False, False, None, True, True):
        db.execute("SELECT horsies_set_public_done(%s)", enabled)
    assert db.execute(triggers) == before
    await heard("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't')")
    assert await heard(RUNNING) == []
    seen = await heard(f"UPDATE horsies_tasks SET status = 'FAILED', terminal_at = now(), {TERMINAL['FAILED']}")
    assert seen == [("task_done", "a"), ("task_done_a", "a")]
    await heard("INSERT INTO horsies_workflows (id, name) VALUES ('w', 'x')")
    assert await heard("UPDATE horsies_workflows SET status = 'RUNNING'") == []
    seen = await heard("UPDATE horsies_workflows SET status = 'CANCELLED', completed_at = now()")
    assert seen == [("workflow_done", "w"), ("workflow_done_w", "w")]


def test_the_switch_is_the_owners(db: Database) -> None:
    with accounts(db) as found:
        for who in found.values():
            assert not may(who, "SELECT horsies_set_public_done(false)")
        db.execute("GRANT EXECUTE ON FUNCTION horsies_set_public_done TO PUBLIC")
        for who in found.values():  # it has no rights of its own
            assert not may(who, "SELECT horsies_set_public_done(false)")
    owner = login(db, f"o{db.name[-8:]}_owner")
    try:
        for table in ("horsies_tasks", "horsies_workflows"):
            db.execute(f'ALTER TABLE {table} OWNER TO "{account(owner)}"')
        assert may(owner, "SELECT horsies_set_public_done(false)"), "needs no superuser"
    finally:
        for table in ("horsies_tasks", "horsies_workflows"):
            db.execute(f"ALTER TABLE {table} OWNER TO CURRENT_USER")
        db.execute(f'DROP OWNED BY "{account(owner)}" CASCADE')
        db.execute(f'DROP ROLE "{account(owner)}"')


def test_the_switch_finds_the_tables_of_its_own_schema(empty_db: Database) -> None:
    name = 'it\'s "odd"'
    for schema in (None, name):
        horsies_schema.upgrade(empty_db.url, schema=schema)
    quoted = '"it\'s ""odd"""'
    empty_db.execute(f"SELECT {quoted}.horsies_set_public_done(false)")
    switched = empty_db.execute(
        "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid"
        " WHERE g.tgnargs > 0 AND NOT g.tgisinternal"
    )
    assert switched == [(quoted,)]
    horsies_schema.downgrade(empty_db.url, "0017", schema=name)
    assert empty_db.value("SELECT count(*) FROM pg_trigger WHERE tgnargs > 0 AND NOT tgisinternal") == 0
