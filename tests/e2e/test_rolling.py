"""A fleet that is replaced worker by worker by another release under load, back and forth, with kills in between; and
the way over a breaking revision. Judged like the soak, by the rows and by the lines that tasks leave in local files."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import horsies_schema
from horsies._pg.schema_guard import HEAD_REVISION
from tests.soak import ledger
from tests.soak.logs import tracebacks
from tests.support import invariants
from tests.support.old_release import Release
from tests.support.postgres import Database
from tests.support.rolling_app import RECOVERY
from tests.support.waiting import eventually
from tests.support.workers import ROOT, WorkerProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

APP = "tests.support.rolling_app:app"
WORKERS = 3
FEWEST_SENDS = 50
"""Fewer would say little. A run waits for a hundred ended tasks, and four of them may come of one send, a workflow."""
OPEN = """
SELECT (SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING'))
     + (SELECT count(*) FROM horsies_workflows WHERE status IN ('PENDING', 'RUNNING'))
"""
ENDED = "SELECT count(*) FROM horsies_tasks WHERE status IN ('COMPLETED', 'FAILED')"
RUNNING = """
SELECT count(*) FROM horsies_tasks t JOIN horsies_worker_instances w ON w.worker_id = t.claimed_by_worker_id
 WHERE t.status = 'RUNNING' AND w.worker_id = %s
"""
TASKS = """
SELECT t.id, t.status, t.result, t.error_code, count(a.attempt) FROM horsies_tasks t
  LEFT JOIN horsies_task_attempts a ON a.task_id = t.id GROUP BY 1, 2, 3, 4
"""


class Fleet:
    """Three workers, each of any release, and producers; what they were told and what became of it."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db, self.folder, self.ledger = db, folder, folder / "ledger"
        self.ledger.mkdir()
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.environment = {
            **kept, "HORSIES_DATABASE_URL": db.url, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
            ledger.FOLDER_VARIABLE: str(self.ledger),
        }  # fmt: skip
        self.workers: list[WorkerProcess] = []
        self.logs: list[WorkerProcess] = []
        self.producers: list[WorkerProcess] = []

    def _start(self, command: Sequence[str]) -> WorkerProcess:
        process = WorkerProcess(command, self.environment, self.folder, cwd=self.folder)
        self.logs.append(process)
        return process

    def worker(self, release: Release) -> WorkerProcess:
        """Started, not yet up."""
        words = ["worker", APP, "--processes=2", "--shutdown-timeout=60", f"--health-file={self.folder / 'health'}"]
        return self._start([str(release.programs / "horsies"), *words])

    def start(self, release: Release) -> None:
        self.workers = [self.worker(release) for _ in range(WORKERS)]
        for process in self.workers:
            process.wait_up()

    def replace(self, place: int, release: Release) -> None:
        """As upgrading.md says: stop, then start the other one."""
        assert self.workers[place].stop(90) == 0, self.workers[place].log[-4000:]
        self.workers[place] = self.worker(release)
        self.workers[place].wait_up()

    def kill(self, place: int, release: Release) -> None:
        """Parent and children at once, in the middle of a task; another one of the same release takes its place."""
        process = self.workers[place]
        eventually(lambda: self.db.value(RUNNING, process.worker_id) > 0, timeout=60, describe="it runs a task")
        process.kill_all()
        self.workers[place] = self.worker(release)
        self.workers[place].wait_up()

    def stop(self) -> None:
        for process in self.workers:
            process.terminate()
        for process in self.workers:
            assert process.wait(90) == 0, process.log[-4000:]

    def produce(self, *releases: Release) -> None:
        (self.ledger / "enough").unlink(missing_ok=True)
        for release in releases:
            command = [str(release.programs / "python"), "-m", "tests.support.rolling_app", str(len(self.producers))]
            self.producers.append(self._start(command))

    def end_producers(self) -> None:
        (self.ledger / "enough").touch()
        for process in self.producers:
            assert process.wait(60) == 0, process.log

    def work(self, tasks: int = 20) -> None:
        """Wait until so many more tasks have ended."""
        before = self.db.value(ENDED)
        eventually(lambda: self.db.value(ENDED) >= before + tasks, timeout=120, describe=f"{tasks} more tasks end")
        assert all(process.is_running for process in self.workers)

    def drain(self) -> None:
        eventually(lambda: self.db.value(OPEN) == 0, timeout=120, describe="everything has ended")

    def judge(self, kills: int) -> None:
        sends = ledger.read_sends(self.ledger)
        rows = {row[0]: row[1:] for row in self.db.execute(TASKS)}
        runs = dict(self.db.execute("SELECT id, status FROM horsies_workflows"))
        lines = Counter((line.k, line.phase) for line in ledger.read_lines(self.ledger))
        assert len(sends) > FEWEST_SENDS
        wrong = [text for send in sends if (text := _wrong(send, rows, runs, lines))]
        assert not wrong, wrong[:10]
        crashed = self.db.value("SELECT count(*) FROM horsies_task_attempts WHERE error_code = 'WORKER_CRASHED'")
        assert crashed >= kills, "a kill in the middle of a task is an attempt that crashed"
        stale_s = RECOVERY["running_stale_threshold_ms"] / 1000
        found = invariants.check(
            self.db,
            slack_s=6,
            wf_grace_s=1,
            running_stale_s=stale_s,
            claimed_stale_s=stale_s,
            finalizing_stale_s=stale_s,
        )
        assert not found, found
        for process in self.logs:
            assert not tracebacks(process.log), process.log[-6000:]


def _wrong(
    send: Mapping[str, Any], rows: Mapping[str, Any], runs: Mapping[str, str], lines: Counter[tuple[int, str]]
) -> str | None:
    """What is wrong with the end of something that was acknowledged."""
    if send["kind"] == "flow":
        return None if runs.get(send["id"]) == "COMPLETED" else f"{send}: {runs.get(send['id'])}"
    if (row := rows.get(send["id"])) is None:
        return f"{send} is lost"
    status, result, code, attempts = row
    starts, ends = lines[send["k"], "start"], lines[send["k"], "end"]
    told = f"{send}: {row}, {starts} starts, {ends} ends"
    if status == "COMPLETED":
        is_right = f"{7 * send['k'] + 3}" in result and 1 <= ends <= starts <= attempts
    else:  # only what is never repeated may end with the crash of its worker
        is_right = code == "WORKER_CRASHED" and attempts == 1
    return None if is_right and (attempts > 1 or starts <= 1) else told


@contextmanager
def fleet_on(db: Database, folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(db, folder)
    with ExitStack() as stack:
        stack.callback(lambda: [process.kill_all() for process in fleet.logs if process.is_running])
        yield fleet


def migrate(release: Release, fleet: Fleet, *words: str) -> None:
    code, said = release.run("horsies-migrate", *words, env=fleet.environment, cwd=fleet.folder)
    assert code == 0, said


def test_workers_go_back_one_by_one_and_forward_again_under_load(
    old: Release, new: Release, breaking: str, empty_db: Database, tmp_path: Path
) -> None:
    if old.head < breaking:
        pytest.skip(f"{breaking} breaks the last release: it cannot share a database with this code")
    horsies_schema.upgrade(empty_db.url)
    with fleet_on(empty_db, tmp_path) as fleet:
        fleet.start(new)
        fleet.produce(old, new)
        fleet.work()
        for release, other in ((old, new), (new, old)):
            for place in range(WORKERS):
                fleet.replace(place, release)
                fleet.work()
                victim = (place + 1) % WORKERS
                fleet.kill(victim, release if victim < place else other)
                fleet.work()
        fleet.end_producers()
        fleet.drain()
        fleet.stop()
        fleet.judge(kills=2 * WORKERS)


def test_over_a_breaking_revision_and_back_with_work_in_flight(
    before_breaking: Release, new: Release, empty_db: Database, tmp_path: Path
) -> None:
    """Stop everything, change the schema, start the other release. One worker is killed instead of stopped: what it ran
    is found by workers of the other release."""
    horsies_schema.upgrade(empty_db.url)
    with fleet_on(empty_db, tmp_path) as fleet:
        fleet.start(new)
        for running, following in ((new, before_breaking), (before_breaking, new)):
            fleet.produce(running)
            fleet.work(40)
            victim = fleet.workers.pop()
            eventually(lambda one=victim: empty_db.value(RUNNING, one.worker_id) > 0, timeout=60)
            victim.kill_all()
            fleet.stop()
            fleet.end_producers()
            assert empty_db.value(OPEN) > 0, "nothing is in flight"
            if following is new:
                migrate(new, fleet, "up")
            else:
                migrate(new, fleet, "down", before_breaking.head, "--yes")
            fleet.start(following)
            fleet.work(5)
        fleet.produce(new)
        fleet.work(20)
        fleet.end_producers()
        fleet.drain()
        assert empty_db.value("SELECT version_num FROM horsies_alembic_version") == HEAD_REVISION
        fleet.stop()
        fleet.judge(kills=2)


RIGHT = {"t": ("COMPLETED", '{"ok":10}', None, 1)}
ONE_RUN = Counter({(1, "start"): 1, (1, "end"): 1})


@pytest.mark.parametrize(
    ("rows", "lines", "is_wrong"),
    [
        (RIGHT, ONE_RUN, False),
        ({"t": ("FAILED", None, "WORKER_CRASHED", 1)}, Counter({(1, "start"): 1}), False),
        ({"t": ("COMPLETED", '{"ok":10}', None, 2)}, Counter({(1, "start"): 2, (1, "end"): 1}), False),
        ({}, ONE_RUN, True),
        ({"t": ("PENDING", None, None, 0)}, Counter(), True),
        ({"t": ("FAILED", None, "WORKER_CRASHED", 1)}, Counter({(1, "start"): 2}), True),
        ({"t": ("COMPLETED", '{"ok":11}', None, 1)}, ONE_RUN, True),
        (RIGHT, Counter(), True),
        (RIGHT, Counter({(1, "start"): 2, (1, "end"): 2}), True),
    ],
)
def test_the_judge_finds_what_was_lost_or_doubled(
    rows: Mapping[str, Any], lines: Counter[tuple[int, str]], is_wrong: bool
) -> None:
    assert (_wrong({"k": 1, "kind": "once", "id": "t"}, rows, {}, lines) is not None) == is_wrong


def test_the_judge_finds_a_workflow_that_did_not_end() -> None:
    flow = {"k": 1, "kind": "flow", "id": "w"}
    assert _wrong(flow, {}, {"w": "COMPLETED"}, Counter()) is None
    assert _wrong(flow, {}, {"w": "RUNNING"}, Counter()) is not None
    assert _wrong(flow, {}, {}, Counter()) is not None
