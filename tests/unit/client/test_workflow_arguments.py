"""Arguments of nodes: each goes to the parameter that a call of the task would give it, or the workflow is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowDefinitionError,
    from_node,
    map_workflow,
)
from horsies.workflow.nodes import Node
from horsies.workflow.start import graph_data

Number = TaskResult[int, TaskError]
app = Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d")))


@app.task("number")
def number(n: int) -> Number:
    return TaskResult(ok=n)


@app.task("numbers")
def numbers(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[n])


@app.task("plus")
def plus(a: int, b: int = 1) -> Number:
    return TaskResult(ok=a + b)


@app.task("many")
def many(x: int, *rest: int, k: int = 0, **others: int) -> Number:
    return TaskResult(ok=x)


@app.task("unnamed")
def unnamed(x: int, y: int = 0, /, z: int = 0) -> Number:
    return TaskResult(ok=x)


@app.task("join")
def join(words: list[str]) -> TaskResult[str, TaskError]:
    return TaskResult(ok="".join(words))


@app.task("anything")
def anything(x: Any) -> Number:
    return TaskResult(ok=1)


def refusals(make: Callable[[TaskNode[int], TaskNode[list[int]]], Node[Any]]) -> list[str]:
    """Why a workflow with this node is refused; every refusal names the node and a fix."""
    first, items = number.node(node_id="first")(1), numbers.node(node_id="items")(3)
    with pytest.raises(WorkflowDefinitionError) as caught:
        app.workflow("refused", [first, items, make(first, items)])
    assert all(problem.where.startswith("node ") and problem.fix for problem in caught.value.problems)
    return [problem.why for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x, _: plus.node()(5, a=from_node(x)), "parameter 'a' is given twice: by position and by name"),
        (lambda x, _: plus.node()(from_node(x), a=5), "parameter 'a' is given twice: by position and by name"),
        (lambda x, _: plus.node()(5, 6, b=from_node(x)), "parameter 'b' is given twice: by position and by name"),
        (lambda x, _: plus.node(args_from={"a": x})(5), "parameter 'a' is given twice: by position and in args_from"),
        (
            lambda x, items: plus.node(args_from={"a": x})(from_node(number.node()(2))),
            "parameter 'a' is given twice: by position and in args_from",
        ),
        (
            lambda x, _: TaskNode(plus, kwargs={"a": 1}, args_from={"a": x}),
            "parameter 'a' is given twice: by name and in args_from",
        ),
        (lambda x, _: plus.node()(from_node(x), 5, 6), "task 'plus' takes 2 positional arguments, and 3 are given"),
        (lambda _, items: plus.node().map(items, 5, b=7), "parameter 'b' is given twice: by position and by name"),
        (
            lambda x, items: plus.node(args_from={"b": x}).map(items, 5),
            "parameter 'b' is given twice: by position and in args_from",
        ),
        (
            lambda x, _: many.node()(from_node(x), 8, 9),
            "parameter 'x' takes a result, and a result cannot stand before values for *rest",
        ),
        (
            lambda x, _: many.node()(7, from_node(x)),
            "a result cannot be given to *rest, whose values have no names",
        ),
        (lambda x, _: many.node()(7, x=from_node(x)), "parameter 'x' is given twice: by position and by name"),
        (
            lambda x, _: unnamed.node()(7, from_node(x)),
            "a result cannot be given to parameter 'y', which takes values by position only",
        ),
        (lambda x, _: unnamed.node()(7, 8, 9, z=from_node(x)), "parameter 'z' is given twice: by position and by name"),
        (
            lambda _, items: unnamed.node().map(items),
            "the item is given by name, and task 'unnamed' has no first parameter that takes a name",
        ),
    ],
)
def test_no_argument_is_lost(make: Any, why: str) -> None:
    assert why in refusals(make)


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda x: plus.node()(5, b=from_node(x)), (None, '{"a":5}', ["b"])),
        (lambda x: plus.node()(from_node(x), 7), (None, '{"b":7}', ["a"])),
        (lambda x: plus.node(args_from={"b": x})(5), (None, '{"a":5}', ["b"])),
        (lambda x: many.node()(7, 8, 9, k=from_node(x)), ("[7,8,9]", None, ["k"])),
        (lambda x: many.node()(7, other=from_node(x)), (None, '{"x":7}', ["other"])),
        (lambda x: many.node()(from_node(x), k=3, other=4), (None, '{"k":3,"other":4}', ["x"])),
        (lambda x: unnamed.node()(7, z=from_node(x)), ("[7]", None, ["z"])),
        (lambda x: unnamed.node()(7, 8, from_node(x)), ("[7,8]", None, ["z"])),
    ],
)
def test_constants_and_results_go_to_their_parameters(
    make: Callable[[TaskNode[int]], Node[Any]], call: tuple[str | None, str | None, list[str]]
) -> None:
    first = number.node(node_id="first")(1)
    made = graph_data(app.workflow("accepted", [first, make(first)]))["nodes"][1]
    assert (made["args"], made["kwargs"], list(made["args_from"])) == call


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x, _: join.node()([from_node(x)]), "parameter 'words' holds a from_node(...) inside of another value"),
        (lambda x, _: anything.node()(x={"a": [from_node(x)]}), "parameter 'x' holds a from_node(...) inside"),
        (lambda x, _: anything.node()(x), "parameter 'x' holds the node <TaskNode first>"),
        (lambda x, _: many.node()(1, 2, x), "argument 3 holds the node <TaskNode first>"),
    ],
)
def test_a_result_is_a_whole_argument(make: Any, why: str) -> None:
    (told,) = refusals(make)
    assert told.startswith(why)


def test_an_item_is_a_whole_argument() -> None:
    items = numbers.node()(3)
    with pytest.raises(WorkflowDefinitionError, match="parameter 'x' holds a from_node"):
        map_workflow(items, lambda item: app.workflow("inside", [anything.node()([item])]))
