"""`horsies exporter` as a process: what it serves, how it lives through an outage, how it starts and ends."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import horsies_schema
from horsies._pg.schema_guard import HEAD_REVISION
from horsies_schema import embedded
from horsies_worker.exit_codes import ExitCode
from horsies_worker.metrics.cluster import METRICS
from tests.support import factories
from tests.support.apps import UNREACHABLE
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.exporters import FRONT_DOOR, LOCAL, ask, environment, exporter, start_exporter
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.roles import accounts
from tests.support.waiting import eventually
from tests.support.workers import ended

READY = ("horsies_queue_ready_tasks", "default")
ALWAYS = {"horsies_up", "horsies_collection_duration_seconds", "horsies_collection_age_seconds"}


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """To its end."""
    return subprocess.run(
        [*FRONT_DOOR, *arguments], env=environment(**changes), capture_output=True, text=True, timeout=60
    )


def app_with(folder: Path, url: str, settings: str) -> dict[str, str]:
    """Write the module `exported_app`; returns the environment in which its app is found."""
    app = f"""
        from horsies import AppConfig, Horsies, PostgresConfig

        app = Horsies(AppConfig(PostgresConfig({settings})))
    """
    (folder / "exported_app.py").write_text(textwrap.dedent(app))
    return {"HORSIES_DATABASE_URL": url, "PYTHONPATH": str(folder)}


# -- what it serves ------------------------------------------------------------------------------


def test_a_scrape_has_every_metric(db: Database, tmp_path: Path) -> None:
    factories.task(db)
    factories.worker_state(db)
    plant_groups(db)
    with accounts(db) as who, exporter(who["viewer"], tmp_path, "--top-groups=2") as one:
        found = one.wait_for("horsies_up", 1)
        assert (found[READY], found["horsies_workers", "alive"], found["horsies_slots"]) == (1, 1, 2)
        assert found["horsies_schema_info", HEAD_REVISION, HEAD_REVISION] == 1
        names = {name if isinstance(name, str) else name[0] for name in found}
        # those of a replica are in test_replica.py
        assert {metric.name for metric in METRICS if "replica" not in metric.name} <= names
        assert one.ready() == (200, "ok\n")
        assert ask(one.port, "/healthz") == (200, "ok\n")
        factories.task(db)
        one.wait_for(READY, 2)


def plant_groups(db: Database) -> None:
    """The queue `mail` with three groups, one of them at its limit, which shares a limit."""
    policy = '{"max_concurrency": 3, "rate": {"limit": 10, "per_seconds": 60, "burst": 5}}'
    factories.insert(db, "horsies_limits", name="stripe", declared=policy)
    policy = '{"max_concurrency": 1, "limits": ["stripe"]}'
    factories.insert(db, "horsies_queue_state", queue_name="mail", declared=policy)
    for key, count in (("deep", 3), ("middle", 2), ("small", 1)):
        for _ in range(count):
            factories.task(db, queue_name="mail", group_key=key)
    factories.task(db, "RUNNING", queue_name="mail", group_key="deep")


def test_groups_and_limits(db: Database, tmp_path: Path) -> None:
    plant_groups(db)
    with exporter(db, tmp_path) as one:
        found = one.wait_for("horsies_up", 1)
        assert (found["horsies_queue_grouped_tasks", "mail"], found["horsies_queue_throttled_groups", "mail"]) == (6, 1)
        assert found["horsies_queue_ready_tasks", "mail"] == 6
        assert (found["horsies_limit_running_tasks", "stripe"], found["horsies_limit_max_tasks", "stripe"]) == (1, 3)
        assert found["horsies_limit_tokens", "stripe"] == 5
        assert not any(name[0] == "horsies_group_waiting_tasks" for name in found)
    with exporter(db, tmp_path, "--top-groups=2") as one:
        found = one.wait_for("horsies_up", 1)
        groups = {name[1:]: value for name, value in found.items() if name[0] == "horsies_group_waiting_tasks"}
        assert groups == {("deep", "mail"): 3, ("middle", "mail"): 2}


def test_scrapes_do_not_ask_the_database(db: Database, tmp_path: Path) -> None:
    with exporter(db, tmp_path, "--interval=3600") as one:
        one.wait_for("horsies_up", 1)
        factories.task(db)
        for _ in range(20):
            assert READY not in one.scrape()
        assert one.scrape()["horsies_collections_total", "ok"] == 1


def test_the_database_of_an_app_and_a_schema(empty_db: Database, tmp_path: Path) -> None:
    horsies_schema.upgrade(empty_db.url, schema="jobs")
    factories.task(empty_db, schema="jobs")
    with exporter(None, tmp_path, "--app=exported_app:app", **app_with(tmp_path, empty_db.url, 'schema="jobs"')) as one:
        one.wait_for(READY, 1)
    with exporter(empty_db, tmp_path, "--schema=jobs") as one:
        one.wait_for(READY, 1)


def test_through_a_pooler_in_transaction_mode(db: Database, tmp_path: Path) -> None:
    factories.task(db)
    with pgbouncer(db) as proxy:
        place = app_with(tmp_path, proxy.url, f"pooler=True, direct_url={db.url!r}")
        with exporter(None, tmp_path, "--app=exported_app:app", **place) as one:
            done = one.wait_for(READY, 1)["horsies_collections_total", "ok"]
            eventually(lambda: one.scrape()["horsies_collections_total", "ok"] >= done + 2)
            assert one.scrape()["horsies_collections_total", "error"] == 0


def test_it_holds_one_connection(db: Database, tmp_path: Path) -> None:
    with exporter(db, tmp_path) as one:
        eventually(lambda: one.scrape()["horsies_collections_total", "ok"] >= 3)
        mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'horsies exporter' AND datname = %s"
        assert db.value(mine, db.name) == 1


def test_counts_are_capped(db: Database, tmp_path: Path) -> None:
    for _ in range(3):
        factories.task(db)
    with exporter(db, tmp_path, "--count-limit=2") as one:
        found = one.wait_for(READY, 2)
        assert found["horsies_queue_count_capped", "default"] == 1


# -- outages -------------------------------------------------------------------------------------


def test_the_server_is_restarted(place: Path, tmp_path: Path) -> None:
    server = embedded.start(place)
    horsies_schema.upgrade(server.url)
    db = Database("postgres", server.url)
    factories.task(db)
    with exporter(db, tmp_path) as one:
        one.wait_for(READY, 1)
        server.stop()
        found = one.wait_for("horsies_up", 0)
        assert READY not in found
        names = {name for name in found if str(name).startswith("horsies_")}
        assert names == ALWAYS
        status, reason = one.ready()
        assert status == 503
        assert reason.strip()
        assert ask(one.port, "/healthz") == (200, "ok\n")
        failed = found["horsies_collections_total", "error"]
        eventually(lambda: one.scrape()["horsies_collections_total", "error"] >= failed + 2)
        server = embedded.start(place)
        try:
            one.wait_for(READY, 1)
            assert one.ready() == (200, "ok\n")
        finally:
            server.stop()
    # told once each, not at every collection; the second outage is the end of the test's own server
    assert one.log.count("figures again") == 1
    assert one.log.count("no figures: ") <= 2


def test_a_connection_that_was_cut_is_no_outage(db: Database, tmp_path: Path) -> None:
    with ChaosProxy(db.url) as proxy, exporter(proxy.url, tmp_path) as one:
        done = one.wait_for("horsies_up", 1)["horsies_collections_total", "ok"]
        proxy.cut()
        eventually(lambda: one.scrape()["horsies_collections_total", "ok"] >= done + 2)
        assert one.scrape()["horsies_collections_total", "error"] == 0


@pytest.mark.long
def test_a_database_that_is_silent_is_noticed_and_does_not_delay_the_end(db: Database, tmp_path: Path) -> None:
    with ChaosProxy(db.url) as proxy, exporter(proxy.url, tmp_path) as one:
        one.wait_for("horsies_up", 1)
        proxy.set(Mode.DROP)
        one.wait_for("horsies_up", 0)
        assert one.ready()[0] == 503
        assert one.process.stop(timeout=10) == ExitCode.CLEAN
        proxy.set(Mode.CUT)


def test_it_starts_without_a_database_and_waits_for_it(db: Database, tmp_path: Path) -> None:
    with ChaosProxy(db.url) as proxy:
        proxy.set(Mode.CUT)
        with exporter(proxy.url, tmp_path) as one:
            eventually(lambda: one.scrape().get(("horsies_collections_total", "error"), 0) >= 1)
            assert "horsies_collection_age_seconds" not in one.scrape()
            proxy.set(Mode.PASS)
            one.wait_for("horsies_up", 1)


def test_no_password_is_told(tmp_path: Path) -> None:
    with exporter(UNREACHABLE, tmp_path) as one:
        eventually(lambda: "no figures" in one.log)
        eventually(lambda: one.ready()[1] != "no collection has ended yet\n")
        assert "hunter2" not in one.log + one.ready()[1]


def test_a_database_that_is_behind_is_named_and_used_once_it_is_upgraded(db: Database, tmp_path: Path) -> None:
    horsies_schema.downgrade(db.url, "0018")
    with exporter(db, tmp_path) as one:
        found = one.wait_for("horsies_schema_behind", 1)
        assert found["horsies_up"] == 0
        assert found["horsies_schema_info", HEAD_REVISION, "0018"] == 1
        assert "horsies-migrate up" in one.ready()[1]
        horsies_schema.upgrade(db.url)
        assert one.wait_for("horsies_up", 1)["horsies_schema_behind"] == 0


# -- starting and ending -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(db: Database, tmp_path: Path, number: int) -> None:
    """Also with a client that has connected and says nothing."""
    with ended(start_exporter(db, tmp_path)) as process:
        process.wait_for_log("exporter is up", timeout=40)
        port = int(process.log.split("/metrics")[0].rsplit(":", 1)[1])
        with socket.create_connection((LOCAL, port)):
            process.signal(number)
            assert process.wait(10) == ExitCode.CLEAN
    assert "Traceback" not in process.log


def test_a_port_that_is_in_use(db: Database) -> None:
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--host", LOCAL, "--port", str(port), "--database-url", db.url)
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith(f"horsies: metrics cannot be served on {LOCAL}, port {port}: port {port} is in use")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "65536"], "argument --port: 65536 is out of range"),
        (["--port", "http"], "argument --port: invalid int value"),
        (["--interval", "0"], "argument --interval: 0.0 s is out of range"),
        (["--interval", "nan"], "argument --interval: nan s is out of range"),
        (["--count-limit", "0"], "argument --count-limit: 0 is out of range"),
        (["--host", ""], "argument --host: is empty"),
        (["--loglevel", "loud"], "argument --loglevel: invalid choice"),
        ([], "no database: give --database-url"),
        (["--app", "no_such_module:app"], "no_such_module"),
        (["--app", "x:app", "--database-url", "postgresql://h/d"], "not allowed with argument"),
        (["--database-url", "mysql://h/d"], "is neither a PostgreSQL URL nor"),
    ],
)
def test_bad_input_is_wrong_usage(arguments: list[str], told: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_it_names_the_remedy(tmp_path: Path) -> None:
    """A package of the same name that cannot be imported stands in for one that is not installed."""
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not installed')")
    done = run("--database-url", UNREACHABLE, PYTHONPATH=str(tmp_path))
    assert done.returncode == ExitCode.USAGE
    assert done.stderr == "horsies: metrics need another package: pip install 'horsies-worker[metrics]'\n"


def test_the_other_commands_do_not_need_the_extra() -> None:
    code = "import horsies_worker.cli, horsies_worker.options, sys; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "False\n"
