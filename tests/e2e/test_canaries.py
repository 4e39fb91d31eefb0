"""Secrets that are planted on every road into a worker come out only where they belong."""

from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from horsies import TaskResult
from tests.support.postgres import Database
from tests.support.roles import PASSWORD, accounts
from tests.support.waiting import eventually
from tests.support.workers import tasks_on, worker

ARGUMENT, TENANT = "canary-of-the-argument", "canary-of-the-tenant"
# The secret, and the columns that are there to hold it.
CANARIES = {
    PASSWORD: set[str](),
    quote(PASSWORD, safe=""): set[str](),
    f"local-{ARGUMENT}": set[str](),
    f"result-{ARGUMENT}": {"horsies_tasks.result"},
    ARGUMENT: {"horsies_tasks.args", "horsies_tasks.kwargs", "horsies_tasks.result"},
    TENANT: {"horsies_tasks.metadata"},
}


def columns_with(db: Database, text: str) -> set[str]:
    """Every column of every table in which this text stands."""
    names = db.execute(
        "SELECT c.table_name::text, c.column_name::text FROM information_schema.columns c"
        " WHERE c.table_schema = 'public' AND c.table_name LIKE 'horsies\\_%%'"
    )
    with psycopg.connect(db.url, autocommit=True) as connection:
        return {
            f"{table}.{column}"
            for table, column in names
            if connection.execute(
                f"SELECT 1 FROM {table} WHERE strpos({column}::text, %s) > 0 LIMIT 1",  # type: ignore[arg-type]
                (text,),
            ).fetchone()
        }


def test_a_secret_comes_out_only_where_it_belongs(db: Database, tmp_path: Path) -> None:
    health = tmp_path / "health.json"
    with (
        accounts(db) as roles,
        worker(roles["worker"], f"--health-file={health}", folder=tmp_path) as one,
        tasks_on(db) as tasks,
    ):
        sender = tasks.vault.with_options(metadata={"tenant": TENANT})
        assert sender.send(ARGUMENT).get(20_000) == TaskResult(ok=f"result-{ARGUMENT}")
        assert sender.send(ARGUMENT, fails=True).get(20_000).err is not None
        eventually(health.exists)
        shown = {
            "log": one.log,
            "health file": health.read_text(),
            "ps": " ".join(
                word
                for process in [psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True)]
                for word in (*process.cmdline(), process.name())
            ),
        }
        assert one.stop() == 0
        shown["log"] += one.log
        for secret, places in CANARIES.items():
            assert [road for road, text in shown.items() if secret in text] == [], secret
            assert columns_with(db, secret) <= places, secret
        assert columns_with(db, ARGUMENT), "the search finds what is there"
