"""What `horsies workflows check` compares: stored nodes with the tasks of a later release."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from horsies import TaskError, TaskResult, WorkflowContext, WorkflowMeta, from_node, result_from
from horsies.operate.workflow_check import MisfitKind
from horsies.operate.workflow_check.compare import compare, result_type
from horsies.operate.workflow_check.report import Findings, Misfit, Place
from horsies.operate.workflow_check.stored import StoredNode, UnreadableGraph
from horsies.workflow.graph import Graph
from horsies.workflow.start import graph_data
from tests.support.apps import make_app

Fn = Callable[..., Any]
Number = TaskResult[int, TaskError]


def number(n: int) -> Number:
    return TaskResult(ok=n)


def numbers(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[n])


def text(n: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=str(n))


def take(a: int, b: int = 0) -> Number:
    return TaskResult(ok=a + b)


class Release:
    """An app with these tasks, as attributes."""

    def __init__(self, **tasks: Fn) -> None:
        self.app = make_app("dbname=unused")
        self.tasks: dict[str, Any] = {name: self.app.task(name)(fn) for name, fn in tasks.items()}

    def __getattr__(self, name: str) -> Any:
        return self.tasks[name]

    def flow(self, *nodes: Any, **options: Any) -> Graph[Any]:
        return self.app.workflow("flow", list(nodes), **options)


def stored(spec: Graph[Any], **ended: str) -> dict[int, StoredNode]:
    """The nodes of a run of this workflow; those in `ended` have completed with this value, as JSON."""
    data = json.loads(json.dumps(graph_data(spec)))
    nodes = {index: StoredNode.from_graph(one) for index, one in enumerate(data["nodes"])}
    for index, node in nodes.items():
        if node.node_id in ended:
            nodes[index] = replace(node, status="COMPLETED", result='{"ok":' + ended[node.node_id] + "}")
    return nodes


def misfits(nodes: Mapping[int, StoredNode], later: Release) -> list[Misfit]:
    return [one for node in nodes.values() for one in compare(node, [nodes], later.app.registry)]


def told(nodes: Mapping[int, StoredNode], later: Release) -> list[tuple[str, str, str, str]]:
    return [(one.kind.value, one.task_name, one.subject, "/".join(one.path)) for one in misfits(nodes, later)]


# -- tasks ---------------------------------------------------------------------------------------


def test_the_same_code_fits() -> None:
    code = Release(number=number, take=take, numbers=numbers)
    one = code.number.node(node_id="one")(1)
    many = code.numbers.node(node_id="many")(1)
    nodes = stored(
        code.flow(one, many, code.take.node()(from_node(one), b=2), code.take.node(node_id="each").map(many, b=3)),
        one="5",
    )
    assert misfits(nodes, code) == []
    assert misfits(nodes, Release(number=number, take=take, numbers=numbers)) == []


def test_a_task_that_is_gone() -> None:
    code = Release(number=number, take=take)
    one = code.number.node(node_id="one")(1)
    nodes = stored(code.flow(one, code.take.node(node_id="two")(from_node(one))))
    (found,) = misfits(nodes, Release(number=number))
    assert (found.kind, found.task_name, found.path) == (MisfitKind.UNKNOWN_TASK, "take", ("two",))
    assert found.what == "task 'take' is not registered"
    assert "register a task of this name" in found.fix
    assert told(stored(code.flow(one), one="1"), Release(take=take)) == []  # it has ended


def test_a_task_that_is_gone_inside() -> None:
    code = Release(number=number, numbers=numbers)
    inner = code.app.workflow("inner", [code.number.node(node_id="deep")(1)])
    middle = code.app.workflow("middle", [inner.node(node_id="inner")])
    many = code.numbers.node(node_id="many")(1)
    nodes = stored(code.flow(many, middle.node(node_id="middle"), code.number.node(node_id="each").map(many)))
    later = Release(numbers=numbers)
    assert told(nodes, later) == [
        ("UNKNOWN_TASK", "number", "", "middle/inner/deep"), ("UNKNOWN_TASK", "number", "", "each"),
    ]  # fmt: skip
    begun = {index: replace(node, is_expanded=True) for index, node in nodes.items() if node.kind != "task"}
    assert told(begun, later) == []  # their runs have nodes of their own
    waits = StoredNode("sleeps", "sleep", "sleep")
    assert told({0: waits}, later) == []


def test_a_task_that_undoes() -> None:
    code = Release(number=number)
    row = StoredNode("pay", "task", "number", kwargs='{"n":1}', compensate="refund")
    assert told({0: row}, code) == [("UNKNOWN_TASK", "refund", "", "pay")]
    assert told({0: replace(row, status="COMPLETED")}, code) == [("UNKNOWN_TASK", "refund", "", "pay")]
    assert told({0: row}, Release(number=number, refund=number)) == []
    inner = {"nodes": [{"node_id": "x", "task_name": "number", "kwargs": '{"n":1}', "kind": "task",
                        "compensate": {"task_name": "refund"}}]}  # fmt: skip
    outer = StoredNode("sub", "workflow", "inner", kwargs=json.dumps(inner))
    assert told({0: outer}, code) == [("UNKNOWN_TASK", "refund", "", "sub/x")]


# -- arguments -----------------------------------------------------------------------------------


def test_every_parameter_that_no_longer_fits_is_told() -> None:
    def before(a: int, b: int, c: str, d: int) -> Number:
        return TaskResult(ok=a)

    def after(a: int, b: str, c: int, new: int, other: int, fine: int = 0) -> Number:
        return TaskResult(ok=a)

    code = Release(call=before)
    nodes = stored(code.flow(code.call.node(node_id="it")(1, 2, "x", 4)))
    later = Release(call=after)
    assert sorted(told(nodes, later)) == [
        ("ARGUMENT_REFUSED", "call", "b", "it"), ("ARGUMENT_REFUSED", "call", "c", "it"),
        ("MISSING_PARAMETER", "call", "new", "it"), ("MISSING_PARAMETER", "call", "other", "it"),
        ("UNKNOWN_PARAMETER", "call", "d", "it"),
    ]  # fmt: skip
    by_subject = {one.subject: one for one in misfits(nodes, later)}
    assert by_subject["new"].what == "task 'call': requires parameter 'new', which these runs do not give"
    assert by_subject["new"].fix == "give 'new' a default"
    assert "has no parameter 'd', which these runs give (it takes: a, b, c, new" in by_subject["d"].what
    assert "parameter 'b' refuses a stored argument: " in by_subject["b"].what


class Order(BaseModel):
    id: int


class LargerOrder(BaseModel):
    id: int
    customer: str


def test_a_stored_model_is_decoded_by_the_new_one() -> None:
    def before(order: Order) -> Number:
        return TaskResult(ok=order.id)

    def after(order: LargerOrder) -> Number:
        return TaskResult(ok=order.id)

    code = Release(call=before)
    nodes = stored(code.flow(code.call.node()(Order(id=5))))
    (found,) = misfits(nodes, Release(call=after))
    assert (found.kind, found.subject) == (MisfitKind.ARGUMENT_REFUSED, "order")
    assert "'order.customer'" in found.what


def test_signatures_with_positions_and_extras() -> None:
    def places(a: int, /, b: int = 0, *more: int) -> Number:
        return TaskResult(ok=a)

    def other(a: str, /, b: int = 0, *more: int) -> Number:
        return TaskResult(ok=b)

    def named(a: int, **more: int) -> Number:
        return TaskResult(ok=a)

    code = Release(call=places)
    nodes = stored(code.flow(code.call.node()(1, 2, 3)))
    assert misfits(nodes, Release(call=places)) == []
    assert [kind for kind, *_ in told(nodes, Release(call=other))] == ["ARGUMENT_REFUSED"]
    code = Release(call=named, number=number)
    one = code.number.node()(1)
    nodes = stored(code.flow(one, code.call.node(node_id="it", args_from={"y": one})(1, x=2)))
    assert misfits(nodes, code) == []
    assert sorted(told(nodes, Release(call=take, number=number))) == [
        ("UNKNOWN_PARAMETER", "call", "x", "it"), ("UNKNOWN_PARAMETER", "call", "y", "it"),
    ]  # fmt: skip


def test_what_the_worker_fills_in_is_not_missing() -> None:
    def placed(n: int, meta: WorkflowMeta, ctx: WorkflowContext) -> Number:
        return TaskResult(ok=n)

    def bare(n: int) -> Number:
        return TaskResult(ok=n)

    code = Release(call=placed, number=number)
    one = code.number.node(node_id="one")(1)
    nodes = stored(code.flow(one, code.call.node(node_id="it", workflow_ctx_from=[one])(1)))
    assert misfits(nodes, code) == []
    assert told(nodes, Release(call=bare, number=number)) == [
        ("UNKNOWN_PARAMETER", "call", "ctx", "it"), ("UNKNOWN_PARAMETER", "call", "meta", "it"),
    ]  # fmt: skip


# -- results of upstreams ------------------------------------------------------------------------


def test_the_result_type_of_an_upstream_that_has_not_ended() -> None:
    code = Release(number=number, take=take)
    one = code.number.node(node_id="one")(1)
    nodes = stored(code.flow(one, code.take.node(node_id="two")(from_node(one))))
    (found,) = misfits(nodes, Release(number=text, take=take))
    assert (found.kind, found.task_name, found.subject) == (MisfitKind.RESULT_TYPE, "take", "a")
    assert found.what == "task 'take': parameter 'a' takes int, and 'number' returns str"
    gone = Release(take=take)
    assert told(nodes, gone) == [("UNKNOWN_TASK", "number", "", "one")]  # of which nothing is known


def test_a_stored_result_is_decoded() -> None:
    """The upstream has stored a value of the old type; the type that its task returns now does not matter."""

    def worded(a: str) -> Number:
        return TaskResult(ok=len(a))

    code = Release(number=number, take=take)
    one = code.number.node(node_id="one")(1)
    nodes = stored(code.flow(one, code.take.node(node_id="two")(from_node(one), b=3)), one="1")
    assert misfits(nodes, Release(number=text, take=take)) == []
    (found,) = [one for one in misfits(nodes, Release(number=text, take=worded)) if one.subject == "a"]
    assert found.kind is MisfitKind.RESULT_REFUSED
    assert "refuses a stored result of an upstream" in found.what


def test_a_parameter_that_takes_the_other_form() -> None:
    def judged(a: Number, b: int = 0) -> Number:
        return a

    code = Release(number=number, take=take, judged=judged)
    one = code.number.node(node_id="one")(1)
    plain = stored(code.flow(one, code.take.node(node_id="two")(from_node(one))))
    whole = stored(code.flow(one, code.judged.node(node_id="two")(result_from(one))))
    assert misfits(whole, code) == []
    assert told(plain, Release(number=number, take=judged)) == [("RESULT_TYPE", "take", "a", "two")]
    assert told(whole, Release(number=number, judged=take)) == [("RESULT_TYPE", "judged", "a", "two")]
    assert told(whole, Release(number=text, judged=judged)) == [("RESULT_TYPE", "judged", "a", "two")]
    ended = stored(code.flow(one, code.judged.node(node_id="two")(result_from(one))), one="1")
    assert misfits(ended, code) == []
    assert told(ended, Release(number=number, judged=take)) == [("RESULT_REFUSED", "judged", "a", "two")]


def test_the_items_of_a_map() -> None:
    def worded(a: str, b: int = 0) -> Number:
        return TaskResult(ok=b)

    def renamed(item: int, b: int = 0) -> Number:
        return TaskResult(ok=item + b)

    def texts(n: int) -> TaskResult[list[str], TaskError]:
        return TaskResult(ok=[])

    code = Release(numbers=numbers, take=take)
    many = code.numbers.node(node_id="many")(1)
    spec = code.flow(many, code.take.node(node_id="each").map(many, 3))
    nodes = stored(spec)
    assert told(nodes, Release(numbers=texts, take=take)) == [("RESULT_TYPE", "take", "a", "each")]
    assert told(nodes, Release(numbers=numbers, take=worded)) == [("RESULT_TYPE", "take", "a", "each")]
    assert set(told(nodes, Release(numbers=numbers, take=renamed))) == {
        ("UNKNOWN_PARAMETER", "take", "a", "each"), ("MISSING_PARAMETER", "take", "item", "each"),
    }  # fmt: skip
    ended = stored(spec, many="[1,2]")
    assert misfits(ended, Release(numbers=texts, take=take)) == []
    assert told(ended, Release(numbers=numbers, take=worded)) == [("RESULT_REFUSED", "take", "a", "each")]
    for odd in ("null", '{"a":1}'):  # the run says so when it comes to the map
        assert misfits(stored(spec, many=odd), code) == []


def test_a_value_that_an_inner_node_takes_from_outside() -> None:
    code = Release(number=number, take=take, numbers=numbers)
    one = code.number.node(node_id="one")(1)

    def inner() -> Graph[Any]:
        from horsies.workflow.spec import WorkflowSpec

        deep = code.take.node(node_id="deep")(from_node(one))
        return WorkflowSpec(code.app, "inner", [deep], output=deep, open_ended=True)

    nodes = stored(code.flow(one, inner().node(node_id="sub")))  # type: ignore[attr-defined]
    assert misfits(nodes, code) == []
    later = Release(number=text, take=take)
    assert told(nodes, later) == [("RESULT_TYPE", "take", "a", "sub/deep")]
    sub = next(node for node in nodes.values() if node.kind == "workflow")
    assert result_type(sub, later.app.registry) is int


@pytest.mark.parametrize(
    ("node", "returned"),
    [
        (StoredNode("a", "task", "text"), str),
        (StoredNode("a", "task", "gone"), Any),
        (StoredNode("a", "signal", "text"), Any),
        (StoredNode("a", "map", "text", kwargs={"map": {"task_name": "text"}}), list[str]),
        (StoredNode("a", "map", "text", kwargs={"map": {"task_name": "text", "partial": True}}), Any),
        (StoredNode("a", "workflow", "w", kwargs={"output": None, "nodes": []}), type(None)),
        (StoredNode("a", "workflow", "w", kwargs={"output": 0, "nodes": [{"task_name": "text"}]}), str),
        (StoredNode("a", "workflow", "w", kwargs={"output": 5, "nodes": []}), Any),
        (StoredNode("a", "workflow", "w", kwargs="nonsense"), Any),
    ],
)
def test_the_type_that_a_node_returns(node: StoredNode, returned: Any) -> None:
    assert result_type(node, Release(text=text).app.registry) == returned


# -- stored forms --------------------------------------------------------------------------------


def test_graphs_of_older_clients() -> None:
    """Text in text, and no kinds."""
    leaf = {"node_id": "leaf", "task_name": "gone", "args": None, "kwargs": None, "sub_name": None}
    each = {"node_id": "each", "task_name": "gone", "kwargs": json.dumps({"map": {**leaf, "parameter": "a"}}),
            "sub_name": "gone[]"}  # fmt: skip
    inner = {"node_id": "inner", "task_name": "w", "kwargs": json.dumps({"nodes": [leaf, each]}), "sub_name": "w"}
    outer = StoredNode("outer", "workflow", "w", kwargs=json.dumps({"nodes": [inner]}))
    assert told({0: outer}, Release(number=number)) == [
        ("UNKNOWN_TASK", "gone", "", "outer/inner/leaf"), ("UNKNOWN_TASK", "gone", "", "outer/inner/each"),
    ]  # fmt: skip


@pytest.mark.parametrize("kwargs", ["nonsense", "[]", None, {"nodes": 5}, {"nodes": [5]}, {"nodes": [{"x": 1}]}, {}])
@pytest.mark.parametrize("kind", ["workflow", "map"])
def test_a_graph_that_cannot_be_read(kind: str, kwargs: Any) -> None:
    assert [what for what, *_ in told({0: StoredNode("a", kind, "w", kwargs=kwargs)}, Release(n=number))] == [
        "UNREADABLE"
    ]


def test_arguments_that_cannot_be_read() -> None:
    for kwargs in ("nonsense", "[1]"):
        nodes = {0: StoredNode("a", "task", "number", kwargs=kwargs)}
        assert told(nodes, Release(number=number)) == [("ARGUMENT_REFUSED", "number", "", "a")]
    with pytest.raises(UnreadableGraph):
        StoredNode.from_graph([])


def test_problems_are_grouped() -> None:
    findings = Findings()
    for number_ in range(1_500):
        misfit = Misfit(MisfitKind.MISSING_PARAMETER, "t", "a", f"what {number_}", "fix", ("n",))
        findings.add(misfit, Place(f"run {number_ % 700}", "w", None, "n"))
    findings.add(Misfit(MisfitKind.UNKNOWN_TASK, "gone", "", "gone", "fix", ("n",)), Place("run 1", "w", "1.0", "n"))
    many, one = findings.problems()
    assert (many.what, many.nodes, len(many.workflow_ids), len(many.places)) == ("what 0", 1_500, 700, 1_000)
    assert (one.task_name, one.workflow_ids, one.places[0].release) == ("gone", ["run 1"], "1.0")


def test_the_recipes_of_the_guide_fit_old_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def charge(amount: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok=str(amount))

    def invoice(customer: int) -> Number:
        return TaskResult(ok=customer)

    def mail_receipt(order_id: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok=str(order_id))

    def book(amount: int) -> Number:
        return TaskResult(ok=amount)

    code = Release(charge=charge, invoice=invoice, mail_receipt=mail_receipt, book=book)
    bill = code.invoice.node()(5)
    nodes = stored(
        code.flow(code.charge.node()(1), bill, code.mail_receipt.node()(2), code.book.node()(from_node(bill)))
    )
    monkeypatch.setenv("HORSIES_DATABASE_URL", "postgresql://unused/unused")
    page = (Path(__file__).parents[3] / "docs" / "guides" / "changing-workflows.md").read_text()
    names: dict[str, Any] = {"__name__": "guide"}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    later = Release()
    later.app = names["app"]
    assert misfits(nodes, later) == []
    assert {"charge", "invoice", "mail_receipt", "send_receipt", "book"} == {one.name for one in later.app.registry}
