"""docs/operations/upgrading.md, walked with a real earlier release: its wheels on the new schema, and the new code on
the old schema. `just test-upgrade` runs it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import horsies_schema
from horsies._pg.schema_guard import HEAD_REVISION, REQUIRED_REVISION
from tests.support.old_release import Release
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

APP = """\
import os
import sys

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, from_node

app = Horsies(
    AppConfig(PostgresConfig(os.environ["HORSIES_DATABASE_URL"]), auto_migrate=os.environ["AUTO_MIGRATE"] == "yes")
)


@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


first = add.node(node_id="first")(1, 2)
both = app.workflow("both", [first, add.node(node_id="second")(from_node(first), 4)])


def use() -> None:
    \"\"\"What a web application does.\"\"\"
    assert add.send(1, 2).get(timeout_ms=60_000).ok_value == 3
    many = add.send_many([add.call(n, n) for n in range(5)])
    assert [one.get(timeout_ms=60_000).ok_value for one in many] == [0, 2, 4, 6, 8]
    assert add.schedule(1, 5, 6).get(timeout_ms=60_000).ok_value == 11
    assert add.with_options(unique_key="one").send(2, 2).get(timeout_ms=60_000).ok_value == 4
    assert both.start().get(timeout_ms=60_000).is_ok()
    assert add.schedule(600, 5, 6).cancel() == "CANCELLED"
    print("all is well")


def go_on() -> None:
    \"\"\"Send and wait, one after the other, until the file `enough` is there.\"\"\"
    count = 0
    while not os.path.exists("enough"):
        assert add.send(count, 1).get(timeout_ms=60_000).ok_value == count + 1
        count += 1
        print(count, flush=True)


if __name__ == "__main__":
    {"use": use, "go_on": go_on}[sys.argv[1]]()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def environment(db: Database, *, auto_migrate: bool = False) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "HORSIES_DATABASE_URL": db.url, "AUTO_MIGRATE": "yes" if auto_migrate else "no"}


@contextmanager
def working(release: Release, db: Database, shop: Path, *, auto_migrate: bool = False) -> Iterator[WorkerProcess]:
    command = [str(release.programs / "horsies"), "worker", "shop:app", "--processes", "1"]
    process = WorkerProcess(command, environment(db, auto_migrate=auto_migrate), shop, cwd=shop)
    with ended(process):
        process.wait_up()
        yield process


def uses(release: Release, db: Database, shop: Path) -> None:
    assert release.run("python", "shop.py", "use", env=environment(db), cwd=shop) == (0, "all is well\n")


def test_the_old_release_on_the_new_schema(
    old: Release, new: Release, breaking: str, empty_db: Database, shop: Path
) -> None:
    horsies_schema.upgrade(empty_db.url)
    env = environment(empty_db)
    if old.head < breaking:
        pytest.skip(f"the last release knows {old.head}, and {breaking} breaks it: the test of refusals has this case")
    with working(old, empty_db, shop, auto_migrate=True):  # it finds nothing to upgrade
        uses(old, empty_db, shop)
        uses(new, empty_db, shop)
    with working(new, empty_db, shop):
        uses(old, empty_db, shop)
    code, said = old.run("horsies-migrate", "check", env=env, cwd=shop)
    assert code == 0, said
    code, said = old.run("horsies-migrate", "up", env=env, cwd=shop)
    if old.head < HEAD_REVISION:
        assert code == 3
        assert f"the database is at revision {HEAD_REVISION}, which is newer than this package knows" in said


def test_the_new_release_on_the_old_schema(old: Release, new: Release, empty_db: Database, shop: Path) -> None:
    env = environment(empty_db)
    assert old.run("horsies-migrate", "up", env=env, cwd=shop)[0] == 0
    assert empty_db.value("SELECT version_num FROM horsies_alembic_version") == old.head
    remedy = f"the database is at revision {old.head}, this release needs {HEAD_REVISION}: run `horsies-migrate up`"
    if old.head < REQUIRED_REVISION:
        code, said = new.run("python", "shop.py", "use", env=env, cwd=shop)
        assert code == 1
        assert said.splitlines()[-1] == f"horsies.errors.SchemaError: {remedy}"
        code, said = new.run("horsies", "worker", "shop:app", env=env, cwd=shop)
        assert code == 4
        assert said.splitlines()[-1] == f"horsies: {remedy}"
    else:
        with working(new, empty_db, shop):
            uses(new, empty_db, shop)
    if old.head < HEAD_REVISION:
        code, said = new.run("horsies-migrate", "check", env=env, cwd=shop)
        assert code == 1
        assert said.startswith(f"horsies-migrate: the database is at revision {old.head}, this")
    with working(new, empty_db, shop, auto_migrate=True):
        assert empty_db.value("SELECT version_num FROM horsies_alembic_version") == HEAD_REVISION
        uses(new, empty_db, shop)


def test_an_upgrade_without_a_pause_and_back(
    old: Release, new: Release, breaking: str, empty_db: Database, shop: Path
) -> None:
    """The order of the page: schema, then workers, then producers, while tasks flow; code back; schema back."""
    if old.head < breaking:
        pytest.skip(f"{breaking} breaks the last release: the page says to stop it first")
    env = environment(empty_db)
    assert old.run("horsies-migrate", "up", env=env, cwd=shop)[0] == 0
    with (shop / "producer.log").open("w") as log:
        producer = subprocess.Popen(
            [str(old.programs / "python"), "shop.py", "go_on"], cwd=shop, env=env, stdout=log, stderr=log
        )

    def sends_more() -> None:
        before = len((shop / "producer.log").read_text().splitlines())

        def more() -> bool:
            said = (shop / "producer.log").read_text()
            assert producer.poll() is None, said
            return len(said.splitlines()) > before + 5

        eventually(more, timeout=60, describe="the producer of the old release goes on")

    try:
        with working(old, empty_db, shop) as old_worker:
            sends_more()
            code, said = new.run("horsies-migrate", "up", env=env, cwd=shop)
            assert (code, said) == (0, f"at revision {HEAD_REVISION}\n")
            sends_more()
            with working(new, empty_db, shop):
                sends_more()
                assert old_worker.stop() == 0
                sends_more()
                uses(new, empty_db, shop)
        with working(old, empty_db, shop):  # the code goes back, the schema stays
            sends_more()
            (shop / "enough").touch()
            assert producer.wait(90) == 0, (shop / "producer.log").read_text()
            uses(old, empty_db, shop)
    finally:
        if producer.poll() is None:
            producer.kill()
            producer.wait()
    code, said = new.run("horsies-migrate", "down", old.head, "--yes", env=env, cwd=shop)
    assert (code, said) == (0, f"at revision {old.head}\n")
    with working(old, empty_db, shop):
        uses(old, empty_db, shop)


def test_a_breaking_revision_refuses_code_that_does_not_know_it(
    before_breaking: Release, breaking: str, empty_db: Database, shop: Path
) -> None:
    older = before_breaking
    env = environment(empty_db)
    assert older.run("horsies-migrate", "up", env=env, cwd=shop)[0] == 0
    with working(older, empty_db, shop):
        uses(older, empty_db, shop)
    horsies_schema.upgrade(empty_db.url)
    refused = (
        f"the database is at revision {HEAD_REVISION}, and code that does not know revision {breaking} cannot work "
        f"with it: this release knows {older.head}; install a newer release of horsies"
    )
    code, said = older.run("python", "shop.py", "use", env=env, cwd=shop)
    assert code == 1
    assert said.splitlines()[-1] == f"horsies.errors.SchemaError: {refused}"
    code, said = older.run("horsies", "worker", "shop:app", env=env, cwd=shop)
    assert (code, said.splitlines()[-1]) == (4, f"horsies: {refused}")
    code, said = older.run("horsies-migrate", "check", env=env, cwd=shop)
    assert code == 3
    assert f"(its newest is {older.head}, and code that does not know {breaking} cannot work with it)" in said
    horsies_schema.downgrade(empty_db.url, older.head)
    with working(older, empty_db, shop):
        uses(older, empty_db, shop)
