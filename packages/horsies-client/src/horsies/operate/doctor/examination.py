"""Reads the facts from the database, one bounded statement after the other, and runs the checks on them.

A statement that fails, because of a missing right or its time limit, disables only the checks that need its rows. The
only things sent to the database besides reads are one notification, which tests LISTEN and NOTIFY, and the lock of a
random key, which tests that `direct_url` leads to the same database.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies._pg.dsn import connect_arguments
from horsies._pg.embedded import resolve
from horsies._pg.listener import notify_round_trip
from horsies._pg.locks import HELD_TABLES, PURPOSES
from horsies._pg.probes import close, is_pooled, shares_sessions, told_elsewhere, value
from horsies._pg.refusals import is_undeclared_pooler, remedy, worded
from horsies._pg.schema_guard import VERSION_TABLE, places_values
from horsies._pg.statements import qualify
from horsies.errors import HorsiesError
from horsies.operate.doctor import guards, policies, replica, restored, server, work
from horsies.operate.doctor.expected import TABLES
from horsies.operate.doctor.finding import (
    AppPolicies,
    Facts,
    Finding,
    Limits,
    Pooler,
    ReplicaFacts,
    Row,
    Severity,
    Unavailable,
)
from horsies.operate.groups import FEW, LOOKED, QueueGroups, top_groups
from horsies.operate.reading import QUEUE_BOUND, worker_statuses
from horsies.operate.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, OVERDUE_AFTER
from horsies.operate.session import Fetch, bounded, statements
from horsies.operate.stale import LISTED, SEEN_WITHIN

if TYPE_CHECKING:
    from horsies.config import AppConfig, PostgresConfig
    from horsies.operate.views import WorkerStatus

R = TypeVar("R")

_QUEUES: Final = 10
"""The number of queues whose groups are looked at."""

_LOST: Final = Finding(
    "reach", Severity.PROBLEM, "the connection was lost in the middle of the examination",
    "a server that restarts or fails over, or a network that drops connections", "ask again in a moment",
)  # fmt: skip

CHECKS: Final[Mapping[str, Callable[[Facts], Iterable[Finding]]]] = {
    "server": server.server,
    "schema": server.schema,
    "objects": server.objects,
    "rights": server.rights,
    "pooler": server.pooler,
    "replica": replica.replica,
    "notify": server.notifications,
    "clock": server.clock,
    "connections": server.connections,
    "xmin": server.xmin,
    "own-transactions": server.own_transactions,
    "locks": guards.locks,
    "vacuum": server.vacuum,
    "sizes": server.sizes,
    "restored": restored.restored,
    "workers": work.workers,
    "dead-workers": work.dead_workers,
    "backlog": work.backlog,
    "groups": policies.groups,
    "limits": policies.limits,
    "policies": policies.policies,
    "unknown-names": work.unknown_names,
    "quarantine": work.quarantine,
    "stale": work.stale,
    "reaper": work.overdue,
    "workflow-clocks": work.workflow_clocks,
    "retention": work.retention,
    "schedules": work.schedules,
    "times": guards.times,
}


async def examine(
    config: "AppConfig", *, limits: Limits | None = None, names: Iterable[str] | None = None
) -> list[Finding]:
    """Every finding, in the order of the checks. `names` are the tasks that the user's app knows."""
    async with AsyncExitStack() as stack:
        try:
            # in a thread, because starting an embedded server takes a second
            connect = partial(_connect, await asyncio.to_thread(resolve, config.broker))
            connection = await connect()
            stack.push_async_callback(close, connection)
            direct = await connect(direct=True)
            stack.push_async_callback(close, direct)
        except HorsiesError as error:
            return [Finding("reach", Severity.PROBLEM, config.broker.redact(str(error)))]
        except Exception as error:
            return [unreachable(error, config.broker)]
        facts = await _gather(connection, direct, connect, config, limits or Limits(), names)
        lost = [_LOST] if connection.is_closed() else []
    return [*lost, *findings(facts)]


def unreachable(error: Exception, config: "PostgresConfig") -> Finding:
    """The finding for a connection that failed, with a remedy and without passwords."""
    text = config.redact(worded(error))
    if is_undeclared_pooler(error):
        return Finding(
            "reach", Severity.PROBLEM, f"this URL leads to a pooler that refuses session settings ({text})",
            "horsies has to know that a pooler is there",
            "set PostgresConfig(pooler=True, direct_url=...) and use --app, or give the server's own URL",
        )  # fmt: skip
    fix = remedy(error)
    if fix is None and isinstance(error, TimeoutError):
        fix = "is the address right, and does a firewall let it through?"
    elif fix is None and isinstance(error, OSError):
        fix = "is the server running, and are host and port right?"
    what, why = f"the database cannot be reached: {text}", "nothing works without it"
    return Finding("reach", Severity.PROBLEM, what, why, fix or "see the message")


def findings(facts: Facts) -> list[Finding]:
    """The findings of all checks; a check without its facts is a finding too."""
    found: list[Finding] = []
    later: list[str] = []
    for name, check in CHECKS.items():
        try:
            found += check(facts)
        except Unavailable as error:
            is_hidden = error.hidden or (error.missing and facts.missing_right is not None)
            if error.missing and not is_hidden:  # one finding for all of them: the check of the schema gives the cause
                later.append(name)
                continue
            severity = Severity.HIDDEN if is_hidden else Severity.WARN
            what = "not visible to this role" if is_hidden else f"could not be looked at: {error.why}"
            found.append(Finding(name, severity, what, was_made=not is_hidden))
    if later:
        found.append(Finding("schema", Severity.WARN, f"nothing can be said before that of: {', '.join(later)}"))
    return found


async def _gather(
    connection: Any, direct: Any, connect: Callable[[], Any], config: "AppConfig", limits: Limits,
    names: Iterable[str] | None,
) -> Facts:  # fmt: skip
    schema = config.broker.schema
    known = statements(
        schema, "schema.sql", "doctor.sql", "operate.sql", "recover.sql", "schedules.sql", "policies.sql"
    )

    async def read(name: str, values: tuple[Any, ...]) -> Sequence[Row] | Unavailable:
        """Run one statement, in a short read-only transaction of its own."""
        return await ask(lambda fetch: fetch(name, *values))

    async def ask(action: Callable[[Fetch], Awaitable[R]]) -> R | Unavailable:
        run = bounded(known, action, limits.question_ms)
        try:
            async with asyncio.timeout(limits.question_ms / 1000 + 3):
                return await run(connection)
        except Exception as error:
            return _unavailable(error, config.broker.redact, limits.question_ms)

    tasks_table = qualify("horsies_tasks", schema)
    values: dict[str, tuple[Any, ...]] = {
        "server_facts": (), "places": places_values(schema), "missing_rights": (schema, VERSION_TABLE), "revisions": (),
        "table_facts": (list(TABLES), tasks_table), "old_grants": (tasks_table,),
        "table_sizes": (list(TABLES), tasks_table), "index_facts": (tasks_table,), "trigger_facts": (tasks_table,),
        "foreign_facts": (tasks_table,),
        "lock_holders": (list(PURPOSES), tasks_table), "open_writers": (list(HELD_TABLES), tasks_table),
        "unreadable_times": (tasks_table,),
        "restore_facts": (qualify("horsies_worker_instances", schema),), "as_copied": (),
        "timeline_history": (),
        "xmin_holders": (), "hidden_sessions": (), "connection_facts": (),
        "own_transactions": (config.broker.application_name,), "oldest_ended": (), "overdue": (), "late_clocks": (),
        "missing_names": (),
        "quarantined": (), "unresolved": (), "unresolved_runs": (), "in_flight_counts": (), "queue_states": (),
        "waiting_pairs": (QUEUE_BOUND,), "queue_policies": (None,), "shared_limits": (None,),
        "worker_snapshots": (SEEN_WITHIN,), "stale_tasks": (timedelta(seconds=1), [], LISTED),
        "schedule_facts": (LISTED_FOR, OVERDUE_AFTER, FORGOTTEN_AFTER),
    }  # fmt: skip
    if names is not None:
        values["waiting_names"] = ()
    found = {name: await read(name, given) for name, given in values.items()}
    return Facts(
        found=found,
        limits=limits,
        clock_ahead=await _clock_ahead(connection),
        pooler=await _pooler(connection, direct, connect, declared=config.broker.pooler),
        elsewhere=await _elsewhere(connection, direct, config.broker),
        replica=await _replica(connection, config.broker),
        notify_ms=await _notify_ms(connection, direct, limits.notification_ms),
        workers=_workers(found),
        names=frozenset(names) if names is not None else None,
        app=_declared(config) if names is not None else None,
        groups=await _groups(
            found["waiting_pairs"], limits.ready, lambda name: ask(lambda fetch: top_groups(fetch, name, LOOKED, FEW))
        ),
        schema=schema,
        application_name=config.broker.application_name,
    )


def _declared(config: "AppConfig") -> AppPolicies:
    return AppPolicies(config.queue_policies, {limit.name: limit.as_json() for limit in config.limits})


async def _groups(
    pairs: Sequence[Row] | Unavailable, ready: timedelta, read: Callable[[str], Awaitable[QueueGroups | Unavailable]]
) -> Sequence[QueueGroups] | Unavailable:
    """The groups of the queues in which a task of a group has been ready for long."""
    if isinstance(pairs, Unavailable):
        return pairs
    waiting = (row for row in pairs if row["is_grouped"] and row["ready"] and row["oldest_ready"] >= ready)
    found: list[QueueGroups] = []
    for name in list(dict.fromkeys(row["queue_name"] for row in waiting))[:_QUEUES]:
        groups = await read(name)
        if isinstance(groups, Unavailable):
            return groups
        found.append(groups)
    return found


def _unavailable(error: Exception, redact: Callable[[str], str], timeout_ms: int) -> Unavailable:
    match getattr(error, "sqlstate", None):
        case "42501":  # permission denied
            return Unavailable("permission denied", hidden=True)
        case "42P01" | "42703" | "42883":  # no such table, column or function
            return Unavailable("its table is missing or too old", missing=True)
        case "57014":  # statement_timeout
            return Unavailable(f"no answer within {timeout_ms / 1000:g} s")
        case _:
            return Unavailable(redact(worded(error)))


def _workers(found: dict[str, Sequence[Row] | Unavailable]) -> "Sequence[WorkerStatus] | Unavailable":
    snapshots, in_flight = found["worker_snapshots"], found["in_flight_counts"]
    if isinstance(snapshots, Unavailable):
        return snapshots
    return worker_statuses(snapshots, () if isinstance(in_flight, Unavailable) else in_flight)


# -- facts that need more than one statement -----------------------------------------------------


async def _clock_ahead(connection: Any) -> timedelta:
    """How far this machine's clock is ahead of the database's, to within half a round trip."""
    try:
        before, began = datetime.now(UTC), time.monotonic()
        there: datetime = await value(connection, "SELECT clock_timestamp()")
        return before + timedelta(seconds=(time.monotonic() - began) / 2) - there
    except Exception:
        return timedelta()


async def _notify_ms(connection: Any, direct: Any, timeout_ms: int) -> float | None:
    try:
        return await notify_round_trip(connection, direct, timeout_ms / 1000)
    except Exception:
        return None


async def _pooler(connection: Any, direct: Any, connect: Callable[[], Any], *, declared: bool) -> Pooler | None:
    """Whether a pooler stands between, and if so, whether it shares one session between two clients."""
    try:
        between = await is_pooled(connection)
        direct_between = await is_pooled(direct)
        return Pooler(between, between and await shares_sessions(connection, connect), declared, direct_between)
    except Exception:
        return None


async def _elsewhere(connection: Any, direct: Any, config: "PostgresConfig") -> str | None:
    try:
        return await told_elsewhere(config, connection, direct)
    except Exception:
        return None


async def _replica(connection: Any, config: "PostgresConfig") -> ReplicaFacts | None:
    """One look at the server of `replica_url`, on a connection of its own."""
    if config.replica_url is None:
        return None
    try:
        other = await _connect(config, replica=True)
    except Exception as error:
        return ReplicaFacts(away=config.redact(worded(error)))
    try:
        async with other.transaction(readonly=True):
            row = await other.fetchrow(statements(config.schema, "replica.sql")["replica_lag"].sql, timeout=5)
        return ReplicaFacts(
            is_standby=row["is_standby"], is_connected=row["is_connected"], lag=row["lag"],
            is_other=await _cluster_of(other) != await _cluster_of(connection),
        )  # fmt: skip
    except Exception as error:
        return ReplicaFacts(away=config.redact(worded(error)))
    finally:
        await close(other)


async def _cluster_of(connection: Any) -> tuple[Any, ...]:
    """What a server and its replicas have in common, and the database."""
    identity = "SELECT system_identifier, current_database() FROM pg_control_system()"
    async with connection.transaction():
        return tuple(await connection.fetchrow(identity, timeout=5))


async def _connect(config: "PostgresConfig", *, direct: bool = False, replica: bool = False) -> Any:
    """Connect without named statements: behind an undeclared pooler they would clash with those of other clients."""
    from horsies._pg.driver import connect

    arguments = connect_arguments(config, direct=direct, replica=replica)
    arguments["statement_cache_size"] = 0
    return await connect(arguments)
