"""Definitions of a wrong form are refused with a sentence: no raw TypeError, and nothing is lost or guessed."""

from typing import Any

import pytest

from horsies import (
    AppConfig,
    Horsies,
    Hourly,
    PostgresConfig,
    ScheduleConfig,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskDefinitionError,
    TaskError,
    TaskNode,
    TaskResult,
    TaskSchedule,
    UsageError,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
    from_node,
)
from horsies._checks import Checks
from horsies.check import check_app
from horsies.errors import ConfigurationError
from horsies.options import check_name
from horsies.workflow.start import graph_data

Number = TaskResult[int, TaskError]


def make_app(*schedules: TaskSchedule) -> Horsies:
    return Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d"), schedule=ScheduleConfig(schedules)))


@pytest.fixture
def app() -> Horsies:
    return make_app()


def number_of(app: Horsies) -> Any:
    @app.task("number")
    def number(n: int) -> Number:
        return TaskResult(ok=n)

    return number


@pytest.fixture
def number(app: Horsies) -> Any:
    return number_of(app)


def told(error: WorkflowDefinitionError) -> dict[str, str]:
    return {problem.where: f"{problem.why}; {problem.fix}" for problem in error.problems}


# -- attributes of a class ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["location", "_static", "_place", "build", "workflow", "app", "build_with",
                                       "check_with"])  # fmt: skip
@pytest.mark.parametrize("kind", ["task", "map", "workflow"])
@pytest.mark.parametrize("where", ["class", "mixin"])
def test_a_node_cannot_take_the_place_of_the_api(
    app: Horsies, number: Any, attribute: str, kind: str, where: str
) -> None:
    @app.task("numbers")
    def numbers() -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[1])

    listing = numbers.node()()
    made = {
        "task": lambda: number.node()(1),
        "map": lambda: number.node().map(listing),
        "workflow": lambda: app.workflow("inner", [number.node()(1)]).node(),
    }[kind]()
    mixin = type("Mixin", (), {attribute: made} if where == "mixin" else {})
    body = {"__module__": __name__, "listing": listing, **({attribute: made} if where == "class" else {})}
    with pytest.raises(WorkflowDefinitionError) as caught:
        type("Wrong", (mixin, WorkflowDefinition), body, app=app)
    assert attribute in told(caught.value)
    assert f"{__file__}:" in str(caught.value)
    assert app.workflows.definition("Wrong") is None


def test_a_class_may_override_what_is_a_method(app: Horsies, number: Any) -> None:
    class Built(WorkflowDefinition[None], app=app):
        one = number.node()(1)

        @classmethod
        def build(cls) -> WorkflowSpec[None]:
            return super().build()

    assert Built.build() is app.workflows.get("Built")


def test_a_builder_is_a_classmethod(app: Horsies, number: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match="build_with: is a function, not a classmethod"):

        class Plain(WorkflowDefinition[None], app=app):
            def build_with(self, n: int) -> None: ...


@pytest.mark.parametrize("given", [{"n": 1}, "n", None, 5, [1], [["n", 1]], [{1: 2}]])
def test_arguments_to_try_are_a_list_of_mappings(app: Horsies, number: Any, given: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match=r"check_with: .* is not a list of arguments by name") as caught:

        class Tried(WorkflowDefinition[None], app=app):
            check_with = given

            @classmethod
            def build_with(cls, n: int) -> WorkflowSpec[None]:
                return cls.workflow([number.node()(n)])

    assert 'write check_with = ({"parameter": value},)' in str(caught.value)


def test_two_classes_of_one_name_with_other_arguments(app: Horsies, number: Any) -> None:
    class First(WorkflowDefinition[None], app=app, name="same"):
        one = number.node()(1)

    class Same(WorkflowDefinition[None], app=app, name="same"):  # such as a module that was imported twice
        one = number.node()(1)

    for options, n in (({}, 2), ({"priority": 3}, 1)):
        with pytest.raises(WorkflowDefinitionError, match="two workflows are called 'same'") as caught:

            class Second(WorkflowDefinition[None], app=app, name="same"):
                one = number.node(**options)(n)

        assert Same.location in str(caught.value)
    assert app.workflows.get("same") is Same.build()


# -- builders that fail ------------------------------------------------------------------------------------------


def test_a_builder_that_fails_for_a_schedule_is_named() -> None:
    app = make_app(*(TaskSchedule(name, workflow=name, pattern=Hourly()) for name in ("raises", "none", "text")))
    number_of(app)

    def definition(name: str, build: Any) -> None:
        body = {"__module__": __name__, "build_with": classmethod(build)}
        type(name.title(), (WorkflowDefinition,), body, app=app, name=name)

    definition("raises", lambda _: {}["rate"])
    definition("none", lambda _: None)
    definition("text", lambda _: "text")
    found = [finding.text for finding in check_app(app) if finding.is_problem]
    of_schedules = [text for text in found if text.startswith("TaskSchedule")]
    assert len(of_schedules) == 3
    assert "build_with of workflow 'raises'" in of_schedules[0]
    assert "raised KeyError: 'rate'" in of_schedules[0]
    assert "returned None" in of_schedules[1]
    assert "returned 'text' (str)" in of_schedules[2]
    assert all(f"{__file__}:" in text for text in of_schedules)


# -- a node instead of a list ------------------------------------------------------------------------------------


def test_what_should_be_a_list_of_nodes(app: Horsies, number: Any) -> None:
    @app.task("context")
    def context(ctx: WorkflowContext | None = None) -> Number:
        return TaskResult(ok=1)

    a: Any = number.node(node_id="a")(1)
    inner = app.workflow("inner", [number.node()(1)])
    with pytest.raises(WorkflowDefinitionError) as caught:
        app.workflow("w", [
            a,
            number.node(node_id="one", waits_for=a)(1),
            number.node(node_id="none", waits_for=None)(1),
            number.node(node_id="text", waits_for="a")(1),
            number.node(node_id="nested", waits_for=[[a]])(1),
            context.node(node_id="context", workflow_ctx_from=a)(),
            context.node(node_id="contexts", workflow_ctx_from=[[a]])(),
            number.node(node_id="map", waits_for=a).map(a),
            inner.node(node_id="sub", waits_for=a),
            TaskNode(number, 1, node_id="direct", waits_for=a),
            SubWorkflowNode(inner, node_id="workflow", workflow_ctx_from=a),
            number.node(node_id="args", args_from=a)(1),
            TaskNode(number, node_id="kwargs", kwargs=[a]),  # type: ignore[arg-type]
            TaskNode(number, node_id="keys", kwargs={1: 2}),  # type: ignore[dict-item]
        ], output=[a], success_policy=SuccessPolicy([SuccessCase(a), SuccessCase([[a]])]))  # fmt: skip
    found = [f"{problem.where}: {problem.why}; {problem.fix}" for problem in caught.value.problems]
    wrap = "is <TaskNode a> (TaskNode), not a list of nodes; wrap it in a list: "
    for wanted in (
        f"node 'one': waits_for {wrap}waits_for=[...]",
        "node 'none': waits_for is None (NoneType), not a list of nodes; give a list of nodes: waits_for=[...]",
        "node 'text': waits_for is 'a' (str), not a list of nodes",
        "node 'nested': it waits for [<TaskNode a>], which is not in this workflow",
        f"node 'context': workflow_ctx_from {wrap}workflow_ctx_from=[...]",
        "node 'contexts': workflow_ctx_from names [<TaskNode a>], which is not in this workflow",
        f"node 'map': waits_for {wrap}",
        f"node 'sub': waits_for {wrap}",
        f"node 'direct': waits_for {wrap}",
        f"node 'workflow': workflow_ctx_from {wrap}",
        "node 'args': args_from is <TaskNode a> (TaskNode); give a mapping by parameter",
        "node 'kwargs': kwargs is [<TaskNode a>] (list); give a mapping by parameter",
        "node 'keys': kwargs is {1: 2} (dict); give a mapping by parameter",
        "output: [<TaskNode a>] is not in this workflow",
        f"success_policy.cases[0]: required {wrap}",
        "success_policy.cases[1]: [<TaskNode a>] is not in this workflow",
    ):
        assert any(wanted in problem for problem in found), (wanted, found)


@pytest.mark.parametrize("policy", [SuccessPolicy, lambda a: SuccessPolicy(SuccessCase([a])), lambda a: [a]])
def test_what_should_be_a_list_of_cases(app: Horsies, number: Any, policy: Any) -> None:
    a = number.node(node_id="a")(1)
    with pytest.raises(WorkflowDefinitionError, match="is not a policy of cases"):
        app.workflow("w", [a], success_policy=policy(a))


def test_what_should_be_the_list_of_tasks(app: Horsies, number: Any) -> None:
    a: Any = number.node(node_id="a")(1)
    with pytest.raises(WorkflowDefinitionError, match=r"workflow: tasks is <TaskNode a> .*\n.*wrap it in a list"):
        app.workflow("w", a)
    with pytest.raises(WorkflowDefinitionError, match=r"workflow: tasks is None .* not a list of nodes"):
        app.workflow("w", None)  # type: ignore[arg-type]
    assert len(app.workflow("w", (node for node in [a])).wired) == 1  # type: ignore[arg-type]


def test_other_iterables_are_lists(app: Horsies, number: Any) -> None:
    a, b = number.node(node_id="a")(1), number.node(node_id="b")(2)
    later = number.node(waits_for=(node for node in (a, b)))
    spec = app.workflow("w", [a, b, later(3), TaskNode(number, 4, waits_for={a, b})])
    assert [wired.dependencies for wired in spec.wired] == [(), (), (0, 1), (0, 1)]
    assert app.workflow("again", [a, b, later(4)]).wired[2].dependencies == (0, 1)


def test_a_node_needs_a_task_or_a_workflow(app: Horsies, number: Any) -> None:
    with pytest.raises(UsageError, match="TaskNode takes a task, not 'number'"):
        TaskNode("number", 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"SubWorkflowNode takes a workflow, not .*: of a class, give .build\(\)"):
        SubWorkflowNode(WorkflowDefinition)  # type: ignore[arg-type]


# -- names -------------------------------------------------------------------------------------------------------

NAMES = {
    "a surrogate": ("\ud800", "contains a lone surrogate"),
    "a line break": ("a\nb", "is blank or not printable"),
    "an escape": ("\x1b[2J", "is blank or not printable"),
    "blanks": ("  ", "is blank or not printable"),
    "nothing": ("", "is empty"),
    "a NUL": ("\0", "contains a NUL character"),
    "256 characters": ("n" * 256, "has 256 characters"),
    "a number": (5, "must be a string"),
}


UNASSIGNED = "\u0378"
"""A character that Unicode has not defined yet, as those are for an older Python that a newer one prints."""


def test_a_send_by_name_takes_characters_that_a_newer_worker_may_know() -> None:
    for is_sent, is_refused in ((True, False), (False, True)):
        checks = Checks("names")
        check_name(checks, "name", f"ship{UNASSIGNED}", is_sent=is_sent)
        assert bool(checks.problems) is is_refused


@pytest.mark.parametrize("node_id", ["item[1]", "item[007]"])
def test_a_node_cannot_have_the_path_of_an_item(app: Horsies, number: Any, node_id: str) -> None:
    with pytest.raises(WorkflowDefinitionError, match=r"node .*'item\[\d+\]' is the path of a map's item"):
        app.workflow("items", [number.node(node_id=node_id)(1)])
    inside = app.workflow("inside", [number.node(node_id="items[1]")(1)])
    assert [wired.node_id for wired in inside.wired] == ["items[1]"]


def test_a_task_with_the_name_of_an_item_needs_another_id(app: Horsies, number: Any) -> None:
    @app.task("item[1]")
    def task(n: int) -> Number:
        return TaskResult(ok=n)

    with pytest.raises(WorkflowDefinitionError, match=r"'item\[1\]' is the path of a map's item"):
        app.workflow("items", [task.node()(1)])
    app.workflow("renamed", [task.node(node_id="first")(1)])


@pytest.mark.parametrize("make", [TaskNode, lambda task: task.node()(1), lambda task: task.node().map([1])])
def test_a_node_takes_no_options_of_a_send(number: Any, make: Any) -> None:
    with pytest.raises(UsageError, match=r"the options of with_options\(\.\.\.\) do not reach a workflow's node"):
        make(number.with_options(priority=5))


@pytest.mark.parametrize("which", NAMES)
def test_names_follow_one_rule(app: Horsies, number: Any, which: str) -> None:
    name: Any
    name, why = NAMES[which]
    with pytest.raises(WorkflowDefinitionError, match=f"workflow.name: .*{why}"):
        app.workflow(name, [number.node()(1)])
    with pytest.raises(WorkflowDefinitionError, match=f"workflow.name: .*{why}"):
        type("Named", (WorkflowDefinition,), {"name": name, "build_with": classmethod(lambda _: None)}, app=app)
    inner = app.workflow("inner", [number.node()(1)])
    for node in (number.node(node_id=name)(1), inner.node(node_id=name)):
        with pytest.raises(WorkflowDefinitionError, match=f"node '(number|inner)'.node_id: .*{why}"):
            app.workflow("w", [node])
    with pytest.raises(TaskDefinitionError, match=why):
        app.task(name)(lambda: TaskResult(ok=1))
    with pytest.raises(ConfigurationError, match=f".name: .*{why}"):
        TaskSchedule(name, "number", Hourly())
    with pytest.raises(ConfigurationError, match=f".workflow: .*{why}"):
        TaskSchedule("s", workflow=name, pattern=Hourly())


# -- ids of nodes ------------------------------------------------------------------------------------------------


def ids(spec: WorkflowSpec[Any]) -> list[str]:
    return [wired.node_id for wired in spec.wired]


def test_a_shared_node_has_the_same_id_in_all_its_workflows(app: Horsies, number: Any) -> None:
    a, b = number.node()(1), number.node()(2)
    assert ids(app.workflow("both", [a, b])) == ["number", "number-2"]
    assert ids(app.workflow("first", [a])) == ["number"]
    # alone it would be "number", also in a process that does not define the other workflow
    with pytest.raises(WorkflowDefinitionError, match="node 'number': it has the id 'number-2' in another workflow"):
        app.workflow("second", [b])
    c = number.node()(3)
    app.workflow("third", [c])
    with pytest.raises(WorkflowDefinitionError, match="node 'number-2': it has the id 'number' in another workflow"):
        app.workflow("clash", [a, c])
    named = number.node(node_id="named")(1)
    assert ids(app.workflow("x", [a, named])) == ["number", "named"]
    assert ids(app.workflow("y", [named])) == ["named"]


def test_a_shared_node_has_the_name_of_its_attribute_in_all_classes(app: Horsies, number: Any) -> None:
    shared, explicit = number.node()(1), number.node(node_id="explicit")(2)

    class One(WorkflowDefinition[None], app=app):
        first = shared
        other = explicit

        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[None]:
            return cls.workflow([cls.first, number.node()(from_node(cls.first))])

    class Same(WorkflowDefinition[None], app=app):
        first = shared
        another = explicit

    assert ids(One.build()) == ids(Same.build()) == ["first", "explicit"]
    assert ids(One.build_with(1)) == ["first", "number"]
    with pytest.raises(WorkflowDefinitionError, match="node 'second': it has the id 'first' in another workflow"):

        class Two(WorkflowDefinition[None], app=app):
            second = shared

    numbered = number.node()(1)
    app.workflow("w", [numbered])
    with pytest.raises(WorkflowDefinitionError, match="node 'third': it has the id 'number' in another workflow"):

        class Three(WorkflowDefinition[None], app=app):
            third = numbered


def test_a_refused_workflow_leaves_no_ids_behind(app: Horsies, number: Any) -> None:
    a, b = number.node()(1), number.node()(2)
    with pytest.raises(WorkflowDefinitionError):
        app.workflow("w", [a, b], on_error="explode")  # type: ignore[call-overload]
    with pytest.raises(WorkflowDefinitionError):
        type("Wrong", (WorkflowDefinition,), {"first": b, "on_error": "explode"}, app=app)
    assert ids(app.workflow("w", [b])) == ["number"]
    assert graph_data(app.workflow("w", [b]))["nodes"][0]["node_id"] == "number"


def test_a_start_says_where_arguments_belong(app: Horsies, number: Any) -> None:
    flow: Any = app.workflow("sums", [number.node(node_id="one")(1)])
    for start in (flow.start, flow.start_async):
        with pytest.raises(UsageError, match=r"takes only workflow_id=, .*, deadline=; arguments belong to the "):
            start(5)
        with pytest.raises(UsageError, match=r"does not know n \(its options: workflow_id, .*, deadline\)"):
            start(n=5)
