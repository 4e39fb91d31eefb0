"""In a real terminal: started as people start it, driven by keys, left as it was found."""

import os
import sys

import pytest

from tests.support.factories import task
from tests.support.postgres import Database
from tests.support.terminals import Terminal, has_tmux
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not has_tmux(), reason="tmux is not installed")
DASHBOARD = [sys.executable, "-m", "horsies_tui"]
PATH = {"PYTHONWARNINGS": "default", "PATH": os.environ["PATH"]}


def test_a_session_at_80x24(db: Database) -> None:
    task(db, "FAILED", task_name="send_receipt")
    with Terminal(DASHBOARD, (80, 24), HORSIES_DATABASE_URL=db.url, **PATH) as terminal:
        terminal.shows("1 Overview")
        terminal.shows("live")
        terminal.keys("2")
        terminal.shows("send_receipt")
        terminal.keys("Enter")
        terminal.shows("FAILED")
        terminal.keys("Escape")
        terminal.shows("Mark all")  # an escape and a key right after it are one key to a terminal
        terminal.keys("?")
        terminal.shows("Space marks")
        terminal.keys("Escape")
        terminal.shows("Mark all")
        task(db, task_name="just_sent")
        terminal.shows("just_sent")
        terminal.keys("q")
        eventually(lambda: terminal.exit_code is not None, timeout=15, describe="q ends it")
        assert terminal.exit_code == 0
        assert "Traceback" not in terminal.text()


def test_without_a_database_it_says_how_to_name_one() -> None:
    with Terminal([*DASHBOARD], (140, 30), HORSIES_DATABASE_URL="", **PATH) as terminal:  # so wide that it is one line
        eventually(lambda: terminal.exit_code is not None, timeout=30)
        assert terminal.exit_code == 2
        # tmux scrolls by a line when the program has ended
        eventually(lambda: "HORSIES_DATABASE_URL" in terminal.history())
