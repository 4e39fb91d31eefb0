"""Random values in the columns of live rows, while a worker works: it lives, nothing hangs, nothing forged runs."""

import os
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies.ids import new_id
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import tasks_on, worker

MUTATIONS = int(os.environ.get("HORSIES_TEST_ROW_MUTATIONS", "400"))
SEED = int(os.environ.get("HORSIES_TEST_ROW_SEED", "1"))
ROWS = 40
TABLES = (
    "horsies_tasks", "horsies_tasks", "horsies_tasks", "horsies_task_attempts", "horsies_heartbeats",
    "horsies_worker_states", "horsies_task_names", "horsies_task_sets",
)  # fmt: skip
TEXTS = (
    "", "x", "os.system", "add", "fail", "PENDING", "CLAIMED", "RUNNING", "FAILED", "CANCELLED", "EXPIRED", "COMPLETED",
    "{}", "[]", "null", "NaN", '{"a":1}', '{"a":1,"b":2}', '{"a":' * 500, '{"__class__":"os.system"}', "default",
    "'; DROP TABLE x;--", "\x1b[2J", "\u202e", "no such queue", "%s{}", "a" * 5_000, '{"timeout_ms":1}', '{"enc":"x"}',
    '{"retry_policy":{"strategy":"fixed"}}', '{"err":{"error_code":"WORKER_CRASHED","message":"m","data":null}}',
)  # fmt: skip
NUMBERS = (-(2**31), -1, 0, 1, 2, 100, 101, 32_767, 32_768, 2**31 - 1, 2**40)
TIMES = ("-infinity", "infinity", "1970-01-01", "2000-01-01", "9999-12-31", "now", "tomorrow", "yesterday")


def value_for(kind: str, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return None
    if kind in ("integer", "bigint", "smallint", "double precision"):
        return chance.choice(NUMBERS)
    if kind.startswith("timestamp"):
        return chance.choice(TIMES)
    if kind == "boolean":
        return chance.random() < 0.5
    return chance.choice(TEXTS)


def mutate(connection: psycopg.Connection[Any], columns: list[tuple[str, str, str]], chance: random.Random) -> bool:
    """Put a random value into a random column of a random row; False where the database refuses it."""
    table = chance.choice(TABLES)
    column, kind = chance.choice([(name, kind) for owner, name, kind in columns if owner == table])
    array = kind == "ARRAY"
    given = [value_for("text", chance)] if array else value_for(kind, chance)
    try:
        connection.execute(
            f"UPDATE {table} SET {column} = %s WHERE ctid = (SELECT ctid FROM {table} ORDER BY random() LIMIT 1)",  # type: ignore[arg-type]
            (given,),
        )
    except psycopg.Error:
        return False
    return True


@pytest.mark.timeout(7_200)
def test_no_row_runs_what_is_not_registered(db: Database, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    forged = tmp_path / "forged"
    columns = db.execute(
        "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns"
        " WHERE table_name LIKE 'horsies\\_%%' AND is_generated = 'NEVER' AND is_identity = 'NO'"
    )
    with (
        worker(db, folder=tmp_path, unknown_task_grace_ms=0) as one,
        tasks_on(db) as tasks,
        psycopg.connect(db.url, autocommit=True) as connection,
    ):
        taken = 0
        for number in range(MUTATIONS):
            if number % ROWS == 0:
                tasks.add.send_many([(k, k) for k in range(ROWS)])
                connection.execute(
                    "INSERT INTO horsies_tasks (id, task_name, kwargs) VALUES (%s, 'os.system', %s)",
                    (new_id(), f'{{"command":"touch {forged}"}}'),
                )
            taken += mutate(connection, columns, chance)
        assert taken > MUTATIONS / 20, "the database refused nearly all of them"
        assert one.is_running
        # what hostile rows still hold is not waited for; a task that is sent now is run
        assert eventually(lambda: tasks.add.send(1, 2).get(20_000).ok == 3, timeout=60)
        assert not forged.exists()
        assert one.is_running
