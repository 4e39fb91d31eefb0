"""Debounced and replaced tasks on a real worker, which polls once a minute: what starts sooner was woken."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import factories
from tests.support.debouncing import ARRIVALS, senders
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import check_invariants, tasks_on, worker

SENDS = int(os.environ.get("HORSIES_TEST_DEBOUNCE_SENDS", "100"))
"""With 1000 (`just debounce`), in ten seconds and from eight processes."""
IS_FULL = SENDS >= 1000
PROCESSES, SECONDS = (8, 10.0) if IS_FULL else (2, 0.5)
SLOW_POLL: dict[str, Any] = {"resilience": {"notify_poll_interval_ms": 60_000}}
SOON_S = 20.0
"""Far less than the poll, far more than a busy machine needs."""


def ended(db: Database, task_id: str) -> dict[str, Any]:
    eventually(lambda: factories.read(db, task_id)["status"] == "COMPLETED", timeout=SOON_S, describe="it completes")
    return factories.read(db, task_id)


def test_a_burst_of_sends_runs_once_with_the_last_arguments(db: Database) -> None:
    debounce, max_wait = 1.0, SECONDS + 20.0
    db.execute(ARRIVALS)
    with worker(db, **SLOW_POLL):
        with senders(db, PROCESSES, SENDS, SECONDS, debounce, max_wait):
            pass
        task_id = db.value("SELECT task_id FROM horsies_unique_keys")
        row = ended(db, task_id)
        arrivals = db.execute("SELECT kwargs, at FROM arrivals WHERE kwargs IS NOT NULL ORDER BY number")
        runs = db.execute("SELECT task_id, started_at FROM horsies_task_attempts")
    last, last_at = arrivals[-1]
    first_at = arrivals[0][1]
    assert len(arrivals) == SENDS
    assert [run for run, _ in runs] == [task_id]
    assert row["kwargs"] == last
    assert json.loads(row["result"])["ok"] == sum(json.loads(last).values())
    after_last, after_first = runs[0][1] - last_at, runs[0][1] - first_at
    sys.stdout.write(
        f"\n{SENDS} sends of one key from {PROCESSES} processes in {(last_at - first_at).total_seconds():.2f} s: "
        f"{len(runs)} run, {after_last.total_seconds():.3f} s after the last and {after_first.total_seconds():.2f} s "
        f"after the first (debounce {debounce} s, max_wait {max_wait} s)\n"
    )
    # the witness looks at the clock a moment after the send
    assert timedelta(seconds=debounce - 0.1) <= after_last <= timedelta(seconds=debounce + 3)
    assert after_first <= timedelta(seconds=max_wait + 3)


@pytest.mark.skipif(not IS_FULL, reason="the short form is in tests/integration/test_unique_sends.py")
def test_max_wait_ends_a_burst_that_does_not(db: Database) -> None:
    with worker(db, **SLOW_POLL), tasks_on(db) as tasks:
        with senders(db, 2, 60, 2.0, debounce=0.8, max_wait=1.0):
            pass
        task_id = db.value("SELECT task_id FROM horsies_unique_keys")
        ended(db, task_id)
        rows = db.execute("SELECT id, sent_at, started_at FROM horsies_tasks WHERE task_name = 'add' ORDER BY id")
        assert tasks.add.send(1, 2).get(20_000).ok == 3
    assert 2 <= len(rows) <= 4
    for _, sent_at, started_at in rows:
        assert timedelta(seconds=0.7) < started_at - sent_at < timedelta(seconds=4)


@pytest.mark.skipif(not IS_FULL, reason="the short form is in tests/integration/test_unique_sends.py")
def test_replacements_beside_claims_lose_no_last_call(db: Database) -> None:
    """The window is a millisecond, so that claims and replacements of one task meet all the time."""
    db.execute(ARRIVALS)
    with worker(db, **SLOW_POLL):
        with senders(db, 4, SENDS, 3.0, debounce=0.001, max_wait=0.001):
            pass
        waiting = "SELECT count(*) FROM horsies_tasks WHERE task_name = 'add' AND status <> 'COMPLETED'"
        eventually(lambda: db.value(waiting) == 0, timeout=SOON_S, describe="all complete")
    arrivals = [kwargs for (kwargs,) in db.execute("SELECT kwargs FROM arrivals ORDER BY number") if kwargs]
    ran = [kwargs for (kwargs,) in db.execute(
        "SELECT kwargs FROM horsies_tasks WHERE task_name = 'add' ORDER BY started_at, id")]  # fmt: skip
    sys.stdout.write(f"\n{len(arrivals)} sends, {len(ran)} runs\n")
    assert len(arrivals) == SENDS
    assert len(ran) > 10
    assert ran[-1] == arrivals[-1]
    places = [arrivals.index(kwargs) for kwargs in ran]
    assert len(set(places)) == len(places)  # no call ran twice, and each task ran what it took last
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == len(ran)


MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "earlier": ({"delay": 600}, {"delay": 0}),
    "to another queue": ({"queue_name": "idle"}, {"queue_name": "other"}),
    "to another priority": ({"delay": 600, "priority": 90}, {"delay": 0.2, "priority": 3}),
    "into a group": ({"delay": 600}, {"delay": 0, "group": "g"}),
    "out of a group": ({"delay": 600, "group": "g"}, {"delay": 0}),
}


def test_a_task_that_is_moved_is_found(db: Database, tmp_path: Path) -> None:
    """Also by a worker that has scanned everything, and looks at new rows only from then on."""
    queues = {"default": None, "other": None}
    config: dict[str, Any] = {"queues": {**queues, "idle": None}, **SLOW_POLL}
    with worker(db, "--queues=default,other", folder=tmp_path, **config), tasks_on(db, **config) as tasks:
        add = tasks.add.with_options(queue_name="default")
        assert add.send(1, 1).get(20_000).ok == 2
        handles = {}
        for name, (before, _) in MOVES.items():
            handles[name] = add.with_options(unique_key=name, on_conflict="replace", **before).send(1, 1)
        # asked for the next due time, hence asleep
        assert add.send(1, 1).get(20_000).ok == 2
        for name, (_, after) in MOVES.items():
            moved = add.with_options(unique_key=name, on_conflict="replace", **after).send(40, 2)
            assert moved.task_id == handles[name].task_id
            assert moved.get(int(SOON_S * 1000)).ok == 42, name
        # a task that is put off does not start at its first time
        sender = add.with_options(unique_key="later", on_conflict="replace")
        sender.with_options(delay=0.2).send(1, 1)
        handle = sender.with_options(delay=0.8).send(2, 2)
        assert handle.get(20_000).ok == 4
        row = factories.read(db, handle.task_id)
        assert timedelta(0) <= row["started_at"] - row["enqueued_at"] < timedelta(seconds=2)
        # a task that a transaction holds when it is due is found when that commits
        sender = add.with_options(unique_key="held", on_conflict="replace")
        handle = sender.with_options(delay=0.3).send(1, 1)
        is_due = "SELECT enqueued_at < clock_timestamp() - interval '0.3 s' FROM horsies_tasks WHERE id = %s"
        with psycopg.connect(db.url) as connection:
            sender.with_options(connection=connection).send(3, 3)
            eventually(lambda: db.value(is_due, handle.task_id), timeout=SOON_S)
            assert factories.read(db, handle.task_id)["status"] == "PENDING"
        assert handle.get(int(SOON_S * 1000)).ok == 6
    check_invariants(db)
