"""The worker's log lines: names and errors can neither control the terminal nor look like other log lines."""

import io
import logging
from collections.abc import Iterator

import pytest

from horsies._text import Lines
from horsies_worker.output.log_queue import queued_logging

HOSTILE = "mail\x1b]0;owned\x07\n2026-01-01 CRITICAL horsies.worker: all is lost\t\u202e"


@pytest.fixture
def sink() -> Iterator[io.StringIO]:
    """The root logger with one handler, as an app configures it."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    root.handlers[:] = [logging.StreamHandler(stream)]
    root.setLevel(logging.INFO)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_names_stay_on_one_line_without_control_characters(sink: io.StringIO) -> None:
    with queued_logging():
        log = logging.getLogger("horsies.worker")
        log.info("  app  %s, %d tasks", HOSTILE, 1)
        log.warning("claim: %s", ValueError(HOSTILE))
        log.info("%(name)s", {"name": HOSTILE})
    text = sink.getvalue()
    assert len(text.splitlines()) == 3
    assert not any(char in text for char in ("\x1b", "\x07", "\t", "\u202e"))
    assert "mail\\x1b]0;owned\\x07\\n2026" in text


def test_a_traceback_keeps_its_lines_without_control_characters(sink: io.StringIO) -> None:
    with queued_logging():
        log = logging.getLogger("horsies.worker.pool")
        log.error("no child: %s", Lines("Traceback\n  File\x1b[2J"))
        try:
            raise RuntimeError(HOSTILE)
        except RuntimeError:
            log.exception("unexpected")
    text = sink.getvalue()
    assert "no child: Traceback\n  File\\x1b[2J\n" in text
    assert "RuntimeError" in text
    assert "\x1b" not in text


def test_log_lines_of_the_app_are_unchanged(sink: io.StringIO) -> None:
    with queued_logging():
        logging.getLogger("shop").info("%s", "two\nlines\x1b[1m")
    assert sink.getvalue() == "two\nlines\x1b[1m\n"
