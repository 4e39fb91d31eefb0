"""The worker's command line: what it says, how it ends, and the commands beside it (`health`, `dev`)."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import horsies
from horsies.cli import main as front_door
from horsies_schema.connection import LOCK_KEY
from horsies_worker.exit_codes import ExitCode
from tests.support import factories, places
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos, WorkerProcess, ended, tasks_on, worker

LONG_MS = 20_000

GOOD = """
    import os, sys, time
    from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, QueueMode, TaskError, TaskResult

    app = Horsies(AppConfig(PostgresConfig(), auto_migrate=os.environ.get("MIGRATE") != "no"))

    @app.task("version")
    def version() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)
"""
WORKER = (sys.executable, "-m", "horsies_worker")
FRONT_DOOR = (sys.executable, "-m", "horsies.cli")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with somebody's code in it: `shop.py`."""
    write(tmp_path, GOOD)
    return tmp_path


def write(folder: Path, *parts: str, name: str = "shop.py") -> None:
    (folder / name).write_text("".join(textwrap.dedent(part) for part in parts))


def environment(db: Database | str | None, **more: str) -> dict[str, str]:
    found = {key: value for key, value in os.environ.items() if not key.startswith("HORSIES_")}
    if db is not None:
        found["HORSIES_DATABASE_URL"] = db if isinstance(db, str) else db.url
    return found | {"PYTHONUNBUFFERED": "1"} | more


def run(
    project: Path, *arguments: str, db: Database | str | None = None, command: Sequence[str] = WORKER, **more: str
) -> tuple[int, str]:
    """To its end: exit code and everything that it said."""
    done = subprocess.run(
        [*command, *arguments], cwd=project, env=environment(db, **more), capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@contextmanager
def running(
    project: Path, *arguments: str, db: Database | str | None, command: Sequence[str] = WORKER, **more: str
) -> Iterator[WorkerProcess]:
    process = WorkerProcess([*command, *arguments], environment(db, **more), project, cwd=project)
    with ended(process):
        yield process


UNREACHABLE = "postgresql://nobody:hunter2@127.0.0.1:1/nowhere"

# -- exit codes --------------------------------------------------------------------------------------


PROCESS_FLAGS = (
    "--shutdown-timeout=nan",
    "--shutdown-timeout=-1",
    "--database-timeout=-1",
    "--health-file=",
    "--health-file=.",
)
WORKER_FLAGS = (
    "--processes=0", "--async-concurrency=0", "--queues=", "--queues=,", "--max-claim-batch=0",
    "--max-claim-per-worker=-1", "--max-tasks-per-child=0", "--max-memory-per-child-mb=0", "--max-child-age=inf",
    *PROCESS_FLAGS,
)  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "flag"),
    [
        *(("worker", flag) for flag in WORKER_FLAGS),
        *(("scheduler", flag) for flag in PROCESS_FLAGS),
        *(("dev", flag) for flag in (*WORKER_FLAGS, "--watch=nowhere")),
        *(("health", flag) for flag in ("--max-age=nan", "--health-file=", "--health-file=.")),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_flag(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, flag: str
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.setenv("HORSIES_DATABASE_URL", UNREACHABLE)
    with pytest.raises(SystemExit) as ended_by:
        front_door([verb, *(["shop:app"] if verb != "health" else []), flag])
    assert ended_by.value.code == ExitCode.USAGE
    assert f"{flag.partition('=')[0]}" in capsys.readouterr().err.rpartition("error: ")[2]
    assert not list(project.glob(".*")), "no file left behind"


@pytest.mark.parametrize("arguments", [[], ["shop:app", "--processes=many"], ["shop:app", "--no-such-option"]])
def test_wrong_usage(project: Path, arguments: list[str]) -> None:
    code, said = run(project, *arguments, db=UNREACHABLE)
    assert code == ExitCode.USAGE
    assert "usage: horsies worker" in said


def test_a_queue_that_the_app_does_not_have(project: Path) -> None:
    code, said = run(project, "shop:app", "--queues=mail,default", db=UNREACHABLE)
    assert code == ExitCode.USAGE
    assert "argument --queues: 'mail' is not a queue of this app: choose among: default" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("verb", ["worker", "scheduler"])
def test_a_signal_while_the_app_is_imported(project: Path, verb: str, number: int) -> None:
    write(project, GOOD, f"\n\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(60)\n")
    code, said = run(project, verb, "shop:app", db=UNREACHABLE, command=FRONT_DOOR)
    assert (code, said) == (ExitCode.CLEAN, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_interpreter_exits(project: Path, number: int) -> None:
    write(
        project, GOOD,
        f"""
    import atexit
    me = os.getpid()
    atexit.register(lambda: os.kill(me, {int(number)}) if os.getpid() == me else None)
    """,
    )  # fmt: skip
    code, said = run(project, "shop:app", "--database-timeout=0.5", db=UNREACHABLE)
    assert code == ExitCode.DATABASE
    assert "Traceback" not in said


def test_help_names_the_exit_codes(project: Path) -> None:
    code, said = run(project, "worker", "--help", command=FRONT_DOOR)
    assert code == 0
    for text in ("--processes", "--shutdown-timeout", "exit codes: 0 stopped cleanly", "6 children cannot start"):
        assert text in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:app"], ["there is no module 'nowhere'"]),
        (["shop:application"], ["has no 'application'", "did you mean shop:app?"]),
        (["broken:app"], ["importing 'broken' failed", "ZeroDivisionError"]),
        (["empty:app"], ["no task with a body is registered"]),
    ],
)
def test_wrong_configuration(project: Path, arguments: list[str], words: list[str]) -> None:
    """Everything that is wrong, at once, and without a traceback of ours."""
    write(project, "1 / 0", name="broken.py")
    write(project, "from horsies import Horsies\napp = Horsies()\n", name="empty.py")
    code, said = run(project, *arguments, db=UNREACHABLE)
    assert code == ExitCode.CONFIGURATION, said
    for text in words:
        assert text in said
    assert "hunter2" not in said


def test_tables_are_missing_and_may_not_be_made(project: Path, empty_db: Database) -> None:
    code, said = run(project, "shop:app", db=empty_db, MIGRATE="no")
    assert code == ExitCode.SCHEMA
    assert "horsies-migrate up" in said


def test_a_worker_that_waits_for_the_migration_of_another_says_so(project: Path, empty_db: Database) -> None:
    with psycopg.connect(empty_db.url, application_name="another") as other:
        other.execute("SELECT pg_advisory_xact_lock(%s, hashtext('public'))", [LOCK_KEY])
        with running(project, "shop:app", "--processes=1", db=empty_db) as process:
            pid = other.info.backend_pid
            process.wait_for_log(f"waiting: session {pid} (role postgres, application 'another') holds the lock of")
            assert "schema upgraded" not in process.log
            other.rollback()
            process.wait_up()
            assert process.log.count("waiting: ") == 1
            assert " s for locks, which are free now" in process.log
            assert "schema upgraded to revision" in process.log


def test_tables_are_missing_and_are_made(project: Path, empty_db: Database) -> None:
    with running(project, "shop:app", "--processes=1", db=empty_db) as process:
        process.wait_for_log("schema upgraded to revision")
        process.wait_up()


def test_the_database_refuses(project: Path, db: Database) -> None:
    missing = urlunsplit(urlsplit(db.url)._replace(path="/there_is_no_such_database"))
    code, said = run(project, "shop:app", db=missing)
    assert code == ExitCode.DATABASE
    assert "the database refuses this worker" in said
    assert "Traceback" not in said


def test_the_database_stays_away(project: Path) -> None:
    began = time.monotonic()
    code, said = run(project, "shop:app", "--database-timeout=0.5", db=UNREACHABLE)
    assert code == ExitCode.DATABASE
    assert "could not be reached" in said
    assert "trying again in" in said
    assert "hunter2" not in said
    assert time.monotonic() - began < 20


def test_children_cannot_start(project: Path, db: Database) -> None:
    """F18: the parent imports the app, its children do not get far; nothing that was claimed fails."""
    task_id = factories.task(db, task_name="version")
    write(
        project, GOOD,
        """
    @app.on_child_start
    def connect() -> None:
        raise ConnectionError("no warehouse today")
    """,
    )  # fmt: skip
    code, said = run(project, "shop:app", db=db)
    assert code == ExitCode.CHILDREN
    assert "children cannot be started" in said
    assert "no warehouse today" in said
    assert db.value("SELECT status FROM horsies_tasks WHERE id = %s", task_id) == "PENDING"


# -- starting and stopping ---------------------------------------------------------------------------


def test_the_banner_says_what_matters(project: Path, db: Database) -> None:
    arguments = ["shop:app", "--processes=1", "--async-concurrency=7", "--max-tasks-per-child=50"]
    with running(project, "worker", *arguments, db=db, command=FRONT_DOOR) as process:
        process.wait_up()
        for text in (
            f"horsies {horsies.__version__} worker",
            "app       shop:app, 1 task: version",
            "database  PostgresConfig(",
            "queues    default",
            "children  1 process, 7 async tasks each; tasks per child 50",
        ):
            assert text in process.log
        assert process.stop() == ExitCode.CLEAN


def test_a_password_is_in_no_log(project: Path) -> None:
    with running(project, "shop:app", db=UNREACHABLE) as process:
        process.wait_for_log("trying again in")
        assert "nobody:***@127.0.0.1" in process.log
        assert "hunter2" not in process.log


def test_a_signal_while_the_server_is_away(project: Path, db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        proxy.set(Mode.CUT)
        with running(project, "shop:app", db=proxy.url) as process:
            process.wait_for_log("trying again in")
            assert process.stop(10) == ExitCode.CLEAN
            assert "is up" not in process.log


def test_a_signal_while_children_start(project: Path, db: Database) -> None:
    write(
        project,
        GOOD,
        "\n\n    @app.on_child_start\n    def slow() -> None:\n        print('warming up'); time.sleep(60)\n",
    )
    with running(project, "shop:app", db=db) as process:
        process.wait_for_log("warming up")
        process.terminate()
        process.terminate()  # a second one is no reason to stumble
        assert process.wait(10) == ExitCode.CLEAN


def test_ctrl_c_for_the_whole_group(db: Database, tmp_path: Path) -> None:
    """The terminal signals everybody; children are in groups of their own, and running tasks finish."""
    with worker(db, folder=tmp_path) as process, tasks_on(db) as tasks:
        chaos = Chaos(db, tmp_path)
        (handle,) = chaos.send(tasks.chaos, 1, 1.0)
        eventually(lambda: chaos.starts(handle) == 1)  # in the child: before that it would go back, unstarted
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == ExitCode.CLEAN
        assert handle.get(LONG_MS).is_ok()


def test_run_worker_of_an_app(project: Path, db: Database) -> None:
    write(
        project,
        """
    from shop import app

    if __name__ == "__main__":
        print("ended with", int(app.run_worker("shop:app", processes=1, shutdown_timeout_s=5)))
    """,
        name="serve.py",
    )
    with running(project, "serve.py", db=db, command=[sys.executable]) as process:
        process.wait_up()
        assert db.value("SELECT count(*) FROM horsies_tasks") == 0
        task_id = factories.task(db, task_name="version", kwargs="{}")
        eventually(lambda: db.value("SELECT status FROM horsies_tasks WHERE id = %s", task_id) == "COMPLETED")
        process.stop()
        assert "ended with 0" in process.log


# -- health ------------------------------------------------------------------------------------------


def health(file: Path, *arguments: str) -> tuple[int, str]:
    return run(file.parent, "health", f"--health-file={file}", *arguments, command=FRONT_DOOR)


def test_health(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "health"
    assert health(file) == (1, f"unhealthy: no worker has written {file}\n")
    with ChaosProxy(db.url) as proxy, worker(proxy.url, folder=tmp_path) as process:
        eventually(file.exists)
        assert health(file) == (0, "healthy\n")
        # it looks again at every poll, so the mark stays young
        first = file.stat().st_mtime
        eventually(lambda: file.stat().st_mtime > first)
        proxy.set(Mode.CUT)
        old = file.stat().st_mtime
        eventually(lambda: time.time() - old > 2)
        code, said = health(file, "--max-age=1.5")
        assert code == 1
        assert said.startswith("unhealthy: the last successful claim query was")
        proxy.set(Mode.PASS)
        eventually(lambda: health(file, "--max-age=5")[0] == 0, timeout=20, interval=0.2)
        process.kill()
    code, said = health(file)
    assert code == 1
    assert said == f"unhealthy: the worker (pid {process.pid}) is gone\n"
    file.write_text("not a number")
    assert health(file)[0] == 1


# -- dev ---------------------------------------------------------------------------------------------


def test_dev_with_an_embedded_server(project: Path) -> None:
    """One command: server, tables, worker; again when the code changes; Ctrl-C ends all of it."""
    with places.temporary_directory() as folder:
        home = {"HORSIES_EMBEDDED_DIR": f"{folder}/pg", "XDG_DATA_HOME": str(folder)}
        with running(project, "dev", "shop:app", "--processes=1", db=None, command=FRONT_DOOR, **home) as process:
            process.wait_for_log("horsies dev: embedded PostgreSQL", timeout=60)
            process.wait_up()
            (line,) = [line for line in process.log.splitlines() if "HORSIES_DATABASE_URL=" in line]
            shown = subprocess.run(
                ["sh", "-c", f"{line}; printenv HORSIES_DATABASE_URL"], capture_output=True, text=True
            )
            url = shown.stdout.strip()
            db = Database("horsies", url)

            def told() -> str:
                task_id = factories.task(db, task_name="version", kwargs="{}")
                eventually(lambda: db.value("SELECT terminal_at FROM horsies_tasks WHERE id = %s", task_id))
                return db.value("SELECT result FROM horsies_tasks WHERE id = %s", task_id)

            assert told() == '{"ok":1}'
            write(project, GOOD.replace("TaskResult(ok=1)", "TaskResult(ok=2)"))
            process.wait_for_log("shop.py changed, starting again")
            process.wait_for_log(" is up", times=2, timeout=40)
            assert told() == '{"ok":2}'

            write(project, GOOD, "\n    oh no, a typo")
            process.wait_for_log("the worker ended with code 3; waiting for a change", timeout=40)
            write(project, GOOD.replace("TaskResult(ok=1)", "TaskResult(ok=3)"))
            process.wait_for_log(" is up", times=3, timeout=40)
            assert told() == '{"ok":3}'

            everybody = process.offspring()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait() == ExitCode.CLEAN
            eventually(lambda: not any(one.is_running() for one in everybody), timeout=20)
            assert not list(Path(folder).rglob("postmaster.pid"))


def test_dev_on_a_database_of_your_own(project: Path, db: Database) -> None:
    with running(project, "dev", "shop:app", "--no-reload", db=db, command=FRONT_DOOR) as process:
        process.wait_up()
        assert "embedded" not in process.log
        process.signal(signal.SIGINT)
        assert process.wait() == ExitCode.CLEAN


def test_dev_that_is_stopped_while_it_restarts_its_worker(project: Path, db: Database) -> None:
    with running(project, "dev", "shop:app", "--processes=1", db=db, command=FRONT_DOOR) as process:
        process.wait_up()
        write(project, GOOD.replace("TaskResult(ok=1)", "TaskResult(ok=2)"))
        process.wait_for_log("shop.py changed, starting again")
        process.signal(signal.SIGINT)
        assert process.wait() == ExitCode.CLEAN


def test_dev_that_is_killed_takes_its_worker_along(project: Path, db: Database) -> None:
    with running(project, "dev", "shop:app", "--no-reload", db=db, command=FRONT_DOOR) as process:
        process.wait_up()
        everybody = process.offspring()
        assert len(everybody) > 1
        process.kill()
        eventually(lambda: not any(one.is_running() for one in everybody), timeout=40)
        assert "the process that started this worker is gone" in process.log


def test_dev_ends_although_its_worker_does_not(project: Path, db: Database) -> None:
    """A worker that does not answer to signals any more is killed, with its children, when its time is up."""
    arguments = ("dev", "shop:app", "--no-reload", "--processes=1", "--shutdown-timeout=1")
    with running(project, *arguments, db=db, command=FRONT_DOOR) as process:
        process.wait_up()
        everybody = process.offspring()
        (child,) = [one for one in everybody if one.ppid() == process.pid]
        child.suspend()
        process.signal(signal.SIGHUP)
        assert process.wait(20) == ExitCode.FAILED
        eventually(lambda: not any(one.is_running() for one in everybody), timeout=20)
