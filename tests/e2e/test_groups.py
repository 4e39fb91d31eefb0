"""Groups and limits on real workers, which poll once a minute: what starts sooner was woken."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits_app import by_group, most_at_once, most_in_window, read_ledger
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended, start_worker

APP = "tests.support.limits_app:app"
SOON_S = 30.0
"""Far less than the poll, far more than a busy machine needs."""


@contextmanager
def fleet(
    db: Database, folder: Path, *queues: str, count: int = 1, processes: int = 2, **described: Any
) -> Iterator[list[WorkerProcess]]:
    """Workers that are up; `queues`: of each worker, all of them without one."""
    given = {"url": db.url, "resilience": {"notify_poll_interval_ms": 60_000}, **described}
    with ExitStack() as stack:
        workers = []
        for queue in queues or [""] * count:
            arguments = [f"--queues={queue}"] if queue else []
            process = start_worker(given, folder, *arguments, app=APP, processes=processes)
            workers.append(stack.enter_context(ended(process)))
        for one in workers:
            one.wait_up()
        yield workers


def send(
    db: Database, count: int, *, queue: str = "q", group: str | None = "g", seconds: float = 0.0, delay: float = 0.0
) -> None:
    key = "NULL" if group is None else f"'{group}'"
    db.execute(
        f"INSERT INTO horsies_tasks (id, task_name, queue_name, group_key, kwargs, enqueued_at)"
        f" SELECT gen_random_uuid(), 'work', '{queue}', {key},"
        f" json_build_object('number', i, 'seconds', {seconds})::text,"
        f" statement_timestamp() + interval '{delay} s' + i * interval '1 us'"
        f" FROM generate_series(1, {count}) AS i"
    )


def completed(db: Database, count: int, *, queue: str = "q") -> None:
    eventually(
        lambda: (
            db.value(f"SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED' AND queue_name = '{queue}'")
            >= count
        ),
        timeout=SOON_S,
        describe=f"{count} tasks of {queue} complete",
    )


def test_tasks_of_a_group_run_one_at_a_time_and_in_order(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, count=2, queues={"q": {"groups": {"max_concurrency": 1}}}):
        for group in "abc":
            send(db, 10, group=group, seconds=0.01)
        completed(db, 30)
    for runs in by_group(read_ledger(tmp_path)).values():
        assert most_at_once(runs) == 1
        assert [run.number for run in sorted(runs, key=lambda run: run.started)] == list(range(1, 11))


def test_a_token_wakes_the_worker_when_it_is_there(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, count=2, queues={"q": {"groups": {"rate": (5, 1.0)}}}):
        send(db, 12)
        completed(db, 12)
    starts = sorted(run.started for run in read_ledger(tmp_path))
    assert all(later - earlier < 2.0 for earlier, later in pairwise(starts)), "not by a poll"
    assert starts[5] - starts[0] >= 1.0


def test_delayed_tasks_start_when_they_are_due(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, queues={"q": {}}):
        send(db, 1, seconds=0.0)
        send(db, 1, group="later", delay=0.8)
        send(db, 1, delay=0.4)
        completed(db, 3)


def test_paused_and_resumed(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, queues={"q": {}}):
        db.execute("UPDATE horsies_queue_state SET paused_at = now() WHERE queue_name = 'q'")
        db.execute("INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ('q', now()) ON CONFLICT DO NOTHING")
        db.execute("SELECT pg_notify('queue_state', 'q')")
        send(db, 3)
        assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'") == 3
        db.execute("UPDATE horsies_queue_state SET paused_at = NULL")
        db.execute("SELECT pg_notify('queue_state', 'q')")
        completed(db, 3)


def test_a_changed_limit_holds_without_a_restart(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, queues={"q": {"groups": {"max_concurrency": 1}}}, processes=4):
        send(db, 40, seconds=0.05)
        completed(db, 2)
        db.execute("UPDATE horsies_queue_state SET override = '{\"max_concurrency\": 3}'")
        db.execute("SELECT pg_notify('queue_state', 'q')")
        eventually(lambda: most_at_once(read_ledger(tmp_path)) == 3, timeout=SOON_S)
        completed(db, 40)
    assert most_at_once(read_ledger(tmp_path)) == 3


def test_a_worker_without_room_leaves_groups_to_another(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, count=2, processes=1, queues={"q": {}}):
        for number in range(2):
            send(db, 1, group=f"long {number}", seconds=5.0)
            eventually(
                lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == number + 1,  # noqa: B023
                timeout=SOON_S,
            )  # fmt: skip
        owners = db.execute("SELECT DISTINCT claimed_by_worker_id FROM horsies_tasks WHERE status = 'RUNNING'")
        assert len(owners) == 2
        completed(db, 2)


def test_a_worker_that_stops_hands_its_groups_over(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, count=2, processes=1, queues={"q": {"groups": {"max_concurrency": 1}}}) as workers:
        send(db, 2, seconds=1.0)
        eventually(lambda: read_ledger(tmp_path), timeout=SOON_S)
        owner = db.value("SELECT claimed_by_worker_id FROM horsies_tasks WHERE status = 'RUNNING'")
        (one,) = (worker for worker in workers if worker.worker_id == owner)
        one.terminate()
        completed(db, 2)


def test_a_place_of_a_shared_limit_wakes_the_worker_of_another_queue(db: Database, tmp_path: Path) -> None:
    queues = {"q": {"limits": ["api"]}, "other": {"limits": ["api"]}}
    with fleet(db, tmp_path, "q", "other", queues=queues, limits={"api": {"max_concurrency": 1}}):
        send(db, 1, seconds=1.0, group=None)
        eventually(lambda: read_ledger(tmp_path), timeout=SOON_S)
        send(db, 2, queue="other", group=None)
        completed(db, 1)
        completed(db, 2, queue="other")
    assert most_at_once(read_ledger(tmp_path)) == 1


def test_tasks_with_and_without_a_group_share_the_places(db: Database, tmp_path: Path) -> None:
    with fleet(db, tmp_path, queues={"q": {}}):
        send(db, 300, group=None, seconds=0.005)
        send(db, 300, seconds=0.005)
        completed(db, 600)
    runs = sorted(read_ledger(tmp_path), key=lambda run: run.started)
    first_half = [bool(run.group) for run in runs[:300]]
    assert 60 < sum(first_half) < 240, "neither waits for the end of the other"


def test_groups_through_a_transaction_pooler(db: Database, tmp_path: Path) -> None:
    queues = {"q": {"groups": {"max_concurrency": 1, "rate": (50, 1.0)}}}
    with pgbouncer(db) as proxy:
        given = {"url": proxy.url, "broker": {"pooler": True, "direct_url": db.url}}
        with fleet(db, tmp_path, count=2, queues=queues, **given):
            for group in "abc":
                send(db, 10, group=group, seconds=0.005)
            completed(db, 30)
    for runs in by_group(read_ledger(tmp_path)).values():
        assert most_at_once(runs) == 1
        assert most_in_window([run.started for run in runs], 1.0) <= 50


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_killed_or_frozen_worker_frees_the_places_of_its_groups(
    db: Database, tmp_path: Path, is_frozen: bool
) -> None:
    with fleet(db, tmp_path, count=2, processes=1, queues={"q": {"groups": {"max_concurrency": 1}}}) as workers:
        send(db, 1, seconds=60.0)
        eventually(lambda: read_ledger(tmp_path), timeout=SOON_S)
        send(db, 1)
        owner = db.value("SELECT claimed_by_worker_id FROM horsies_tasks WHERE status = 'RUNNING'")
        (one,) = (worker for worker in workers if worker.worker_id == owner)
        began = time.monotonic()
        if is_frozen:
            one.freeze()
        else:
            one.kill_all()
        # the first task comes back behind the second one, which has its place
        eventually(
            lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 1, timeout=SOON_S
        )
        assert time.monotonic() - began > 0.5
        for worker in workers:
            worker.kill_all()
