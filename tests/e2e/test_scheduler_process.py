"""`horsies scheduler` as a process: what it says, how it ends, who can steer it; and inside a worker."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horsies import Interval
from horsies_worker.exit_codes import ExitCode
from tests.support import factories
from tests.support.apps import add_task, app_on
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.scheduler_app import scheduler, start_scheduler
from tests.support.schedulers import schedule
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, check_invariants, ended

SECOND = timedelta(seconds=1)
DAY = 86_400
FRONT_DOOR = (sys.executable, "-m", "horsies.cli")
UNREACHABLE = "postgresql://nobody:hunter2@127.0.0.1:1/nowhere"

APP = """
    import os
    from horsies import (
        AppConfig, Cron, Daily, Horsies, Interval, PostgresConfig, ScheduleConfig, TaskError, TaskResult, TaskSchedule,
    )

    tick = TaskSchedule("tick", "version", Interval(seconds=1), catch_up_missed=True)
    wrong = [
        TaskSchedule("a", "no_such_task", Interval(seconds=1)),
        TaskSchedule("b", "version", Daily("02:30"), kwargs={"count": 1}, timezone="Europe/Berln"),
        TaskSchedule("c", "version", Cron("0 25 * * *"), queue_name="mail"),
    ]
    schedules = {"good": [tick], "none": [], "wrong": wrong}[os.environ.get("SCHEDULES", "good")]
    app = Horsies(AppConfig(
        PostgresConfig(), auto_migrate=os.environ.get("MIGRATE") != "no", schedule=ScheduleConfig(schedules)
    ))

    @app.task("version")
    def version() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))
    return tmp_path


def environment(db: Database | str, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HORSIES_")}
    url = db if isinstance(db, str) else db.url
    return kept | {"HORSIES_DATABASE_URL": url, "PYTHONUNBUFFERED": "1"} | more


def run(project: Path, *arguments: str, db: Database | str, **more: str) -> tuple[int, str]:
    """To its end: exit code and everything that it said."""
    done = subprocess.run(
        [*FRONT_DOOR, *arguments], cwd=project, env=environment(db, **more), capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def running(project: Path, *arguments: str, db: Database, **more: str) -> Any:
    line = [*arguments, f"--health-file={project / 'health'}"]
    return ended(WorkerProcess([*FRONT_DOOR, *line], environment(db, **more), project, cwd=project))


def slots(db: Database) -> list[Any]:
    return [row[0] for row in db.execute("SELECT sent_at FROM horsies_tasks ORDER BY sent_at")]


def consecutive(found: list[Any]) -> bool:
    return found == [found[0] + n * SECOND for n in range(len(found))]


# -- how it ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["scheduler"], ["scheduler", "shop:app", "--processes=2"]])
def test_wrong_usage(project: Path, arguments: list[str]) -> None:
    code, said = run(project, *arguments, db=UNREACHABLE)
    assert code == ExitCode.USAGE
    assert "usage: horsies scheduler" in said


PROBLEMS = (
    "'a').task_name: no task 'no_such_task' is registered",
    "'b').timezone: there is no time zone 'Europe/Berln'",
    "'b').kwargs: task 'version'",
    "'c').pattern: '0 25 * * *': bad hour",
    "'c').queue_name: 'mail' is not a queue of this app",
)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["scheduler", "shop:app"], ExitCode.CONFIGURATION),
        (["worker", "shop:app", "--with-scheduler"], ExitCode.CONFIGURATION),
        (["check", "shop:app"], 1),
    ],
)
def test_everything_that_is_wrong_is_told_at_once(project: Path, command: list[str], code: int) -> None:
    found, said = run(project, *command, db=UNREACHABLE, SCHEDULES="wrong")
    assert found == code, said
    for text in PROBLEMS:
        assert text in said
    assert "Traceback" not in said
    assert "hunter2" not in said


def test_an_app_without_schedules_serves_those_made_at_run_time(db: Database, tmp_path: Path) -> None:
    with scheduler(db, {}, tmp_path), app_on(db) as app:
        add_task(app)
        app.schedules.put(schedule("s", Interval(seconds=1)))
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks") > 0, timeout=20)
        assert [run.status for run in app.schedules.history("s")][-1] == "PENDING"


def test_the_schema_and_the_database(project: Path, empty_db: Database) -> None:
    code, said = run(project, "scheduler", "shop:app", db=empty_db, MIGRATE="no")
    assert code == ExitCode.SCHEMA
    assert "horsies-migrate up" in said
    code, said = run(project, "scheduler", "shop:app", "--database-timeout=0.3", db=UNREACHABLE)
    assert code == ExitCode.DATABASE
    assert "could not be reached" in said
    assert "hunter2" not in said
    with running(project, "scheduler", "shop:app", db=empty_db) as process:
        process.wait_for_log("schema upgraded to revision")
        process.wait_up()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(db: Database, tmp_path: Path, number: int) -> None:
    process = start_scheduler(db, {"s": 1, "t": 1}, tmp_path, "--log-format=json")
    with ended(process):
        process.wait_up()
        assert "schedules 2: s, t" in process.log
        eventually(lambda: len(slots(db)) >= 2)
        process.signal(number)
        assert process.wait() == ExitCode.CLEAN
    assert all(line.startswith("{") for line in process.log.splitlines())
    check_invariants(db)


def test_it_leaves_while_it_waits_for_a_database(db: Database, tmp_path: Path) -> None:
    process = start_scheduler(UNREACHABLE, {"s": 1}, tmp_path)
    with ended(process):
        process.wait_for_log("trying again in")
        process.terminate()
        assert process.wait() == ExitCode.CLEAN


def test_run_from_code(project: Path, db: Database) -> None:
    (project / "serve.py").write_text(
        "from shop import app\n\nprint('ended with', int(app.run_scheduler(log_level='DEBUG')))\n"
    )
    with ended(WorkerProcess([sys.executable, "serve.py"], environment(db), project, cwd=project)) as process:
        process.wait_up()
        eventually(lambda: slots(db))
        process.stop()
        assert "ended with 0" in process.log


# -- steering it -------------------------------------------------------------------------------------


def test_operators_are_heard_at_once(project: Path, db: Database, tmp_path: Path) -> None:
    """The next look of its own is a minute away, the next slot a day."""
    deaf = {"resilience": {"notify_poll_interval_ms": 60_000}}
    with scheduler(db, {"daily": DAY}, tmp_path, **deaf) as process:
        eventually(lambda: db.execute("SELECT 1 FROM horsies_schedule_state"))
        for expected in (1, 2):
            code, said = run(project, "schedules", "run-now", "daily", db=db)
            assert (code, said) == (
                0,
                "daily: a scheduler is asked to run it; `horsies schedules list` shows when it has\n",
            )
            eventually(lambda expected=expected: factories.count(db) == expected, timeout=10)
        assert process.is_running
    check_invariants(db)


def test_health(db: Database, tmp_path: Path, project: Path) -> None:
    file = tmp_path / "health"

    def health(*arguments: str) -> tuple[int, str]:
        return run(project, "health", "--scheduler", f"--health-file={file}", *arguments, db=db)

    assert health() == (1, f"unhealthy: no scheduler has written {file}\n")
    with ChaosProxy(db.url) as proxy, scheduler(proxy.url, {"s": 1}, tmp_path) as process:
        eventually(file.exists)
        assert health() == (0, "healthy\n")
        proxy.set(Mode.CUT)
        old = file.stat().st_mtime
        eventually(lambda: time.time() - old > 2)
        code, said = health("--max-age=1.5")
        assert (code, said.startswith("unhealthy: the last successful check was")) == (1, True)
        proxy.set(Mode.PASS)
        eventually(lambda: health("--max-age=5")[0] == 0, timeout=20, interval=0.2)
        process.kill()
    assert health() == (1, f"unhealthy: the scheduler (pid {process.pid}) is gone\n")


# -- trouble -----------------------------------------------------------------------------------------


def test_an_outage_of_the_database(db: Database, tmp_path: Path) -> None:
    """It never exits for it, and owes what it missed."""
    with ChaosProxy(db.url) as proxy, scheduler(proxy.url, {"s": 1}, tmp_path) as process:
        eventually(lambda: len(slots(db)) >= 2)
        proxy.set(Mode.CUT)
        process.wait_for_log("scheduler: ")
        process.wait_for_log("trying again in", times=3)
        proxy.set(Mode.PASS)
        since = len(slots(db))
        eventually(lambda: len(slots(db)) >= since + 4, timeout=30)
        assert "unexpectedly" not in process.log
    assert consecutive(slots(db))
    check_invariants(db)


def test_behind_a_transaction_pooler(db: Database, tmp_path: Path, project: Path) -> None:
    with pgbouncer(db) as proxy:
        config = {
            "broker": {"pooler": True, "direct_url": db.url}, "resilience": {"notify_poll_interval_ms": 60_000},
        }  # fmt: skip
        names = {f"s{number}": 1 for number in range(5)}
        with scheduler(proxy.url, names, tmp_path, **config) as one, scheduler(proxy.url, names, tmp_path, **config):
            eventually(lambda: factories.count(db) >= 20, timeout=30)
            run(project, "schedules", "pause", *names, db=db)
            eventually(lambda: len(db.execute("SELECT 1 FROM horsies_schedule_state WHERE paused_at IS NOT NULL")) == 5)
            proxy.restart()
            run(project, "schedules", "resume", *names, db=db)
            before = factories.count(db)
            eventually(lambda: factories.count(db) >= before + 10, timeout=30)
            assert "unexpectedly" not in one.log
    assert db.execute("SELECT 1 FROM horsies_tasks GROUP BY sent_at, kwargs HAVING count(*) > 1") == []
    check_invariants(db)


# -- inside a worker ---------------------------------------------------------------------------------


def test_in_a_worker(project: Path, db: Database) -> None:
    with running(project, "worker", "shop:app", "--processes=1", "--with-scheduler", db=db) as process:
        process.wait_up()
        assert "schedules 1: tick" in process.log
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") >= 3, timeout=20)
        assert process.stop() == ExitCode.CLEAN
    assert consecutive(slots(db))
    check_invariants(db)


def test_a_worker_does_not_schedule_unasked(project: Path, db: Database) -> None:
    with running(project, "worker", "shop:app", "--processes=1", db=db) as process:
        process.wait_up()
        task_id = factories.task(db, task_name="version", kwargs="{}")
        eventually(lambda: db.value("SELECT status FROM horsies_tasks WHERE id = %s", task_id) == "COMPLETED")
        assert db.execute("SELECT 1 FROM horsies_schedule_state") == []


@pytest.mark.parametrize(("arguments", "schedules"), [([], True), (["--no-scheduler"], False)])
def test_dev_schedules_by_default(project: Path, db: Database, arguments: list[str], schedules: bool) -> None:
    line = ["dev", "shop:app", "--no-reload", "--processes=1", *arguments]
    with running(project, *line, db=db) as process:
        process.wait_up()
        assert ("schedules 1: tick" in process.log) == schedules
        if schedules:
            eventually(
                lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") >= 1, timeout=20
            )
        process.signal(signal.SIGINT)
        assert process.wait() == ExitCode.CLEAN
