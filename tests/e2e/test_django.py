"""horsies.contrib.django in real projects: with Django's own test runners, over HTTP, and in workers."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.django_projects import CASES, EXAMPLE, environment, manage, manage_in_background
from tests.support.own_server import own_server
from tests.support.places import temporary_directory
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended

SEND = """
import sys
from horsies.contrib.django import app
from cases.tasks import note, note_all, note_async
for text in sys.argv[1:]:
    sent = [note.send(text), note_async.send(f"{text} async"), note_all.send(f"{text} batch")]
    print(*(one.get(20_000).unwrap() for one in sent))
"""


def passed(told: str) -> int:
    found = re.search(r"Ran (\d+) tests? in .*?\n\nOK\n|(\d+) passed", told)
    assert found, told
    return int(found[1] or found[2])


# -- projects of users ---------------------------------------------------------------------------


QUICK = """
import os
from config.settings import *
MIGRATION_MODULES = dict.fromkeys(["admin", "auth", "contenttypes", "sessions", "shop"])  # tables at once
DATABASES["default"]["TEST"] = {"TEMPLATE": os.environ["CASES_TEMPLATE"]}
"""


def quickly(folder: Path) -> list[str]:
    """The settings of the example, on tables that are made without its migrations."""
    (folder / "quick.py").write_text(QUICK)
    return ["--settings=quick", f"--pythonpath={folder}"]


def test_the_example_runs_its_tests(empty_db: Database, tmp_path: Path) -> None:
    told = manage(empty_db, EXAMPLE, "test", "--noinput", *quickly(tmp_path))
    assert passed(told) == 9
    assert "Destroying test database" in told
    assert tables(empty_db) == 0  # the tests have a database of their own


@pytest.mark.long
def test_the_example_runs_its_tests_as_it_stands(empty_db: Database) -> None:
    assert passed(manage(empty_db, EXAMPLE, "test", "--noinput")) == 9
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"], cwd=EXAMPLE,
        env=environment(empty_db, EXAMPLE), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert passed(run.stdout) == 9, run.stderr
    assert passed(manage(empty_db, EXAMPLE, "test", "--noinput", "--parallel=2")) == 9
    assert tables(empty_db) == 0
    assert "its tables are at revision" in manage(empty_db, EXAMPLE, "migrate")
    assert tables(empty_db) > 10


def tables(db: Database) -> int:
    return db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'horsies%%' AND relkind = 'r'")


def test_the_cases_of_transactions_kit_admin_and_settings(empty_db: Database) -> None:
    assert passed(manage(empty_db, CASES, "test", "cases", "--noinput")) == 35


class Site:
    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, path: str, **form: object) -> tuple[int, Any]:
        data = urlencode(form).encode() if form else None
        try:
            with urllib.request.urlopen(self._url + path, data, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@pytest.fixture
def site(db: Database, tmp_path: Path) -> Iterator[Site]:
    assert "its tables are at revision" in manage(db, EXAMPLE, "migrate", "--run-syncdb", *quickly(tmp_path))
    server = manage_in_background(db, EXAMPLE, tmp_path, "runserver", "127.0.0.1:0", "--noreload", "--nothreading")
    with ended(server, code=None):
        eventually(lambda: port_of(server), timeout=30)
        yield Site(f"http://127.0.0.1:{port_of(server)}")
        server.kill_all()


def port_of(server: WorkerProcess) -> int | None:
    import psutil

    assert server.is_running, server.log
    listening = [one for one in psutil.Process(server.pid).net_connections() if one.status == psutil.CONN_LISTEN]
    return listening[0].laddr.port if listening else None


def test_the_example_over_http(db: Database, site: Site, tmp_path: Path) -> None:
    arguments = (
        "horsies_worker",
        "--processes=1",
        f"--health-file={tmp_path / 'health'}",
        "--settings=config.settings",
    )
    with ended(manage_in_background(db, EXAMPLE, tmp_path, *arguments)) as worker:
        worker.wait_up()
        assert "shop.count_orders, shop.remind, shop.write_receipt" in worker.log
        status, order = site.call("/orders/", email="ada@example.org", pieces=2)
        assert (status, order["order"]) == (202, 1)
        assert site.call("/orders/1/?wait_ms=20000") == (200, {"order": 1, "receipt": "2 pieces, ada@example.org"})
        # refused late in the transaction: neither the order nor its task exists
        assert site.call("/orders/", email="eve@example.org", pieces=20) == (409, {"error": "out of stock"})
        assert db.value("SELECT count(*) FROM horsies_tasks") == 1
        status, reminder = site.call("/orders/1/reminder/", x=1)
        assert status == 202
        status_of = "SELECT status FROM horsies_tasks WHERE id = %s"
        eventually(lambda: db.value(status_of, reminder["task"]) == "COMPLETED", timeout=20)


# -- commands ------------------------------------------------------------------------------------


def test_commands_pass_options_and_exit_codes_on(db: Database) -> None:
    told = manage(db, CASES, "horsies_worker", "--help")
    assert "runs `horsies worker horsies.contrib.django:app [options]`" in told
    assert "--async-concurrency" in told
    assert "--processes" in manage(db, CASES, "horsies_worker", "--processes=none", code=2)
    assert json.loads(manage(db, CASES, "horsies", "tasks", "list", "--json"))["tasks"] == []
    away = manage(db, CASES, "horsies_migrate", "current", code=4, PGHOST="127.0.0.1", PGPORT="1", PGPASSWORD="s3cret")
    assert "s3cret" not in away


def test_the_plain_command_line(db: Database) -> None:
    command = [sys.executable, "-m", "horsies.cli", "check", "horsies.contrib.django:app", "--live"]
    known = environment(db, CASES)
    run = subprocess.run(command, cwd=CASES, env=known, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "note_all" in run.stdout
    del known["DJANGO_SETTINGS_MODULE"]
    run = subprocess.run(command, cwd=CASES, env=known, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr.startswith("horsies: importing 'horsies.contrib.django' failed\n")
    assert "DJANGO_SETTINGS_MODULE" in run.stderr


# -- workers -------------------------------------------------------------------------------------


def pids_of(db: Database, *texts: str, **more: str) -> list[list[int]]:
    """Send three kinds of tasks for each text; the sessions in which each wrote its row."""
    run = subprocess.run(
        [sys.executable, "-c", SEND, *texts], env=environment(db, CASES, **more), capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [[int(one) for one in line.split()] for line in run.stdout.splitlines()]


@pytest.mark.parametrize("pool", ["", pytest.param("yes", marks=pytest.mark.long)])
def test_tasks_go_on_after_broken_connections(db: Database, tmp_path: Path, pool: str) -> None:
    manage(db, CASES, "migrate", "cases", "--run-syncdb", "-v0", CASES_POOL=pool)
    arguments = ("horsies_worker", "--processes=1", f"--health-file={tmp_path / 'health'}")
    with ended(manage_in_background(db, CASES, tmp_path, *arguments, more={"CASES_POOL": pool})) as worker:
        worker.wait_up()
        (first, second) = pids_of(db, "a", "b", CASES_POOL=pool)
        if not pool:
            assert first[0] == second[0]  # CONN_MAX_AGE is None
            # an async task has its own connection, which is closed with it
            alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
            eventually(lambda: db.value(alive, [*first[1:], *second[1:]]) == 0)
        send = "from cases.tasks import stopped_amid; print(stopped_amid.send().get(20_000).err.error_code)"
        assert manage(db, CASES, "shell", "-v0", "-c", send, CASES_POOL=pool).strip() == "TASK_TIMEOUT"
        pids_of(db, "after a stop", CASES_POOL=pool)
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND application_name NOT LIKE 'horsies%%'"
        )
        (third,) = pids_of(db, "c", CASES_POOL=pool)
        assert not {*first, *second} & {*third}
    assert db.value("SELECT count(*) FROM cases_note") == 12
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'") == 1


@pytest.mark.long
def test_tasks_go_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with temporary_directory() as folder, own_server(folder / "server") as server:
        manage(server.db, CASES, "migrate", "cases", "--run-syncdb", "-v0")
        arguments = ("horsies_worker", "--processes=1", f"--health-file={tmp_path / 'health'}")
        with ended(manage_in_background(server.db, CASES, tmp_path, *arguments)) as worker:
            worker.wait_up()
            pids_of(server.db, "a")
            server.down()
            server.up()
            pids_of(server.db, "b")
        assert server.db.value("SELECT count(*) FROM cases_note") == 6


def test_a_process_that_forks_after_a_send_sends_on(db: Database) -> None:
    """As gunicorn does with --preload."""
    code = """
import os
from horsies.contrib.django import app
from django.db import connection, transaction
from cases.tasks import note
note.send("before")
with transaction.atomic():
    note.send("in a transaction")
children = []
for at in range(2):
    pid = os.fork()
    if pid == 0:
        connection.connection = None  # Django's own: a server that forks closes it before
        note.send(f"child {at}")
        with transaction.atomic():
            note.send(f"child {at}, in a transaction")
        os._exit(0)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
note.send("after")
connection.close()
assert codes == [0, 0], codes
"""
    run = subprocess.run([sys.executable, "-c", code], env=environment(db, CASES), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert db.value("SELECT count(*) FROM horsies_tasks") == 7


def test_a_project_without_the_application_is_told(db: Database, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from settings import *\nINSTALLED_APPS = []\n")
    code = "from horsies.contrib.django import app"
    known = environment(db, CASES, DJANGO_SETTINGS_MODULE="bare")
    known["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    run = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True)
    assert "'horsies.contrib.django' is not in INSTALLED_APPS: add it" in run.stderr
