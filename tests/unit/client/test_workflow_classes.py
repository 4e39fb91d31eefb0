"""Definitions as classes: nothing that is written in one is lost, and a name has one meaning."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from horsies import (
    Horsies,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
    from_node,
)
from horsies.check import check_app

Number = TaskResult[int, TaskError]


def ids(spec: WorkflowSpec[Any]) -> list[str]:
    return [wired.node_id for wired in spec.wired]


# -- name and Meta -----------------------------------------------------------------------------------------------


def test_name_and_meta_of_the_class_are_used(app: Horsies, number: Any) -> None:
    class Nightly(WorkflowDefinition[None], app=app):
        name = "nightly"
        one = number.node()(1)
        two = number.node()(from_node(one))

        class Meta:
            output = None
            on_error = "pause"
            success_policy: Any = None

    spec = Nightly.build()
    assert (spec.name, Nightly.name, spec.on_error, spec.output) == ("nightly", "nightly", "pause", None)
    assert app.workflows.get("nightly") is spec
    assert app.workflows.get("Nightly") is None


def test_meta_names_output_and_policy(app: Horsies, number: Any) -> None:
    first, last = number.node(node_id="a")(1), number.node(node_id="b")(2)

    class Ordered(WorkflowDefinition[int], app=app):
        validate = first
        notify = last

        class Meta:
            output = last
            success_policy = SuccessPolicy([SuccessCase([last])])

    spec = Ordered.build()
    assert (spec.output, spec.cases, ids(spec), spec.name) == (last, [[1]], ["a", "b"], "Ordered")


def test_settings_of_the_class_hold_for_what_build_with_makes(app: Horsies, number: Any) -> None:
    class Built(WorkflowDefinition[None], app=app):
        class Meta:
            on_error = "pause"

        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[None]:
            return cls.workflow([number.node()(n)])

    assert Built.build_with(1).on_error == "pause"


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"Meta": type("Meta", (), {"outputs": 1})}, "Meta.outputs: is unknown"),
        ({"Meta": {"output": 1}}, "Meta: is a dict, not a class"),
        ({"on_eror": "pause"}, "on_eror: is a str: neither a node nor a setting"),
        ({"name": 5}, "workflow.name: must be a string, got 5"),
        ({"name": ""}, "workflow.name: is empty"),
        ({"on_error": "pause", "Meta": type("Meta", (), {"on_error": "fail"})}, "on_error: is given in the class and"),
        ({"Meta": type("Meta", (), {"on_error": "explode"})}, "on_error: 'explode' is unknown"),
        ({"success_policy": ["x"]}, "success_policy: ['x'] is not a policy of cases"),
    ],
)
def test_what_a_definition_does_not_know_is_refused(
    app: Horsies, number: Any, attributes: dict[str, Any], words: str
) -> None:
    body = {"__module__": __name__, "node": number.node()(1), **attributes}
    with pytest.raises(WorkflowDefinitionError) as caught:
        type("Wrong", (WorkflowDefinition,), body, app=app)
    assert words in str(caught.value)
    assert __file__ in str(caught.value)


def test_what_would_not_be_found_as_a_node_is_refused(app: Horsies, number: Any) -> None:
    with pytest.raises(WorkflowDefinitionError) as caught:

        class Wrong(WorkflowDefinition[None], app=app):
            LIMIT = 5
            _private = "is its own affair"
            first = number.node()(1)
            uncalled = number.node()
            taken = from_node(first)
            many = [number.node()(n) for n in range(2)]  # noqa: RUF012
            inner = app.workflow("inner", [number.node()(1)])

            def helper(self) -> None: ...

    problems = {problem.where: problem.fix for problem in caught.value.problems}
    assert problems.keys() == {"uncalled", "taken", "many", "inner"}
    assert "call it" in problems["uncalled"]
    assert "build_with" in problems["many"]
    assert ".node()" in problems["inner"]


def test_a_definition_needs_an_app(app: Horsies, number: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match=r"write class Lost\(WorkflowDefinition\[...\], app=app\)"):

        class Lost(WorkflowDefinition[None]):
            node = number.node()(1)

    with pytest.raises(WorkflowDefinitionError, match="nme: is not a keyword of a definition"):

        class Mistyped(WorkflowDefinition[None], app=app, nme="x"):
            node = number.node()(1)


def test_a_name_that_is_given_twice(app: Horsies, number: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match="name: is given twice: 'a' and 'b'"):

        class Twice(WorkflowDefinition[None], app=app, name="a"):
            name = "b"
            node = number.node()(1)


# -- classes that extend others ----------------------------------------------------------------------------------


def test_a_class_has_the_nodes_of_what_it_extends(app: Horsies, number: Any) -> None:
    class Shared:
        zero = number.node()(0)

    class Base(Shared, WorkflowDefinition[int], app=app, name="base"):
        one = number.node()(1)
        two = number.node()(from_node(one))
        output = two
        on_error = "pause"

    class More(Base):
        three = number.node()(from_node(Base.two))
        output = three

    class Other(Base, name="other"):
        one = number.node()(7)
        two = number.node()(from_node(one))
        output = two

        class Meta:
            on_error = "fail"

    assert (ids(Base.build()), Base.build().output) == (["zero", "one", "two"], Base.two)
    assert (ids(More.build()), More.build().output, More.name) == (["zero", "one", "two", "three"], More.three, "More")
    assert More.build().on_error == "pause"
    assert (ids(Other.build()), Other.build().output, Other.build().on_error) == (ids(Base.build()), Other.two, "fail")
    with pytest.raises(WorkflowDefinitionError):  # its output is a node that it no longer has

        class Broken(Base, name="broken"):
            two = number.node()(7)


# -- one name ----------------------------------------------------------------------------------------------------


def test_two_classes_of_one_name(app: Horsies, number: Any) -> None:
    class First(WorkflowDefinition[None], app=app, name="same"):
        one = number.node()(1)

    with pytest.raises(WorkflowDefinitionError) as caught:

        class Second(WorkflowDefinition[None], app=app, name="same"):
            other = number.node()(1)

    assert str(caught.value).count(f"{__file__}:") == 3
    assert First.location in str(caught.value)
    assert app.workflows.get("same") is First.build()
    with pytest.raises(WorkflowDefinitionError, match="two workflows are called 'same'"):
        app.workflow("same", [number.node()(1)])


def test_two_builders_of_one_name(app: Horsies, number: Any) -> None:
    class First(WorkflowDefinition[None], app=app, name="same"):
        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[None]:
            return cls.workflow([number.node()(n)])

    First.build_with(1)
    First.build_with(2)
    with pytest.raises(WorkflowDefinitionError, match="two workflows are called 'same'"):

        class Second(WorkflowDefinition[None], app=app, name="same"):
            @classmethod
            def build_with(cls, n: int) -> WorkflowSpec[None]:
                return cls.workflow([number.node()(n)])


def test_two_workflows_of_one_name(app: Horsies, number: Any) -> None:
    app.workflow("same", [number.node(node_id="a")(1)])
    app.workflow("same", [number.node(node_id="a")(2)])  # the same graph with other arguments
    with pytest.raises(WorkflowDefinitionError, match="two workflows are called 'same'"):
        app.workflow("same", [number.node(node_id="b")(1)])
    with pytest.raises(WorkflowDefinitionError, match="two workflows are called 'same'"):

        class Same(WorkflowDefinition[None], app=app, name="same"):
            a = number.node()(1)


def test_a_function_may_build_a_workflow_for_each_run(app: Horsies, number: Any) -> None:
    def build(count: int) -> WorkflowSpec[None]:
        return app.workflow("sized", [number.node(node_id=f"n{n}")(n) for n in range(count)])

    one, two = build(1), build(2)
    # a run that is known by its id only finds the types of its own graph, not of the one built last
    assert app.workflows.known("sized", one.definition_key) is one
    assert app.workflows.known("sized", two.definition_key) is two
    for count in range(3, 50):
        build(count)
    assert app.workflows.known("sized", one.definition_key) is None


def test_a_module_may_be_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wf_loaded_again.py").write_text(
        "from horsies import *\n"
        "from wf_loaded_app import app\n"
        "@app.task('number')\n"
        "def number(n: int) -> TaskResult[int, TaskError]: return TaskResult(ok=n)\n"
        "app.workflow('loose', [number.node()(1)])\n"
        "class Flow(WorkflowDefinition[None], app=app, name='flow'):\n"
        "    one = number.node()(1)\n"
    )
    (tmp_path / "wf_loaded_app.py").write_text(
        "from horsies import *\napp = Horsies(AppConfig(PostgresConfig('postgresql://u@localhost/d')))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    flows = importlib.import_module("wf_loaded_again")
    try:
        first = flows.Flow
        importlib.reload(flows)
        assert flows.app.workflows.get("flow") is flows.Flow.build() is not first.build()
    finally:
        for name in ("wf_loaded_again", "wf_loaded_app"):
            sys.modules.pop(name, None)


# -- options that have no meaning --------------------------------------------------------------------------------


def test_options_that_a_kind_of_node_does_not_have_are_refused(app: Horsies, number: Any) -> None:
    inner = app.workflow("inner", [number.node()(1)])
    with pytest.raises(WorkflowDefinitionError) as caught:
        app.workflow("w", [
            SubWorkflowNode(inner, node_id="sub", queue_name="default", priority=1),
            number.node(node_id="task", max_width=5)(1),
        ])  # fmt: skip
    told = {f"{problem.where}: {problem.why}" for problem in caught.value.problems}
    assert told == {
        "node 'sub': a workflow takes no queue_name",
        "node 'sub': a workflow takes no priority",
        "node 'task': max_width has a meaning for a map only",
    }


def test_options_of_a_wrong_type_are_refused(app: Horsies, number: Any) -> None:
    first = number.node(node_id="first")(1)
    wait: dict[str, Any] = {"waits_for": [first]}
    with pytest.raises(WorkflowDefinitionError) as caught:
        app.workflow("w", [
            first,
            number.node(node_id="text", join="quorum", min_success="1", **wait)(1),
            number.node(node_id="truth", join="quorum", min_success=True, **wait)(1),
            number.node(node_id="failed", allow_failed_deps="no", **wait)(1),
            TaskNode(number, args_from={"n": "first"}, node_id="named"),  # type: ignore[dict-item]
            number.node(node_id="map").map(None),
        ])  # fmt: skip
    told = [f"{problem.where}: {problem.why}" for problem in caught.value.problems]
    for wanted in (
        "node 'text': a quorum of '1' among 1 dependency cannot be met",
        "node 'truth': a quorum of True among 1 dependency cannot be met",
        "node 'failed': allow_failed_deps is 'no'",
        "node 'named': parameter 'n' takes the result of 'first', which is not a node",
        "node 'map': items_from takes the result of None, which is not a node",
    ):
        assert wanted in told, told
    with pytest.raises(TypeError, match=r"TaskNode\(\) got an unexpected keyword argument 'wait_for'; its options are"):
        TaskNode(number, 1, wait_for=[first])


def test_a_map_over_a_list_that_is_known_now(app: Horsies, number: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match="for items that are known now, make a node for each"):
        app.workflow("w", [number.node(node_id="map").map([1, 2])])


def test_a_builder_that_returns_something_else(app: Horsies, number: Any) -> None:
    class Forgot(WorkflowDefinition[None], app=app, name="forgot"):
        @classmethod
        def build_with(cls) -> Any:
            cls.workflow([number.node()(1)])

    told = [finding.text for finding in check_app(app) if finding.is_problem]
    assert len(told) == 1
    assert "returned NoneType; let it return cls.workflow" in told[0]
