"""Lifespans in real workers: opened before the first task of a child, closed after its last, in reverse order."""

import os
import signal
from pathlib import Path

import pytest

from horsies import UsageError
from tests.support import seams_app
from tests.support.apps import UNREACHABLE, make_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import ended

LONG_MS = 20_000


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_order_the_threads_and_the_values(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    lifespans = [("pool", str(path)), ("client", str(path), "async"), ("cache", str(path))]
    process = seams_app.start(db, tmp_path, processes=1, lifespans=lifespans)
    with ended(process), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        # before the first task, and in the child alone: the worker itself has imported the app too
        eventually(lambda: len(lines(path)) == 3)
        from_sync, from_async = tasks.lifespans.send().get(LONG_MS).ok, tasks.lifespans_async.send().get(LONG_MS).ok
        assert (from_sync["pool"], from_sync["cache"]) == ("pool", "cache")
        assert from_sync["client"].startswith("UsageError: lifespan 'client' is async and belongs to the event loop")
        assert {name: from_async[name] for name in ("pool", "client", "cache")} == {
            "pool": "pool", "client": "client", "cache": "cache",
        }  # fmt: skip
        assert process.stop() == 0
    assert lines(path) == [
        "pool opens main", "client opens horsies-async", "cache opens main", "cache closes main",
        "client closes horsies-async", "pool closes main",
    ]  # fmt: skip


def test_hooks_of_the_last_attempt_find_them_open(db: Database, tmp_path: Path) -> None:
    path, notes = tmp_path / "lifespans", tmp_path / "notes"
    process = seams_app.start(db, tmp_path, processes=1, lifespans=[("pool", str(path))])
    with ended(process), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        sender = tasks.add.with_options(metadata={"note": str(notes), "at_end": "lifespan"})
        assert sender.send(1).get(LONG_MS).ok == 1
        assert process.stop() == 0
    assert "pool is open" in lines(notes)
    assert lines(path) == ["pool opens main", "pool closes main"]


def test_they_are_closed_when_a_child_is_replaced(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    process = seams_app.start(db, tmp_path, "--max-tasks-per-child=2", processes=1, lifespans=[("pool", str(path))])
    with ended(process), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        pids = [tasks.lifespans.send().get(LONG_MS).ok["pid"] for _ in range(5)]
        assert len(set(pids)) >= 2
        eventually(lambda: lines(path).count("pool closes main") >= 2)
    assert lines(path).count("pool opens main") == lines(path).count("pool closes main")


def test_one_that_cannot_open(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    lifespans = [("pool", str(path)), ("broken", str(path), "fails")]
    process = seams_app.start(db, tmp_path, processes=1, lifespans=lifespans)
    with ended(process):
        assert process.wait(40) == 6
    assert "OSError: no pool for you" in process.log
    assert "Traceback" in process.log
    # the one before it was closed each time
    assert lines(path)
    assert lines(path) == ["pool opens main", "pool closes main"] * (len(lines(path)) // 2)


@pytest.mark.parametrize("kind", ["never", "async never"])
def test_one_that_never_yields(db: Database, tmp_path: Path, kind: str) -> None:
    process = seams_app.start(db, tmp_path, processes=1, lifespans=[("empty", str(tmp_path / "notes"), kind)])
    with ended(process):
        assert process.wait(40) == 6
    assert "lifespan 'empty'" in process.log
    assert "never yielded: it must `yield` once" in process.log


@pytest.mark.parametrize("how", ["", "async "])
def test_those_that_fail_to_close_are_named_and_keep_no_other_open(db: Database, tmp_path: Path, how: str) -> None:
    path = tmp_path / "notes"
    lifespans = [("pool", str(path)), *((kind, str(path), how + kind) for kind in ("breaks", "twice", "exits"))]
    process = seams_app.start(db, tmp_path, processes=1, lifespans=lifespans)
    with ended(process):
        process.wait_up()
        eventually(lambda: len(lines(path)) == 4)
        assert process.stop() == 0
    assert [line.split()[0] for line in lines(path)[4:]] == ["exits", "twice", "breaks", "pool"]
    for name in ("breaks", "twice", "exits"):
        assert f"lifespan '{name}' failed while it was closed" in process.log
    assert "yielded twice: it must `yield` once" in process.log


@pytest.mark.parametrize("kind", ["hangs", "async hangs"])
def test_one_that_does_not_end_holds_up_neither_tasks_nor_the_stop(db: Database, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes"
    arguments = ("--max-tasks-per-child=1", "--shutdown-timeout=4")
    process = seams_app.start(db, tmp_path, *arguments, processes=1, lifespans=[("pool", str(path), kind)])
    with ended(process, code=None), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        pids = [tasks.lifespans.send().get(LONG_MS).ok["pid"] for _ in range(3)]
        assert len(set(pids)) == 3  # each replaced, while the one before it still hangs
        process.stop(20)


def test_a_killed_worker_closes_nothing(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    process = seams_app.start(db, tmp_path, processes=1, lifespans=[("pool", str(path))])
    with ended(process):
        process.wait_up()
        eventually(lambda: lines(path) == ["pool opens main"])
        (child,) = process.children()
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: lines(path) == ["pool opens main"] * 2)  # of the child that replaces it


def test_outside_of_a_worker() -> None:
    app = make_app(UNREACHABLE)

    @app.lifespan
    def pool():
        yield 1

    with pytest.raises(UsageError, match="lifespan 'pool' is not open: it is open in the child processes of a worker"):
        pool.value  # noqa: B018

    with pytest.raises(UsageError, match=r"lifespan 'opened' \(.*test_lifespans.py:\d+\) is not a generator function"):

        @app.lifespan
        def opened():
            return iter([1])
