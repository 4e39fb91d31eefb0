"""Workers behind a real PgBouncer in transaction mode, with a direct URL for LISTEN (F49, F50)."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from horsies import ConfigurationError, PostgresConfig, TaskHandle, TaskStatus, gather
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos, check_invariants, tasks_on, worker

LONG_MS = 30_000


def through(proxy: PgBouncer, db: Database, **more: Any) -> dict[str, Any]:
    return {"where": proxy.url, "broker": {"pooler": True, "direct_url": db.url}, **more}


def all_ok(handles: list[TaskHandle[Any]]) -> bool:
    return all(result.is_ok() for result in gather(handles, timeout_ms=60_000))


def test_work_through_a_transaction_pooler(db: Database, tmp_path: Path) -> None:
    """Round trips, retries, cancels, delays and five hundred tasks; more clients than server sessions."""
    chaos = Chaos(db, tmp_path)
    with pgbouncer(db) as proxy:
        # a minute: only notifications, which go around the pooler, can be quick
        config = through(proxy, db, resilience={"notify_poll_interval_ms": 60_000})
        with worker(**config, folder=tmp_path) as one, worker(**config, folder=tmp_path), tasks_on(**config) as tasks:
            assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
            retried, later = tasks.flaky.send(3), tasks.add.schedule(0.5, 1)
            long = tasks.nap.send(60.0)
            eventually(lambda: long.info().status is TaskStatus.RUNNING)
            long.cancel()
            assert retried.get(LONG_MS).ok == 3
            assert later.get(LONG_MS).ok == 1
            assert str(long.get(LONG_MS).err.error_code) == "TASK_CANCELLED"
            handles = chaos.send(tasks.chaos, 500)
            with ThreadPoolExecutor(8) as threads:
                singles = list(threads.map(lambda k: tasks.add.send(k, k), range(100)))
            assert all_ok(handles)
            assert [handle.get(LONG_MS).ok for handle in singles] == [2 * k for k in range(100)]
            assert "LISTEN does not work" not in one.log
            assert "unexpectedly" not in one.log
    chaos.check()


def test_caps_through_a_transaction_pooler(db: Database, tmp_path: Path) -> None:
    with pgbouncer(db) as proxy:
        config = through(proxy, db, queues={"narrow": 2, "wide": None}, cluster_wide_cap=3)
        with (
            worker(**config, folder=tmp_path, processes=4) as one,
            worker(**config, folder=tmp_path, processes=4) as other,
            tasks_on(**config) as tasks,
        ):
            calls = [(0.03,)] * 40
            handles = [
                *tasks.sleep.with_options(queue_name="narrow").send_many(calls),
                *tasks.sleep.with_options(queue_name="wide").send_many(calls),
            ]
            assert all_ok(handles)
            for process in (one, other):
                assert "unexpectedly" not in process.log, process.log
    check_invariants(db, cap=3, qcap={"narrow": 2})


def test_the_pooler_is_restarted(db: Database, tmp_path: Path) -> None:
    """F50: as when backends are killed; nothing fails."""
    chaos = Chaos(db, tmp_path)
    with pgbouncer(db) as proxy:
        config = through(proxy, db)
        with worker(**config, folder=tmp_path) as process, tasks_on(**config) as tasks:
            handles = chaos.send(tasks.chaos, 150, 0.03)
            for done in (20, 60):
                eventually(lambda done=done: db.value("SELECT count(*) FROM horsies_task_attempts") >= done, timeout=20)
                proxy.restart()
            assert all_ok(handles)
            assert process.is_running
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'") == 0
    chaos.check()


def test_without_a_direct_url_the_configuration_refuses(db: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"direct_url.*is required with pooler=True.*LISTEN"):
        PostgresConfig(db.url, pooler=True)


def test_a_direct_url_that_leads_to_the_pooler_is_noticed(db: Database, tmp_path: Path) -> None:
    """LISTEN through the pooler is lost without any error: the worker finds out by itself, says so, and polls."""
    with pgbouncer(db) as proxy:
        deaf = {"pooler": True, "direct_url": proxy.url.replace("127.0.0.1", "localhost")}
        with worker(proxy.url, folder=tmp_path, broker=deaf) as process, tasks_on(db) as tasks:
            process.wait_for_log("LISTEN does not work on this connection")
            process.wait_for_log("Set PostgresConfig.direct_url to the server itself")
            assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
    check_invariants(db)
