"""F58: a foreign session listens inside of a transaction, and the server's queue of notifications fills up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import horsies_schema
from tests.support import places
from tests.support.own_server import own_server
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import check_invariants, tasks_on, worker

PAGES = 64
"""The smallest that a server accepts."""


@pytest.fixture
def db() -> Iterator[Database]:
    with places.temporary_directory() as folder, own_server(folder, max_notify_queue_pages=str(PAGES)) as server:
        horsies_schema.upgrade(server.db.url)
        yield server.db


def notify_until_refused(connection: "psycopg.Connection[Any]", size: int, count: int) -> None:
    for number in range(count):
        connection.execute("SELECT pg_notify('elsewhere', %s)", [f"{number}-{'x' * size}"])


def fill(db: Database) -> None:
    """With large ones, then with small ones for the rest of the last page."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        for size, count in ((7_900, 2 * PAGES), (1, 10_000)):
            with pytest.raises(psycopg.OperationalError, match="too many notifications in the NOTIFY queue"):
                notify_until_refused(connection, size, count)


@contextmanager
def blocked(db: Database) -> Iterator[None]:
    """A foreign session listens, and does not read; the queue is full."""
    with psycopg.connect(db.url) as foreign:
        foreign.execute("LISTEN elsewhere")
        foreign.commit()
        foreign.execute("SELECT 1")  # begins a transaction, in which no notification is read
        fill(db)
        yield


def test_results_wait_for_a_full_queue_of_notifications(db: Database, tmp_path: Path) -> None:
    """The end of a task is told with its commit, which the server refuses. That says nothing about the result."""
    gate = tmp_path / "gate"
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as one:
        running = tasks.gated.send(1, str(gate))
        eventually(lambda: db.value("SELECT status FROM horsies_tasks") == "RUNNING", describe="the task runs")
        with blocked(db):
            gate.touch()
            one.wait_for_log("finalize: ProgramLimitExceededError: too many notifications", timeout=30)
            assert db.value("SELECT status FROM horsies_tasks") == "RUNNING"
        assert running.get(20_000).ok == 2
        assert tasks.add.send(1, 2).get(20_000).ok == 3
        check_invariants(db)


def test_a_send_is_answered_while_the_queue_of_notifications_is_full(db: Database) -> None:
    """On its own it has committed before it notifies: the task is there. In a transaction, the commit fails."""
    with tasks_on(db) as tasks, blocked(db):
        tasks.add.send(1, 2)
        assert db.value("SELECT count(*) FROM horsies_tasks") == 1
        with psycopg.connect(db.url) as connection:
            tasks.add.with_options(connection=connection).send(3, 4)
            with pytest.raises(psycopg.OperationalError, match="too many notifications"):
                connection.commit()
        assert db.value("SELECT count(*) FROM horsies_tasks") == 1
