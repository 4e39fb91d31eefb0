"""Waits, branches, maps over workflows, continuations and compensations are checked where they are written."""

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from horsies import (
    AppConfig,
    Continue,
    Horsies,
    PostgresConfig,
    TaskError,
    TaskResult,
    TaskSendError,
    UsageError,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
    either,
    from_node,
    map_workflow,
    sleep,
    wait_for_signal,
)
from horsies.codec import decode_untyped_result, encode_untyped_call
from horsies.workflow.run_options import RunOptions
from horsies.workflow.signals import encode_signal
from horsies.workflow.start import Start, graph_data

Number = TaskResult[int, TaskError]
app = Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d")))
other = Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d")))


@app.task("number")
def number(n: int) -> Number:
    return TaskResult(ok=n)


@app.task("yes")
def yes() -> TaskResult[bool, TaskError]:
    return TaskResult(ok=True)


@app.task("numbers")
def numbers(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(n)))


@app.task("bare")
def bare() -> TaskResult[list, TaskError]:
    return TaskResult(ok=[])


@app.task("undo")
def undo(value: int, n: int, reason: str = "") -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("undo_text")
def undo_text(value: str, missing: int, n: str = "") -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("undo_nothing")
def undo_nothing() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@other.task("foreign")
def foreign(value: int) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


def problems(nodes: list[Any], **options: Any) -> str:
    with pytest.raises(WorkflowDefinitionError) as caught:
        app.workflow("refused", nodes, **options)
    return str(caught.value)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    decides = number.node(node_id="decides")(1)
    told = problems(
        [
            decides,
            number.node(node_id="a", when=decides)(1),  # type: ignore[arg-type]
            number.node(node_id="b", when=yes.node()())(1),
            number.node(node_id="c", when=decides, unless=decides)(1),  # type: ignore[arg-type]
            number.node(node_id="d", when="yes")(1),  # type: ignore[arg-type]
            number.node(node_id="e", compensate=undo_text)(1),  # type: ignore[arg-type]
            number.node(node_id="f", compensate=undo_nothing)(1),  # type: ignore[arg-type]
            number.node(node_id="g", compensate=foreign)(1),
            number.node(node_id="h", compensate=5)(1),  # type: ignore[arg-type]
            sleep(-1, node_id="i"),
            sleep(datetime(2030, 1, 1), node_id="j"),
            wait_for_signal("", bool, node_id="k"),
            wait_for_signal("x", bool, timeout="soon", node_id="l"),  # type: ignore[arg-type]
            wait_for_signal("x", object(), node_id="m"),  # type: ignore[arg-type]
        ]
    )
    for part in (
        "node 'a': when decides on the value of <TaskNode decides>, which returns int, not a bool",
        "node 'b': when names <TaskNode yes>, which is not in this workflow",
        "node 'c': when and unless are both given",
        "node 'd': when is 'yes' (str), not a node",
        "node 'e': compensate: parameter 'value' of task 'undo_text' takes str, and the node returns int",
        "node 'e': compensate: parameter 'missing' of task 'undo_text' is neither the node's value nor one of its",
        "node 'e': compensate: parameter 'n' of task 'undo_text' takes str, and the node's argument of this name is",
        "node 'f': compensate: task 'undo_nothing' takes no parameter for the value to undo",
        "node 'g': compensate: task 'foreign' belongs to another app",
        "node 'h': compensate: is 5, not a task",
        "node 'i': its time is -1",
        "node 'j': 2030-01-01T00:00:00 has no time zone",
        "node 'k': ",
        "node 'l': its timeout is 'soon'",
        "node 'm': a signal cannot have this type",
    ):
        assert part in told


def test_a_condition_is_an_edge_that_may_close_a_circle() -> None:
    a = yes.node(node_id="a")()
    b = yes.node(node_id="b", when=a)()
    object.__setattr__(a.options, "when", b)
    assert "waits in a circle" in problems([a, b])


def test_the_types_of_all_branches_are_checked() -> None:
    a, b = number.node(node_id="a")(1), yes.node(node_id="b")()
    told = problems([a, b, number.node(node_id="c")(either(a, b))])
    assert "node 'c': parameter 'n' takes int, and <TaskNode b> returns bool" in told


def test_a_map_over_workflows_is_checked() -> None:
    def build(item: int) -> WorkflowSpec[int]:
        node = number.node()(item)
        return app.workflow("one", [node], output=node)

    items = numbers.node(node_id="items")(3)
    mapped = map_workflow(items, build, node_id="mapped")
    assert mapped.result_type == list[int]
    assert map_workflow(items, build, partial=True).result_type == list[TaskResult[int, TaskError]]
    assert "let the upstream return a list" in problems([bad := number.node()(1), map_workflow(bad, build)])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes a function of the item"):
        map_workflow(items, app.workflow("two", [number.node()(1)]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a workflow"):
        map_workflow(items, number.node())  # type: ignore[arg-type]
    (_, node) = graph_data(app.workflow("all", [items, mapped]))["nodes"]
    inner = node["kwargs"]["map"]["graph"]["nodes"][0]
    assert inner["args_from"] == {"n": {"item": True, "bare": True}}


def test_values_around_a_map_over_workflows_are_found() -> None:
    outer, items = number.node(node_id="outer")(1), numbers.node(node_id="items")(3)

    class Inner(WorkflowDefinition[int], app=app, name="inner"):
        @classmethod
        def build_with(cls, item: int, plus: int) -> WorkflowSpec[int]:
            first = number.node(node_id="first")(item)
            second = number.node(node_id="second", waits_for=[first])(plus)
            return cls.workflow([first, second], output=second)

    mapped = map_workflow(items, lambda item: Inner.build_with(item, from_node(outer)), node_id="mapped")
    spec = app.workflow("around", [outer, items, mapped])
    assert spec.wired[2].dependencies == (0, 1)
    inner = graph_data(spec)["nodes"][2]["kwargs"]["map"]["graph"]["nodes"]
    assert inner[1]["args_from"] == {"n": {"at": 0, "up": 2, "bare": True}}


def test_continue_takes_a_workflow_of_the_same_type() -> None:
    good = app.workflow("good", [node := number.node()(1)], output=node)
    wrong = app.workflow("wrong", [node := yes.node()()], output=node)
    codec = number.definition.codec
    text = codec.encode_outcome(Continue(good)).json
    assert text.startswith('{"continue":{"name":"good"')
    refused = codec.encode_outcome(Continue(wrong)).error
    assert refused is not None
    assert refused.error_code == "RETURN_TYPE_MISMATCH"
    assert "workflow 'wrong' returns bool, and the task returns int" in refused.message
    assert decode_untyped_result(text).err_value.error_code == "RESULT_NOT_AVAILABLE"
    with pytest.raises(TypeError, match="Continue takes a workflow"):
        Continue(5)  # type: ignore[arg-type]


def test_the_options_of_a_run_are_checked_at_once() -> None:
    spec = app.workflow("options", [number.node()(1)])
    with pytest.raises(TaskSendError) as caught:
        Start(spec, None, None, RunOptions(priority=101, unique_key="", start_at=-5, deadline=datetime(2030, 1, 1)))
    for part in ("priority", "unique_key", "start_at", "deadline"):
        assert part in str(caught.value)


def test_options_are_part_of_what_a_start_is() -> None:
    spec = app.workflow("identity", [number.node()(1)])

    def sha(**options: Any) -> str:
        import json

        start = Start(spec, None, None, RunOptions(**options))
        return json.loads(start.statement()[1][0])["enqueue_sha"]

    assert sha() == sha()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    found = {sha(), sha(priority=1), sha(unique_key="k"), sha(start_at=5), sha(start_at=moment), sha(deadline=5)}
    assert len(found) == 6


def test_a_signal_is_checked_by_the_type_of_its_node() -> None:
    wait = wait_for_signal("amount", int)
    spec = app.workflow("paying", [wait])
    assert encode_signal(wait, 5, spec) == ("amount", "5")
    assert encode_signal("amount", 5, spec) == ("amount", "5")
    with pytest.raises(TaskSendError, match="signal 'amount': the value does not fit its type"):
        encode_signal(wait, "five", spec)
    with pytest.raises(TaskSendError, match="does not fit its type"):
        encode_signal("amount", "five", spec)
    with pytest.raises(UsageError, match="did you mean 'amount'"):
        encode_signal("amuont", 5, spec)
    with pytest.raises(UsageError, match="waits for no signal"):
        encode_signal(number.node()(1), 5, spec)  # type: ignore[arg-type]
    with pytest.raises(TaskSendError, match="cannot be written as JSON"):
        encode_signal("anything", object(), None)


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (bytes, b"\xff\x00", '"_wA="'),
        (bytes, b"data", '"ZGF0YQ=="'),
        (list[date | None], [date(2026, 1, 2), None], '["2026-01-02",null]'),
        (set[str], {"pear", "apple"}, '["apple","pear"]'),
        (timedelta, timedelta(days=1), '"P1D"'),
    ],
)
def test_a_signal_by_name_is_written_as_a_task_that_is_sent_by_name(type_: Any, value: Any, text: str) -> None:
    assert encode_signal("anything", value, None) == ("anything", text)
    assert encode_untyped_call((value,), {}, task_name="anything").args_json == f"[{text}]"
    waits = wait_for_signal("anything", type_)
    assert waits.codec.decode_result(f'{{"ok":{text}}}').ok_value == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "the value cannot be sent: NaN has no JSON form"),
        ({"rates": [float("inf")]}, "the value cannot be sent at value.rates[0]: Infinity has no JSON form"),
        (Decimal("NaN"), "NaN has no JSON form"),
        ({1: 2}, "keys of JSON objects are strings"),
        ("a\0b", "NUL character"),
        ("\ud800", "lone surrogate"),
        pytest.param(10**5000, "cannot be written as JSON", id="a number with 5,001 digits"),
    ],
)
def test_a_signal_by_name_is_not_changed_on_its_way(value: Any, why: str) -> None:
    with pytest.raises(TaskSendError, match=f"^VALIDATION_FAILED: signal 'anything': .*{re.escape(why)}"):
        encode_signal("anything", value, None)


def test_waits_can_be_attributes_of_a_definition() -> None:
    class Approval(WorkflowDefinition[int], app=app, name="approval"):
        pause = sleep(timedelta(seconds=1))
        approved = wait_for_signal("approve", bool, waits_for=[pause])
        output = number.node(when=approved)(1)

    assert [wired.node_id for wired in Approval.build().wired] == ["pause", "approved", "output"]


@app.task("book")
def book(place: str, price: int = 5, *, when: datetime | None = None) -> TaskResult[str, TaskError]:
    return TaskResult(ok=place)


@app.task("unbook")
def unbook(receipt: str, price: int, when: datetime | None) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


def test_a_compensation_gets_the_defaults_of_the_node_too() -> None:
    spec = app.workflow("booking", [book.node(compensate=unbook)("rome")])
    (node,) = graph_data(spec)["nodes"]
    assert node["compensate"]["arguments"] == ["price", "when"]
    assert node["compensate"]["defaults"] == {"price": 5, "when": None}
    (node,) = graph_data(app.workflow("booked", [book.node(compensate=unbook)("rome", 7, when=None)]))["nodes"]
    assert "defaults" not in node["compensate"]


@app.task("pay")
def pay(amount: int, account: str = "main", /, note: str = "") -> TaskResult[int, TaskError]:
    return TaskResult(ok=amount)


@app.task("reserve")
def reserve(room: int, nights: int = 1, *guests: str, **extras: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=room)


@app.task("refund")
def refund(value: int, amount: int = 999, account: str = "other") -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("release")
def release(value: int, room: int, nights: int = 9, breakfasts: int = 0) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("invite")
def invite(value: int, guests: str = "") -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("annotate")
def annotate(value: int, note: str) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


def test_a_compensation_takes_no_arguments_without_names() -> None:
    for node, names in (
        (pay.node(compensate=refund)(50, "alice"), ["amount", "account"]),
        (reserve.node(compensate=release)(1, 2, "bob"), ["room", "nights"]),
        (reserve.node(compensate=invite)(1), ["guests"]),
    ):
        with pytest.raises(WorkflowDefinitionError) as caught:
            app.workflow("unnamed", [node])
        told = [problem.why.split(" is stored by position")[0] for problem in caught.value.problems]
        assert told == [f"compensate: the node's argument {name!r}" for name in names]


def test_a_compensation_takes_all_arguments_with_names() -> None:
    for node, names, defaults in (
        (pay.node(compensate=annotate)(50, "alice", "late"), ["note"], None),
        (reserve.node(compensate=release)(1), ["room", "nights"], {"nights": 1}),
        (reserve.node(compensate=release)(1, 2, breakfasts=3), ["room", "nights", "breakfasts"], None),
    ):
        (made,) = graph_data(app.workflow("named", [node]))["nodes"]
        assert made["compensate"]["arguments"] == names
        assert made["compensate"].get("defaults") == defaults
