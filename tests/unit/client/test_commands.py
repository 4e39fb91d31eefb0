"""The words of the command line: spans, cells, tables, cursors, filters."""

import argparse
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies import ConfigurationError, TaskCursor, TaskFilter, TaskStatus
from horsies._pg.rows import json_object, json_value
from horsies._text import plural, span
from horsies.operate.commands._common import at_least_one, duration
from horsies.operate.commands._print import CELL, cell, say_json, say_table


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7_200), ("7d", 604_800), ("1h30m", 5_400), ("2w", 1_209_600), ("1.5h", 5_400),
     ("250ms", 0.25), ("0s", 0)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1 h", "1h 30m", "1y", "1e3s", "٣h", "99999w", "1hh", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "1.5", "1" * 30])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        at_least_one(text)
    assert at_least_one("7") == 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.04, "40 ms"), (-0.5, "-500 ms"), (1, "1.0 s"),
     (9.94, "9.9 s"), (10, "10 s"), (59.9, "59 s"), (60, "1 m"), (61, "1 m 1 s"),
     (3_600, "1 h"), (3_661, "1 h 1 m"), (86_400, "1 d"), (90_000, "1 d 1 h"), (-5, "-5.0 s"), (-7_260, "-2 h 1 m")],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_plural() -> None:
    assert [plural(count, "task") for count in (0, 1, 2, 20_000)] == ["0 tasks", "1 task", "2 tasks", "20,000 tasks"]


def test_cells_are_inert_and_short() -> None:
    assert cell(None) == "-"
    assert cell(True) == "yes"
    assert cell(["a", "b"]) == "a, b"
    assert cell("a\nb\tc\x1b[2J\u202e") == r"a\nb\tc\x1b[2J\u202e"
    assert len(cell("x" * 5_000_000)) == CELL
    assert cell(datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)) == "2026-01-02 03:04:05.678+00:00"
    assert cell("{0} %s %(x)s [red]") == "{0} %s %(x)s [red]"


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(["NAME", "N"], [("日本", 5), ("abcdefg", 12_345)], right=("N",))
    assert capsys.readouterr().out == "NAME         N\n日本         5\nabcdefg  12345\n"


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"a": "é\x7f\x9b\u202e", "b": timedelta(seconds=1.5), "c": float("nan"), "d": {TaskStatus.FAILED}})
    said = capsys.readouterr().out
    assert said.isascii()
    assert "\x7f" not in said
    assert r"\u00e9\u007f\u009b\u202e" in said
    assert '"b": 1.5' in said
    assert '"c": null' in said
    assert '"FAILED"' in said


@pytest.mark.parametrize("depth", [90, 500, 500_000])  # the last is too deep for the json module of every Python
def test_deep_nesting_is_printed_as_far_as_it_goes(depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"metadata": json_value("[" * depth + "]" * depth)})
    assert ("\\u2026" in capsys.readouterr().out) is (depth == 500)


def test_what_python_cannot_read_of_a_row_stays_text() -> None:
    digits = "9" * 5_000
    assert json_value(digits) == digits
    assert json_object(f'{{"a":{digits}}}') == {}
    assert json_object('{"a":1}') == {"a": 1}


# -- filters -------------------------------------------------------------------------------------


def test_a_filter_of_nothing_means_all() -> None:
    assert TaskFilter().is_empty
    assert TaskFilter().live | TaskFilter().ended == set(TaskStatus)
    assert not TaskFilter(queues="mail").is_empty
    assert TaskFilter(queues="mail").queues == ("mail",)
    assert TaskFilter(ids=["a", "a", "b"]).ids == ("a", "b")


def test_states_of_a_filter() -> None:
    assert TaskFilter(statuses=["FAILED", "PENDING"]).live == {TaskStatus.PENDING}
    assert TaskFilter(statuses=[TaskStatus.FAILED]).has_code
    assert not TaskFilter(statuses=["FAILED", "CANCELLED"]).has_code
    assert TaskFilter(error_codes="X").live == TaskFilter(code_part="x").live == set()  # only ended tasks have a code
    assert TaskFilter(code_part="x").has_code
    assert TaskStatus.PENDING not in TaskFilter(worker_id="w").live | TaskFilter(worker_part="w").live
    assert TaskFilter(statuses=[]).live == TaskFilter(statuses=[]).ended == set()


def test_a_live_task_needs_no_code_because_a_failed_one_has_it() -> None:
    """`has_code` is the last parameter but one of the fragment `task_filter`."""
    both = TaskFilter(statuses=["PENDING", "FAILED"])
    assert both.call("list_ended_tasks", both.ended)[-2] is True
    assert both.call("list_live_tasks", both.live)[-2] is False


def test_metadata_is_compared_as_the_text_that_postgresql_gives() -> None:
    given = {"tenant": "acme", "n": 5, "is_test": True, "share": 0.5, "huge": 1e20, "small": 1e-7}
    filter = TaskFilter(metadata=given)
    assert not filter.is_empty
    name, *_, texts = filter.call("list_live_tasks", filter.live)
    assert name == "list_live_tasks_by_metadata"
    assert json.loads(texts) == {
        "tenant": "acme", "n": "5", "is_test": "true", "share": "0.5", "huge": "1" + "0" * 20, "small": "0.0000001",
    }  # fmt: skip
    assert TaskFilter(metadata={}).is_empty
    assert TaskFilter().call("list_live_tasks", filter.live)[0] == "list_live_tasks"
    assert hash(filter) == hash(TaskFilter())  # it can be a key, whatever its mapping


def test_how_far_back_metadata_is_looked_for() -> None:
    day, hour = timedelta(days=1), timedelta(hours=1)
    meta = {"tenant": "acme"}
    assert TaskFilter(metadata=meta).window == day
    assert TaskFilter(metadata=meta, older_than=hour).window == day + hour
    for unbounded in (
        TaskFilter(), TaskFilter(metadata=meta, newer_than=hour), TaskFilter(metadata=meta, ids=[ID]),
        TaskFilter(metadata=meta, statuses=["PENDING", "RUNNING"]),
    ):  # fmt: skip
        assert unbounded.window is None


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("tenant=acme", "must be a mapping"), ({"": "acme"}, "is empty"), ({5: "acme"}, "must be a string"),
        ({"tenant": None}, "cannot be compared with the value of 'tenant'"), ({"tenant": ["a"]}, "cannot be compared"),
        ({"n": float("nan")}, "no task can have 'n'"), ({"a": "\0"}, "no task can have"),
        ({"a": "\ud800"}, "no task can have"),
    ],
)  # fmt: skip
def test_metadata_that_no_task_can_have(metadata: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"TaskFilter\.metadata: .*{why}"):
        TaskFilter(metadata=metadata)


def test_every_problem_of_a_filter_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        TaskFilter(ids=["x" * 37], statuses=["DONE"], queues=[""], worker_id="", older_than=5)  # type: ignore[list-item,arg-type]
    assert [problem.where for problem in caught.value.problems] == [
        "TaskFilter.ids", "TaskFilter.queues", "TaskFilter.statuses", "TaskFilter.worker_id", "TaskFilter.older_than",
    ]  # fmt: skip


@pytest.mark.parametrize("ended", [None, datetime(2026, 1, 2, 3, 4, 5, 6, UTC)])
def test_a_cursor_can_be_kept_as_text(ended: datetime | None) -> None:
    cursor = TaskCursor(ID, ended)
    assert TaskCursor.parse(str(cursor)) == cursor


ID = "0199aaaa-0000-7000-8000-000000000001"
MOMENT = "@2026-01-02T03:04:05+00:00"


@pytest.mark.parametrize(
    "text", ["", "xx", "x" * 37, *(f"{ID}{end}" for end in ("@", "@soon", "@2026-01-02")), f"x{MOMENT}", MOMENT]
)
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(ValueError):
        TaskCursor.parse(text)


@pytest.mark.parametrize("span", [timedelta(hours=10**8), timedelta.max, timedelta(seconds=-1)])
def test_a_filter_that_looks_back_too_far(span: timedelta) -> None:
    for name in ("older_than", "newer_than"):
        with pytest.raises(ConfigurationError, match=rf"TaskFilter\.{name}: .* is not a span of 0 to 100 years"):
            TaskFilter(**{name: span})  # type: ignore[arg-type]
