"""The sweep over what other workers left behind: who is judged, when, and what becomes of their tasks."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psutil
import psycopg
import pytest

from horsies import RecoveryConfig, RetryPolicy, TaskError
from horsies._pg.locks import REAPER_LOCK
from horsies.codec import encode_error
from horsies.options import TaskOptions
from horsies_worker.database.lock_watch import REFUSALS
from horsies_worker.database.queries import EXPIRED_RESULT, Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.liveness.reaper import BATCH, Reaper
from horsies_worker.liveness.recovery import Recovery
from tests.support import factories
from tests.support.apps import add_task, make_app
from tests.support.factories import NOW, ago, ahead
from tests.support.hands import Hands
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.refusals import refusing, updates_of
from tests.support.roles import account, login
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

FAST = {
    "runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000, "running_stale_threshold_ms": 2_000,
    "claimed_stale_threshold_ms": 2_000, "finalizing_stale_threshold_ms": 4_000, "check_interval_ms": 1_000,
}  # fmt: skip
CRASHES_ARE_RETRIED = TaskOptions(retry_policy=RetryPolicy.fixed(30, max_retries=2, auto_retry_for=["WORKER_CRASHED"]))
LONG_AGO = {"enqueued_at": ago(minutes=9), "claimed_at": ago(minutes=9), "created_at": ago(minutes=9)}
STALE = {**LONG_AGO, "started_at": ago(minutes=8)}


@asynccontextmanager
async def reaping(db: Database, *, seasoned: bool = True, **recovery: Any) -> AsyncIterator[Reaper]:
    """A reaper of an app that knows the task `add`, with a policy for crashes. `seasoned`: in contact for long."""
    app = make_app(db, recovery=RecoveryConfig(**{**FAST, **recovery}))
    add_task(app, retry_policy=CRASHES_ARE_RETRIED.retry_policy)
    queries = Queries(None, Identity("reaper-1", "host-9", 1))
    session, shared = Session(app.config.broker, "reaper", queries), Session(app.config.broker, "shared", queries)
    reaper = Reaper(session, app.config, Recovery(queries, app.registry), checks=shared)
    if seasoned:
        season(reaper)
    try:
        yield reaper
    finally:
        await session.close()
        await shared.close()


def season(reaper: Reaper) -> None:
    """As if it had been in contact for an hour."""
    reaper.contact.since = time.monotonic() - 3_600
    reaper.contact.last_answer = time.monotonic()


def attempts(db: Database, task: str) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT attempt, outcome, error_code, will_retry, worker_id, worker_pid FROM horsies_task_attempts"
        " WHERE task_id = %s ORDER BY attempt", task,
    )  # fmt: skip


def status(db: Database, task: str) -> str:
    return factories.read(db, task)["status"]


# -- overdue ---------------------------------------------------------------------------------------------------


async def test_overdue_tasks_expire_at_once(db: Database) -> None:
    """Needs no season: a deadline is a fact, not a judgement."""
    heard: list[str] = []
    listener = await asyncpg.connect(db.url)
    await listener.add_listener("task_done", lambda *message: heard.append(message[3]))
    waiting = factories.task(db, good_until=ago(seconds=1), enqueued_at=ahead(minutes=1))
    claimed = factories.task(db, "CLAIMED", good_until=ago(seconds=1))
    untouched = [
        factories.task(db, good_until=ahead(minutes=1)), factories.task(db),
        factories.task(db, "RUNNING", good_until=ago(seconds=0.5)),
    ]  # fmt: skip
    before = [factories.read(db, task) for task in untouched]
    async with reaping(db, seasoned=False) as reaper:
        await reaper.run_once()
    for task in (waiting, claimed):
        stored = factories.read(db, task)
        assert (stored["status"], stored["result"], stored["error_code"]) == ("EXPIRED", EXPIRED_RESULT, "TASK_EXPIRED")
        assert stored["failed_at"] == stored["terminal_at"] is not None
        assert (stored["claimed"], stored["claim_expires_at"]) == (False, None)
    assert [factories.read(db, task) for task in untouched] == before
    await eventually_async(lambda: sorted(heard) == sorted([waiting, claimed]))
    await listener.close()


async def test_many_overdue_tasks_go_in_batches(db: Database) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, good_until) SELECT i::text, 'add', now() - interval '1 s'"
        f" FROM generate_series(1, {2 * BATCH + 10}) AS i"
    )
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1") == [("EXPIRED", 2 * BATCH + 10)]


# -- claims ----------------------------------------------------------------------------------------------------

OVER = {**LONG_AGO, "claim_expires_at": ago(minutes=1)}


@pytest.mark.parametrize("lease_ends", [ago(minutes=1), ahead(hours=1)])
async def test_a_claim_without_a_beat_goes_back_whatever_its_lease_says(db: Database, lease_ends: str) -> None:
    task = factories.task(db, "CLAIMED", retry_count=1, **{**OVER, "claim_expires_at": lease_ends})
    before = factories.read(db, task)
    async with reaping(db) as reaper:
        await reaper.run_once()
    stored = factories.read(db, task)
    assert (stored["status"], stored["claimed"], stored["claimed_by_worker_id"]) == ("PENDING", False, None)
    assert (stored["enqueued_at"], stored["retry_count"]) == (before["enqueued_at"], 1)
    assert len(attempts(db, task)) == 1


async def test_a_fresh_claim_is_left_alone(db: Database) -> None:
    fresh = {"enqueued_at": ago(seconds=1), "claimed_at": ago(seconds=1), "claim_expires_at": ago(seconds=0.5)}
    task = factories.task(db, "CLAIMED", **{**OVER, **fresh})
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert status(db, task) == "CLAIMED"


async def test_a_claim_with_a_beat_is_alive_but_not_by_a_beat_of_an_earlier_claim(db: Database) -> None:
    alive, dead = (factories.task(db, "CLAIMED", **OVER) for _ in range(2))
    factories.heartbeat(db, alive, "claimer", sent_at=ago(seconds=1))
    factories.heartbeat(db, dead, "claimer", sent_at=ago(minutes=10))
    factories.heartbeat(db, dead, "runner", sent_at=ago(seconds=1))
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert (status(db, alive), status(db, dead)) == ("CLAIMED", "PENDING")


# -- running ---------------------------------------------------------------------------------------------------


async def test_a_crash_fails_the_task(db: Database) -> None:
    task = factories.task(db, "RUNNING", **STALE, task_options="{}")
    async with reaping(db) as reaper:
        await reaper.run_once()
    stored = factories.read(db, task)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "WORKER_CRASHED")
    assert "no sign of life (worker worker-1, process 4711)" in stored["failed_reason"]
    assert stored["result"] == encode_error(TaskError("WORKER_CRASHED", stored["failed_reason"]))
    assert attempts(db, task) == [(1, "WORKER_FAILURE", "WORKER_CRASHED", False, "worker-1", 4711)]
    span = db.execute("SELECT started_at, finished_at FROM horsies_task_attempts")[0]
    assert span == (stored["started_at"], stored["failed_at"])


async def test_the_process_that_a_row_names_is_never_signalled(db: Database) -> None:
    """Process ids are reused, and rows are written by others: only a live child of the worker itself is signalled."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        tasks = [
            factories.task(db, "RUNNING", **STALE, worker_pid=stranger.pid, worker_hostname=socket.gethostname()),
            factories.task(db, "RUNNING", **STALE, worker_pid=stranger.pid, cancel_requested_at=NOW),
        ]
        async with reaping(db) as reaper:
            await reaper.run_once()
        assert [status(db, task) for task in tasks] == ["PENDING", "CANCELLED"]
        assert stranger.returncode is None
        assert psutil.pid_exists(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_crash_is_retried_by_the_policy_and_counted(db: Database) -> None:
    """The row's own options where it has some, else the registration's."""
    by_row = factories.task(
        db, "RUNNING", **STALE, task_name="nobody knows it", task_options=CRASHES_ARE_RETRIED.to_json(), max_retries=2
    )
    by_registration = factories.task(db, "RUNNING", **STALE)
    async with reaping(db) as reaper:
        await reaper.run_once()
    for task in (by_row, by_registration):
        stored = factories.read(db, task)
        assert (stored["status"], stored["retry_count"], stored["max_retries"]) == ("PENDING", 1, 2)
        assert stored["enqueued_at"] == stored["next_retry_at"] == stored["updated_at"] + timedelta(seconds=30)
        assert attempts(db, task) == [(1, "WORKER_FAILURE", "WORKER_CRASHED", True, "worker-1", 4711)]


async def test_crash_retries_are_bounded(db: Database) -> None:
    task = factories.task(
        db, "RUNNING", **STALE, retry_count=2, max_retries=2, task_options=CRASHES_ARE_RETRIED.to_json()
    )
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert status(db, task) == "FAILED"
    assert [row[0] for row in attempts(db, task)] == [1, 2, 3]


async def test_a_crash_of_an_unwanted_task_ends_cancelled(db: Database) -> None:
    task = factories.task(db, "RUNNING", **STALE, cancel_requested_at=NOW)
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert (status(db, task), factories.read(db, task)["error_code"]) == ("CANCELLED", "TASK_CANCELLED")


async def test_who_beats_is_alive(db: Database) -> None:
    alive = factories.task(db, "RUNNING", **STALE)
    fresh = factories.task(db, "RUNNING")
    dead = factories.task(db, "RUNNING", **STALE, task_options="{}")
    factories.heartbeat(db, alive, sent_at=ago(seconds=1))
    factories.heartbeat(db, dead, sent_at=ago(minutes=9))
    factories.heartbeat(db, dead, "claimer", sent_at=ago(seconds=1))
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert (status(db, alive), status(db, fresh), status(db, dead)) == ("RUNNING", "RUNNING", "FAILED")


async def test_the_late_worker_can_write_nothing_more(db: Database) -> None:
    task = factories.task(db, "RUNNING", **STALE, task_options="{}")
    async with reaping(db) as reaper:
        await reaper.run_once()
    before = factories.read(db, task)
    async with Hands.on(db) as late:
        row = {"id": task, "claim_generation": 1, "retry_count": 0, "max_retries": 0}
        assert await late.end([row]) == {}
        assert await late.queries.beat(late.connection, [(task, 1, "runner", 4711, "child")]) == set()
    assert factories.read(db, task) == before


async def test_many_stale_tasks_go_in_batches(db: Database) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, claimed_at, started_at, claimed_by_worker_id, worker_pid,"
        " claim_generation, task_options, enqueued_at, created_at) SELECT i::text, 'add', 'RUNNING', d, d, 'w', 1, 1,"
        f" '{{}}', d, d FROM generate_series(1, {BATCH + 200}) AS i, (SELECT now() - interval '1 hour' AS d) AS x"
    )
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1") == [("FAILED", BATCH + 200)]
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == BATCH + 200


# -- results in hand -------------------------------------------------------------------------------------------

IN_HAND = {**STALE, "finalizing_at": ago(minutes=7), "finalizing_by_worker_id": "worker-1"}


async def test_a_staged_result_is_finished(db: Database) -> None:
    """The work was done: only its worker died. The attempt ended when the result was in hand, not now."""
    task = factories.task(db, "RUNNING", **IN_HAND, result='{"ok":42}')
    before = factories.read(db, task)
    async with reaping(db) as reaper:
        await reaper.run_once()
    stored = factories.read(db, task)
    assert (stored["status"], stored["result"], stored["finalizing_at"]) == ("COMPLETED", '{"ok":42}', None)
    assert attempts(db, task) == [(1, "COMPLETED", None, False, "worker-1", 4711)]
    span = db.execute("SELECT started_at, finished_at FROM horsies_task_attempts")[0]
    assert span == (before["started_at"], before["finalizing_at"])


async def test_a_staged_value_that_is_not_to_be_stored_is_dropped_with_the_end(db: Database) -> None:
    quiet = {"task_options": '{"store_result":false}'}
    tasks = [
        factories.task(db, "RUNNING", **{**IN_HAND, **quiet, "worker_pid": pid}, result=f'{{"ok":{value}}}')
        for pid, value in ((1, "42"), (2, "null"))
    ]
    async with reaping(db) as reaper:
        await reaper.run_once()
    stored = [factories.read(db, task) for task in tasks]
    assert [(row["status"], row["result"]) for row in stored] == [("COMPLETED", None), ("COMPLETED", '{"ok":null}')]


@pytest.mark.parametrize(
    ("code", "asked", "ends", "outcome"),
    [
        ("SMTP_DOWN", False, "FAILED", "FAILED"),
        ("TASK_TIMEOUT", False, "FAILED", "FAILED"),
        ("TASK_CANCELLED", True, "CANCELLED", "FAILED"),
        ("TASK_CANCELLED", False, "FAILED", "FAILED"),  # a release without reserved codes let a task say so itself
        ("WORKER_CRASHED", False, "PENDING", "WORKER_FAILURE"),
    ],
)
async def test_a_staged_error_ends_as_its_code_says(
    db: Database, code: str, asked: bool, ends: str, outcome: str
) -> None:
    request = {"cancel_requested_at": ago(minutes=8)} if asked else {}
    task = factories.task(db, "RUNNING", **IN_HAND, **request, result=encode_error(TaskError(code, "x")))
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert status(db, task) == ends
    assert [(row[1], row[2]) for row in attempts(db, task)] == [(outcome, code)]


async def test_a_staged_result_is_given_its_own_time(db: Database) -> None:
    fresh = factories.task(
        db, "RUNNING", **{**IN_HAND, "finalizing_at": ago(seconds=3)}, result='{"ok":1}', task_options="{}"
    )
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert status(db, fresh) == "RUNNING"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ok":1,"err":{}}', '{"err":{"error_code":7}}', "[" * 100_000])
async def test_a_staged_text_that_cannot_be_read_is_a_crash(db: Database, text: str) -> None:
    task = factories.task(db, "RUNNING", **IN_HAND, result=text, task_options="{}")
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert (status(db, task), factories.read(db, task)["error_code"]) == ("FAILED", "WORKER_CRASHED")


# -- when a reaper calls tasks stale --------------------------------------------------------------------------------


async def test_no_task_is_stale_before_the_reaper_has_been_in_contact_for_the_threshold(db: Database) -> None:
    running = factories.task(db, "RUNNING", **STALE, task_options="{}")
    claimed = factories.task(db, "CLAIMED", **OVER)
    async with reaping(db, seasoned=False) as reaper:
        began = time.monotonic()
        await reaper.run_once()
        assert (status(db, running), status(db, claimed)) == ("RUNNING", "CLAIMED")
        while status(db, running) == "RUNNING":
            await reaper.run_once()
            await asyncio.sleep(0.1)
        assert time.monotonic() - began >= 2
    assert (status(db, running), status(db, claimed)) == ("FAILED", "PENDING")


@pytest.mark.parametrize("how", ["an error", "a long pause"])
async def test_the_time_in_contact_starts_again_after(db: Database, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = factories.task(db, "RUNNING", **STALE, task_options="{}")
    async with reaping(db) as reaper:
        if how == "an error":
            with monkeypatch.context() as broken:
                broken.setattr(Session, "run", failing)
                with pytest.raises(OSError, match="away"):
                    await reaper.run_once()
        else:
            reaper.contact.last_answer = time.monotonic() - 30
        await reaper.run_once()
        assert status(db, task) == "RUNNING"
        season(reaper)
        await reaper.run_once()
    assert status(db, task) == "FAILED"


async def failing(*_: Any) -> None:
    raise OSError("away")


async def test_a_search_that_was_refused_ends_no_task_for_the_threshold(db: Database) -> None:
    """The server may have refused the heartbeats of living workers too; the search itself goes on at every sweep."""
    task = factories.task(db, "RUNNING", **STALE, task_options="{}")
    async with reaping(db) as reaper:
        db.execute("ALTER TABLE horsies_heartbeats RENAME TO elsewhere")
        await reaper.run_once()
        db.execute("ALTER TABLE elsewhere RENAME TO horsies_heartbeats")
        began = time.monotonic()
        while status(db, task) == "RUNNING":
            season(reaper)
            await reaper.run_once()
            await asyncio.sleep(0.05)
        assert time.monotonic() - began >= 1.9
    assert status(db, task) == "FAILED"


@pytest.mark.parametrize(
    ("switch", "kept"), [("auto_fail_stale_running", "RUNNING"), ("auto_requeue_stale_claimed", "CLAIMED")]
)
async def test_each_recovery_can_be_switched_off(db: Database, switch: str, kept: str) -> None:
    running = factories.task(db, "RUNNING", **STALE, task_options="{}")
    claimed = factories.task(db, "CLAIMED", **OVER)
    async with reaping(db, **{switch: False}) as reaper:
        await reaper.run_once()
    assert {status(db, running), status(db, claimed)} == {kept, "FAILED" if kept == "CLAIMED" else "PENDING"}
    db.execute("DELETE FROM horsies_tasks WHERE status = %s", kept)  # which T8 would rightly call left behind


async def test_a_foreign_session_that_holds_the_lock_of_the_reaper_is_named(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = login(db, f"stranger_{db.name[-8:]}")
    name = account(stranger)
    try:
        with psycopg.connect(stranger.url, autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(%s, hashtext('public'))", (REAPER_LOCK,))
            async with reaping(db) as reaper:
                for _ in range(REFUSALS):
                    await reaper.run_once()
            assert f"reaper: session {other.info.backend_pid} (role {name}, " in caplog.text
    finally:
        db.execute(f'DROP ROLE "{name}"')


async def test_one_reaper_sweeps_at_a_time(db: Database) -> None:
    task = factories.task(db, good_until=ago(seconds=1))
    other = await asyncpg.connect(db.url)
    transaction = other.transaction()
    await transaction.start()
    assert await other.fetchval("SELECT pg_try_advisory_xact_lock($1, hashtext(current_schema()))", REAPER_LOCK)
    async with reaping(db) as reaper:
        await reaper.run_once()
        assert status(db, task) == "PENDING"
        await transaction.rollback()
        await reaper.run_once()
    await other.close()
    assert status(db, task) == "EXPIRED"


async def test_reapers_side_by_side_recover_each_task_once(db: Database) -> None:
    tasks = [factories.task(db, "RUNNING", **STALE) for _ in range(40)]
    async with reaping(db) as one, reaping(db) as two, reaping(db) as three:
        await asyncio.gather(*(reaper.run_once() for reaper in (one, two, three)))
        await one.run_once()
    assert {len(attempts(db, task)) for task in tasks} == {1}
    assert {status(db, task) for task in tasks} == {"PENDING"}


async def test_a_locked_row_is_in_somebodys_hands(db: Database) -> None:
    held, free = (factories.task(db, "RUNNING", **STALE, task_options="{}") for _ in range(2))
    holder = await asyncpg.connect(db.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT 1 FROM horsies_tasks WHERE id = $1 FOR UPDATE", held)
    async with reaping(db) as reaper:
        await asyncio.wait_for(reaper.run_once(), 30)
        assert (status(db, held), status(db, free)) == ("RUNNING", "FAILED")
        await transaction.rollback()
        await reaper.run_once()
    await holder.close()
    assert status(db, held) == "FAILED"


async def test_one_row_that_takes_no_end_does_not_stop_the_sweep(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [factories.task(db, "RUNNING", **STALE, task_options="{}") for _ in range(9)]
    factories.attempt(db, tasks[4], 1)  # which no worker of ours writes
    overdue = factories.task(db, good_until=ago(seconds=1))
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert [status(db, task) for task in tasks] == ["FAILED"] * 4 + ["RUNNING"] + ["FAILED"] * 4
    assert status(db, overdue) == "EXPIRED"
    assert f"task {tasks[4]} cannot be ended" in caplog.text
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", tasks[4])


async def test_one_row_that_a_trigger_refuses_does_not_stop_the_sweep(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [factories.task(db, "RUNNING", **STALE, task_options="{}") for _ in range(9)]
    with refusing(db, updates_of(tasks[4]), code="P0001"):
        async with reaping(db) as reaper:
            await reaper.run_once()
    assert [status(db, task) for task in tasks] == ["FAILED"] * 4 + ["RUNNING"] + ["FAILED"] * 4
    assert f"task {tasks[4]} cannot be ended: RaiseError: no" in caplog.text
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", tasks[4])


@pytest.mark.parametrize("options", ["{", "[" * 50_000, '{"retry_policy":{"max_retries":-1}}'])
async def test_hostile_options_do_not_stop_the_sweep(db: Database, options: str) -> None:
    task = factories.task(db, "RUNNING", **STALE, task_name="nobody knows it", task_options=options)
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert status(db, task) == "FAILED"


# -- connections -----------------------------------------------------------------------------------------------


def backends(db: Database) -> dict[str, int]:
    """The reaper's sessions: process ids by purpose."""
    rows = db.execute(
        "SELECT application_name, pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'horsies worker %'"
    )
    return {name.removeprefix("horsies worker "): pid for name, pid in rows}


async def test_a_sweep_that_finds_nothing_needs_no_connection_of_its_own(db: Database) -> None:
    factories.task(db)
    factories.task(db, "RUNNING")
    async with reaping(db) as reaper:
        await reaper.run_once()
        assert backends(db).keys() == {"shared"}
        factories.task(db, "RUNNING", **STALE)
        await reaper.run_once()
        assert backends(db).keys() == {"shared", "reaper"}


async def test_tasks_behind_one_that_takes_no_end_are_found(db: Database) -> None:
    """The look sees one task alone: which one that is must not matter."""
    older = {**STALE, "started_at": ago(minutes=8, seconds=30)}
    stuck = factories.task(db, "RUNNING", **older, task_options="{}")
    factories.attempt(db, stuck, 1)
    behind = factories.task(db, "RUNNING", **STALE, task_options="{}")
    async with reaping(db) as reaper:
        await reaper.run_once()
    assert (status(db, stuck), status(db, behind)) == ("RUNNING", "FAILED")
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", stuck)


@pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
async def test_a_lock_on_a_table_does_not_keep_the_shared_connection(db: Database, mode: str) -> None:
    """REINDEX and VACUUM FULL: the reaper waits on its own connection, and heartbeats of workers have theirs."""
    task = factories.task(db, "RUNNING", **STALE, task_options="{}")
    async with reaping(db) as reaper:
        await reaper.run_once()
        shared = backends(db)["shared"]
        with psycopg.connect(db.url) as other:
            other.execute(f"LOCK TABLE horsies_heartbeats IN {mode} MODE")
            sweep = asyncio.ensure_future(reaper.run_once())
            await eventually_async(lambda: waits_for_a_lock(db, "LOCK TABLE%"))
            assert db.value("SELECT state FROM pg_stat_activity WHERE pid = %s", shared) == "idle"
        await sweep
        assert backends(db)["shared"] == shared
    assert status(db, task) == "FAILED"


# -- failures --------------------------------------------------------------------------------------------------


@pytest.mark.breaks("T8")  # the task that the refused part leaves
@pytest.mark.parametrize("part", ["overdue tasks", "stale claims", "stale running tasks"])
async def test_a_part_that_fails_does_not_keep_the_others(
    db: Database, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One refused statement undid the whole sweep, every time."""
    ends = {"overdue tasks": "EXPIRED", "stale claims": "PENDING", "stale running tasks": "FAILED"}
    tasks = {
        "overdue tasks": factories.task(db, good_until=ago(seconds=5)),
        "stale claims": factories.task(db, "CLAIMED", **OVER),
        "stale running tasks": factories.task(db, "RUNNING", **STALE, task_options="{}"),
    }
    before = status(db, tasks[part])
    ending = f"BEFORE UPDATE ON horsies_tasks FOR EACH ROW WHEN (NEW.status = '{ends[part]}')"
    async with reaping(db) as reaper:
        with refusing(db, ending, code="42501"):
            await reaper.run_once()
        assert {one: status(db, task) for one, task in tasks.items()} == {**ends, part: before}
        assert f"reaper: the search for {part} failed; the other searches continue" in caplog.text
        await reaper.run_once()
    assert {one: status(db, task) for one, task in tasks.items()} == ends
