"""Small projects of users, with the testing kit in pytest (plain, asyncio, anyio, xdist) and in unittest."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import postgres, roles

APP = """
from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult, crash_point, current_task

app = Horsies(AppConfig(PostgresConfig("postgresql://production.example/shop")))


@app.task("double", retry_policy=RetryPolicy.fixed(60, 2, auto_retry_for=["WORKER_CRASHED"]))
def double(n: int) -> TaskResult[int, TaskError]:
    crash_point("half")
    return TaskResult(ok=2 * n)


@app.task("later")
async def later(n: int) -> TaskResult[int, TaskError]:
    await double.send_async(n)
    return TaskResult(ok=n)
"""

CONFTEST = """
import asyncpg
import pytest


async def make_tables(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE notes (text text)")
    await connection.close()


@pytest.fixture(scope="session")
def horsies_prepare():
    return make_tables
"""

PLAIN = """
import subprocess, sys

import psycopg
import pytest

from horsies import TaskResult, testing
from shop import app, double, later


@pytest.mark.parametrize("n", range(3))
def test_each_has_a_clean_database(horsies_db, n):
    handle = later.send(n)
    assert horsies_db.drain().attempts == 2
    assert handle.get() == TaskResult(ok=n)
    with psycopg.connect(horsies_db.url) as connection:
        assert connection.execute("SELECT count(*) FROM horsies_tasks").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)
        connection.execute("INSERT INTO notes VALUES ('x')")


def test_crash(horsies_db):
    handle = double.send(4)
    with testing.crash_at("half"):
        assert horsies_db.drain().crashed == 1
    assert handle.get() == TaskResult(ok=8)


def test_modes(horsies_recorded, horsies_db, horsies_inline):
    assert double.send(2).get() == TaskResult(ok=4)
    assert "production" not in horsies_db.url


def test_database_inside_recorded(horsies_recorded, horsies_db):
    handle = double.send(2)
    assert horsies_db.drain().completed == 1
    assert handle.get() == TaskResult(ok=4)
    horsies_recorded.refute_sent(double)


def test_it_is_over():
    assert "production" in app.config.broker.url
"""

ASYNC = """
import pytest

from horsies import TaskResult, testing
from shop import app, double, later


@pytest.mark.asyncio
@pytest.mark.parametrize("n", range(2))
async def test_asyncio(horsies_db, n):
    handle = await later.send_async(n)
    assert (await horsies_db.drain_async()).completed == 2
    assert await handle.get_async() == TaskResult(ok=n)


@pytest.mark.asyncio
async def test_block():
    async with testing.real(app) as database:
        handle = await later.send_async(1)
        await database.drain_async()
        assert await handle.get_async() == TaskResult(ok=1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_anyio(horsies_db, anyio_backend):
    handle = await double.send_async(5)
    assert (await horsies_db.drain_async()).completed == 1
    assert await handle.get_async() == TaskResult(ok=10)


@pytest.fixture
async def sent(horsies_db):
    yield await double.send_async(6)


@pytest.mark.asyncio
async def test_with_an_async_fixture(sent, horsies_db):
    assert (await horsies_db.drain_async()).result(sent) == TaskResult(ok=12)
"""

UNITTEST = """
import unittest

from horsies import TaskResult, testing
from shop import app, double, later


class Plain(unittest.TestCase):
    def setUp(self):
        self.database = self.enterContext(testing.real(app))

    def test_first(self):
        handle = later.send(1)
        self.assertEqual(self.database.drain().attempts, 2)
        self.assertEqual(handle.get(), TaskResult(ok=1))

    def test_second(self):
        handle = double.send(1)
        with testing.crash_at("returned"):
            self.assertEqual(self.database.drain().attempts, 2)
        self.assertEqual(handle.get(), TaskResult(ok=2))


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.database = await self.enterAsyncContext(testing.real(app))

    async def test_third(self):
        handle = await later.send_async(3)
        self.assertEqual((await self.database.drain_async()).attempts, 2)
        self.assertEqual(await handle.get_async(), TaskResult(ok=3))

    async def test_fourth(self):
        with testing.recorded(app) as sends:
            await double.send_async(4)
        sends.assert_sent(double, 4)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"shop.py": APP, "conftest.py": CONFTEST, "test_plain.py": PLAIN, "test_async.py": ASYNC}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nhorsies_app = shop:app\nfilterwarnings = error\nasyncio_mode = auto\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    return tmp_path


def run(directory: Path, *command: str, **variables: str) -> str:
    kept: Mapping[str, str] = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HORSIES_", "PYTEST_")) or name == "HORSIES_EMBEDDED_ACCOUNT"
    }
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, env={**kept, **variables, "PYTHONPATH": str(directory)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_pytest_on_an_embedded_server(project: Path) -> None:
    said = run(project, "pytest", "-q", "-p", "no:cacheprovider", "-n", "2")
    assert "12 passed" in said


@pytest.mark.long
def test_pytest_on_a_server_that_runs(project: Path) -> None:
    with _leaves_no_database() as url:
        assert "12 passed" in run(project, "pytest", "-q", "-p", "no:cacheprovider", f"--horsies-database-url={url}")


def test_unittest(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "test_shop.py").write_text(UNITTEST)
    with _leaves_no_database() as url:
        said = run(tmp_path, "unittest", "-v", HORSIES_TEST_DATABASE_URL=url)
        assert re.search(r"Ran 4 tests", said)


ALONE = """
import sys
for name in ("horsies_worker", "horsies_schema", "horsies_tui"):
    sys.modules[name] = None  # as if it were not installed
from horsies import UsageError, testing
from shop import app, double
with testing.recorded(app) as sends:
    double.send(2)
sends.assert_sent(double, 2)
for mode in (testing.inline, testing.real):
    try:
        with mode(app):
            pass
    except UsageError as error:
        print(error)
"""


def test_recorded_needs_the_client_alone(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "alone.py").write_text(ALONE)
    assert run(tmp_path, "alone").count("pip install 'horsies-client[testing]'") == 2


@contextmanager
def _leaves_no_database() -> Iterator[str]:
    """The URL of an account of this test's own: other tests make databases at the same time."""
    url = postgres.admin_url()
    server = postgres.Database("postgres", url)
    account = f"horsies_test_{os.urandom(6).hex()}"
    try:
        yield roles.login(server, account, "SUPERUSER").url
        assert server.execute("SELECT datname FROM pg_database WHERE pg_get_userbyid(datdba) = %s", account) == []
    finally:
        server.execute(f"DROP ROLE {account}")
