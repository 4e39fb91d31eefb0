"""Checks of the server and the schema: plain functions over the facts."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from horsies._pg.schema_guard import (
    HEAD_REVISION,
    MINIMUM_SERVER,
    REQUIRED_REVISION,
    Revision,
    no_row,
    places_problem,
    remedy,
    revision_problem,
    rows_problem,
    state,
)
from horsies._text import span
from horsies.operate.doctor.expected import HOT_TABLES, INDEXES, TABLES, TRIGGERS
from horsies.operate.doctor.finding import Facts, Finding, Row, Severity, Unavailable

OK, WARN, PROBLEM, HIDDEN = Severity.OK, Severity.WARN, Severity.PROBLEM, Severity.HIDDEN


def server(facts: Facts) -> Iterator[Finding]:
    row = facts.row("server_facts")
    said = f"PostgreSQL {row['version']}, encoding {row['encoding']}, database {row['database']}, role {row['role']}"
    if row["version_num"] // 10_000 < MINIMUM_SERVER:
        yield Finding(
            "server", PROBLEM, f"{said}: the server is older than PostgreSQL {MINIMUM_SERVER}",
            "nothing here was tried on it", "upgrade the server",
        )  # fmt: skip
    elif row["encoding"] == "UTF8":
        yield Finding("server", OK, said)
    if row["encoding"] != "UTF8":
        yield Finding(
            "server", PROBLEM, f"the database's encoding is {row['encoding']}, not UTF8",
            "names, arguments and error texts that it cannot hold make a task's end fail",
            "create a database with ENCODING 'UTF8' TEMPLATE template0 and use that",
        )  # fmt: skip
    if row["in_recovery"] or row["read_only"]:
        yield Finding(
            "server", PROBLEM, "a read-only standby" if row["in_recovery"] else "the session is read-only",
            "nothing can be sent, claimed or finished here",
            "connect to the primary; name several hosts in the URL to follow a failover"
            if row["in_recovery"] else "remove default_transaction_read_only from the role or the database",
        )  # fmt: skip


def schema(facts: Facts) -> Iterator[Finding]:
    up = remedy(facts.schema)
    if (lack := facts.missing_right) is not None:
        yield Finding(
            "schema", HIDDEN, f"role {lack['role']} lacks {lack['missing']}",
            "it sees no table of horsies, nor what is wrong with them",
            "grant it the viewer, operator or worker role of `horsies-migrate grants`",
            was_made=False,
        )  # fmt: skip
        return
    places = ((row["schema_name"], row["name"]) for row in facts.rows("places"))
    if problem := places_problem(places, facts.schema):
        what, _, fix = problem.partition(": ")
        yield Finding("schema", PROBLEM, what, "nothing works, or goes where no worker looks", fix)
        return
    rows = facts.rows("revisions")
    if not rows:
        what, _, fix = no_row((row["name"] for row in facts.rows("places")), facts.schema).partition(": ")
        yield Finding("schema", PROBLEM, what, "clients, workers and `horsies-migrate` refuse to work with it", fix)
        return
    if problem := rows_problem([str(row["version_num"]) for row in rows]):
        what, _, fix = problem.partition(": ")
        yield Finding("schema", PROBLEM, what, "clients, workers and `horsies-migrate` refuse to work with it", fix)
        return
    found = Revision(str(rows[0]["version_num"]), rows[0]["breaking"])
    if found.number < HEAD_REVISION:
        needed = found.number < REQUIRED_REVISION
        yield Finding(
            "schema", PROBLEM if needed else WARN, state(found.number),
            f"clients and workers of this release refuse to work with a revision before {REQUIRED_REVISION}"
            if needed else "what the newer revisions bring is missing; a worker with auto_migrate upgrades it", up,
        )  # fmt: skip
    elif problem := revision_problem(found, facts.schema):
        what, _, fix = problem.partition(": ")
        yield Finding("schema", PROBLEM, what, "clients and workers of this release refuse to work with it", fix)
    elif found.number > HEAD_REVISION:
        yield Finding(
            "schema", OK,
            f"revision {found.number}, newer than {HEAD_REVISION} of this release: fine, since upgrades add first",
        )  # fmt: skip
    else:
        yield Finding("schema", OK, f"revision {found.number}")


def objects(facts: Facts) -> Iterator[Finding]:
    """Missing or broken tables, indexes and triggers, unless the schema is too old: its upgrade makes them."""
    rows = facts.rows("revisions")
    if not rows or str(rows[0]["version_num"]) < HEAD_REVISION:
        return
    tables = {row["name"] for row in _tables(facts)}
    indexes = {row["name"]: row["valid"] for row in facts.rows("index_facts")}
    triggers = {row["name"]: row["enabled"] for row in facts.rows("trigger_facts")}
    remake = "take its CREATE from `horsies-migrate sql` and run it"
    good = True
    for name in (name for name in TABLES if name not in tables):
        good = False
        yield Finding("objects", PROBLEM, f"table {name} is missing", "everything that needs it fails", remake)
    for name in (name for name in INDEXES if name not in indexes):
        good = False
        yield Finding(
            "objects", PROBLEM, f"index {name} is missing",
            "what it bounds reads the whole table instead: claims get slower with every finished task",
            f"{remake} (CREATE INDEX CONCURRENTLY does not stop the workers)",
        )  # fmt: skip
    for name in sorted(name for name, valid in indexes.items() if not valid):
        good = False
        yield Finding(
            "objects", PROBLEM, f"index {name} is invalid: a CREATE or REINDEX CONCURRENTLY failed half-way",
            "it costs every write and serves no read",
            f"run REINDEX INDEX CONCURRENTLY {_quoted(name)}, or drop it if it is a leftover (_ccnew, _ccold)",
        )  # fmt: skip
    for name in TRIGGERS:
        if not triggers.get(name, False):
            good = False
            state = "switched off" if name in triggers else "missing"
            yield Finding(
                "objects", PROBLEM, f"trigger {name} is {state}",
                "no notification announces new or finished tasks: everything waits for the next poll, seconds instead "
                "of milliseconds",
                f"ALTER TABLE horsies_tasks ENABLE TRIGGER {name}" if name in triggers else remake,
            )  # fmt: skip
    for row in facts.rows("foreign_facts"):
        good = False
        yield _foreign(row["kind"], row["on_table"], row["name"])
    if good:
        yield Finding("objects", OK, f"all {len(TABLES)} tables, {len(INDEXES)} indexes and {len(TRIGGERS)} triggers")


def _foreign(kind: str, table: str, name: str) -> Finding:
    if kind == "security":
        return Finding(
            "objects", WARN, f"row-level security of {table} applies to this role",
            "rows that no policy allows are not seen: workers claim nothing and say nothing, sends are refused, and a "
            "task that runs already is taken for dead",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, or add a policy for the roles of horsies",
        )  # fmt: skip
    return Finding(
        "objects", WARN, f"{kind} {name} on {table} is not one of horsies",
        "it runs inside of sends and claims: one that raises stops them, a slow one slows them all, and one that drops "
        "rows (RETURN NULL before an INSERT) loses tasks whose send has returned",
        f"DROP {kind.upper()} {_quoted(name)} ON {table}; to follow tasks use on_event handlers or middleware",
    )  # fmt: skip


def rights(facts: Facts) -> Iterator[Finding]:
    """What this role can be used for."""
    rows = _tables(facts)
    old: dict[str, list[str]] = {}
    for row in facts.rows("old_grants"):
        old.setdefault(row["may"], []).append(row["role"])
    for may, names in old.items():
        yield Finding(
            "rights", WARN, f"{_listed(names)} {may}",
            "an older release granted that to producers and operators",
            "run the SQL of `horsies-migrate grants` again: it takes back what it does not grant",
        )  # fmt: skip
    by_name = {row["name"]: row for row in rows}
    tasks, queues = by_name.get("horsies_tasks"), by_name.get("horsies_queue_state")
    blind = [row["name"] for row in rows if not row["may_look"]]
    if blind:
        sends = " (it can send)" if tasks is not None and tasks["may_insert"] else ""
        yield Finding(
            "rights", HIDDEN, f"this role may not read {_listed(blind)}{sends}", "what they hold is not looked at here",
            "grant it the viewer, operator or worker role of `horsies-migrate grants`",
        )  # fmt: skip
        return
    can = ["look"]
    if tasks is not None and tasks["may_insert"]:
        can.append("send")
    if tasks is not None and queues is not None and tasks["may_update"] and queues["may_update"]:
        can.append("operate")
    if all(row["may_insert"] and row["may_rewrite"] for row in rows):
        can.append("work")
    yield Finding("rights", OK, f"this role can {', '.join(can)}")


# -- connections ---------------------------------------------------------------------------------


def pooler(facts: Facts) -> Iterator[Finding]:
    seen = facts.pooler
    if facts.elsewhere is not None:
        yield Finding(
            "pooler", PROBLEM, facts.elsewhere,
            "workers refuse to start: notifications and session locks of another database say nothing about this one",
            "correct direct_url: the same database on the same server, past the pooler",
        )  # fmt: skip
    if seen is None:
        return
    transaction = "a pooler in transaction mode"
    if seen.direct_between and seen.declared:
        yield Finding(
            "pooler", PROBLEM, "direct_url leads through a pooler too",
            "LISTEN and session locks are lost without any error: waits become polls, and a dead worker is noticed "
            "minutes later", "set direct_url to the PostgreSQL server itself",
        )  # fmt: skip
    if seen.shared and not seen.declared:
        yield Finding(
            "pooler", PROBLEM, f"this URL leads through {transaction} that is not declared",
            "prepared statements, LISTEN and settings belong to a session that the next transaction may not get",
            "set PostgresConfig(pooler=True, direct_url=...) in the app, or use the server's own URL",
        )  # fmt: skip
    elif seen.declared and not seen.between:
        yield Finding(
            "pooler", WARN, "pooler=True is set, but nothing stands in between",
            "statements are prepared anew each time: slower than need be", "set pooler=False",
        )  # fmt: skip
    elif seen.shared:
        yield Finding("pooler", OK, f"{transaction}, as configured")
    elif seen.between:
        yield Finding("pooler", OK, "a pooler in session mode, as far as two connections can tell")
    else:
        yield Finding("pooler", OK, "none: the connection ends at the server")


def notifications(facts: Facts) -> Iterator[Finding]:
    usage = facts.row("server_facts")["notify_usage"]
    if facts.notify_ms is None and facts.elsewhere is None:  # the check of the pooler gives the cause
        yield Finding(
            "notify", PROBLEM, "a notification did not arrive",
            "everything waits for the next poll, and a cancel reaches its task late",
            "is there a pooler in between? set pooler=True and direct_url to the server itself",
        )  # fmt: skip
    elif facts.notify_ms is not None and usage < facts.limits.notify_warn:
        yield Finding("notify", OK, f"arrive in {facts.notify_ms:.0f} ms; their queue is {usage:.0%} full")
    if usage >= facts.limits.notify_warn:
        yield Finding(
            "notify", PROBLEM if usage >= facts.limits.notify_problem else WARN,
            f"the server's notification queue is {usage:.0%} full",
            "when it is full, every commit that notifies fails: nothing can be sent or finished",
            "a session that has done LISTEN sits in a transaction: the xmin check names it; end it with "
            "pg_terminate_backend(pid)",
        )  # fmt: skip


def clock(facts: Facts) -> Iterator[Finding]:
    ahead = facts.clock_ahead
    if abs(ahead) <= facts.limits.clock:
        yield Finding("clock", OK, f"this machine's is {abs(ahead.total_seconds()) * 1000:.0f} ms from the database's")
        return
    yield Finding(
        "clock", WARN,
        f"this machine's clock is {span(abs(ahead))} {'ahead of' if ahead > timedelta() else 'behind'} the database's",
        "the database's clock decides; moments that are computed here (eta, good_until) are off by as much",
        "keep both in time (NTP), and send delays instead of moments",
    )  # fmt: skip


def connections(facts: Facts) -> Iterator[Finding]:
    row = facts.row("connection_facts")
    left = {"the server": row["for_all"] - row["used"]}
    if row["limit_here"] >= 0:
        left["this database (its CONNECTION LIMIT)"] = row["limit_here"] - row["used_here"]
    if row["limit_of_role"] >= 0:
        left["this role (its CONNECTION LIMIT)"] = row["limit_of_role"] - row["used_by_role"]
    where, least = min(left.items(), key=lambda item: item[1])
    if least >= facts.limits.connections_warn:
        yield Finding("connections", OK, f"{row['used']} in use, {least} left for {where}")
        return
    yield Finding(
        "connections", PROBLEM if least < facts.limits.connections_problem else WARN,
        f"{max(least, 0)} connections left for {where}, {row['used']} in use",
        "a worker that cannot connect again stops claiming, and its heartbeats stop",
        "lower pool sizes, raise the limit, or put a pooler in front (pooler=True)",
    )  # fmt: skip


def own_transactions(facts: Facts) -> Iterator[Finding]:
    long = [
        row for row in facts.rows("own_transactions")
        if row["age"] > facts.limits.own_transaction
    ]  # fmt: skip
    for row in long:
        yield Finding(
            "own-transactions", WARN,
            f"session {row['pid']} ({row['application_name']}) has had a transaction open for {span(row['age'])}, "
            f"{row['state']}",
            "horsies itself never holds one for more than seconds; a send inside your own long transaction does, and "
            "its tasks are invisible until it commits",
            f"commit sooner; if it hangs: SELECT pg_terminate_backend({row['pid']})",
        )  # fmt: skip
    if not long:
        yield Finding("own-transactions", OK, "none of horsies' own sessions holds a transaction for long")


# -- vacuum --------------------------------------------------------------------------------------


def xmin(facts: Facts) -> Iterator[Finding]:
    guilty = [row for row in facts.rows("xmin_holders") if _holds(facts, row)]
    for row in guilty:
        age: timedelta | None = row["age"]
        worst = age is not None and age >= facts.limits.transaction_problem
        yield Finding(
            "xmin", PROBLEM if worst or age is None else WARN, _holder(row),
            "vacuum cannot remove what died since: every claim walks over the dead entries (a quarter of a million "
            "of them make one take 0.2 s, and a task that returns to an old place is seen 4 s late), and tables grow",
            _ended(row),
        )  # fmt: skip
    hidden = facts.rows("hidden_sessions")[0]["count"]
    if hidden:
        yield Finding(
            "xmin", HIDDEN, f"how long {hidden} sessions of others have been at work",
            "one of them may hold back vacuum", "GRANT pg_read_all_stats to this role, or ask as another one",
        )  # fmt: skip
    elif not guilty:
        yield Finding("xmin", OK, "no session holds back vacuum")


def _holds(facts: Facts, row: Row) -> bool:
    if row["kind"] == "slot" or row["age"] is None:
        return (row["transactions"] or 0) >= facts.limits.transactions_held
    return row["age"] >= facts.limits.transaction_warn


def _holder(row: Row) -> str:
    if row["kind"] == "prepared":
        return f"prepared transaction {row['name']!r} of {row['role']} has waited for its end for {span(row['age'])}"
    if row["kind"] == "slot":
        return f"replication slot {row['name']!r} ({row['state']}) holds back {row['transactions']:,} transactions"
    since = f"for {span(row['age'])}" if row["age"] is not None else f"since {row['transactions']:,} transactions"
    who = f"session {row['pid']} ({row['application_name'] or 'unnamed'}, role {row['role']})"
    return f"{who} has had a transaction open {since}{', ' + row['state'] if row['state'] else ''}"


def _ended(row: Row) -> str:
    if row["kind"] == "prepared":
        name = row["name"].replace("'", "''")
        return f"ask the application that prepared it, then: COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'"
    if row["kind"] == "slot":
        return "bring its consumer back, or drop it: SELECT pg_drop_replication_slot(...)"
    return (
        f"end its work, or: SELECT pg_terminate_backend({row['pid']}); "
        "idle_in_transaction_session_timeout keeps it from happening again"
    )


def vacuum(facts: Facts) -> Iterator[Finding]:
    tables = {row["name"]: row for row in _tables(facts)}
    if not facts.row("server_facts")["autovacuum"]:
        yield _autovacuum("autovacuum is off on this server", "set autovacuum = on and reload")
    good = True
    for name in HOT_TABLES:
        row = tables.get(name)
        if row is None:
            continue
        if not row["autovacuum"]:
            good = False
            yield _autovacuum(f"autovacuum is off for {name}", f"ALTER TABLE {name} RESET (autovacuum_enabled)")
        live, dead = row["live"] or 0, row["dead"] or 0
        if dead > facts.limits.dead_rows + live // 10:
            good = False
            ago = f"{span(row['vacuumed_ago'])} ago" if row["vacuumed_ago"] is not None else "never"
            yield Finding(
                "vacuum", PROBLEM if dead > 10 * facts.limits.dead_rows + live else WARN,
                f"{name} has {dead:,} dead rows beside {live:,} live ones; last vacuumed: {ago}",
                "claims and sweeps walk over them",
                f"see what the xmin check says; then VACUUM (ANALYZE) {name}",
            )  # fmt: skip
    if good:
        dead = max((tables[name]["dead"] or 0 for name in HOT_TABLES if name in tables), default=0)
        yield Finding("vacuum", OK, f"at most {dead:,} dead rows in a hot table")


def sizes(facts: Facts) -> Iterator[Finding]:
    live = {row["name"]: row["live"] or 0 for row in _tables(facts)}
    told = ", ".join(
        f"{row['name']} {_bytes(row['bytes'])} ({live.get(row['name'], 0):,} rows)" for row in facts.rows("table_sizes")
    )
    yield Finding("sizes", OK, f"the largest: {told}")


def _autovacuum(what: str, fix: str) -> Finding:
    return Finding(
        "vacuum", PROBLEM, what,
        "a queue is updates and deletes: dead rows pile up, claims get slower by the hour, and in the end the server "
        "stops to protect itself from wraparound", fix,
    )  # fmt: skip


def _tables(facts: Facts) -> Sequence[Row]:
    rows = facts.rows("table_facts")
    if not rows:
        raise Unavailable("there are no tables", missing=True)
    return rows


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 10_000 or unit == "GB":
            return f"{count:,} {unit}"
        count //= 1024
    raise AssertionError


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
