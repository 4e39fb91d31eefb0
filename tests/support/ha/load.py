"""What works on the cluster: two workers and a producer, and what they have left on the disk so far."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.waiting import eventually
from tests.support.workers import ROOT, WorkerProcess, describe, ended, start_worker

WORKERS = 2
SENDS_PER_SECOND = 20.0
THREADS = 4
RECOVERY = {
    # longer than any failover here, so that no worker takes the tasks of a live one for those of a dead one
    "runner_heartbeat_interval_ms": 2_000,
    "claimer_heartbeat_interval_ms": 2_000,
    "running_stale_threshold_ms": 60_000,
    "claimed_stale_threshold_ms": 60_000,
    "finalizing_stale_threshold_ms": 60_000,
    "check_interval_ms": 5_000,
    "crashed_worker_recovery_grace_ms": 5_000,
}
RESILIENCE = {"notify_poll_interval_ms": 5_000, "reconnect_initial_ms": 100, "reconnect_max_ms": 2_000}


class Answer(NamedTuple):
    """One line of the producer."""

    answer: str
    k: int
    task_id: str
    at: float
    took_s: float


def described(url: str) -> dict[str, Any]:
    return describe(
        url, recovery=RECOVERY, resilience=RESILIENCE, claim_lease_ms=60_000,
        broker={"command_timeout_ms": 10_000, "connect_timeout_ms": 6_000},
    )  # fmt: skip


class Load:
    def __init__(self, folder: Path, producer: "subprocess.Popen[bytes]", workers: Sequence[WorkerProcess]) -> None:
        self.folder = folder
        self.producer = producer
        self.workers = workers

    def answers(self) -> list[Answer]:
        try:
            lines = (self.folder / "sends").read_text().splitlines()
        except FileNotFoundError:
            return []
        split = (line.split() for line in lines)
        return [Answer(word, int(k), task_id, float(at), float(took)) for word, k, task_id, at, took in split]

    def starts(self) -> list[float]:
        """When task code began, in order."""
        found: list[float] = []
        for file in (self.folder / "ledger").iterdir():
            found += [float(line.split()[4]) for line in file.read_text().splitlines() if " start " in line]
        return sorted(found)

    def require_alive(self) -> None:
        for worker in self.workers:
            assert worker.is_running, f"a worker ended with {worker.process.returncode}:\n{worker.log[-4000:]}"
        assert self.producer.poll() is None, (self.folder / "producer.log").read_text()[-4000:]

    def goes_on_after(self, at: float) -> bool:
        """A task was acknowledged, and one started, after this moment."""
        self.require_alive()
        return any(a.answer == "acknowledged" and a.at - a.took_s > at for a in self.answers()) and any(
            start > at for start in self.starts()[-1:]
        )

    def stop_sending(self) -> None:
        self.producer.terminate()
        assert self.producer.wait(60) == 0, (self.folder / "producer.log").read_text()[-4000:]


@contextmanager
def load(url: str, folder: Path) -> Iterator[Load]:
    """Workers and producer under way; all ended with the block."""
    with ExitStack() as stack:
        workers = [start_worker(described(url), folder, processes=2) for _ in range(WORKERS)]
        for worker in workers:
            stack.enter_context(ended(worker))
        for worker in workers:
            worker.wait_up()
        with (folder / "producer.log").open("wb") as sink:
            producer = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ha.producer", str(folder), str(SENDS_PER_SECOND), str(THREADS)],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=ROOT,
                env={**os.environ, "HORSIES_HA_URL": url},
            )  # fmt: skip
        try:
            made = Load(folder, producer, workers)
            eventually(lambda: made.goes_on_after(0.0), timeout=60, describe="the first task")
            yield made
        finally:
            if producer.poll() is None:
                producer.kill()
                producer.wait(10)
