"""Secrets that are planted on every road into a worker come out only where they belong."""

import json
import re
import traceback
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
import pytest
import sqlalchemy
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies import TaskResult, TaskSendError
from horsies.contrib.opentelemetry import Tracing
from tests.support import canary_app, tracing_app
from tests.support.operator import as_process
from tests.support.postgres import Database
from tests.support.roles import PASSWORD, accounts
from tests.support.waiting import eventually
from tests.support.worker_app import build
from tests.support.workers import WorkerProcess, describe, ended, start_worker, tasks_on, worker

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


MISFIT = "CANARY"
"""In every value of the tests below, followed by where it was planted."""
STORED = {
    # task: its error code, and what its message says of the type or the place
    "takes": ("WORKER_SERIALIZATION_ERROR", "parameter 'n': input should be a valid integer"),
    "pays": ("WORKER_SERIALIZATION_ERROR", "parameter 'by': its tag in 'kind' is none of 'cash', 'card'"),
    "bare": ("RETURN_TYPE_MISMATCH", "the return value: it is a str, not a TaskResult"),
    "wrong_ok": ("RETURN_TYPE_MISMATCH", "input should be a valid integer"),
    "wrong_err": ("RETURN_TYPE_MISMATCH", "its err is a str, not a TaskError"),
    "odd_key": ("WORKER_SERIALIZATION_ERROR", "a key is a tuple"),
    "loses": ("WORKER_SERIALIZATION_ERROR", "a Sub would arrive as a Base"),
    "half_pair": ("WORKER_SERIALIZATION_ERROR", "lone surrogate"),
    "sends_wrong": ("UNHANDLED_EXCEPTION", "parameter 'n'"),
    "completes_wrong": ("RETURN_TYPE_MISMATCH", "input should be a valid integer"),
    "bare_batch": ("RETURN_TYPE_MISMATCH", "returned a str for 1 item"),
    "bare_items": ("RETURN_TYPE_MISMATCH", "it is a str, not a TaskResult"),
}


def start_canaries(db: Database, folder: Path) -> WorkerProcess:
    return start_worker(
        describe(db), folder, app=canary_app.LOCATOR, HORSIES_TEST_SPANS=str(folder / "spans"),
        HORSIES_TEST_SENTRY=str(folder / "sentry"), HORSIES_TEST_OWN_URL=db.url,
    )  # fmt: skip


def assert_told_without_values(process: WorkerProcess, folder: Path, *tells: str) -> None:
    """The log says these, and neither it nor a trace nor a report of an error has a value."""
    for text in tells:
        process.wait_for_log(text)
    assert process.stop() == 0
    for road, text in {
        "log": process.log,
        **{name: (folder / name).read_text() for name in ("spans", "sentry") if (folder / name).exists()},
    }.items():
        lines = [line for line in text.splitlines() if MISFIT in line]
        assert not lines, (road, lines)


def test_values_that_are_refused_reach_no_log_trace_or_report(db: Database, tmp_path: Path) -> None:
    """Arguments that do not fit, from SQL, and values that tasks must not return: the stored error names the place and
    the type, and so does the log."""
    with ended(start_canaries(db, tmp_path)) as process, build(describe(db)) as app:
        process.wait_up()
        ids: dict[str, str] = {}
        for name in STORED:
            key = {"takes": "n", "pays": "by", "bare_batch": "item", "bare_items": "item"}.get(name, "s")
            value: object = {"kind": f"{MISFIT}_kind"} if name == "pays" else f"{MISFIT}_{name}"
            ids[name] = db.value("SELECT horsies_send(%s, %s)", name, json.dumps({key: value}))
        for name, (code, told) in STORED.items():
            error = app.handle(ids[name]).get(20_000).err_value
            assert error.error_code == code, (name, error)
            assert told in error.message, (name, error)
            assert MISFIT not in error.message, (name, error)
        assert app.handle(ids["bare"]).get(0).err_value.data["value"] == f"'{MISFIT}_bare'"
        assert_told_without_values(process, tmp_path, *ids.values())
        assert ids["bare"] in (tmp_path / "spans").read_text()
        assert ids["sends_wrong"] in (tmp_path / "sentry").read_text()


def test_a_signal_that_does_not_fit_reaches_no_log(db: Database, tmp_path: Path) -> None:
    with ended(start_canaries(db, tmp_path)) as process, build(describe(db)) as app:
        process.wait_up()
        run = canary_app.register(app).edge().start()
        db.execute("SELECT horsies_signal(%s, 'go', %s)", run.workflow_id, json.dumps(f"{MISFIT}_signal"))
        assert "parameter 'n'" in str(run.get(20_000).err_value)
        assert_told_without_values(process, tmp_path, "attempt 1: failed")


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        pytest.param("status <> 'COMPLETED'", "its result cannot be stored: ", id="result"),
        pytest.param("status NOT IN ('COMPLETED', 'FAILED')", "cannot be ended, and stays RUNNING", id="end"),
        pytest.param("status NOT IN ('CLAIMED', 'RUNNING')", "claim failed unexpectedly", id="claim"),
    ],
)
def test_a_row_that_the_database_refuses_reaches_no_log(db: Database, tmp_path: Path, refused: str, told: str) -> None:
    """PostgreSQL's DETAIL quotes the whole row, with its arguments and its result."""
    with ended(start_canaries(db, tmp_path)) as process, build(describe(db)) as app:
        process.wait_up()
        tasks = canary_app.register(app)
        db.execute(f"ALTER TABLE horsies_tasks ADD CONSTRAINT ours CHECK ({refused}) NOT VALID")
        tasks.echoes.send(f"{MISFIT}_echo")
        process.wait_for_log(told)
        db.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT ours")
        assert_told_without_values(process, tmp_path, told)


def test_a_node_that_the_database_refuses_reaches_no_log(db: Database, tmp_path: Path) -> None:
    with ended(start_canaries(db, tmp_path)) as process, build(describe(db)) as app:
        process.wait_up()
        db.execute(f"ALTER TABLE horsies_tasks ADD CONSTRAINT ours CHECK (kwargs NOT LIKE '%%{MISFIT}%%') NOT VALID")
        run = canary_app.register(app).kept().start()
        told = run.get(20_000).err_value
        assert MISFIT not in str(told)
        assert columns_with(db, f"{MISFIT}_node") <= {"horsies_workflow_tasks.kwargs"}
        assert_told_without_values(process, tmp_path)


@pytest.mark.parametrize("library", ["ours", "psycopg", "sqlalchemy"])
def test_a_send_that_the_database_refuses_quotes_no_row(db: Database, library: str) -> None:
    """An application logs the error of a send."""
    db.execute("ALTER TABLE horsies_tasks ADD CONSTRAINT ours CHECK (task_name <> 'echoes') NOT VALID")
    with build(describe(db)) as app, ExitStack() as stack:
        tasks = canary_app.register(app)
        connection: Any = None
        if library == "psycopg":
            connection = stack.enter_context(psycopg.connect(db.url))
        elif library == "sqlalchemy":
            engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(db.url))
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())
        sent = tasks.echoes.with_options(connection=connection) if connection is not None else tasks.echoes
        with pytest.raises(TaskSendError, match="CheckViolation") as raised:
            sent.send(f"{MISFIT}_sent")
    assert MISFIT not in str(raised.value)
    if library == "ours":  # the cause on a caller's connection is that of its own driver
        assert MISFIT not in "".join(traceback.format_exception(raised.value))
