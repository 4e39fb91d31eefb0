"""Commands in a pipe whose reader has gone: exit code 141, no traceback, and what an action did is told on stderr."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from tests.integration.test_terminal_output import plant
from tests.support.operator import Ran
from tests.support.postgres import Database
from tests.support.waiting import eventually

HORSIES = (sys.executable, "-m", "horsies.cli")
MIGRATE = (sys.executable, "-m", "horsies_schema.cli")
TUI = (sys.executable, "-c", "from horsies_tui.cli import main; main()")


def started(command: Sequence[str], url: str = "", *, err: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    """A process whose stdout is a pipe without a reader."""
    mine, its = os.pipe()
    os.close(mine)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=its, stderr=err, text=True,
            env={**os.environ, "HORSIES_DATABASE_URL": url},
        )  # fmt: skip
    finally:
        os.close(its)


def ran(command: Sequence[str], url: str = "") -> Ran:
    with started(command, url) as process:
        _, err = process.communicate(timeout=60)
    return Ran(process.returncode, "", err)


@pytest.mark.parametrize("tasks", [1, 600])  # one line fails when it is flushed, many in the middle
def test_a_list_whose_reader_has_gone(db: Database, tasks: int) -> None:
    plant(db, tasks)
    found = ran([*HORSIES, "tasks", "list", "--limit", "600"], db.url)
    assert (found.code, found.err) == (141, "")


@pytest.mark.parametrize(
    "command",
    [
        (*HORSIES, "version"), (*HORSIES, "--help"), (*HORSIES, "completion", "bash"),
        (*HORSIES, "migrate", "sql"), (*HORSIES, "capacity", "--coefficients"), (*MIGRATE, "sql"), (*MIGRATE, "grants"),
    ],
)  # fmt: skip
def test_no_traceback_from_any_program(command: Sequence[str]) -> None:
    found = ran(command)
    assert found.err == ""
    assert found.code == 141


@pytest.mark.parametrize(
    "command", [(*MIGRATE, "--help"), (*TUI, "--help"), (*HORSIES, "worker", "--help"), (*HORSIES, "tasks", "--help")]
)
def test_help_whose_reader_has_gone(command: Sequence[str]) -> None:
    found = ran(command)
    assert found.err == ""
    assert found.code in (0, 141)  # argparse itself passes over what it cannot write


def test_a_code_of_the_command_stands(db: Database) -> None:
    assert ran([*HORSIES, "tasks", "show", "none"], db.url).code == 1
    assert ran([*HORSIES, "tasks", "lits"], db.url).code == 2


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_action_whose_reader_has_gone_tells_what_was_done(db: Database, options: Sequence[str]) -> None:
    plant(db, 600)
    found = ran([*HORSIES, "tasks", "retry", "--status", "cancelled", "--yes", *options], db.url)
    assert (found.code, found.err) == (141, "horsies: retried 600 tasks\n")
    assert db.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'") == [(600,)]


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("has_stderr", [True, False])
def test_ctrl_c_in_a_pipe(db: Database, options: Sequence[str], has_stderr: bool) -> None:
    """Ctrl-C ends all programs of a pipe: the reader is gone when the batch under way has ended."""
    plant(db, 1_200)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    mine, its = os.pipe()
    os.close(mine)
    with psycopg.connect(db.url) as holder:
        holder.execute("LOCK TABLE horsies_tasks IN SHARE MODE")  # readers pass, writers wait
        process = started(
            [*HORSIES, "tasks", "retry", "--status", "cancelled", "--yes", *options],
            db.url,
            err=subprocess.PIPE if has_stderr else its,
        )
        eventually(lambda: db.execute(waits) == [(1,)])
        process.send_signal(signal.SIGINT)
        if process.stderr is not None:
            assert process.stderr.readline() == "horsies: stopping after this batch; Ctrl-C again stops at once\n"
        else:  # the second signal would stop it at once: let it see the first
            eventually(lambda: signalled(process.pid))
    os.close(its)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    done = db.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'")[0][0]
    assert done == 500
    if has_stderr:
        assert err == (
            "horsies: interrupted: retried 500 of 1,200; the rest is as it was, and the same command goes on with it\n"
        )


def signalled(pid: int) -> bool:
    """Whether no signal is pending any more."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["ShdPnd"], 16) == int(lines["SigPnd"], 16) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("tasks", [1, 600])
def test_a_full_disk_is_told(db: Database, tasks: int) -> None:
    plant(db, tasks)
    for command, name in (
        ([*HORSIES, "tasks", "list", "--limit", "600"], "horsies"),
        ([*MIGRATE, "sql"], "horsies-migrate"),
    ):
        with Path("/dev/full").open("w") as full:
            found = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                env={**os.environ, "HORSIES_DATABASE_URL": db.url},
            )  # fmt: skip
        assert found.stderr == f"{name}: the output cannot be written: No space left on device\n"
        assert found.returncode == 1


def test_without_stdout(db: Database) -> None:
    plant(db, 1)
    found = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *HORSIES, "tasks", "list"], stderr=subprocess.PIPE, text=True, timeout=60,
        check=False, env={**os.environ, "HORSIES_DATABASE_URL": db.url},
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_without_stderr(db: Database, closed: str) -> None:
    def code(*command: str) -> int:
        script = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
        environment = {**os.environ, "HORSIES_DATABASE_URL": db.url}
        return subprocess.run(script, timeout=60, check=False, env=environment).returncode

    plant(db, 3)
    assert code(*HORSIES, "tasks", "retry", "--status", "cancelled", "--yes") == 0
    assert db.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'") == [(3,)]
    assert code(*HORSIES, "nope") == 2
    for verb in (["check"], ["current"], ["sql"], ["grants"], ["up"]):
        assert code(*MIGRATE, *verb) == 0, verb


def test_an_error_in_the_middle_tells_what_was_done(db: Database) -> None:
    plant(db, 1_200)
    db.execute("CREATE SEQUENCE batches")
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('batches') = 2 THEN RAISE insufficient_privilege; END IF; RETURN NULL; END $$"
    )
    db.execute("CREATE TRIGGER refuse AFTER UPDATE ON horsies_tasks FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
    found = ran([*HORSIES, "tasks", "retry", "--status", "cancelled", "--yes"], db.url)
    assert found.code == 1
    assert "horsies: retried 500 tasks; the batch under way may be done as well\n" in found.err
