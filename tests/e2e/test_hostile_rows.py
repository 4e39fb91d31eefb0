"""Random values in the columns of live rows, while a worker with a scheduler works: it lives, nothing hangs, nothing
forged runs."""

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from horsies import from_node, sleep, wait_for_signal
from horsies.ids import new_id
from tests.support import worker_app, workflow_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import describe, ended, start_worker, tasks_on, worker

MUTATIONS = int(os.environ.get("HORSIES_TEST_ROW_MUTATIONS", "400"))
SEED = int(os.environ.get("HORSIES_TEST_ROW_SEED", "1"))
ROWS = 40
LIVE = ("horsies_tasks", "horsies_tasks", "horsies_workflows", "horsies_workflow_tasks")
"""Added to one of each table: a quarter of the mutations hits what a worker reads most."""
TEXTS = (
    "", "x", "os.system", "add", "fail", "PENDING", "CLAIMED", "RUNNING", "FAILED", "CANCELLED", "EXPIRED", "COMPLETED",
    "READY", "SKIPPED", "PAUSED", "ENQUEUED", "all", "any", "quorum", "RUNNING", "DRAINED", "paused", "skip", "allow",
    "{}", "[]", "null", "NaN", '{"a":1}', '{"a":1,"b":2}', '{"a":' * 500, '{"__class__":"os.system"}', "default",
    "'; DROP TABLE x;--", "\x1b[2J", "\u202e", "no such queue", "%s{}", "a" * 5_000, '{"timeout_ms":1}', '{"enc":"x"}',
    '{"retry_policy":{"strategy":"fixed"}}', '{"err":{"error_code":"WORKER_CRASHED","message":"m","data":null}}',
)  # fmt: skip
DOCUMENTS = (
    "{}", "[]", "null", "1e308", '"x"', '["x"]', '{"kind":"interval","seconds":1}', '{"seconds":-1}',
    '{"max_concurrency":0}', '{"rate":{"limit":1,"per_s":1e-9}}', '{"n":{"node":"n","path":["__class__"]}}',
    '{"task_name":"os.system","kwargs":{"command":"touch forged"}}', '{"cases":[["x","all"]]}', '[["a",1],["b",2]]',
    '{"a":' * 90 + "1" + "}" * 90,
)  # fmt: skip
NUMBERS = (-(2**31), -1, 0, 1, 2, 100, 101, 32_767, 32_768, 2**31 - 1, 2**40)
TIMES = ("-infinity", "infinity", "1970-01-01", "2000-01-01", "9999-12-31", "now", "tomorrow", "yesterday")
Column = tuple[str, str, str, str]


def value_for(kind: str, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return None
    if kind in ("integer", "bigint", "smallint", "double precision", "real", "numeric"):
        return chance.choice(NUMBERS)
    if kind.startswith("timestamp"):
        return chance.choice(TIMES)
    if kind == "interval":
        return chance.choice(("-1 day", "0 s", "1 s", "178000000 years", "1 month -30 days"))
    if kind == "boolean":
        return chance.random() < 0.5
    if kind in ("json", "jsonb"):
        return chance.choice(DOCUMENTS)
    return chance.choice(TEXTS)


def mutate(connection: psycopg.Connection[Any], columns: Sequence[Column], chance: random.Random) -> tuple[str, bool]:
    """Put a random value into a random column of a random row: the column, and whether the database took it."""
    table = chance.choice([*LIVE, *sorted({owner for owner, *_ in columns})])
    column, kind, element = chance.choice([found[1:] for found in columns if found[0] == table])
    if kind == "ARRAY":
        one = value_for("integer" if element.startswith("_int") else "text", chance)
        given: Any = chance.choice(([], [one], [one] * 3, None))
    else:
        given = value_for(kind, chance)
    try:
        found = connection.execute(
            f"UPDATE {table} SET {column} = %s WHERE ctid = (SELECT ctid FROM {table} ORDER BY random() LIMIT 1)",  # type: ignore[arg-type]
            (given,),
        )
    except psycopg.Error:
        return f"{table}.{column}", False
    return f"{table}.{column}", found.rowcount == 1


def plant(tasks: SimpleNamespace, connection: psycopg.Connection[Any], forged: Path, number: int) -> None:
    """Rows in every table, and tasks, nodes and schedules that no worker has registered."""
    tasks.number.send_many([(k,) for k in range(ROWS)])
    tasks.number.with_options(group=f"g{number % 3}").send(1)
    tasks.number.with_options(unique_key=f"k{number}", unique_for=timedelta(hours=1)).send(1)
    one = tasks.number.node()(1)
    two = tasks.plus.node()(from_node(one), 2)
    tasks.app.workflow("sum", [one, two], output=two).start()
    until = wait_for_signal("until", int)
    run = tasks.app.workflow("waits", [until, sleep(1), tasks.number.node()(5)]).start()
    run.signal("until", 1)
    call = f'{{"command":"touch {forged}"}}'
    connection.execute(
        "INSERT INTO horsies_tasks (id, task_name, kwargs) VALUES (%s, 'os.system', %s)", (new_id(), call)
    )
    for name, schedule in (("number", '{"n":1}'), ("os.system", call)):
        connection.execute(
            "INSERT INTO horsies_schedules (name, task_name, pattern, kwargs, created_by)"
            ' VALUES (%s, %s, \'{"kind": "interval", "seconds": 1}\', %s, \'test\')',
            (f"{name}-{number}", name, schedule),
        )
    connection.execute("INSERT INTO horsies_queue_state (queue_name) VALUES ('q' || %s)", (number,))
    connection.execute("INSERT INTO horsies_limits (name) VALUES ('l' || %s)", (number,))


def undo_wishes(connection: psycopg.Connection[Any]) -> None:
    """What a mutation has paused, limited or drained stands as it would if an operator had done it."""
    for table in ("queue_state", "limits", "rate_limits", "schedules", "schedule_state"):
        connection.execute(f"DELETE FROM horsies_{table}")  # type: ignore[arg-type]
    connection.execute(
        "UPDATE horsies_worker_instances SET wanted_state = 'RUNNING', wanted_processes = NULL, wanted_at = now()"
    )


@pytest.mark.timeout(7_200)
def test_no_row_runs_what_is_not_registered(db: Database, tmp_path: Path) -> None:
    chance, began = random.Random(SEED), time.monotonic()
    forged = tmp_path / "forged"
    columns: list[Column] = db.execute(
        "SELECT table_name::text, column_name::text, data_type::text, udt_name::text FROM information_schema.columns"
        " WHERE table_name LIKE 'horsies\\_%%' AND is_generated = 'NEVER' AND is_identity = 'NO'"
        " AND table_name NOT IN ('horsies_alembic_version', 'horsies_queue_load')"  # of the owner; a view
    )
    described = describe(db, unknown_task_grace_ms=0)
    tried, taken = Counter[str](), Counter[str]()
    with (
        ended(start_worker(described, tmp_path, "--with-scheduler", app=workflow_app.APP)) as one,
        worker_app.build(described) as app,
        psycopg.connect(db.url, autocommit=True) as connection,
    ):
        one.wait_up()
        tasks = workflow_app.register(app)
        tasks.app = app
        for number in range(MUTATIONS):
            if number % ROWS == 0:
                plant(tasks, connection, forged, number)
            where, is_taken = mutate(connection, columns, chance)
            tried[where] += 1
            taken[where] += is_taken
            assert one.is_running, one.log[-4_000:]
        undo_wishes(connection)
        # what hostile rows still hold is not waited for; a task that is sent now is run
        assert eventually(lambda: tasks.number.send(3).get(20_000).ok == 3, timeout=120)
        assert not forged.exists()
        assert one.is_running
    sys.stderr.write(
        f"\n{MUTATIONS} mutations of {len(tried)} of {len(columns)} columns, {taken.total()} taken in "
        f"{sum(count > 0 for count in taken.values())} columns, {time.monotonic() - began:.0f} s\n"
    )
    assert taken.total() > MUTATIONS / 20, "the database refused nearly all of them"
    if 20 * len(columns) <= MUTATIONS:
        assert len(tried) == len(columns), {f"{table}.{name}" for table, name, *_ in columns} - set(tried)


COUNTERS = {"claim_generation": 2**31 - 1, "manual_retries": 2**31 - 1, "snoozes": 2**15 - 1, "crash_count": 2**15 - 1}


@pytest.mark.parametrize("group", [None, "tenant"])
def test_a_counter_at_the_end_of_its_type_holds_up_no_other_task(
    db: Database, tmp_path: Path, group: str | None
) -> None:
    """Raising it fails, and with it the statement for all rows of a batch."""
    with tasks_on(db) as tasks:
        add = tasks.add if group is None else tasks.add.with_options(group=group)
        ends = {name: add.send(1, 1) for name in COUNTERS}
        dies = tasks.die if group is None else tasks.die.with_options(group=group)
        dead = dies.send(9)
        for name, handle in ends.items():
            db.execute(f"UPDATE horsies_tasks SET {name} = {COUNTERS[name]} WHERE id = %s", handle.task_id)
        db.execute("UPDATE horsies_tasks SET crash_count = 32767 WHERE id = %s", dead.task_id)
        others = add.send_many([(k, 1) for k in range(20)])
        with worker(db, folder=tmp_path) as one:
            assert [handle.get(60_000).ok for handle in others] == [k + 1 for k in range(20)]
            assert {name: handle.get(60_000).ok for name, handle in ends.items()} == dict.fromkeys(COUNTERS, 2)
            assert dead.get(60_000).err is not None
            assert one.is_running
            assert "every claim failed; it is 0 now" in one.log
