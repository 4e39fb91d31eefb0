"""How many connections each process holds, counted on the server and in PgBouncer: what docs/operations/connections.md
says, no more."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig, gather
from horsies_tui.data.postgres import PostgresSource
from tests.support import workflow_app
from tests.support.pgbouncer import PgBouncer, pgbouncer
from tests.support.postgres import Database
from tests.support.scheduler_app import scheduler, start_scheduler
from tests.support.waiting import eventually
from tests.support.worker_app import build
from tests.support.workers import WorkerProcess, check_invariants, describe, ended, start_worker, tasks_on, worker

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "connections.md").read_text()
CLOSED_S = 90.0
"""By when the connections of work that has ended are closed, which takes half a minute, on a starved machine too."""
LONG_MS = 60_000
NEVER = {"daily": 86_400}
POOL = 3
"""`pool_max_size` of the web process."""


def row(name: str) -> tuple[int, int]:
    """Direct and other connections of a process, as the page says."""
    (found,) = re.findall(rf"^\| {re.escape(name)} \| (\d) \| (\d|`pool_max_size`) \|$", PAGE, re.MULTILINE)
    return int(found[0]), POOL if found[1] == "`pool_max_size`" else int(found[1])


IDLE, MOST = row("worker, idle"), row("worker, at most")
WORKFLOWS = row("workflows, for each worker that runs some")
SCHEDULES = row("schedules, for each worker with `--with-scheduler`")
PRUNING = row("pruning, in one worker at a time")
SCHEDULER, DASHBOARD = row("`horsies scheduler`"), row("dashboard")
QUIET_WEB, WEB = row("web process, while it waits for no result"), row("web process, while it waits")


def held(db: Database, like: str = "horsies%") -> int:
    return db.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s", like
    )


def of_workers(db: Database) -> int:
    return held(db, "horsies worker%")


@contextmanager
def most_of(count: Callable[[], int]) -> Iterator[list[int]]:
    """The numbers that were counted during the block."""
    seen, is_over = [count()], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            seen.append(count())

    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(watch)
        try:
            yield seen
        finally:
            is_over.set()
            watching.result()


# -- workers -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_worker_holds_three_while_it_is_idle(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as process:
        later = tasks.add.schedule(3_600, 1)  # a task that waits is looked at again and again
        eventually(lambda: of_workers(db) == sum(IDLE))
        with most_of(lambda: of_workers(db)) as single:
            for number in range(5):
                assert tasks.add.send(number, 1).get(LONG_MS).ok == number + 1
        assert max(single) <= sum(MOST)
        with most_of(lambda: of_workers(db)) as many:
            handles = tasks.noop.send_many([() for _ in range(5_000)])
            handles += tasks.sleep.send_many([(0.2,) for _ in range(20)])
            assert all(result.is_ok() for result in gather(handles, timeout_ms=LONG_MS))
        assert max(many) <= sum(MOST) + sum(PRUNING)
        eventually(lambda: of_workers(db) == sum(IDLE), timeout=CLOSED_S)
        assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
        assert "unexpectedly" not in process.log
        later.cancel()
    check_invariants(db)


def test_a_worker_with_workflows(db: Database, tmp_path: Path) -> None:
    with build(describe(db)) as app, ended(start_worker(describe(db), tmp_path, app=workflow_app.APP)) as process:
        process.wait_up()
        t = workflow_app.register(app)
        with most_of(lambda: of_workers(db)) as seen:
            for _ in range(20):
                numbers = [t.number.node()(n) for n in range(5)]
                runs = [app.workflow("numbers", numbers, output=numbers[0]).start() for _ in range(5)]
                assert all(run.get(LONG_MS).is_ok() for run in runs)
        assert sum(IDLE) < max(seen) <= sum(MOST) + sum(WORKFLOWS) + sum(PRUNING)
    check_invariants(db)


def test_schedules(db: Database, tmp_path: Path) -> None:
    arguments = ("--with-scheduler", "--processes=1")
    process = start_scheduler(db, NEVER, tmp_path, *arguments, command=("horsies.cli", "worker"))
    with ended(process):
        process.wait_up()
        eventually(lambda: of_workers(db) == sum(IDLE) + sum(SCHEDULES))
    with scheduler(db, NEVER, tmp_path):
        eventually(lambda: held(db) == sum(SCHEDULER))


def test_results_are_written_when_no_connection_is_left(db: Database, tmp_path: Path) -> None:
    """F43: of a worker that was idle, and so has none for results."""
    account = f"narrow_{db.name[-8:]}"
    db.execute(f'CREATE ROLE "{account}" LOGIN SUPERUSER CONNECTION LIMIT 20')
    url = psycopg.conninfo.make_conninfo(db.url, user=account)
    try:
        with worker(url, folder=tmp_path, processes=1) as process, tasks_on(db) as tasks:
            eventually(lambda: of_workers(db) == sum(IDLE))
            db.execute(f'ALTER ROLE "{account}" NOSUPERUSER CONNECTION LIMIT 0')
            db.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{account}"')
            handles = [tasks.add.send(number, 1) for number in range(5)]
            assert [handle.get(LONG_MS).ok for handle in handles] == [1, 2, 3, 4, 5]
            assert process.is_running
    finally:
        db.execute(f'DROP OWNED BY "{account}"')
        db.execute(f'DROP ROLE "{account}"')
    check_invariants(db)


# -- web processes -----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_web_process(db: Database) -> None:
    with tasks_on(db, broker={"pool_max_size": POOL}) as tasks, ThreadPoolExecutor(4 * POOL) as threads:
        handles = list(threads.map(tasks.add.send, range(200)))
        assert held(db, "horsies") == sum(QUIET_WEB)
        with most_of(lambda: held(db, "horsies")) as seen:
            waiting = threads.map(lambda handle: handle.get(3_000), handles[:50])
            eventually(lambda: held(db, "horsies") == sum(WEB))
            assert not any(result.is_ok() for result in waiting)
        assert max(seen) == sum(WEB)


# -- the formula -------------------------------------------------------------------------------------


def needed(title: str, setting: str, **values: int) -> int:
    """The value of a formula on the page, without the lines that begin with "if"."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    (block,) = re.findall(rf"^    {setting} >= (.+(?:\n {{5,}}\+ .+)*)", section, re.MULTILINE)
    terms = [re.split(r" {2,}", line.strip().removeprefix("+ ")) for line in block.splitlines()]
    return sum(eval(term, {}, values) for term, *note in terms if not (note and note[0].startswith("if ")))


EXAMPLE: Mapping[str, int] = {"W": 32, "P": 8, "S": 2, "D": 2, "pool_max_size": 5, "default_pool_size": 74}


@pytest.mark.parametrize(
    ("title", "setting"),
    [("Without a pooler", "max_connections"), ("With PgBouncer", "max_client_conn"),
     ("With PgBouncer", "max_connections")],
)  # fmt: skip
def test_the_example_of_the_page_is_right(title: str, setting: str) -> None:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    assert re.search(rf"`{setting}`\s+{needed(title, setting, **EXAMPLE)}\b", section)


def test_the_formula_follows_from_the_table() -> None:
    one: Mapping[str, int] = {"pool_max_size": POOL, "default_pool_size": 0}
    none: Mapping[str, int] = {"W": 0, "P": 0, "S": 0, "D": 0}

    def each(title: str, setting: str) -> dict[str, int]:
        base = needed(title, setting, **one, **none)
        return {name: needed(title, setting, **{**one, **none, name: 1}) - base for name in none}

    table = {"W": MOST, "P": WEB, "S": SCHEDULER, "D": DASHBOARD}
    assert each("Without a pooler", "max_connections") == {name: sum(counts) for name, counts in table.items()}
    assert each("With PgBouncer", "max_client_conn") == {name: counts[1] for name, counts in table.items()}
    assert each("With PgBouncer", "max_connections") == {name: counts[0] for name, counts in table.items()}


@contextmanager
def dashboard(config: PostgresConfig) -> Iterator[None]:
    """What a dashboard asks, without its screens."""
    is_up, is_over = threading.Event(), threading.Event()

    async def look() -> None:
        source = PostgresSource(config)
        watching = asyncio.ensure_future(source.watch(lambda _: None, lambda is_live: is_live and is_up.set()))
        try:
            await source.overview(timedelta(minutes=5))
            await asyncio.to_thread(is_over.wait)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await source.close()

    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(asyncio.run, look())
        try:
            assert is_up.wait(30)
            yield
        finally:
            is_over.set()
            looking.result()


class Fleet:
    """Two workers, a scheduler, a dashboard, and this process."""

    def __init__(self, stack: ExitStack, db: Database, folder: Path, url: str, broker: Mapping[str, Any]) -> None:
        config: dict[str, Any] = {"where": url, "broker": broker}
        self.workers: list[WorkerProcess] = [stack.enter_context(worker(**config, folder=folder)) for _ in range(2)]
        stack.enter_context(scheduler(url, NEVER, folder, broker=broker))
        stack.enter_context(dashboard(PostgresConfig(url, pool_max_size=1, application_name="horsies tui", **broker)))
        self.tasks = stack.enter_context(tasks_on(url, broker={**broker, "pool_max_size": POOL}))
        self.numbers = {"W": 2, "P": 1, "S": 1, "D": 1, "pool_max_size": POOL}

    def work(self) -> None:
        handles = self.tasks.noop.send_many([() for _ in range(2_000)])
        with ThreadPoolExecutor(4 * POOL) as threads:
            handles += threads.map(lambda number: self.tasks.add.send(number, 1), range(100))
        assert all(result.is_ok() for result in gather(handles, timeout_ms=LONG_MS))


def test_a_fleet_without_a_pooler(db: Database, tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, db, tmp_path, db.url, {})
        eventually(lambda: held(db) == 2 * sum(IDLE) + sum(SCHEDULER) + sum(DASHBOARD))
        with most_of(lambda: held(db)) as seen:
            fleet.work()
        spare = 10  # of the formula, for the server itself and for people
        assert max(seen) <= needed("Without a pooler", "max_connections", **fleet.numbers) - spare
    check_invariants(db)


def test_a_fleet_behind_pgbouncer(db: Database, tmp_path: Path) -> None:
    pool_size = 4
    with pgbouncer(db, pool_size=pool_size) as proxy, ExitStack() as stack:
        fleet = Fleet(stack, db, tmp_path, proxy.url, {"pooler": True, "direct_url": db.url})
        eventually(lambda: direct(proxy, db) == 2 * IDLE[0] + SCHEDULER[0] + DASHBOARD[0])
        eventually(lambda: clients(proxy, db) == 2 * IDLE[1] + SCHEDULER[1] + DASHBOARD[1])
        with most_of(lambda: clients(proxy, db)) as through, most_of(lambda: held(db)) as server:
            fleet.work()
        commands, spare = 4, 10
        assert max(through) <= needed("With PgBouncer", "max_client_conn", **fleet.numbers) - commands
        most = needed("With PgBouncer", "max_connections", **fleet.numbers, default_pool_size=pool_size) - spare
        assert max(server) <= most
        for process in fleet.workers:
            assert "unexpectedly" not in process.log
    check_invariants(db)


def clients(proxy: PgBouncer, db: Database) -> int:
    """The connections to PgBouncer."""
    return sum(one["database"] == db.name for one in proxy.show("CLIENTS"))


def direct(proxy: PgBouncer, db: Database) -> int:
    """The connections that go past PgBouncer."""
    pooled = {one["remote_pid"] for one in proxy.show("SERVERS")}
    rows = db.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'horsies%'"
    )
    return len({pid for (pid,) in rows} - pooled)
