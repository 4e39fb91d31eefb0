"""The template of a worker process: a fork of the worker, or a process that imports the app again."""

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import factories
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended

SHOP = """
    import os, sys, threading
    from pathlib import Path
    from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

    with open("imports", "a") as imports:
        print(os.getpid(), file=imports)
    opened = open("kept", "w")
    if os.environ.get("THREAD"):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    orders = Horsies(AppConfig(PostgresConfig()))

    @orders.task("look")
    def look() -> TaskResult[list[str], TaskError]:
        print("looked around", flush=True)
        opened.write("x")
        opened.flush()
        entries = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return TaskResult(ok=[os.readlink(entry) for entry in entries if os.path.lexists(entry)])

    @orders.task("who")
    def who() -> TaskResult[str, TaskError]:
        return TaskResult(ok=" ".join(sys.argv) + "|" + sys.stdin.read())
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    return tmp_path


@contextmanager
def working(db: Database, shop: Path, *wrapped: str, **more: str) -> Iterator[WorkerProcess]:
    command = [sys.executable, "-m", "horsies_worker", "shop", "--processes=2", f"--health-file={shop / 'health'}"]
    environment = {**os.environ, "HORSIES_DATABASE_URL": db.url, "PYTHONUNBUFFERED": "1", **more}
    process = WorkerProcess([*wrapped, *command], environment, shop, cwd=shop)
    with ended(process):
        process.wait_up()
        yield process


def imports(shop: Path) -> list[int]:
    return [int(line) for line in (shop / "imports").read_text().split()]


def done(db: Database, name: str) -> Any:
    task_id = factories.task(db, task_name=name, kwargs="{}")
    eventually(lambda: factories.read(db, task_id)["status"] == "COMPLETED")
    return factories.read(db, task_id)["result"]


def test_the_app_is_imported_once(db: Database, shop: Path) -> None:
    with working(db, shop) as worker:
        assert done(db, "who") == '{"ok":"horsies-template|"}', "tasks see the worker's command line or input"
        assert imports(shop) == [worker.pid]


def test_the_template_after_a_dead_one_imports_the_app_itself(db: Database, shop: Path) -> None:
    with working(db, shop) as worker:
        (template,) = (process for process in worker.offspring() if process.ppid() == worker.pid)
        before = {child.pid for child in worker.children()}
        template.kill()
        eventually(lambda: len(found := {child.pid for child in worker.children()}) == 2 and not found & before)
        done(db, "look")
        (_, another) = imports(shop)
        assert another not in (worker.pid, template.pid)


def test_children_keep_the_files_of_the_import_and_inherit_none_of_the_worker(db: Database, shop: Path) -> None:
    # as a supervisor may, the shell gives the worker a descriptor that tasks must not see
    with working(db, shop, "bash", "-c", 'exec 7>given; exec "$@"', "bash") as worker:
        assert (Path(f"/proc/{worker.pid}/fd/7")).readlink().name == "given"
        seen = done(db, "look")
        assert str(shop / "kept") in seen
        assert str(shop / "given") not in seen
        assert "looked around" in worker.log
        for process in worker.offspring():
            open_files = files_of(process.pid)
            assert shop / "given" not in open_files
            assert Path("/dev/null") in open_files


def files_of(pid: int) -> list[Path]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            found.append(entry.readlink())
    return found


def test_a_worker_without_output(db: Database, shop: Path) -> None:
    with working(db, shop, "bash", "-c", 'exec "$@" >&-', "bash") as worker:
        done(db, "look")
        assert imports(shop) == [worker.pid]


def test_an_import_that_starts_a_thread_is_repeated_in_every_child(db: Database, shop: Path) -> None:
    with working(db, shop, THREAD="1") as worker:
        done(db, "look")
        assert "left 1 thread(s) and 0 socket(s) open: children will import it themselves" in worker.log
        eventually(lambda: len(worker.children()) == 2 and {one.pid for one in worker.children()} <= set(imports(shop)))
