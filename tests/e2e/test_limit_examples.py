"""The examples of the guide about limits, run as a user would run them: two workers, and the script that sends.

They are judged by the journals that their tasks write: the real starts and ends of user code.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.limits_app import Run, by_group, most_at_once, most_in_window
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LONG_S = 120
SMALL = ("acme", "bolt", "core", "dyne", "echo")
BOOKED = [f"account {account} has 25 of 25 bookings" for account in range(8)]


class Example:
    """Its workers, its script and its journal."""

    def __init__(self, name: str, db: Database, folder: Path, **environment: str) -> None:
        self.name, self.folder = name, folder
        self.app = "app"
        own = {"JOURNAL": str(folder / "journal"), "ACCOUNTS": str(folder / "accounts"), "PYTHONUNBUFFERED": "1"}
        self.environment = {**os.environ, "HORSIES_DATABASE_URL": db.url, **own, **environment}

    @contextmanager
    def worker(self, *, code: int | None = 0) -> Iterator[WorkerProcess]:
        health = f"--health-file={self.folder / 'health'}"
        command = [sys.executable, "-m", "horsies_worker", f"{self.name}:{self.app}", "--processes=2", health]
        process = WorkerProcess(command, self.environment, self.folder, cwd=EXAMPLES)
        with ended(process, code=code):
            process.wait_up()
            yield process

    def script(self) -> subprocess.Popen[str]:
        command = [sys.executable, f"{self.name}.py"]
        return subprocess.Popen(command, cwd=EXAMPLES, env=self.environment, stdout=subprocess.PIPE, text=True)

    def told(self) -> list[str]:
        """What the script prints, with two workers."""
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(self.worker())
            return printed(self.script())

    def journal(self) -> list[list[str]]:
        path = self.folder / "journal"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def runs(self, killed_at: float | None = None) -> list[Run]:
        """In the order of their starts. Those without an end were killed."""
        runs: list[Run] = []
        open_ends: dict[tuple[str, str], int] = {}
        for at, what, group, number in sorted(self.journal(), key=lambda line: float(line[0])):
            if what == "start":
                open_ends[group, number] = len(runs)
                runs.append(Run("", group, int(number), float(at), killed_at))
            else:
                begun = open_ends.pop((group, number))
                runs[begun] = runs[begun]._replace(ended=float(at))
        assert all(run.ended is not None for run in runs)
        return runs


def printed(script: subprocess.Popen[str]) -> list[str]:
    with script:
        try:
            out, _ = script.communicate(timeout=LONG_S)
        finally:
            script.kill()
    assert script.returncode == 0
    return out.splitlines()


def test_one_noisy_tenant(db: Database, tmp_path: Path) -> None:
    example = Example("noisy_tenant", db, tmp_path)
    first, second = example.told()
    assert first == "all 315 reports are done"
    assert second.startswith("the last one of the small tenants came after ")
    runs = example.runs()
    tenants = by_group(runs)
    assert {tenant: len(own) for tenant, own in tenants.items()} == {"noisy": 300, **dict.fromkeys(SMALL, 3)}
    assert {most_at_once(own) for own in tenants.values()} <= {1, 2}
    last = max(at for at, run in enumerate(runs) if run.group in SMALL)
    assert last < 100, "all were sent by one statement, those of the noisy tenant first"


def test_an_api_with_a_rate(db: Database, tmp_path: Path) -> None:
    example = Example("rated_api", db, tmp_path, WINDOW_S="2")
    assert example.told() == ["200 calls are done, and 20 of them needed a second one"]
    calls = example.journal()
    assert Counter(what for _, what, _ in calls) == {"pay": 165, "refund": 55}
    assert most_in_window([float(at) for at, _, _ in calls], 2) <= 100


def test_one_at_a_time_per_account(db: Database, tmp_path: Path) -> None:
    example = Example("one_per_account", db, tmp_path)
    assert example.told() == BOOKED
    accounts = by_group(example.runs())
    assert len(accounts) == 8
    for account, runs in accounts.items():
        assert most_at_once(runs) == 1, account
        assert [run.number for run in runs] == list(range(25)), "first in, first out within a group"


@pytest.mark.long
def test_one_at_a_time_per_account_although_a_worker_is_killed(db: Database, tmp_path: Path) -> None:
    example = Example("one_per_account", db, tmp_path)
    with example.worker(), example.worker(code=None) as victim:
        script = example.script()
        eventually(lambda: len(example.journal()) > 40, timeout=LONG_S)
        victim.kill_all()
        killed_at = time.monotonic()
        assert printed(script) == BOOKED
    accounts = by_group(example.runs(killed_at))
    assert {account: most_at_once(runs) for account, runs in accounts.items()} == {str(n): 1 for n in range(8)}
