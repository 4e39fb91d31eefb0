"""Fixtures of the whole suite; what they are made of lives in tests/support."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.support import embedding, invariants, postgres, processes, workers
from tests.support.hands import Hands
from tests.support.postgres import Database
from tests.support.waiting import eventually

# How long Hypothesis takes to draw an example says how busy the machine is, nothing about the code. Its other health
# checks stay on.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores SIGINT for what it starts in the background, and nohup SIGHUP: processes of tests would, too.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if not hasattr(config, "workerinput"):
        postgres.prepare_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        postgres.finish_run()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The rows of every integration test are checked before its databases are dropped. A test that plants what a rule
    forbids names the rule: `@pytest.mark.breaks("T8")`."""
    broken = _broken_rules(item) if "integration" in item.path.parts else []
    yield
    assert not broken, f"rows break rules of tests/support/invariants.sql: {broken}"


def _broken_rules(item: pytest.Item) -> list[invariants.Violation]:
    planted = {rule for mark in item.iter_markers("breaks") for rule in mark.args}
    values: list[object] = list(getattr(item, "funcargs", {}).values())
    databases = {value.name: value for value in values if isinstance(value, Database)}
    return [
        violation
        for database in databases.values()
        for violation in invariants.check_if_ours(database)
        if violation.rule not in planted
    ]


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A migrated database of this test's own; fails the test when a connection to it leaks. In a module that is marked
    `shared_database` its tests have one together, and find it empty: half the price."""
    if request.node.get_closest_marker("shared_database"):
        yield postgres.empty(request.getfixturevalue("_database_of_the_module"))
        return
    with postgres.database() as database:
        yield database


@pytest.fixture(scope="module")
def _database_of_the_module() -> Iterator[Database]:
    with postgres.database() as database:
        yield database


@pytest.fixture
async def hands(db: Database) -> AsyncIterator[Hands]:
    async with Hands.on(db) as hands:
        yield hands


@pytest.fixture
def empty_db() -> Iterator[Database]:
    """A database without any horsies table."""
    with postgres.database(template_name="template0", options="ENCODING 'UTF8'") as database:
        yield database


@pytest.fixture
async def conn(db: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(db.url)
    yield connection
    await connection.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """Where an embedded server of this test's own may live (pytest's tmp_path is closed to its account when we are
    root); fails the test when a process of it is left."""
    with embedding.place() as directory:
        yield directory


@pytest.fixture(autouse=True)
def no_leaked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process behind (the shared server's keeper and a module's workers are not its own)."""
    if "unit" in request.path.parts:
        yield
        return
    postgres.admin_url()
    before = _offspring()
    yield
    eventually(
        lambda: not (_offspring() - before), timeout=20, describe="every process that the test started has ended"
    )


def _offspring() -> set[tuple[int, float]]:
    found: set[tuple[int, float]] = set()
    for child in processes.children(os.getpid()):
        if child in workers.shared:
            continue  # it may replace its children while a test runs
        for pid in (child, *processes.descendants(child)):
            try:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.add((pid, process.create_time()))
            except psutil.NoSuchProcess:
                continue
    return found
