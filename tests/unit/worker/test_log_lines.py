"""Log lines of attempts, and the JSON lines of all records."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from horsies.events import AttemptFailed, AttemptSucceeded
from horsies_worker.events import log_lines
from horsies_worker.events.bus import EventBus
from horsies_worker.output.log_context import configure_logging, name_worker
from horsies_worker.output.log_queue import queued_logging

FORGED = "2026-01-01 00:00:00,000 CRITICAL horsies.worker: all is lost"
TRACEBACK = f'Traceback (most recent call last):\n  File "shop.py", line 1, in pay\nValueError: no\n{FORGED}\x1b[2J\n'
OK = AttemptSucceeded("t-1", "pay", "mail", 2, 0.25, 1.5, '{"tenant": "acme", "horsies.trace": {"a": 1}}', 77)


def failed(kind: Any = "error", *, will_retry: bool = False, **changes: Any) -> AttemptFailed:
    given = {
        "task_id": "t-1", "task_name": "pay", "queue_name": "mail", "attempt": 2, "kind": kind, "error_code": "DOWN",
        "message": "no answer", "traceback": TRACEBACK, "will_retry": will_retry,
        "retry_delay_s": 2.5 if will_retry else 0.0, "duration_s": 0.25, "wait_s": 1.5,
        "metadata": '{"tenant": "acme", "horsies.trace": {"a": 1}}', "pid": 77, **changes,
    }  # fmt: skip
    return AttemptFailed(**given)


class Sink:
    """What a worker with this format writes; `style` is that of --log-format."""

    def __init__(self, style: str, stream: io.StringIO) -> None:
        self.style = style
        self.stream = stream

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return [json.loads(line, parse_constant=refuse) for line in self.text.splitlines()]

    def told(self, *events: AttemptFailed | AttemptSucceeded, log_tasks: bool = False) -> str:
        bus = EventBus()
        with queued_logging():
            log_lines.subscribe(bus, log_tasks=log_tasks)
            for event in events:
                bus.emit(event)
        return self.text


@pytest.fixture(params=["text", "json"])
def style(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def sink(style: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers[:] = []
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging("INFO", style)
    name_worker("w-1")
    yield Sink(style, stream)
    name_worker("")
    root.handlers[:] = before
    root.setLevel(level)


only_json = pytest.mark.parametrize("style", ["json"])
only_text = pytest.mark.parametrize("style", ["text"])


# -- attempts ------------------------------------------------------------------------------------


@only_json
@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (failed(), "ERROR", "failed after 0.250 s: DOWN: no answer"),
        (failed(will_retry=True), "WARNING", "failed after 0.250 s, will be retried in 2.5 s: DOWN: no answer"),
        (failed("timeout"), "ERROR", "timed out after 0.250 s: DOWN: no answer"),
        (failed("crashed", message=None), "ERROR", "crashed after 0.250 s: DOWN"),
        (failed("cancelled", duration_s=None, wait_s=None), "INFO", "was cancelled: DOWN: no answer"),
        (failed("interrupted"), "ERROR", "was interrupted by the shutdown after 0.250 s: DOWN: no answer"),
        (failed(message=None), "ERROR", "failed after 0.250 s: DOWN"),
    ],
)  # fmt: skip
def test_levels_and_words(sink: Sink, event: AttemptFailed, level: str, text: str) -> None:
    sink.told(event)
    (line,) = sink.lines
    assert line["level"] == level
    assert line["message"] == f"task t-1 (pay) attempt 2: {text}"
    assert ("traceback" in line) == (level == "ERROR")
    assert line["will_retry"] is event.will_retry


@only_json
def test_the_fields_of_a_failure(sink: Sink) -> None:
    sink.told(failed())
    (line,) = sink.lines
    assert line.pop("time")
    assert line.pop("pid")
    assert line.pop("message")
    assert line == {
        "level": "ERROR", "logger": "horsies.worker.attempts", "worker_id": "w-1", "task_id": "t-1", "task_name": "pay",
        "attempt": 2, "queue": "mail", "duration_s": 0.25, "wait_s": 1.5, "error_code": "DOWN", "will_retry": False,
        "metadata": {"tenant": "acme"}, "traceback": TRACEBACK,
    }  # fmt: skip


@only_json
def test_successes_are_told_on_request(sink: Sink) -> None:
    assert sink.told(OK) == ""
    sink.told(OK, log_tasks=True)
    (line,) = sink.lines
    assert line["message"] == "task t-1 (pay) attempt 2: succeeded in 0.250 s"
    assert (line["level"], line["queue"], line["metadata"]) == ("INFO", "mail", {"tenant": "acme"})
    assert (line["duration_s"], line["wait_s"]) == (0.25, 1.5)


@only_text
def test_a_traceback_is_readable_and_forges_no_line(sink: Sink) -> None:
    text = sink.told(failed(task_name=f"pay\n{FORGED}", message=f"no\n{FORGED}"))
    assert "no\\n2026-01-01 00:00:00,000 CRITICAL horsies.worker: all is lost\n  Traceback (most recent" in text
    assert '\n    File "shop.py", line 1, in pay\n  ValueError: no\n' in text
    assert not any(line.startswith(FORGED) for line in text.splitlines())
    assert "\x1b" not in text


def test_an_exception_of_the_worker_is_readable_and_forges_no_line(sink: Sink) -> None:
    with queued_logging():
        try:
            raise ValueError(f"no\n{FORGED}")
        except ValueError:
            logging.getLogger("horsies.worker").exception("a service failed")
    if sink.style == "text":
        assert ": a service failed\n  Traceback (most recent call last):\n" in sink.text
        assert not any(line.startswith(FORGED) for line in sink.text.splitlines())
    else:
        (line,) = sink.lines
        assert line["message"] == "a service failed"
        assert line["exception"].startswith("Traceback (most recent call last)")


# -- the app's own records -----------------------------------------------------------------------


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Broken(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no items")


AROUND: list[object] = []
AROUND.append(AROUND)


@only_json
@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": [1, None, True]}, {"a": [1, None, True]}),
        (Odd(), "<its __str__ raised RuntimeError>"),
        ({(1, 2): 3, "b": {4}}, {"(1, 2)": 3, "b": "{4}"}),
        ([float("nan"), float("inf"), 0.5], ["nan", "inf", 0.5]),
        ("\ud800\n", "?\n"),
        (b"raw", "b'raw'"),
    ],
)
def test_any_extra_fits_into_a_line(sink: Sink, value: object, shown: object, queued: bool) -> None:
    def tell() -> None:
        logging.getLogger("shop").warning("paid", extra={"odd": value, "order": 7})

    if queued:
        with queued_logging():
            tell()
    else:  # as in a child
        tell()
    (line,) = sink.lines
    assert (line["odd"], line["order"], line["message"]) == (shown, 7, "paid")


@only_json
@pytest.mark.parametrize("value", [AROUND, Broken(a=1), {"deep": Broken(a=1)}])
def test_what_cannot_be_shown_does_not_hide_the_rest(sink: Sink, value: object) -> None:
    logging.getLogger("shop").warning("paid", extra={"odd": value, "order": 7})
    (line,) = sink.lines
    assert (line["order"], line["message"]) == (7, "paid")


@only_json
def test_an_extra_cannot_replace_a_field(sink: Sink) -> None:
    mine = {"level": "forged", "worker_id": "forged", "time": "forged", "task": "mine", "exception": "mine"}
    with queued_logging():
        logging.getLogger("shop").warning("paid", extra=mine)
    (line,) = sink.lines
    assert (line["level"], line["worker_id"], line["task"], line["exception"]) == ("WARNING", "w-1", "mine", "mine")


def test_an_extra_named_like_ours_does_not_break_a_text_line(sink: Sink) -> None:
    with queued_logging():
        logging.getLogger("shop").warning("paid", extra={"task": "mine", "traceback": "mine", "horsies_task": "mine"})
    assert "paid" in sink.text
    assert len(sink.text.splitlines()) == 1


def test_arguments_that_do_not_fit_the_message_do_not_reach_the_caller(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with queued_logging():
        logging.getLogger("shop").warning("%d", "no number")
        logging.getLogger("shop").warning("next")
    assert "next" in sink.text


def test_a_formatter_of_the_app_gets_the_whole_text(sink: Sink) -> None:
    """Also one that looks at `exc_info` alone, which a queued record does not have."""
    logging.getLogger().handlers[0].setFormatter(logging.Formatter("%(order)s %(message)s"))
    with queued_logging():
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("shop").exception("failed", extra={"order": 7}, stack_info=True)
    assert sink.text.startswith("7 failed\nTraceback (most recent call last):\n")
    assert "KeyError: 'x'\nStack (most recent call last):\n" in sink.text


def formatted(style: str, message: str, **more: Any) -> str:
    stream = io.StringIO()
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers[:] = []
    try:
        configure_logging("INFO", style)
        (handler,) = root.handlers
        record = logging.LogRecord("shop", logging.WARNING, __file__, 1, message, (), None)
        vars(record).update(more)
        handler.filter(record)
        stream.write(handler.format(record))
    finally:
        root.handlers[:] = before
    return stream.getvalue()


def test_half_a_surrogate_pair_is_no_json() -> None:
    line = formatted("json", "odd \ud800 and \U0001f600", name_of_file="\udcff")
    assert "\\ud800" not in line
    assert "\\udcff" not in line
    assert json.loads(line)["message"] == "odd ? and \U0001f600"
    assert line.isascii()


def test_the_stack_of_a_record_is_a_field() -> None:
    assert json.loads(formatted("json", "here", stack_info="Stack (most recent call last)"))["stack"].startswith(
        "Stack"
    )


def test_no_message_of_several_lines_looks_like_a_line() -> None:
    text = formatted("text", "first\n2026-01-01 00:00:00,000 CRITICAL horsies.worker: all is lost\n  indented")
    assert [line for line in text.split("\n")[1:] if not line.startswith("  ")] == []
    assert "\n  indented" in text
