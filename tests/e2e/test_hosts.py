"""Several hosts: PostgreSQL on one, workers and producers on two others, and a cable that is pulled under load."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hosts import Network, network
from tests.support.waiting import eventually
from tests.support.worker_app import VARIABLE
from tests.support.workers import ROOT, Chaos, WorkerProcess, describe, ended, start_worker, tasks_on

HEALED_S = 90.0
"""A dead host's sessions end by TCP keepalive after about 11 s; its workers are judged after three missed beats. The
test prints what it took. It fails far above that, because a starved machine makes a judge begin its watch again. The
thresholds alone would take 300 s."""
CONFIG = {
    "recovery": {
        "runner_heartbeat_interval_ms": 30_000, "claimer_heartbeat_interval_ms": 30_000,
        "running_stale_threshold_ms": 300_000, "claimed_stale_threshold_ms": 120_000,
        "finalizing_stale_threshold_ms": 300_000, "check_interval_ms": 30_000,
        "crashed_worker_recovery_grace_ms": 10_000, "worker_state_interval_ms": 1_000,
    },
    "claim_lease_ms": 120_000,
}  # fmt: skip
"""The default thresholds, so that what is recovered in time was recovered by a verdict; beats every second."""
LONG_S = 8.0
COMPLETED_BY = "SELECT worker_id FROM horsies_task_attempts WHERE task_id = %s AND outcome = 'COMPLETED'"


@contextmanager
def worker_on(net: Network, host: str, folder: Path) -> Iterator[WorkerProcess]:
    (folder / host).mkdir()
    ledger = {"HORSIES_TEST_LEDGER": str(folder / "ledger")}
    command = net.command(host, sys.executable, "-m", "horsies_worker")
    with ended(start_worker(describe(net.url, **CONFIG), folder / host, processes=3, command=command, **ledger)) as one:
        one.wait_up()
        yield one


class Producer:
    """Sends ten tasks per second from a host."""

    def __init__(self, net: Network, host: str, first_key: int, folder: Path) -> None:
        self._notes, self._stop = folder / f"sent-{host}", folder / f"stop-{host}"
        words = (str(first_key), "10", str(self._notes), str(self._stop))
        self.process = subprocess.Popen(
            net.command(host, sys.executable, "-m", "tests.support.producer", *words), cwd=ROOT,
            env={**os.environ, VARIABLE: json.dumps(describe(net.url, **CONFIG))}, start_new_session=True,
        )  # fmt: skip

    def accepted(self) -> dict[str, tuple[int, float]]:
        """Key and time of each task that was accepted, by id."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return {words[0]: (int(words[1]), float(words[2])) for words in map(str.split, lines)}

    def stop(self) -> None:
        self._stop.touch()
        assert self.process.wait(90) == 0


@pytest.mark.long
def test_a_host_is_cut_off_under_load_and_comes_back(tmp_path: Path) -> None:
    with network("a", "b") as net:
        db, chaos = net.db, Chaos(net.db, tmp_path)
        with (
            tasks_on(db, **CONFIG) as tasks, worker_on(net, "a", tmp_path) as cut_off,
        ):  # fmt: skip
            first = cut_off.worker_id
            held = chaos.send(tasks.chaos_retried, 2, LONG_S)
            eventually(lambda: all(chaos.starts(one) == 1 for one in held), timeout=30, describe="a runs them")
            with worker_on(net, "b", tmp_path) as other:
                producers = {host: Producer(net, host, key, tmp_path) for host, key in (("a", 10_000), ("b", 500_000))}
                try:
                    ran = "SELECT count(*) FROM horsies_task_attempts WHERE worker_id = %s AND outcome = 'COMPLETED'"
                    for one in (cut_off, other):
                        eventually(lambda one=one: db.value(ran, one.worker_id) > 0, timeout=60, describe="both work")
                    _cut_and_heal(net, chaos, held, first, other, producers)
                    _come_back(net, cut_off, first, producers["a"])
                finally:
                    for one in producers.values():
                        one.stop()
                _check_all(net, chaos, producers, held, first)


def _cut_and_heal(
    net: Network, chaos: Chaos, held: list, first: str, other: WorkerProcess, producers: dict[str, Producer]
) -> None:
    db, began, cut_at = net.db, time.monotonic(), time.time()
    net.cut("a")

    # the other host goes on at once: tasks that it sends after the cut are run
    def sent_since() -> list[str]:
        return [one for one, (_, at) in producers["b"].accepted().items() if at > cut_at + 1]

    eventually(lambda: len(sent_since()) >= 20, timeout=60, describe="b goes on sending")
    ended_count = "SELECT count(*) FROM horsies_tasks WHERE id = ANY (%s) AND status = 'COMPLETED'"
    eventually(lambda: db.value(ended_count, sent_since()[:20]) == 20, timeout=60, describe="b runs them")
    served_s = time.monotonic() - began
    # what the lost host held is taken over
    for one in held:
        eventually(
            lambda one=one: db.execute(COMPLETED_BY, one.task_id) == [(other.worker_id,)], timeout=HEALED_S,
            describe="the tasks of a end on b",
        )  # fmt: skip
    left = "SELECT count(*) FROM horsies_tasks WHERE claimed_by_worker_id = %s AND terminal_at IS NULL"
    eventually(lambda: db.value(left, first) == 0, timeout=HEALED_S, describe="a holds nothing any more")
    judged = "SELECT judged_dead_at IS NOT NULL FROM horsies_worker_instances WHERE worker_id = %s"
    assert db.value(judged, first)
    sys.stdout.write(
        f"cut: b served its own tasks within {served_s:.1f} s, all of a's were recovered after "
        f"{time.monotonic() - began:.1f} s\n"
    )
    # the lost host has run them to their end, and could not tell
    lost = [line for line in chaos.lines() if line[2] == "end" and line[0] in {chaos.keys[one.task_id] for one in held}]
    assert len(lost) == 2 * len(held), "each ran twice: once there, once here"


def _come_back(net: Network, cut_off: WorkerProcess, first: str, producer: Producer) -> None:
    before = len(producer.accepted())
    net.mend("a")
    cut_off.wait_for_log("continuing under a new worker id", timeout=HEALED_S)
    cut_off.wait_for_log(" is up", times=2, timeout=HEALED_S)
    again = """SELECT count(*) FROM horsies_task_attempts a JOIN horsies_worker_instances i USING (worker_id)
                WHERE i.worker_id <> %s AND i.stopped_at IS NULL AND a.outcome = 'COMPLETED'
                  AND i.backend_pid IN (SELECT pid FROM pg_stat_activity WHERE client_addr = '10.213.77.2')"""
    eventually(lambda: net.db.value(again, first) > 0, timeout=60, describe="a runs tasks again, under another id")
    eventually(lambda: len(producer.accepted()) > before + 5, timeout=60, describe="a sends again")


def _check_all(net: Network, chaos: Chaos, producers: dict[str, Producer], held: list, first: str) -> None:
    """Every task that a producer was told to be accepted has ended well; what the zombie reported changed nothing."""
    sent = {one: key for producer in producers.values() for one, (key, _) in producer.accepted().items()}
    chaos.keys |= sent
    open_tasks = "SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"
    eventually(lambda: net.db.value(open_tasks) == 0, timeout=120, describe="all tasks end")
    states = dict(net.db.execute("SELECT id, status FROM horsies_tasks"))
    assert {states.get(one) for one in sent} == {"COMPLETED"}
    for one in held:
        outcomes = net.db.execute(
            "SELECT outcome, worker_id = %s FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt",
            first, one.task_id,
        )  # fmt: skip
        assert outcomes == [("WORKER_FAILURE", True), ("COMPLETED", False)]
    chaos.keys |= {
        row[0]: int(json.loads(row[1])["k"]) for row in net.db.execute("SELECT id, kwargs FROM horsies_tasks")
    }
    chaos.check()
