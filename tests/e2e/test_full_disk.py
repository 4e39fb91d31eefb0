"""F47: the disk of the server is full. Sends say so, results wait, and all goes on when there is space again."""

import base64
import os
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import horsies_schema
from horsies.errors import TaskSendError
from tests.soak.machine import small_disk
from tests.support import places
from tests.support.own_server import own_server
from tests.support.waiting import eventually
from tests.support.workers import check_invariants, tasks_on, worker

NOISE_BYTES = 200_000


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                pass


def noise() -> str:
    return base64.b85encode(os.urandom(NOISE_BYTES)).decode()


@pytest.mark.timeout(120)
def test_a_full_disk_is_told_and_waited_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ExitStack() as stack:
        folder = stack.enter_context(places.temporary_directory())
        disk = stack.enter_context(small_disk(folder / "disk"))
        if disk is None:
            pytest.skip("needs root, and the right to mount a tmpfs")
        server = stack.enter_context(own_server(disk / "server", max_wal_size="64MB", min_wal_size="32MB"))
        horsies_schema.upgrade(server.db.url)
        with worker(server.db, folder=tmp_path) as one, tasks_on(server.db) as tasks:
            running = tasks.gated_noise.send(str(gate), NOISE_BYTES)
            running_now = "SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'"
            eventually(lambda: server.db.value(running_now) == 1, describe="the task runs")
            filler = disk / "filler"
            fill(filler)
            with pytest.raises(TaskSendError) as refused:
                tasks.vault.send(noise())
            assert refused.value.retryable
            assert "it is not enqueued" in str(refused.value)
            gate.touch()
            one.wait_for_log("No space left on device", timeout=30)
            assert one.is_running
            filler.unlink()
            if not answers(server.db.url):  # it may have stopped when it could not write its log
                server.up()
            assert len(running.get(40_000).unwrap()) > NOISE_BYTES
            assert refused.value.retry().get(40_000).is_ok()
            check_invariants(server.db)


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url):
            return True
    except psycopg.OperationalError:
        return False
