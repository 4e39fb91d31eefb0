"""The database as a source: what it answers, how it asks, what it may."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import horsies_schema
from horsies import TaskStatus
from horsies._pg.statements import Statement
from horsies.ids import derived_id
from horsies.operate.stale import StaleKind
from horsies_tui.data import facets
from horsies_tui.data.filters import Query
from horsies_tui.data.lists import LOOK
from horsies_tui.data.models import Count
from horsies_tui.data.overview import FAILURES_SEEN
from horsies_tui.data.postgres import APPLICATION_NAME
from horsies_tui.data.source import SourceError
from tests.support import factories
from tests.support.dashboards import source_on
from tests.support.factories import ago, ahead, task, worker_state
from tests.support.postgres import Database


async def listed(db: Database, text: str = "", limit: int = 100) -> list[str]:
    source = source_on(db.url)
    query, problems = Query.parse(text)
    assert not problems
    try:
        return [row.id for row in (await source.tasks(query, since=None, after=None, limit=limit)).rows]
    finally:
        await source.close()


async def test_a_list_has_what_is_held_then_what_waits_then_what_ended(db: Database) -> None:
    ended = [task(db, "COMPLETED", terminal_at=ago(seconds=n)) for n in (1, 2)]
    waiting = [task(db, priority=n) for n in (1, 2)]
    delayed = task(db, priority=3, enqueued_at=ahead(hours=1))
    held = task(db, "RUNNING")
    assert await listed(db) == [held, *waiting, delayed, *ended]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("queue:mail", {"mail", "mail_failed"}),
        ("status:failed", {"failed", "mail_failed"}),
        ("status:failed queue:mail", {"mail_failed"}),
        ("name:rece", {"named"}),
        ("rece", {"named"}),
        ("error:smtp", {"failed", "mail_failed"}),
        ("worker:worker-9", {"run"}),
        ("status:running,pending queue:mail", {"mail"}),
        ("error:smtp status:running", set()),
        ("meta:tenant=acme", {"named", "run", "failed"}),
        ("meta:tenant=acme meta:n=5", {"named"}),
        ("meta:tenant=acme status:failed", {"failed"}),
        ("meta:tenant=no", set()),
    ],
)
async def test_a_qualified_search_finds_exactly_what_it_says(db: Database, text: str, wanted: set[str]) -> None:
    ids = {
        "mail": task(db, queue_name="mail"),
        "failed": task(db, "FAILED", metadata='{"tenant": "acme"}'),
        "mail_failed": task(db, "FAILED", queue_name="mail"),
        "named": task(db, task_name="send_Receipt", metadata='{"tenant": "acme", "n": 5}'),
        "run": task(db, "RUNNING", claimed_by_worker_id="worker-9", metadata='{"tenant": "acme"}'),
    }
    assert set(await listed(db, text)) == {ids[name] for name in wanted}
    source = source_on(db.url)
    try:
        counted = (await source.breakdown(Query.parse(text)[0], since=None)).statuses
    finally:
        await source.close()
    states = Query.parse(text)[0].tasks
    assert sum(count.value for status, count in counted.items() if status in states) == len(wanted)


async def test_a_search_of_metadata_looks_as_far_back_as_the_window(db: Database) -> None:
    then = {name: ago(days=3) for name in ("enqueued_at", "claimed_at", "started_at", "completed_at", "terminal_at")}
    old = task(db, "COMPLETED", metadata='{"tenant": "acme"}', **then)
    query = Query.parse("meta:tenant=acme")[0]
    source = source_on(db.url)
    try:
        for since, found in ((None, [old]), (timedelta(days=1), []), (timedelta(days=7), [old])):
            page = await source.tasks(query, since=since, after=None, limit=5)
            assert [row.id for row in page.rows] == found
    finally:
        await source.close()


async def test_an_id_is_looked_up_and_a_part_of_one_is_searched(db: Database) -> None:
    one = task(db, "COMPLETED")
    task(db, "COMPLETED", id="ffffffff-0000-7000-8000-000000000000")
    assert await listed(db, f"id:{one}") == [one]
    assert await listed(db, f"id:{one[:20]}") == [one]


async def test_pages_follow_each_other_without_gap_or_repetition(db: Database) -> None:
    with psycopg.connect(db.url) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result)
               SELECT to_char(n, 'FM00000000'), 'a', 'COMPLETED', now(), now() - (n % 7) * interval '1 second', '{}'
                 FROM generate_series(1, 60) AS n"""
        )
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, priority)
               SELECT 'w' || to_char(n, 'FM0000000'), 'a', 1 + n % 3 FROM generate_series(1, 30) AS n"""
        )
    source = source_on(db.url)
    try:
        for text, total in (("status:completed", 60), ("status:pending", 30)):
            found: list[str] = []
            place = None
            while True:
                page = await source.tasks(Query.parse(text)[0], since=None, after=place, limit=7)
                found += [row.id for row in page.rows]
                place = page.next
                if place is None:
                    break
            assert len(found) == len(set(found)) == total
    finally:
        await source.close()


async def test_a_search_for_a_rare_thing_stops_and_says_how_far_it_looked(db: Database) -> None:
    with psycopg.connect(db.url) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result)
               SELECT to_char(n, 'FM00000000'), CASE n WHEN 1 THEN 'rare' ELSE 'a' END, 'COMPLETED', now(),
                      now() - (%s::int * 2 - n) * interval '1 second', '{}'
                 FROM generate_series(1, %s::int + 10) AS n""",
            (LOOK, LOOK),
        )
    source = source_on(db.url)
    try:
        first = await source.tasks(Query(name="rare"), since=None, after=None, limit=10)
        assert (first.rows, first.looked) == ((), LOOK)
        assert first.next is not None
        second = await source.tasks(Query(name="rare"), since=None, after=first.next, limit=10)
        assert [row.task_name for row in second.rows] == ["rare"]
    finally:
        await source.close()


async def test_what_is_stale_is_judged_by_the_thresholds_of_its_own_worker(db: Database) -> None:
    for worker, seconds in (("quick", 10), ("slow", 1_000)):
        config = {f"{kind}_stale_threshold_ms": seconds * 1000 for kind in ("claimed", "running", "finalizing")}
        worker_state(db, worker, recovery_config=json.dumps(config))
    held = {"started_at": ago(seconds=60), "claimed_at": ago(seconds=60), "enqueued_at": ago(seconds=61)}
    stale = task(db, "RUNNING", claimed_by_worker_id="quick", **held)
    task(db, "RUNNING", claimed_by_worker_id="slow", **held)
    vouched = task(db, "RUNNING", claimed_by_worker_id="quick", **held)
    factories.heartbeat(db, vouched)
    ready = {"result": '{"ok":1}', "finalizing_at": ago(seconds=40), "finalizing_by_worker_id": "quick"}
    finalizing = task(db, "RUNNING", claimed_by_worker_id="quick", **held, **ready)
    source = source_on(db.url)
    try:
        found = await source.stale()
    finally:
        await source.close()
    assert {one.task.id: one.verdict.kind for one in found.tasks} == {
        stale: StaleKind.RUNNING,
        finalizing: StaleKind.FINALIZING,
    }
    assert not found.dead


async def test_counts_become_estimates_where_counting_would_read_too_much(db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result)
               SELECT to_char(n, 'FM00000000'), 'a', 'COMPLETED', now(), now(), '{}'
                 FROM generate_series(1, 30000) AS n"""
        )
        connection.execute("ANALYZE horsies_tasks")
    task(db, "RUNNING")
    source = source_on(db.url)
    try:
        counts = (await source.overview(timedelta(minutes=15))).counts
    finally:
        await source.close()
    assert counts[TaskStatus.COMPLETED].is_estimate
    assert abs(counts[TaskStatus.COMPLETED].value - 30_000) < 1_000
    assert (counts[TaskStatus.RUNNING].value, counts[TaskStatus.RUNNING].is_estimate) == (1, False)


async def test_numbers_of_a_list_say_whether_they_are_whole(db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, queue_name, status, completed_at, terminal_at, result)
               SELECT to_char(n, 'FM00000000'), 'a', 'q' || n % 2, 'COMPLETED', now(), now() - n * interval '1 second',
                      '{}' FROM generate_series(1, 4000) AS n"""
        )
        connection.execute("ANALYZE horsies_tasks")
    failed = task(db, "FAILED", queue_name="q0", terminal_at=ago(minutes=20))
    task(db, "RUNNING", queue_name="q1")
    source = source_on(db.url)
    try:
        short = await source.breakdown(Query(), since=timedelta(minutes=10))
        hour = await source.breakdown(Query(), since=timedelta(hours=1))
        whole = await source.breakdown(Query(), since=None)
        narrow = await source.breakdown(Query(queue="q0"), since=None)
        by_id = await source.breakdown(Query(id=failed), since=timedelta(minutes=10))
    finally:
        await source.close()
    done, lost, runs = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.RUNNING
    assert 590 < short.statuses[done].value <= 600, "so many ended within ten minutes"
    assert not short.statuses[done].is_least
    assert (short.statuses[lost].value, short.statuses[runs].value) == (0, 1)
    assert hour.statuses[done] == Count(facets.LOOK - 1, is_least=True), "one of the newest ends is a failure"
    assert hour.statuses[lost] == Count(1), "a failure is not hidden by newer successes"
    assert whole.statuses[done].is_estimate
    assert abs(whole.statuses[done].value - 4_000) < 200
    assert narrow.statuses[done].is_least, "the planner knows nothing of one queue"
    queues = {one.value: one.is_asked for one in narrow.facets if one.field == "queue"}
    assert queues == {"q0": True, "q1": False}
    assert (by_id.statuses[lost].value, by_id.statuses[done].value) == (1, 0)


async def test_every_waiting_queue_is_a_facet_however_long_the_first_is(db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO horsies_tasks (id, task_name, queue_name) "
            "SELECT to_char(n, 'FM00000000'), 'a', 'aaa' FROM generate_series(1, 1000) AS n"
        )
    task(db, queue_name="zzz")
    source = source_on(db.url)
    try:
        found = await source.breakdown(Query(name="a"), since=None)
    finally:
        await source.close()
    queues = {one.value: one.count for one in found.facets if one.field == "queue"}
    assert queues == {"aaa": Count(facets.PER_QUEUE, is_least=True), "zzz": Count(1, is_least=True)}


async def test_the_past_of_a_worker_fills_its_window_up_to_its_last_sign_of_life(db: Database) -> None:
    for minutes in range(0, 120, 2):
        worker_state(db, "gone", snapshot_at=ago(hours=5, minutes=minutes), cpu_percent=float(minutes))
    source = source_on(db.url)
    try:
        hour = await source.worker("gone", timedelta(minutes=59))
        day = await source.worker("gone", timedelta(days=1))
    finally:
        await source.close()
    assert hour is not None
    assert day is not None
    assert [moment.cpu_percent for moment in hour.history] == [float(minutes) for minutes in range(58, -1, -2)]
    assert [moment.cpu_percent for moment in day.history][-1] == 0.0
    assert 4 <= len(day.history) <= 6, "one of every slot"


async def test_rates_are_those_of_the_rows(db: Database) -> None:
    """Ten ends and ten sends a second, for half a minute: more than a sample in every slot."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        for n in range(400):
            connection.execute(
                """INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result, enqueued_at,
                                              started_at, claimed_at, claimed_by_worker_id, worker_pid)
                   VALUES (%s, 'a', 'COMPLETED', now(), now() - %s * interval '1 second', '{}',
                           now() - interval '60 seconds', now() - interval '59 seconds', now(), 'w', 1)""",
                (derived_id(datetime.now(UTC) - timedelta(seconds=n / 10), str(n)), n / 10),
            )
    source = source_on(db.url)
    try:
        series = (await source.overview(timedelta(minutes=5))).series
    finally:
        await source.close()
    busy = [value for value in series.done.curve if value > 1]
    assert busy
    assert all(5 < value < 20 for value in busy[1:-1])
    assert max(series.wait_p95) == pytest.approx(1.0, abs=0.1)
    assert max(series.sent.curve) > 1


# -- how it asks ---------------------------------------------------------------------------------


async def test_it_reads_in_read_only_transactions_with_a_limit_under_its_name(db: Database) -> None:
    source = source_on(db.url)
    settings = "SELECT current_setting('statement_timeout') AS bound, current_setting('application_name') AS name"
    source.statements = {
        "write": Statement("write", "many", "DELETE FROM horsies_tasks RETURNING id", (), ()),
        "settings": Statement("settings", "many", settings, (), ()),
    }
    try:
        (row,) = await source.read(lambda fetch: fetch("settings"))
        assert (row["bound"], row["name"]) == ("5s", APPLICATION_NAME)
        with pytest.raises(SourceError, match="read-only"):
            await source.read(lambda fetch: fetch("write"))
    finally:
        await source.close()


async def test_it_never_holds_more_than_two_connections(db: Database) -> None:
    source = source_on(db.url)
    live = asyncio.Event()
    watching = asyncio.ensure_future(source.watch(lambda _: None, lambda is_live: live.set() if is_live else None))
    try:
        await asyncio.wait_for(live.wait(), 10)
        looks = [source.overview(timedelta(minutes=5)), source.stale(), source.workers(), source.schedules()]
        await asyncio.gather(*looks, source.tasks(Query(), since=None, after=None, limit=10))
        count = db.value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = %s",
            APPLICATION_NAME,
            db.name,
        )
        assert count == 2
        idle = db.execute(
            "SELECT state FROM pg_stat_activity WHERE application_name = %s AND datname = %s", APPLICATION_NAME, db.name
        )
        assert {state for (state,) in idle} == {"idle"}, "no transaction stays open"
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await source.close()


# -- what it may ---------------------------------------------------------------------------------


@pytest.fixture
def roles(db: Database) -> Iterator[dict[str, str]]:
    """URLs of a viewer and an operator, by the grants that `horsies-migrate grants` prints."""
    prefix = f"t{db.name[-8:]}_"
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(horsies_schema.grants(prefix=prefix))  # type: ignore[call-overload]
    mark = "&" if "?" in db.url else "?"
    yield {name: f"{db.url}{mark}role={prefix}{name}" for name in ("viewer", "operator")}
    with psycopg.connect(db.url, autocommit=True) as connection:
        for name in ("viewer", "producer", "operator", "worker"):
            connection.execute(f'DROP OWNED BY "{prefix}{name}"')  # type: ignore[call-overload]
            connection.execute(f'DROP ROLE "{prefix}{name}"')  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["viewer", "operator"])
async def test_a_role_sees_and_may_what_its_grants_say(db: Database, roles: dict[str, str], name: str) -> None:
    task_id = task(db, "FAILED")
    source = source_on(roles[name])
    try:
        rights = (await source.session()).rights
        detail = await source.task(task_id)
    finally:
        await source.close()
    assert detail is not None
    assert (detail.payload is not None) == rights.sees_arguments == (name != "viewer")
    operator = name == "operator"
    assert rights.may_cancel == rights.may_requeue == rights.may_pause_workflow == rights.may_signal == operator
    assert rights.may_retry == rights.may_fail == rights.may_pause_queue == rights.may_run_schedule == operator


async def test_every_screen_works_for_a_viewer(db: Database, roles: dict[str, str]) -> None:
    task(db, "FAILED")
    worker_state(db)
    source = source_on(roles["viewer"])
    everything = Query()
    try:
        await source.overview(timedelta(minutes=5))
        assert (await source.tasks(everything, since=None, after=None, limit=5)).rows
        assert await source.workers()
        assert await source.worker("worker-1", timedelta(hours=1))
        assert (await source.breakdown(everything, since=None)).statuses[TaskStatus.FAILED].value == 1
        await source.stale()
        await source.workflows(everything, since=None, after=None, limit=5)
        await source.workflow("none")
        await source.schedules()
        assert (await source.maintenance()).tables
        for read in (source.tasks(Query(meta=(("a", "b"),)), since=None, after=None, limit=5),
                     source.breakdown(Query(meta=(("a", "b"),)), since=None)):  # fmt: skip
            with pytest.raises(SourceError, match="metadata is not visible to this role"):
                await read
    finally:
        await source.close()


async def test_failures_that_were_not_all_looked_at_are_told_as_at_least(db: Database) -> None:
    for number in range(FAILURES_SEEN):
        task(db, "FAILED", task_name="a", terminal_at=ago(seconds=number))
    source = source_on(db.url)
    try:
        (cut,) = (await source.overview(timedelta(hours=1))).failing
        (short,) = (await source.overview(timedelta(seconds=40))).failing
    finally:
        await source.close()
    assert (cut.tasks, cut.is_least) == (FAILURES_SEEN, True)
    assert not short.is_least
