"""What the worker's statements cost: prepared on an empty table, which is then filled and never analyzed.

Buffers are pinned, not times: they are the same on every machine. The limits of the pick are the figures of
HOTPATH.md 1.2 and a fifth more.
"""

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import psycopg
import pytest
from psycopg import sql

from horsies import PostgresConfig
from horsies_worker.claim.unknown_names import WINDOW
from horsies_worker.database.queries import CANCELLED_RESULT, DUE_LOOK, EXPIRED_RESULT, ClaimRequest, Hint, Queries
from horsies_worker.database.session import Session
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.identity import Identity
from tests.support import postgres
from tests.support.postgres import Database

QUERIES = Queries(None, Identity())
MAX_FIFTH = 1.2
_letters = cycle("abcdefghijklmnop")


@pytest.fixture
def table() -> Iterator[Database]:
    """An empty one without autovacuum, so that it is never analyzed."""
    with postgres.database() as db:
        for name in ("horsies_tasks", "horsies_task_attempts", "horsies_heartbeats"):
            db.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = false)")
        yield db


# -- filling ---------------------------------------------------------------------------------------------------


def fill(db: Database, columns: str, values: str, count: int) -> None:
    """Rows numbered `i`, without triggers: what is measured is the claim."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        # in order: half the time of random ones, and no statement of ours sees the difference
        ids = f"lpad(i::text, 36, '{next(_letters)}')"
        connection.execute(
            f"INSERT INTO horsies_tasks (id, task_name, {columns}) SELECT {ids}, 'noop', {values}"
            f" FROM generate_series(1, {count}) AS i"  # type: ignore[arg-type]
        )


def fill_ready(db: Database, count: int) -> None:
    fill(db, "enqueued_at", "now() - interval '1 hour' + i * interval '1 ms'", count)


def fill_terminal(db: Database, count: int) -> None:
    columns = "status, enqueued_at, claimed_at, started_at, completed_at, terminal_at, result, worker_pid"
    fill(db, columns, "'COMPLETED'" + ", current_date" * 5 + ", '{}', 1", count)


def fill_running(db: Database, count: int) -> None:
    columns = "status, enqueued_at, claimed_at, started_at, worker_pid, claimed_by_worker_id"
    fill(db, columns, "'RUNNING'" + ", now() - interval '1 minute' + i * interval '1 ms'" * 3 + ", 1, 'w'", count)


# -- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    root: dict[str, Any]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        def below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
            yield node
            for child in node.get("Plans", ()):
                yield from below(child)

        return list(below(self.root))

    @property
    def kinds(self) -> set[str]:
        return {node["Node Type"] for node in self.nodes}

    @property
    def all(self) -> int:
        return _buffers(self.root)

    @property
    def pick(self) -> int:
        """To choose and to lock: everything below the write, but the second visit to the rows."""
        (written,) = [node for node in self.nodes if node["Node Type"] == "CTE Scan" and node["CTE Name"] == "picked"]
        return _buffers(written)

    @property
    def rows(self) -> int:
        return int(self.root["Plans"][-1]["Actual Rows"])


def _buffers(node: dict[str, Any]) -> int:
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]


class Prepared:
    """A worker's session with its statements prepared on the table as it was then."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def prepare(self, name: str, *values: Any) -> None:
        await self._connection.fetch(QUERIES.sql(name), *values)

    async def explain(self, name: str, *values: Any) -> Plan:
        """The plan of the very statement that was prepared; what it did is undone."""
        prepared = await self._connection.fetchrow(
            "SELECT name, parameter_types::text[] AS types FROM pg_prepared_statements WHERE statement = $1",
            QUERIES.sql(name),
        )
        literals = [
            sql.SQL("{}::{}").format(value, sql.SQL(kind)).as_string(None)
            for value, kind in zip(values, prepared["types"], strict=True)
        ]
        arguments = f"({', '.join(literals)})" if literals else ""
        await self._connection.execute("BEGIN")
        try:
            text = await self._connection.fetchval(
                f'EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE "{prepared["name"]}"{arguments}'
            )
        finally:
            await self._connection.execute("ROLLBACK")
        return Plan(json.loads(text)[0]["Plan"])

    async def claim(self, limit: int, **request: Any) -> Plan:
        """The cheapest of three: after an autovacuum of the table, the first one reads catalogues too."""
        values = await claim_values(limit, **request)
        plan = min([await self.explain("claim_batch", *values) for _ in range(3)], key=lambda one: one.pick)
        assert "Tid Scan" in plan.kinds
        assert not plan.kinds & {"Seq Scan", "Hash Join", "Merge Join", "Bitmap Heap Scan"}
        return plan


@asynccontextmanager
async def session_on(db: Database) -> AsyncIterator[Prepared]:
    session = Session(PostgresConfig(db.url), "test", QUERIES)
    try:
        yield Prepared(await session.run(_itself))
    finally:
        await session.close()


async def _itself(connection: Any) -> Any:
    return connection


async def claim_values(limit: int, **request: Any) -> tuple[Any, ...]:
    """The arguments that a claim passes."""

    class Recorder:
        values: tuple[Any, ...] = ()

        async def fetch(self, _sql: str, *values: Any) -> list[Any]:
            self.values = values
            return []

    given = {
        "discover": ["default"], "hints": (), "limit": limit, "room_sync": limit, "room_ahead": 0, "room_async": 0,
        "prefetch": 0, "async_names": (), "short_names": (), "sync_names": ["noop"], **request,
    }  # fmt: skip
    recorder = Recorder()
    await QUERIES.claim(recorder, ClaimRequest(**given), lease_ms=60_000, queue_caps={}, cluster_cap=None, pooled=False)
    return recorder.values


@pytest.fixture
async def claimer(table: Database) -> AsyncIterator[Prepared]:
    async with session_on(table) as prepared:
        await prepared.prepare("claim_batch", *await claim_values(100))
        yield prepared


def shown(**figures: Any) -> None:
    """For the reader of `pytest -rP`."""
    sys.stdout.write("  ".join(f"{name} {value}" for name, value in figures.items()) + "\n")


# -- the claim -------------------------------------------------------------------------------------------------


async def test_the_sessions_settings_are_in_force(table: Database) -> None:
    async def read(connection: Any) -> dict[str, str]:
        return {name: await connection.fetchval(f"SHOW {name}") for name in CLAIM_SETTINGS}

    session = Session(PostgresConfig(table.url), "claim", QUERIES)
    assert await session.run(read) == CLAIM_SETTINGS
    await session.close()
    assert {"enable_seqscan", "enable_hashjoin", "enable_mergejoin", "plan_cache_mode"} <= CLAIM_SETTINGS.keys()


@pytest.mark.breaks("A2")
async def test_finished_and_future_tasks_cost_a_claim_nothing(table: Database, claimer: Prepared) -> None:
    """And neither do they cost the rest of what a worker asks. The figures are those of a million finished
    tasks; 200,000 are thousands of pages, so a plan that walks them is far beyond the figures too."""
    figures: dict[str, int] = {}

    async def measure(state: str, *, one: int, hundred: int) -> None:
        for limit, allowed in ((1, one), (100, hundred)):
            plan = await claimer.claim(limit)
            shown(table=state, n=limit, pick=plan.pick, all=plan.all)
            figures[f"{state}, {limit}"] = plan.pick
            assert plan.pick <= allowed * MAX_FIFTH
            assert plan.rows == (0 if state == "empty" else limit)

    await _prepare_heartbeats(claimer)
    await measure("empty", one=4, hundred=4)  # two of them for the pause of the queue
    fill_ready(table, 300)
    await measure("300 ready", one=14, hundred=123)
    fill_terminal(table, 200_000)
    await measure("200 k terminal", one=14, hundred=123)
    fill(table, "priority, enqueued_at", "1, now() + interval '1 day'", 100_000)
    await measure("100 k future at priority 1", one=26, hundred=137)
    assert figures["200 k terminal, 100"] <= figures["300 ready, 100"] + 5
    fill_running(table, 3_000)
    await _heartbeats_are_index_bound(claimer)


MOMENT = 1_704_067_200.0
MOMENT_US = 1_704_067_200_000_000
UPKEEP: dict[str, tuple[tuple[Any, ...], int]] = {
    # with 300 ready tasks, which an idle worker does not have
    "next_due": ((["default"], ["noop"], DUE_LOOK, timedelta(0)), 45),
    "start_batch": (("w", ["x"], [1], "h", EXPIRED_RESULT), 10),
    "hand_back_batch": (("w", ["x"], [1], CANCELLED_RESULT), 10),
    "read_owned_batch": (("w", ["x"], [1]), 10),
    "complete_task": (("w", "x", 1, "{}", MOMENT, MOMENT, 1, "p"), 10),
    "stage_batch": (("w", ["x"], "{1}", ["{}"], f"{{{MOMENT_US}}}", f"{{{MOMENT_US}}}", "{1}", ["p"]), 10),
    "write_progress_batch": (("w", ["x"], [1], ["{}"]), 10),
    "beat_batch": (("w", ["x"], [1], ["runner"], "h", [1], ["p"]), 10),
    "renew_claims": (("w", ["x"], [1], timedelta(minutes=1)), 10),
    "cancel_requests": (("w", ["x"]), 10),
    "find_written_batch": ((["x"], [1], "w", ["COMPLETED"]), 10),
    "expire_overdue": ((EXPIRED_RESULT, 500), 10),
}
# These read all tasks in flight (3,000 tasks in 105 pages), and the last beat of what runs for long.
SWEEP: dict[str, tuple[tuple[Any, ...], int]] = {
    "requeue_silent_claims": ((timedelta(minutes=2), 500), 130),
    "stale_running": ((timedelta(minutes=5), timedelta(minutes=5), 500), 130),
}


async def _prepare_heartbeats(claimer: Prepared) -> None:
    for name, (values, _) in (UPKEEP | SWEEP).items():
        await claimer.prepare(name, *values)


async def _heartbeats_are_index_bound(claimer: Prepared) -> None:
    for name, (values, allowed) in (UPKEEP | SWEEP).items():
        plan = await claimer.explain(name, *values)
        shown(statement=name, buffers=plan.all)
        assert "Seq Scan" not in plan.kinds, name
        assert plan.all <= allowed, name


def finalize_values(tasks: list[str]) -> tuple[Any, ...]:
    n = len(tasks)
    return (
        tasks, [0] * n, ["w"] * n, ["COMPLETED"] * n, ["{}"] * n, [None] * n, [None] * n, [None] * n,
        ["COMPLETED"] * n, [timedelta(0)] * n, [0] * n, [MOMENT] * n, [MOMENT] * n, [1] * n, ["p"] * n, "{}",
        [None] * n, [None] * n,
    )  # fmt: skip


def complete_values(tasks: list[str]) -> tuple[Any, ...]:
    n = len(tasks)
    times = numbers(MOMENT_US, n)
    return "w", tasks, numbers(0, n), ["{}"] * n, times, times, numbers(1, n), ["p"] * n


def numbers(value: int, count: int) -> str:
    """An array that goes to the server as text."""
    return f"{{{','.join([str(value)] * count)}}}"


@pytest.mark.parametrize(
    ("statement", "values"), [("finalize_batch", finalize_values), ("complete_batch", complete_values)]
)
async def test_an_end_costs_the_same_however_much_is_in_flight(
    table: Database, claimer: Prepared, statement: str, values: Callable[[list[str]], tuple[Any, ...]]
) -> None:
    """One way to the row by its key, one write by its ctid; a plan over all that is in flight would be quadratic."""
    await claimer.prepare(statement, *values([]))
    fill_running(table, 20_000)
    tasks = [row[0] for row in table.execute("SELECT id FROM horsies_tasks ORDER BY enqueued_at LIMIT 100")]
    plan = await claimer.explain(statement, *values(tasks))
    shown(statement=statement, rows=100, buffers=plan.all)
    assert "Tid Scan" in plan.kinds
    assert not plan.kinds & {"Seq Scan", "Hash Join", "Merge Join"}
    (looked_up,) = [node for node in plan.nodes if node.get("Index Name") == "pk_horsies_tasks"]
    assert looked_up["Actual Loops"] == 100
    # the foreign key's own look and the trigger are not in the plan: 32 a row with them, 35 before it had a ctid
    assert plan.all <= 28 * 100


async def test_many_priorities_cost_a_few_pages_each(table: Database, claimer: Prepared) -> None:
    fill(
        table, "queue_name, priority, enqueued_at",
        "(ARRAY['a', 'b', 'c'])[1 + (i - 1) / 20000], 1 + (i - 1) / 1000 % 20,"
        " now() - interval '1 hour' + i * interval '1 ms'", 60_000,
    )  # fmt: skip
    queues = ["a", "b", "c"]
    for limit, allowed in ((1, 236), (100, 343)):
        plan = await claimer.claim(limit, discover=queues)
        shown(table="3 queues x 20 priorities", n=limit, pick=plan.pick, all=plan.all)
        assert plan.pick <= allowed * MAX_FIFTH
        assert plan.rows == limit
    since = table.value("SELECT min(enqueued_at) FROM horsies_tasks")
    hints = [Hint(queue, 1, since) for queue in queues]
    plan = await claimer.claim(100, discover=(), hints=hints)
    shown(table="the same, hinted", n=100, pick=plan.pick, all=plan.all)
    assert plan.pick <= 123 * MAX_FIFTH
    assert plan.rows == 100


async def test_future_tasks_at_many_priorities_are_passed_by(table: Database, claimer: Prepared) -> None:
    later = "now() + interval '1 day'"
    queue = "(ARRAY['a', 'b', 'c'])[1 + (i - 1) / {}]"
    fill(table, "queue_name, priority, enqueued_at", f"{queue.format(20_000)}, 1 + i % 19, {later}", 60_000)
    ready = "now() - interval '1 hour' + i * interval '1 ms'"
    fill(table, "queue_name, priority, enqueued_at", f"{queue.format(1_000)}, 100, {ready}", 3_000)
    for limit, allowed in ((1, 474), (100, 584)):
        plan = await claimer.claim(limit, discover=["a", "b", "c"])
        shown(table="3 queues x 19 priorities of the future", n=limit, pick=plan.pick, all=plan.all)
        assert plan.pick <= allowed * MAX_FIFTH
        assert plan.rows == limit


@pytest.mark.breaks("T7")
async def test_expired_tasks_in_front_are_consumed_once_not_walked_every_time(
    table: Database, claimer: Prepared
) -> None:
    fill(
        table, "good_until, enqueued_at",
        "now() - interval '1 minute', now() - interval '1 hour' + i * interval '1 ms'", 50_000,
    )  # fmt: skip
    fill(table, "enqueued_at", "now()", 100)
    plan = await claimer.claim(100)
    shown(table="50 k expired", n=100, pick=plan.pick, all=plan.all)
    assert plan.pick <= 141 * MAX_FIFTH
    assert plan.rows == 100


async def test_tasks_without_a_place_are_looked_at_and_not_locked(table: Database, claimer: Prepared) -> None:
    """Only async places are free, synchronous tasks stand in front: no heap page is dirtied for them."""
    fill_ready(table, 150)
    fill(table, "enqueued_at, task_options", "now() - interval '1 minute', NULL", 20)
    table.execute("UPDATE horsies_tasks SET task_name = 'poll' WHERE enqueued_at > now() - interval '5 minutes'")
    async_room: dict[str, Any] = {"room_sync": 0, "room_async": 100, "async_names": ["poll"], "look": 200}
    plan = await claimer.claim(100, **async_room)
    locks = [node for node in plan.nodes if node["Node Type"] == "LockRows"]
    assert [node["Actual Rows"] for node in locks] == [20]
    assert plan.rows == 20


async def test_dead_entries_behind_a_hint_are_not_walked(table: Database, claimer: Prepared) -> None:
    """A transaction somewhere holds the horizon: what was claimed and finished cannot be cleaned away."""
    with psycopg.connect(table.url) as holder:
        holder.execute("SELECT txid_current()")
        fill_ready(table, 20_000)
        table.execute("UPDATE horsies_tasks SET enqueued_at = enqueued_at + interval '30 minutes'")
        since = table.value("SELECT min(enqueued_at) FROM horsies_tasks")
        discovery = await claimer.claim(100)
        hinted = await claimer.claim(100, discover=(), hints=[Hint("default", 100, since)])
    shown(table="20 k dead entries", discovery=discovery.pick, hinted=hinted.pick)
    assert hinted.pick <= 119 * MAX_FIFTH
    assert discovery.pick > 4 * hinted.pick


async def test_a_window_of_the_walk_for_unknown_names_costs_the_same_everywhere(
    table: Database, claimer: Prepared
) -> None:
    """At the front and behind 99,000 tasks, which hide no name: the claim index leads to the window."""
    await claimer.prepare("walk_waiting", "default", 100, datetime(2000, 1, 1, tzinfo=UTC), "", WINDOW)
    fill_ready(table, 100_000)
    after = table.value("SELECT enqueued_at FROM horsies_tasks ORDER BY enqueued_at OFFSET 98999 LIMIT 1")
    for at in (datetime(2000, 1, 1, tzinfo=UTC), after):
        plan = await claimer.explain("walk_waiting", "default", 100, at, "", WINDOW)
        shown(table="100 k known", walk=plan.all)
        (scan,) = [node for node in plan.nodes if node.get("Relation Name") == "horsies_tasks"]
        assert (scan["Index Name"], scan["Actual Rows"]) == ("ix_horsies_tasks_claim", WINDOW)
        assert plan.all <= 40 * MAX_FIFTH


async def test_tasks_of_unknown_names_behind_a_hint_or_a_floor_are_not_walked(
    table: Database, claimer: Prepared
) -> None:
    """100,000 ready tasks that another app's workers run, in the same queue and priority, before those that we know."""
    fill_ready(table, 100_000)
    table.execute("UPDATE horsies_tasks SET task_name = 'ghost'")
    table.execute("VACUUM horsies_tasks")
    fill(table, "enqueued_at", "now() - interval '1 minute' + i * interval '1 ms'", 300)
    since = table.value("SELECT min(enqueued_at) FROM horsies_tasks WHERE task_name = 'noop'")
    full = await claimer.claim(100)
    hinted = await claimer.claim(100, discover=(), hints=[Hint("default", 100, since)])
    floor = await claimer.claim(100, floor=since)
    shown(table="100 k of unknown names", full=full.pick, hinted=hinted.pick, floor=floor.pick)
    assert full.rows == hinted.rows == floor.rows == 100
    assert hinted.pick <= 123 * MAX_FIFTH
    assert floor.pick <= 137 * MAX_FIFTH
    assert full.pick > 20 * hinted.pick
    one = await claimer.claim(1, floor=since)
    assert one.pick <= 26 * MAX_FIFTH
    # nothing there that it could take: only the walk, and no row is locked for it
    strange = await claimer.claim(100, sync_names=["of another release"], floor=since)
    locks = [node["Actual Rows"] for node in strange.nodes if node["Node Type"] == "LockRows"]
    assert (strange.rows, sum(locks)) == (0, 0)
