"""Asks the database, one bounded question after the other, and lets the checks judge the answers.

A question that fails, for want of rights or of time, silences only the checks that need its answer. Nothing is
written but one notification to ourselves.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from horsies._operations import QUEUE_BOUND, worker_statuses
from horsies._pg.dsn import connect_arguments
from horsies._pg.embedded import resolve
from horsies._pg.schema_guard import places_values
from horsies._pg.statements import load, qualify
from horsies.check import notify_round_trip
from horsies.doctor import reach, server, work
from horsies.doctor.expected import TABLES
from horsies.doctor.finding import Facts, Finding, Limits, NotSeen, Pooler, Row, Severity
from horsies.errors import HorsiesError
from horsies.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, OVERDUE_AFTER
from horsies.stale import LISTED, SEEN_WITHIN

if TYPE_CHECKING:
    from horsies.config import AppConfig, PostgresConfig
    from horsies.info import WorkerStatus

_ANSWER_S: Final = 8.0

CHECKS: Final[Mapping[str, Callable[[Facts], Iterable[Finding]]]] = {
    "server": server.server,
    "schema": server.schema,
    "objects": server.objects,
    "rights": server.rights,
    "pooler": server.pooler,
    "notify": server.notifications,
    "clock": server.clock,
    "connections": server.connections,
    "xmin": server.xmin,
    "own-transactions": server.own_transactions,
    "vacuum": server.vacuum,
    "sizes": server.sizes,
    "workers": work.workers,
    "dead-workers": work.dead_workers,
    "backlog": work.backlog,
    "unknown-names": work.unknown_names,
    "stale": work.stale,
    "reaper": work.overdue,
    "retention": work.retention,
    "schedules": work.schedules,
}


async def examine(
    config: "AppConfig", *, limits: Limits | None = None, names: Iterable[str] | None = None
) -> list[Finding]:
    """Every finding, in the order of the checks. `names`: the tasks that the user's app knows."""
    async with AsyncExitStack() as stack:
        try:
            # in a thread: an embedded server may have to be started, which takes a second
            connect = partial(_connect, await asyncio.to_thread(resolve, config.broker))
            connection = await connect()
            stack.push_async_callback(_close, connection)
            direct = await connect(direct=True)
            stack.push_async_callback(_close, direct)
        except HorsiesError as error:
            return [Finding("reach", Severity.PROBLEM, config.broker.redact(str(error)))]
        except Exception as error:
            return [reach.unreachable(error, config.broker)]
        facts = await _gather(connection, direct, connect, config, limits or Limits(), names)
        lost = [reach.LOST] if connection.is_closed() else []
    return [*lost, *judge(facts)]


def judge(facts: Facts) -> list[Finding]:
    """What the checks say of the facts; a check that cannot look says so."""
    found: list[Finding] = []
    later: list[str] = []
    for name, check in CHECKS.items():
        try:
            found += check(facts)
        except NotSeen as blind:
            if blind.missing:  # one word for all of them: the cause is told by the schema's own check
                later.append(name)
                continue
            severity = Severity.HIDDEN if blind.hidden else Severity.WARN
            what = "not visible to this role" if blind.hidden else f"could not be looked at: {blind.why}"
            found.append(Finding(name, severity, what))
    if later:
        found.append(Finding("schema", Severity.WARN, f"nothing can be said before that of: {', '.join(later)}"))
    return found


async def _gather(
    connection: Any, direct: Any, connect: Callable[[], Any], config: "AppConfig", limits: Limits,
    names: Iterable[str] | None,
) -> Facts:  # fmt: skip
    schema = config.broker.schema
    ask = _Questions(connection, schema, config.broker.redact, limits.question_ms)
    tasks_table = qualify("horsies_tasks", schema)
    values: dict[str, tuple[Any, ...]] = {
        "server_facts": (), "places": places_values(schema), "revisions": (),
        "table_facts": (list(TABLES), tasks_table), "old_grants": (tasks_table,),
        "table_sizes": (list(TABLES), tasks_table), "index_facts": (tasks_table,), "trigger_facts": (tasks_table,),
        "xmin_holders": (), "hidden_sessions": (), "connection_facts": (),
        "own_transactions": (config.broker.application_name,), "oldest_ended": (), "overdue": (), "missing_names": (),
        "unresolved": (), "in_flight_counts": (), "queue_states": (), "waiting_pairs": (QUEUE_BOUND,),
        "worker_snapshots": (SEEN_WITHIN,), "stale_tasks": (timedelta(seconds=1), [], LISTED),
        "schedule_facts": (LISTED_FOR, OVERDUE_AFTER, FORGOTTEN_AFTER),
    }  # fmt: skip
    if names is not None:
        values["waiting_names"] = ()
    found = {name: await ask(name, *given) for name, given in values.items()}
    return Facts(
        found=found,
        limits=limits,
        clock_ahead=await _clock_ahead(connection),
        pooler=await _pooler(connection, direct, connect, declared=config.broker.pooler),
        notify_ms=await _notify_ms(connection, direct, limits.notification_ms),
        workers=_workers(found),
        names=frozenset(names) if names is not None else None,
        schema=schema,
        application_name=config.broker.application_name,
    )


class _Questions:
    """Named statements, each in a short read-only transaction of its own."""

    def __init__(self, connection: Any, schema: str | None, redact: Callable[[str], str], question_ms: int) -> None:
        self._question_ms = question_ms
        self._connection = connection
        self._redact = redact
        self._statements = {
            name: statement
            for file in ("schema.sql", "doctor.sql", "operate.sql", "recover.sql", "schedules.sql")
            for name, statement in load("horsies._pg", file, schema).items()
        }

    async def __call__(self, name: str, *values: Any) -> Sequence[Row] | NotSeen:
        try:
            async with asyncio.timeout(self._question_ms / 1000 + 3), self._connection.transaction(readonly=True):
                # compiling a plan takes longer than any of these questions
                await self._connection.execute(
                    f"SET LOCAL statement_timeout = {self._question_ms}; SET LOCAL jit = off"
                )
                return await self._connection.fetch(self._statements[name].sql, *values)
        except Exception as error:
            return self._not_seen(error)

    def _not_seen(self, error: Exception) -> NotSeen:
        match getattr(error, "sqlstate", None):
            case "42501":  # permission denied
                return NotSeen("permission denied", hidden=True)
            case "42P01" | "42703":  # no such table, no such column
                return NotSeen("its table is missing or too old", missing=True)
            case "57014":  # statement_timeout
                return NotSeen(f"no answer within {self._question_ms / 1000:g} s")
            case _:
                return NotSeen(self._redact(f"{type(error).__name__}: {error}"))


def _workers(found: dict[str, Sequence[Row] | NotSeen]) -> "Sequence[WorkerStatus] | NotSeen":
    snapshots, flying = found["worker_snapshots"], found["in_flight_counts"]
    if isinstance(snapshots, NotSeen):
        return snapshots
    return worker_statuses(snapshots, () if isinstance(flying, NotSeen) else flying)


# -- what no statement alone can tell ------------------------------------------------------------


async def _clock_ahead(connection: Any) -> timedelta:
    """How far this machine's clock is ahead of the database's, give or take half a round trip."""
    try:
        before, began = datetime.now(UTC), time.monotonic()
        there: datetime = await _value(connection, "SELECT clock_timestamp()")
        return before + timedelta(seconds=(time.monotonic() - began) / 2) - there
    except Exception:
        return timedelta()


async def _notify_ms(connection: Any, direct: Any, patience_ms: int) -> float | None:
    try:
        return await notify_round_trip(connection, direct, patience_ms / 1000)
    except Exception:
        return None


async def _pooler(connection: Any, direct: Any, connect: Callable[[], Any], *, declared: bool) -> Pooler | None:
    """Whether the process that greeted us is the one that answers; and if not, whether two clients get one session.

    A pooler greets for itself. In transaction mode a session that one client has just left is given to the next:
    while a second client's transaction holds it, the first is answered by another.
    """
    try:
        answered = await _value(connection, "SELECT pg_backend_pid()")
        between = connection.get_server_pid() != answered
        direct_between = direct.get_server_pid() != await _value(direct, "SELECT pg_backend_pid()")
        shared = False
        if between:
            other = await connect()
            try:
                async with other.transaction():
                    theirs = await other.fetchval("SELECT pg_backend_pid()", timeout=_ANSWER_S)
                    mine = await _value(connection, "SELECT pg_backend_pid()")
                    shared = theirs == answered or mine != answered
            finally:
                await _close(other)
        return Pooler(between, shared, declared, direct_between)
    except Exception:
        return None


async def _connect(config: "PostgresConfig", *, direct: bool = False) -> Any:
    """Without named statements: behind a pooler that nobody told us of, those of others would clash with ours."""
    from horsies._pg.driver import connect

    arguments = connect_arguments(config, direct=direct)
    arguments["statement_cache_size"] = 0
    return await connect(arguments)


async def _value(connection: Any, sql: str) -> Any:
    """In a transaction: a pooler may send what is prepared and what is asked to two different sessions."""
    async with connection.transaction():
        return await connection.fetchval(sql, timeout=_ANSWER_S)


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=2)
    except Exception:
        connection.terminate()
