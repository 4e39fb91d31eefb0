"""Secrets that are planted on every road into a worker come out only where they belong."""

import re
import urllib.request
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies import TaskResult
from horsies.contrib.opentelemetry import Tracing
from tests.support import tracing_app
from tests.support.operator import as_process
from tests.support.postgres import Database
from tests.support.roles import PASSWORD, accounts
from tests.support.waiting import eventually
from tests.support.workers import describe, ended, start_worker, tasks_on, worker

ARGUMENT, TENANT, RAISED = "canary-of-the-argument", "canary-of-the-tenant", "canary-of-the-exception"
KEY = "canary-of-the-key"
# The secret, and the columns that are there to hold it.
CANARIES = {
    PASSWORD: set[str](),
    quote(PASSWORD, safe=""): set[str](),
    f"local-{ARGUMENT}": set[str](),
    f"result-{ARGUMENT}": {"horsies_tasks.result"},
    ARGUMENT: {"horsies_tasks.args", "horsies_tasks.kwargs", "horsies_tasks.result"},
    TENANT: {"horsies_tasks.metadata"},
    KEY: {"horsies_tasks.unique_key", "horsies_unique_keys.key"},
    RAISED: {
        "horsies_tasks.args", "horsies_tasks.kwargs", "horsies_tasks.result", "horsies_tasks.failed_reason",
        "horsies_task_attempts.error_message", "horsies_task_attempts.failed_reason",
    },
}  # fmt: skip
# The text of an exception is that of the application: the log of the worker has it.
ROADS = {RAISED: {"log"}}
LOOKS = (
    ("tasks", "list"), ("tasks", "list", "--json"), ("top", "--once"), ("workers",), ("workers", "--json"), ("queues",),
    ("doctor",), ("schedules",), ("stale", "list"), ("limits",), ("tasks", "purge", "--task", "vault", "--dry-run"),
)  # fmt: skip


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
        worker(roles["worker"], f"--health-file={health}", "--metrics-port=0", folder=tmp_path) as one,
        tasks_on(db) as tasks,
    ):
        sender = tasks.vault.with_options(metadata={"tenant": TENANT}, unique_key=KEY)
        assert sender.send(ARGUMENT).get(20_000) == TaskResult(ok=f"result-{ARGUMENT}")
        failed = sender.send(ARGUMENT, fails=True, told=RAISED)
        assert failed.get(20_000).err is not None
        eventually(health.exists)
        shown = {
            "log": one.log,
            "health file": health.read_text(),
            "metrics": scraped(one.log),
            "ps": " ".join(
                word
                for process in [psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True)]
                for word in (*process.cmdline(), process.name())
            ),
        }
        for who, looks in (("viewer", (*LOOKS, ("tasks", "show", failed.task_id))), ("operator", LOOKS)):
            for look in looks:
                ran = as_process(*look, url=roles[who].url)
                assert ran.code in (0, 1), ran.err
                shown[f"`{' '.join(look)}` of a {who}"] = ran.out + ran.err
        assert failed.task_id in shown["`tasks list` of a viewer"]
        assert "horsies_worker" in shown["metrics"]
        assert one.stop() == 0
        shown["log"] += one.log
        for secret, places in CANARIES.items():
            assert {road for road, text in shown.items() if secret in text} <= ROADS.get(secret, set()), secret
            assert columns_with(db, secret) <= places, secret
        for secret in (ARGUMENT, TENANT, KEY, RAISED):
            assert columns_with(db, secret), "the search finds what is there"


def scraped(log: str) -> str:
    """The figures of the worker, whose log says where they are."""
    found = re.search(r"port (\d+)|:(\d+)/metrics", log)
    assert found is not None, log
    with urllib.request.urlopen(f"http://127.0.0.1:{found[1] or found[2]}/metrics") as answer:
        return answer.read().decode()


def test_traces_and_reports_of_errors_carry_no_secret(db: Database, tmp_path: Path) -> None:
    """OpenTelemetry and Sentry, in the worker and in the process that sends: names and ids, no payload. Sentry gets the
    metadata, which is there to find a task by (docs/guides/tracing.md)."""
    spans, reports = tmp_path / "spans", tmp_path / "sentry"
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    variables = {tracing_app.SPANS_VARIABLE: str(spans), tracing_app.SENTRY_VARIABLE: str(reports)}
    with accounts(db) as roles:
        process = start_worker(describe(roles["worker"]), tmp_path, app=tracing_app.APP, **variables)
        with ended(process), tracing_app.build_app(describe(roles["producer"]), [Tracing(provider)]) as app:
            process.wait_up()
            tasks = tracing_app.register(app)
            told = {"metadata": {"tenant": TENANT}}
            kept = tasks.vault.with_options(**told, unique_key=KEY).send(ARGUMENT)
            assert kept.get(20_000).ok == f"result-{ARGUMENT}"
            failed = tasks.fail.with_options(**told).send(ARGUMENT)
            assert failed.get(20_000).err is not None
            for path in (spans, reports):
                for one in (kept, failed) if path is spans else (failed,):
                    eventually(lambda path=path, one=one: path.exists() and one.task_id in path.read_text())
    traced = spans.read_text() + "".join(one.to_json() for one in memory.get_finished_spans())
    assert "vault" in traced
    assert TENANT not in traced
    assert TENANT in reports.read_text()
    for secret in (PASSWORD, quote(PASSWORD, safe=""), ARGUMENT, KEY):
        assert secret not in traced + reports.read_text(), secret
