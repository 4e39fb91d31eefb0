"""`horsies top` in a real terminal: what it shows, its keys, its end, and a database that goes away."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from horsies.operate.commands._print import text_width
from horsies.operate.commands._top_reading import RUNNING, TopFigures, read_top
from horsies.operate.commands._top_view import Look, picture
from tests.support import factories
from tests.support.apps import make_app
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.counting import calls, start_counting
from tests.support.factories import ago
from tests.support.operator import Operator, as_process
from tests.support.postgres import Database
from tests.support.terminals import Terminal, has_tmux
from tests.support.waiting import eventually

pytestmark = pytest.mark.breaks("T8")  # stale tasks are planted
TOP = [sys.executable, "-m", "horsies.cli", "top", "--interval", "0.5"]
in_terminal = pytest.mark.skipif(not has_tmux(), reason="tmux is not installed")
LONG_AGO = {"enqueued_at": ago(hours=1), "claimed_at": ago(hours=1), "started_at": ago(hours=1)}


@pytest.fixture
def busy(db: Database) -> Database:
    """A worker with two running tasks, one of which is stale, and two tasks that wait."""
    factories.worker_state(db, hostname="web-1", queues=["default", "mail"])
    running = factories.task(db, "RUNNING", task_name="resize", queue_name="mail")
    factories.heartbeat(db, running)
    factories.task(db, "RUNNING", task_name="stuck", **LONG_AGO)
    for name in ("名前が長い" * 20, "plain"):
        factories.task(db, task_name=name)
    return db


@pytest.fixture
def pid_file(tmp_path: Path) -> Path:
    return tmp_path / "pid"


def opened(url: str, size: tuple[int, int] = (120, 30), *options: str, **environment: str) -> Terminal:
    return Terminal([*TOP, *options], size, HORSIES_DATABASE_URL=url, **environment)


@in_terminal
@pytest.mark.parametrize(
    "size", [(80, 24), *(pytest.param(one, marks=pytest.mark.long) for one in ((200, 50), (40, 8), (10, 3)))]
)
def test_it_fits_every_terminal(busy: Database, size: tuple[int, int]) -> None:
    with opened(busy.url, size) as terminal:
        terminal.shows("horsies t")
        eventually(lambda: len(terminal.text().splitlines()) <= size[1])
        lines = terminal.text().rstrip("\n").splitlines()
        assert lines[0].startswith("horsies t")
        if size[1] >= 24:
            text = terminal.text()
            for word in ("web-1:4711", "alive", "mail", "resize", "stuck", "STALE TASK", "q quit"):
                assert word in text, text
        terminal.keys("q")
        eventually(lambda: terminal.exit_code == 0)


@pytest.mark.long
@in_terminal
def test_its_keys(busy: Database) -> None:
    with opened(busy.url) as terminal:
        terminal.shows("(sorted by age)")
        terminal.keys("s")
        terminal.shows("(sorted by task)")
        terminal.keys("p")
        terminal.shows("PAUSED")
        factories.task(busy, "RUNNING", task_name="newcomer")
        terminal.keys("Up", "x")  # no key of it
        assert "newcomer" not in terminal.text()
        terminal.keys("r")
        terminal.shows("newcomer")
        terminal.keys("p")
        eventually(lambda: "PAUSED" not in terminal.text())
        factories.task(busy, "RUNNING", task_name="latecomer")
        terminal.shows("latecomer")
        terminal.keys("q")
        eventually(lambda: terminal.exit_code == 0)


def in_shell(url: str, pid_file: Path) -> Terminal:
    """Top in a shell that says afterwards how the terminal is."""
    code = (
        f'before=$(stty -g); (echo $BASHPID > {pid_file}; exec "$@"); code=$?; '
        'test "$before" = "$(stty -g)" && echo "code=$code terminal=same" || echo "code=$code terminal=other"; sleep 60'
    )
    return Terminal(["bash", "-c", code, "bash", *TOP], (100, 20), HORSIES_DATABASE_URL=url)


@in_terminal
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
        pytest.param(None, 0, marks=pytest.mark.long),
    ],
)
def test_it_gives_the_terminal_back(busy: Database, pid_file: Path, number: int | None, code: int) -> None:
    with in_shell(busy.url, pid_file) as terminal:
        terminal.shows("horsies top")
        if number is None:
            terminal.keys("q")
        else:
            os.kill(int(pid_file.read_text()), number)
        terminal.shows(f"code={code} terminal=same")
        assert "horsies top" not in terminal.text()  # the screen of before is back


@pytest.mark.long
@in_terminal
def test_ctrl_c_and_ctrl_z(busy: Database) -> None:
    with Terminal(["bash", "--norc", "-i"], (100, 20), HORSIES_DATABASE_URL=busy.url, PS1="ready> ") as terminal:
        terminal.shows("ready>")
        terminal.keys(" ".join(TOP), "Enter")
        terminal.shows("horsies top")
        terminal.keys("C-z")
        terminal.shows("Stopped")
        terminal.keys("fg", "Enter")
        terminal.shows("(sorted by age)")
        terminal.keys("C-c")
        terminal.shows("ready>")
        terminal.keys("echo code=$?", "Enter")
        terminal.shows("code=130")


@pytest.mark.long
@in_terminal
def test_a_database_that_goes_away_and_comes_back(busy: Database) -> None:
    with ChaosProxy(busy.url) as proxy, opened(proxy.url) as terminal:
        terminal.shows("web-1:4711")
        proxy.set(Mode.CUT)
        proxy.cut()
        terminal.shows("trying again")
        assert "web-1:4711" in terminal.text()  # what was seen last stays
        proxy.set(Mode.PASS)
        eventually(lambda: "trying again" not in terminal.text())
        proxy.set(Mode.FREEZE)
        terminal.shows("waiting for the database")
        terminal.keys("q")  # keys work while it waits
        eventually(lambda: terminal.exit_code == 0)
        proxy.set(Mode.PASS)


def test_no_line_is_wider_or_higher_than_the_terminal(busy: Database) -> None:
    """Every size, without a terminal: the picture is a pure function."""

    async def read() -> TopFigures:
        async with make_app(busy.url) as app:
            return await read_top(app.get_broker())

    seen = asyncio.run(read())
    for width in (1, 2, 7, 20, 33, 80, 132, 300):
        for height in (1, 2, 3, 5, 10, 24, 80, None):
            for notice in ("", "the database is away " * 20):
                lines = picture(seen, Look(width, height, notice=notice))
                assert max(text_width(line) for line in lines) <= width, (width, height)
                assert height is None or len(lines) == height


def test_once_in_a_pipe(busy: Database, operator: Operator) -> None:
    ran = as_process("top", url=busy.url)
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    for word in ("web-1:4711", "resize", "STALE TASK", "名前が長い"):
        assert (word in ran.out) == (word != "名前が長い"), ran.out  # a waiting task is only counted
    figures = operator.json("top")
    assert [one["task_name"] for one in figures["running"]] == ["stuck", "resize"]
    assert figures["stale"][0][0]["task_name"] == "stuck"
    assert figures["figures"]["queues"][0]["name"] == "default"


def test_without_workers_and_tasks(operator: Operator) -> None:
    ran = operator("top", "--once")
    assert ran.code == 0
    assert "no worker was seen lately" in ran.out


def test_hostile_names_stay_on_their_line(db: Database, operator: Operator) -> None:
    factories.task(db, "RUNNING", task_name="x\x1b[2J\nhorsies: fake")
    ran = operator("top", "--once")
    assert "\x1b" not in ran.out
    assert r"x\x1b[2J\nhorsies: fake" in ran.out


def test_it_refuses_an_interval_that_is_none(operator: Operator) -> None:
    for text in ("0", "nan", "fast", "99999"):
        ran = operator("top", "--interval", text)
        assert ran.code == 2
        assert "is not a number of seconds from 0.5 to 3600" in ran.err


@pytest.fixture
def counted(db: Database) -> Database:
    start_counting(db)
    return db


def test_its_cost_does_not_grow_with_the_tasks(counted: Database, operator: Operator) -> None:
    """As many statements for 3 tasks and for 3,000, and a bounded number of rows."""
    spent: list[int] = []
    for tasks in (3, 3_000):
        counted.execute(
            "INSERT INTO horsies_tasks (id, task_name, status, kwargs, max_retries)"
            " SELECT gen_random_uuid()::text, 'add', 'PENDING', '{}', 0 FROM generate_series(1, %s)",
            tasks,
        )
        before = calls(counted)
        assert operator("top", "--once").code == 0
        spent.append(calls(counted) - before)
    assert spent[0] == spent[1] <= 60
    seen = operator.json("top")
    assert seen["figures"]["queues"][0]["ready"] <= 3_003
    assert len(seen["running"]) <= RUNNING
