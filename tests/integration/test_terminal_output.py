"""Colours and progress lines: on a real terminal, and nowhere else."""

import io
import json
import re

import psycopg
import pytest

from horsies._colours import colour_of, uses_colours
from horsies.status import TaskStatus
from horsies_schema import head
from tests.support import factories
from tests.support.postgres import Database
from tests.support.ptys import Run, said

ESCAPE = "\x1b["
CLEAR = "\r\x1b[K"


def plant(db: Database, tasks: int, status: str = "CANCELLED") -> None:
    """Tasks that ended, in one statement."""
    first = factories.task(db, status)
    columns = [name for (name,) in db.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'horsies_tasks'"
        " AND table_schema = current_schema() AND is_generated = 'NEVER' AND column_name <> 'id'"
    )]  # fmt: skip
    listed = ", ".join(columns)
    db.execute(
        f"INSERT INTO horsies_tasks (id, {listed}) SELECT gen_random_uuid()::text, {listed} FROM horsies_tasks,"
        " generate_series(2, %s) WHERE id = %s",
        tasks, first,
    )  # fmt: skip


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "on_terminal", "in_pipe"),
    [
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False),
        ({"TERM": "xterm", "CLICOLOR": "0"}, False, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "1"}, True, True),
        ({"TERM": "xterm", "FORCE_COLOR": "0"}, True, False),
        ({"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_when_there_are_colours(
    environment: dict[str, str], on_terminal: bool, in_pipe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert uses_colours(FakeTerminal()) is on_terminal
    assert uses_colours(io.StringIO()) is in_pipe


def test_every_state_but_pending_has_a_colour() -> None:
    assert [state for state in TaskStatus if colour_of(state) is None] == [TaskStatus.PENDING]
    assert colour_of("overdue by 3 s") == colour_of("paused, run asked for")
    assert colour_of("") is None


def test_colours_on_a_terminal_only(db: Database) -> None:
    factories.task(db, "FAILED", task_name="send\x1b[31m")
    on_terminal = said("tasks", "list", url=db.url)
    assert f"{ESCAPE}31mFAILED{ESCAPE}0m" in on_terminal.out
    assert r"send\x1b[31m" in on_terminal.out  # what a row contains is no colour
    in_pipe = said("tasks", "list", url=db.url, terminals=())
    assert ESCAPE not in in_pipe.out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal.out)
    age = r" +(\d+ ms|\d+\.\d s)| +FOR"  # only this differs, and with it the width of its column
    assert re.sub(age, " N", plain) == re.sub(age, " N", in_pipe.out)


@pytest.mark.long
def test_colours_by_the_environment(db: Database) -> None:
    factories.task(db, "FAILED")
    assert ESCAPE not in said("tasks", "list", url=db.url, NO_COLOR="1").out
    assert ESCAPE in said("tasks", "list", url=db.url, terminals=(), FORCE_COLOR="1").out
    assert ESCAPE not in said("tasks", "list", "--json", url=db.url).out


@pytest.mark.long
def test_the_doctor_has_colours(db: Database) -> None:
    found = said("doctor", url=db.url)
    assert f"{ESCAPE}33mwarn{ESCAPE}0m" in found.out
    assert f"{ESCAPE}32mok{ESCAPE}0m" in found.out
    assert ESCAPE not in said("doctor", url=db.url, TERM="dumb").out


def test_a_progress_line_that_vanishes(db: Database) -> None:
    plant(db, 1_200)
    ran = said("tasks", "retry", "--status", "cancelled", "--yes", url=db.url)
    assert (ran.code, ran.out) == (0, "retried 1,200 tasks\n")
    assert f"{CLEAR}retried 0 of 1,200 tasks [--------------------]   0%" in ran.err
    assert ran.err.endswith(CLEAR)
    assert "\n" not in ran.err  # one line that is written over


def test_purge_in_batches(db: Database) -> None:
    plant(db, 1_700)
    ran = said("tasks", "purge", "--status", "cancelled", "--yes", url=db.url, NO_COLOR="1")
    assert ran.out == "purged 1,700 tasks\n"
    counts = [int(count.replace(",", "")) for count in re.findall(r"purged ([0-9,]+) of 1,700", ran.err)]
    assert counts == sorted(counts)
    assert set(counts) <= {0, 500, 1_000, 1_500, 1_700}
    assert f"{ESCAPE}3" not in ran.err


@pytest.mark.parametrize(
    ("options", "terminals", "environment"),
    [
        ((), ("out",), {}),
        pytest.param((), ("out", "err"), {"TERM": "dumb"}, marks=pytest.mark.long),
        (("--json",), ("out", "err"), {}),
    ],
)
def test_no_progress_line_in_a_pipe_a_dumb_terminal_or_json(
    db: Database, options: tuple[str, ...], terminals: tuple[str, ...], environment: dict[str, str]
) -> None:
    plant(db, 600)
    ran = said(
        "tasks", "retry", "--status", "cancelled", "--yes", *options, url=db.url, terminals=terminals, **environment
    )
    assert (ran.code, ran.err) == (0, "")
    if options:
        assert json.loads(ran.out)["done"] == 600


@pytest.mark.parametrize("as_json", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ctrl_c_ends_the_batch_and_says_what_was_done(db: Database, as_json: bool) -> None:
    """A lock holds the second batch: the interrupt comes while it waits."""
    plant(db, 1_200)
    with psycopg.connect(db.url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(4711)")
        db.execute(
            "CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('batches') = 2 THEN"
            " PERFORM pg_advisory_lock_shared(4711); PERFORM pg_advisory_unlock_shared(4711); END IF;"
            " RETURN NULL; END $$"
        )
        db.execute("CREATE SEQUENCE batches")
        db.execute(
            "CREATE TRIGGER wait_here AFTER UPDATE ON horsies_tasks FOR EACH STATEMENT EXECUTE FUNCTION wait_here()"
        )
        run = Run("tasks", "retry", "--status", "cancelled", "--yes", *(["--json"] if as_json else []), url=db.url)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
        run.until(lambda _: db.execute(waits) == [(1,)])
        run.interrupt()
        run.until(lambda one: "stopping after this batch; Ctrl-C again stops at once" in one.text("err"))
        holder.execute("SELECT pg_advisory_unlock(4711)")
        ran = run.ended()
    assert ran.code == 130
    if as_json:
        document = json.loads(ran.out)
        assert (document["done"], document["interrupted"]) == (1_000, True)
    else:
        assert ran.out == "retried 1,000 tasks\n"
        assert "interrupted: retried 1,000 of 1,200; the rest is as it was" in ran.err
    assert db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1 ORDER BY 1") == [
        ("CANCELLED", 200), ("PENDING", 1_000),
    ]  # fmt: skip


@pytest.mark.long
def test_migrations_show_their_progress(db: Database) -> None:
    down = said("migrate", "down", "base", "--yes", url=db.url)
    total = int(head())
    assert down.out == "nothing of horsies is left in this database\n"
    assert f"{CLEAR}revision base, {total} of {total}" in down.err
    up = said("migrate", "up", url=db.url)
    assert up.out == f"at revision {head()}\n"
    assert f"{CLEAR}revision 0001, 1 of {total}{CLEAR}revision 0002, 2 of {total}" in up.err
    assert up.err.endswith(CLEAR)
    again = said("migrate", "up", url=db.url, terminals=())
    assert (again.out, again.err) == (f"at revision {head()}\n", "")


@pytest.mark.long
def test_an_interrupted_migration_says_where_the_database_is(db: Database) -> None:
    before = f"{int(head()) - 1:04}"
    assert said("migrate", "down", before, "--yes", url=db.url).code == 0
    with psycopg.connect(db.url) as holder:
        holder.execute("LOCK TABLE horsies_tasks, horsies_alembic_version IN ACCESS SHARE MODE")
        run = Run("migrate", "down", "base", "--yes", url=db.url)
        run.until(lambda one: "horsies-migrate: waiting: session" in one.text("err"))
        run.interrupt()
        ran = run.ended()
    assert ran.code == 130
    assert "interrupted; each revision is a transaction of its own" in ran.err
    assert "Traceback" not in ran.err
    found = said("migrate", "current", url=db.url, terminals=()).out.strip()
    assert found <= before
    assert said("migrate", "up", url=db.url).out == f"at revision {head()}\n"


def test_a_second_ctrl_c_stops_at_once(db: Database) -> None:
    plant(db, 600)
    with psycopg.connect(db.url) as holder:
        holder.execute("LOCK TABLE horsies_tasks IN SHARE MODE")  # readers pass, writers wait
        run = Run("tasks", "retry", "--status", "cancelled", "--yes", url=db.url)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        run.until(lambda _: db.execute(waits) == [(1,)])
        run.interrupt()
        run.until(lambda one: "stopping after this batch" in one.text("err"))
        run.interrupt()
        ran = run.ended()
    assert ran.code == 130
    assert "retried 0 tasks; the batch under way may be done as well" in ran.err
    assert "Traceback" not in ran.err
