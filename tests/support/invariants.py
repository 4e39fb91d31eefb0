"""Judges a database by the rules of invariants.sql, in one snapshot.

    assert invariants.check(db) == []

A rule that needs what was not given is left out: A7 without caps, the L rules without the chaos tables. While
work is going on only the rules that hold at any moment are meant: `check(db, settled=False)`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.support.postgres import Database

LEDGER_TABLES = """
CREATE TABLE chaos_sent (k bigint PRIMARY KEY, task_id varchar(36), kind text NOT NULL, acked boolean NOT NULL,
                         at timestamptz);
CREATE TABLE chaos_ledger (id bigserial PRIMARY KEY, k bigint NOT NULL, run uuid NOT NULL,
                           phase text NOT NULL CHECK (phase IN ('start','end')), pid int, at timestamptz NOT NULL)
"""
"""What a run that keeps a ledger of its sends and starts loads it into, for the L rules."""

_RULE = re.compile(r"^-- ([TAWGSL]\d) ", re.MULTILINE)
_VARIABLE = re.compile(r"(?<!:):([a-z_]+)")
_TABLE = re.compile(r"(?:horsies|chaos)_\w+")
_WHEN_SETTLED = {"A7", "W1", "W2", "W6", "W8", "S1"}


class Violation(NamedTuple):
    rule: str
    id: str
    """Of the task, workflow, node or schedule; for A7 the queue and the counts, for L the key."""


@cache
def rules() -> Mapping[str, str]:
    """The statement of each rule, by its name."""
    text = Path(__file__).with_suffix(".sql").read_text()
    starts = list(_RULE.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {
        match[1]: _VARIABLE.sub(r"%(\1)s", re.sub(r"--.*", "", text[match.start() : end]))
        for match, end in zip(starts, ends, strict=True)
    }


def check(
    where: Database | psycopg.Connection[Any],
    *,
    slack_s: float = 35,
    running_stale_s: float = 300,
    finalizing_stale_s: float = 300,
    claimed_stale_s: float = 120,
    wf_grace_s: float = 10,
    cap: int | None = None,
    qcap: int | Mapping[str, int] | None = None,
    async_tasks: Sequence[str] = (),
    settled: bool = True,
) -> list[Violation]:
    """Every violation; empty is good. The defaults are those of RecoveryConfig.

    `slack_s`: the reaper's interval and five seconds. `qcap`: a cap for every queue, or caps by queue. On a
    connection the rules run inside the caller's transaction.
    """
    if not isinstance(where, psycopg.Connection):
        with psycopg.connect(where.url) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute("SET LOCAL enable_nestloop = off")  # the tables were filled a moment ago: no statistics
            return check(
                connection, slack_s=slack_s, running_stale_s=running_stale_s, finalizing_stale_s=finalizing_stale_s,
                claimed_stale_s=claimed_stale_s, wf_grace_s=wf_grace_s, cap=cap, qcap=qcap, async_tasks=async_tasks,
                settled=settled,
            )  # fmt: skip
    left_out = set[str]() if settled else {*_WHEN_SETTLED}
    if cap is None and qcap is None:
        left_out.add("A7")
    if not settled or not _has_ledger(where):
        left_out |= {rule for rule in rules() if rule.startswith("L")}
    statements = {rule: sql for rule, sql in rules().items() if rule not in left_out}
    empty = _empty(where, {table for sql in statements.values() for table in _TABLE.findall(sql)})
    caps = {"*": qcap} if isinstance(qcap, int) else dict(qcap or {})
    values = {
        "slack_s": slack_s, "running_stale_s": running_stale_s, "finalizing_stale_s": finalizing_stale_s,
        "claimed_stale_s": claimed_stale_s, "wf_grace_s": wf_grace_s, "cap": cap, "qcap": json.dumps(caps),
        "async_tasks": list(async_tasks),
    }  # fmt: skip
    # values go into the text, as psql would do: the rules stand in the file without casts
    with psycopg.ClientCursor(where) as cursor:
        return [
            Violation(*row)
            for sql in statements.values()
            if not empty.issuperset(_TABLE.findall(sql))
            for row in cursor.execute(sql, values).fetchall()  # type: ignore[arg-type]
        ]


def _empty(connection: psycopg.Connection[Any], tables: set[str]) -> set[str]:
    """A rule finds nothing where all its tables are empty, and to plan it takes longer than this question: it halves
    what the judgement after each test costs."""
    asked = sorted(tables)
    looks = ", ".join(f"EXISTS (SELECT FROM {table})" for table in asked)
    row = connection.execute(f"SELECT {looks}").fetchone()  # type: ignore[arg-type]
    assert row is not None
    return {table for table, filled in zip(asked, row, strict=True) if not filled}


def check_if_ours(db: Database) -> list[Violation]:
    """The same for the database as a test left it; skipped where the tables do not exist."""
    try:
        return check(db)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.OperationalError):
        return []


def _has_ledger(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute("SELECT to_regclass('chaos_sent'), to_regclass('chaos_ledger')").fetchone()
    return found is not None and None not in found
