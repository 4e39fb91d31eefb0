"""Limits under faults, judged by a ledger of the real starts and ends of user code."""

import os
import pwd
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies_schema import migrate
from tests.support import places
from tests.support.limits_app import Run, by_group, most_at_once, most_in_window, read_ledger
from tests.support.own_server import own_server
from tests.support.postgres import Database, bin_dir
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended, start_worker

APP = "tests.support.limits_app:app"
SECONDS = float(os.environ.get("HORSIES_LIMITS_SECONDS", "12"))
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
GROUPS, PER_GROUP, SHARED = 50, (10, 1.0), (100, 1.0)
MOST_PER_GROUP, MOST_SHARED = 2, 6


def fill(db: Database, queue: str, groups: int, each: int, *, grouped: bool = True) -> None:
    """One task in ten takes long, so that tasks of one group overlap."""
    key = "'g' || g" if grouped else "NULL"
    db.execute(
        f"INSERT INTO horsies_tasks (id, task_name, queue_name, group_key, enqueued_at, kwargs, max_retries)"
        f" SELECT gen_random_uuid(), 'work', '{queue}', {key}, now() - interval '3 hours',"
        f" json_build_object('number', g * 100000 + i, 'seconds',"
        f" CASE WHEN i % 10 = 0 THEN 0.3 ELSE 0.005 END)::text, 3"
        f" FROM generate_series(1, {groups}) AS g, generate_series(1, {each}) AS i"
    )


class Fleet:
    """Workers that are killed and replaced."""

    def __init__(self, stack: ExitStack, described: dict[str, Any], folder: Path, size: int) -> None:
        self.stack, self.described, self.folder = stack, described, folder
        self.workers = [self._start() for _ in range(size)]
        self.kills: list[float] = []
        for one in self.workers:
            one.wait_up()

    def _start(self) -> WorkerProcess:
        process = start_worker(self.described, self.folder, app=APP, processes=2)
        return self.stack.enter_context(ended(process, code=None))

    def kill(self, at: int) -> None:
        """A worker and everything it started; another one takes its place."""
        self.workers[at].kill_all()
        self.kills.append(time.monotonic())
        self.workers[at] = self._start()


def with_ends(runs: Sequence[Run], kills: Sequence[float]) -> list[Run]:
    """Runs without an end were killed: they ended with the first kill after their start."""
    found = []
    for run in runs:
        end = run.ended if run.ended is not None else min((at for at in kills if at >= run.started), default=None)
        assert end is not None, f"{run} has no end, and nothing was killed after its start"
        found.append(run._replace(ended=end))
    return found


def judge(runs: Sequence[Run]) -> dict[str, int]:
    """The most that was seen of everything that is limited."""
    groups = by_group([run for run in runs if run.group])
    return {
        "starts of a group": max(most_in_window([run.started for run in own], PER_GROUP[1]) for own in groups.values()),
        "tasks of a group": max(most_at_once(own) for own in groups.values()),
        "starts in all": most_in_window([run.started for run in runs], SHARED[1]),
        "tasks in all": most_at_once(runs),
    }


def limits(url: str) -> dict[str, Any]:
    return {
        "url": url,
        "queues": {
            "grouped": {"groups": {"max_concurrency": MOST_PER_GROUP, "rate": PER_GROUP}, "limits": ["api"]},
            "plain": {"limits": ["api"]},
        },
        "limits": {"api": {"max_concurrency": MOST_SHARED, "rate": SHARED}},
    }


@pytest.mark.long
def test_limits_hold_through_kills_and_restarts_of_the_server(tmp_path: Path) -> None:
    rng = random.Random(17)
    with places.temporary_directory() as place, own_server(place / "server") as server, ExitStack() as stack:
        db = server.db
        migrate.upgrade(db.url)
        fill(db, "grouped", GROUPS, int(4 * SECONDS))
        fill(db, "plain", 1, int(100 * SECONDS), grouped=False)
        fleet = Fleet(stack, limits(db.url), tmp_path, 4)
        began = time.monotonic()
        is_restarted = False
        while (now := time.monotonic()) < began + SECONDS:
            fleet.kill(rng.randrange(4))
            if now > began + SECONDS / 2 and not is_restarted:
                is_restarted = True
                server.down()
                server.up()
            eventually(lambda: time.monotonic() > now + 1.5, timeout=10)
        for one in fleet.workers:
            one.wait_up()
        expect(tmp_path, fleet)


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs Debian's libfaketime")
def test_limits_hold_when_the_servers_clock_is_set(tmp_path: Path) -> None:
    """Forward, back, and forward by little; the workers' clocks stay as they are."""
    with places.temporary_directory() as place, ExitStack() as stack:
        server = stack.enter_context(own_server(place / "server"))
        db = server.db
        migrate.upgrade(db.url)
        server.down()
        clock = place / "clock"
        clock.write_text("+0s")
        stack.enter_context(with_clock(place / "server", clock))
        eventually(lambda: _offset(db) is not None, timeout=60, describe="the server is up")
        fill(db, "grouped", GROUPS, int(4 * SECONDS))
        fill(db, "plain", 1, int(100 * SECONDS), grouped=False)
        fleet = Fleet(stack, limits(db.url), tmp_path, 2)
        for step, offset in (("+1h", 3600), ("-1h", -3600), ("+10s", 10), ("+0s", 0), ("+0.5s", 0.5)):
            at = time.monotonic()
            (place / "next").write_text(step)
            (place / "next").replace(clock)
            eventually(lambda: time.monotonic() > at + SECONDS / 5, timeout=60)  # noqa: B023
            assert abs((_offset(db) or 0) - offset) < 0.4
        expect(tmp_path, fleet)


@contextmanager
def with_clock(folder: Path, clock: Path) -> Iterator[None]:
    """The server of this folder, with the clock that the file tells."""
    account = pwd.getpwuid((folder / "data").stat().st_uid) if os.geteuid() == 0 else None
    sockets = folder / "socket"  # it went with the server that was stopped
    sockets.mkdir(exist_ok=True)
    if account is not None:
        os.chown(sockets, account.pw_uid, account.pw_gid)
    process = subprocess.Popen(
        [bin_dir() / "postgres", "-D", folder / "data", "-k", sockets, "-c", "listen_addresses="],
        env={
            "PATH": os.environ["PATH"], "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
        user=account and account.pw_uid, group=account and account.pw_gid, extra_groups=[] if account else None,
        cwd=folder, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def _offset(db: Database) -> float | None:
    """How far the server's clock is ahead of this machine's; None while it does not answer."""
    try:
        return float(db.value("SELECT extract(epoch FROM clock_timestamp())")) - time.time()
    except psycopg.OperationalError:
        return None


def expect(folder: Path, fleet: Fleet) -> None:
    runs = with_ends(read_ledger(folder), [*fleet.kills, time.monotonic()])
    seen = judge(runs)
    print(f"{len(runs)} starts, {len(fleet.kills)} kills; the most seen: {seen}")  # noqa: T201
    assert seen["starts of a group"] <= PER_GROUP[0], seen
    assert seen["tasks of a group"] <= MOST_PER_GROUP, seen
    assert seen["starts in all"] <= SHARED[0], seen
    assert seen["tasks in all"] <= MOST_SHARED, seen
    assert len(runs) > 20 * SECONDS, f"limits that let nothing run hold too: {len(runs)} starts, {seen}"
    assert len({run.group for run in runs}) > GROUPS // 2, "each new worker begins with the first group"
