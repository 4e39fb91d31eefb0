"""`from_node(...)` stands for a value that does not exist yet: code that would use it as a value is refused."""

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest

from horsies import (
    Horsies,
    TaskError,
    TaskResult,
    UsageError,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
    from_node,
    result_from,
)

Number = TaskResult[int, TaskError]


USES: dict[str, Callable[[Any], object]] = {
    "if": bool,
    "not": operator.not_,
    "==": lambda n: n == 3,
    "!=": lambda n: n != 3,
    "3 ==": lambda n: 3 == n,  # noqa: SIM300
    "<": lambda n: n < 3,
    "3 <=": lambda n: 3 <= n,  # noqa: SIM300
    "in a list": lambda n: n in [1, 2],
    "contains": lambda n: 1 in n,
    "for": lambda n: [one for one in n],  # noqa: C416
    "unpack": lambda n: [*n],
    "range": range,
    "int": int,
    "float": float,
    "round": round,
    "floor": math.floor,
    "+": lambda n: n + 1,
    "1 +": lambda n: 1 + n,
    "text +": lambda n: "a" + n,
    "list *": lambda n: [1] * n,
    "-": operator.neg,
    "**": lambda n: 2**n,
    "|": lambda n: {} | n,
    "len": len,
    "[0]": lambda n: n[0],
    "str": str,
    "f-string": lambda n: f"{n}",
    "f-string with a format": lambda n: f"{n:>3}",
    "%": lambda n: "%s" % n,  # noqa: UP031
    "attribute": lambda n: n.upper(),
    "getattr": lambda n: getattr(n, "upper", None),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
@pytest.mark.parametrize("placeholder", [from_node, result_from])
def test_a_future_result_has_no_value(number: Any, placeholder: Any, use: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match=r"future result of <TaskNode first>, .* handed on to nodes: .* in a task"):
        use(placeholder(number.node(node_id="first")(1)))


def test_a_builder_that_branches_on_a_future_result_is_refused(app: Horsies, number: Any) -> None:
    class Branching(WorkflowDefinition[int], app=app):
        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[int]:
            node = number.node()(n if n == 3 else -1)
            return cls.workflow([node], output=node)

    first = number.node(node_id="first")(1)
    assert Branching.build_with(3).output is not None
    with pytest.raises(UsageError, match="future result of <TaskNode first>"):
        Branching.build_with(from_node(first))


def test_a_future_result_is_handed_on_shown_and_kept(app: Horsies, number: Any) -> None:
    first = number.node(node_id="first")(1)
    placeholder = from_node(first)
    assert repr(placeholder) == "FromNode(node=<TaskNode first>)"
    assert placeholder in {placeholder}
    assert placeholder in [placeholder]
    assert copy.copy(placeholder) is not placeholder
    assert app.workflow("both", [first, number.node()(placeholder)]).wired[1].dependencies == (0,)


@pytest.mark.parametrize("option", ["waits_for", "workflow_ctx_from"])
def test_a_future_result_is_no_list_of_nodes(app: Horsies, number: Any, option: str) -> None:
    first = number.node(node_id="first")(1)
    with pytest.raises(WorkflowDefinitionError, match=f"{option} is FromNode.*, not a list of nodes"):
        app.workflow("both", [first, number.node(**{option: from_node(first)})(1)])


@pytest.mark.parametrize("annotation", [int, float, str, bool, list[int], Any, dict[str, int]])
def test_a_future_result_inside_a_list_is_refused(app: Horsies, number: Any, annotation: Any) -> None:
    @app.task("many")
    def many(values: list[annotation]) -> Number:
        return TaskResult(ok=len(values))

    first = number.node(node_id="first")(1)
    with pytest.raises(WorkflowDefinitionError, match="parameter 'values"):
        app.workflow("both", [first, many.node()([from_node(first)])])
