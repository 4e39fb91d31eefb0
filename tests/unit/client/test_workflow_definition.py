"""Graphs are checked where they are written: what is wrong is told all at once, with where, why and how to fix it."""

import hashlib
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    TaskSendError,
    UsageError,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowMeta,
    WorkflowSpec,
    from_node,
    result_from,
)
from horsies.check import check_app, describe
from horsies.workflow.graph import MAX_LEVELS
from horsies.workflow.run_start import MAX_BYTES
from horsies.workflow.start import Start, graph_data

Number = TaskResult[int, TaskError]


def make_app() -> Horsies:
    return Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d")))


app = make_app()


@app.task("number")
def number(n: int) -> Number:
    return TaskResult(ok=n)


@app.task("plus")
def plus(a: int, b: int = 0) -> Number:
    return TaskResult(ok=a + b)


@app.task("text")
def text(value: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=value)


@app.task("numbers")
def numbers(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[n])


@app.task("judge")
def judge(result: Number) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=result.is_ok())


@app.task("placed")
def placed(a: int, meta: WorkflowMeta | None = None) -> Number:
    return TaskResult(ok=a)


@app.task("context")
def context(ctx: WorkflowContext) -> Number:
    return TaskResult(ok=len(ctx.results))


@app.task("only_positional")
def only_positional(a: int, /) -> Number:
    return TaskResult(ok=a)


@app.task("rest")
def rest(*values: int) -> Number:
    return TaskResult(ok=sum(values))


def problems(tasks: Any, **options: Any) -> list[str]:
    with pytest.raises(WorkflowDefinitionError) as caught:
        app.workflow("w", tasks, **options)
    for problem in caught.value.problems:
        assert problem.where
        assert problem.fix
    assert __file__ in str(caught.value)
    return [f"{problem.where}: {problem.why}" for problem in caught.value.problems]


def test_a_graph_is_numbered_and_its_edges_known_both_ways() -> None:
    one, two = number.node()(1), number.node(node_id="second")(2)
    both = plus.node()(from_node(one), b=from_node(two))
    seen = judge.node()(result_from(both))
    spec = app.workflow("sums", [one, two, both, seen], output=both)
    made = graph_data(spec)
    assert [node["node_id"] for node in made["nodes"]] == ["number", "second", "plus", "judge"]
    assert [node["dependencies"] for node in made["nodes"]] == [[], [], [0, 1], [2]]
    assert [node["dependents"] for node in made["nodes"]] == [[2], [2], [3], []]
    assert made["nodes"][2]["args_from"] == {"a": {"at": 0, "bare": True}, "b": {"at": 1, "bare": True}}
    assert made["nodes"][3]["args_from"] == {"result": {"at": 2}}
    assert made["nodes"][2]["kwargs"] is None
    assert made["output"] == 2


def test_static_arguments_stand_beside_injected_ones() -> None:
    one = number.node()(1)
    spec = app.workflow("w", [one, TaskNode(plus, kwargs={"b": 5}, args_from={"a": one})])
    assert graph_data(spec)["nodes"][1]["kwargs"] == '{"b":5}'
    shifted = app.workflow("shifted", [one, plus.node()(from_node(one), 7)])
    assert graph_data(shifted)["nodes"][1]["kwargs"] == '{"b":7}'
    many = app.workflow("many", [rest.node()(1, 2)])
    assert graph_data(many)["nodes"][0]["args"] == "[1,2]"


def test_everything_that_is_wrong_is_told_at_once() -> None:
    loop: list[Any] = []
    circle = number.node(node_id="circle")
    first = TaskNode(number, 1, node_id="first", waits_for=loop)
    second = TaskNode(number, 1, node_id="second", waits_for=[first])
    loop.append(second)
    stranger = number.node(node_id="stranger")(1)
    found = problems(
        [
            first,
            second,
            number.node(node_id="twice")(1),
            number.node(node_id="twice")(1),
            TaskNode(number, node_id="nothing"),
            TaskNode(number, 1, kwargs={"m": 2}, node_id="too much"),
            text.node(node_id="type")(from_node(first)),  # type: ignore[arg-type]
            number.node(node_id="waits", waits_for=[stranger])(1),
            plus.node(node_id="takes")(from_node(stranger)),
            TaskNode(plus, kwargs={"a": 1}, args_from={"a": first}, node_id="both"),
            TaskNode(plus, kwargs={"a": 1}, args_from={"c": first}, node_id="unknown"),
            number.node(node_id="quorum", join="quorum", min_success=3, waits_for=[first])(1),
            number.node(node_id="any", join="any")(1),
            number.node(node_id="pointless", min_success=1, waits_for=[first])(1),
            number.node(node_id="mixed", join="any", allow_failed_deps=True, waits_for=[first])(1),
            plus.node(node_id="bare", join="any")(from_node(first)),
            number.node(node_id="odd", join="some", waits_for=[first])(1),  # type: ignore[arg-type]
            number.node(node_id="queue", queue_name="nowhere")(1),
            number.node(node_id="late", good_until=timedelta(0))(1),
            TaskNode(context, node_id="no sources"),
            number.node(node_id="no context", workflow_ctx_from=[first])(1),
            TaskNode(only_positional, args_from={"a": first}, node_id="positional"),
            circle,
        ],
        output=stranger,
        on_error="explode",
        success_policy=SuccessPolicy([SuccessCase([stranger])]),
    )
    for wanted in (
        "node 'twice': two nodes have this node_id",
        "node 'nothing': task 'number': parameter 'n': missing required argument 'n'",
        "unexpected keyword argument 'm'",
        "node 'type': parameter 'value' takes str, and <TaskNode first> returns int",
        "node 'waits': it waits for <TaskNode stranger>, which is not in this workflow",
        "node 'takes': it takes the result of <TaskNode stranger>, which is not in this workflow",
        "node 'both': parameter 'a' is given twice: by name and in args_from",
        "node 'unknown': task 'plus' has no parameter 'c'",
        "node 'quorum': a quorum of 3 among 1 dependency cannot be met",
        "node 'any': join='any' without any dependency",
        "node 'pointless': min_success has no meaning with join='all'",
        "node 'mixed': allow_failed_deps waits for all, join='any' does not",
        "node 'bare': with join='any' an upstream may have failed or not ended, there may be no value",
        "node 'odd': join='some' is unknown",
        "node 'queue': queue_name: 'nowhere' is not a queue of this app",
        "node 'late': good_until: 0:00:00 is not between 0 and ten years",
        "node 'no sources': parameter 'ctx' is a WorkflowContext",
        "node 'no context': workflow_ctx_from is given, and task 'number' has no parameter of type WorkflowContext",
        "node 'positional': task 'only_positional' has no parameter 'a'",
        "tasks[22]: is a NodeBuilder, not a node",
        "it waits in a circle: first <- second <- first",
        "on_error: 'explode' is unknown",
        "output: <TaskNode stranger> is not in this workflow",
        "success_policy.cases[0]: <TaskNode stranger> is not in this workflow",
    ):
        assert any(wanted in problem for problem in found), (wanted, found)


def test_small_mistakes() -> None:
    assert problems([]) == ["tasks: there is no node"]
    one = number.node(node_id="x")(1)
    assert problems([one, one]) == ["tasks[1]: <TaskNode x> is listed twice"]
    own: list[Any] = []
    self_loop = TaskNode(number, 1, node_id="own", waits_for=own)
    own.append(self_loop)
    assert problems([self_loop]) == ["node 'own': it waits for itself"]
    other = make_app()

    @other.task("foreign")
    def foreign() -> Number:
        return TaskResult(ok=1)

    assert problems([foreign.node(node_id="f")()]) == ["node 'f': task 'foreign' belongs to another app"]
    assert problems([number.node(node_id="n")("no number")])[0].startswith("node 'n': ")  # type: ignore[arg-type]


def test_map_is_checked() -> None:
    items = numbers.node(node_id="items")(3)
    spec = app.workflow("w", [items, plus.node(node_id="m").map(items_from=items, b=1)])
    assert spec.wired[1].node.result_type == list[int]
    assert "goes through the items of <TaskNode one>" in problems(
        [one := number.node(node_id="one")(1), plus.node(node_id="m").map(one)]  # type: ignore[arg-type]
    )[0]  # fmt: skip
    assert "its task takes str" in problems([items, text.node(node_id="m").map(items)])[0]  # type: ignore[arg-type]
    quorum = number.node(node_id="q", waits_for=[items], join="quorum")(1)
    assert 'join="quorum" needs min_success, how many of its 1 dependency' in problems([items, quorum])[0]
    assert "max_width is 0" in problems([items, plus.node(node_id="m", max_width=0).map(items)])[0]


def test_a_definition_is_a_class() -> None:
    class Sums(WorkflowDefinition[int], app=app, name="sums of a class"):
        one = number.node()(1)
        two = plus.node()(from_node(one))
        output = two

    spec = Sums.build()
    assert [wired.node_id for wired in spec.wired] == ["one", "two"]
    assert spec.output is Sums.two
    assert app.workflows.get("sums of a class") is spec
    with pytest.raises(WorkflowDefinitionError, match="it takes the result of"):

        class Broken(WorkflowDefinition[int], app=app):
            two = plus.node()(from_node(number.node()(1)))


def test_parameters_reach_through_workflows() -> None:
    class Inner(WorkflowDefinition[int], app=app, name="inner"):
        @classmethod
        def build_with(cls, start: int) -> WorkflowSpec[int]:
            node = plus.node(node_id="leaf")(start, 1)
            return cls.workflow([node], output=node)

    class Middle(WorkflowDefinition[int], app=app, name="middle"):
        @classmethod
        def build_with(cls, start: int) -> WorkflowSpec[int]:
            inner = Inner.build_with(start).node(node_id="inner")
            return cls.workflow([inner], output=inner)

    top = number.node(node_id="top")(1)
    middle = Middle.build_with(from_node(top)).node(node_id="middle")
    made = graph_data(app.workflow("outer", [top, middle], output=middle))
    assert made["nodes"][1]["dependencies"] == [0]
    leaf = made["nodes"][1]["kwargs"]["nodes"][0]["kwargs"]["nodes"][0]
    assert leaf["args_from"] == {"a": {"at": 0, "up": 2, "bare": True}}
    with pytest.raises(TaskSendError, match="which are not in it"):
        Middle.build_with(from_node(top)).start()
    with pytest.raises(WorkflowDefinitionError, match="which is not in this workflow"):
        app.workflow("outer", [Middle.build_with(from_node(top)).node()])
    with pytest.raises(WorkflowDefinitionError, match="takes int, and <TaskNode words> returns str"):
        Inner.build_with(from_node(text.node(node_id="words")("x")))  # type: ignore[arg-type]


def test_check_tries_every_builder() -> None:
    other = make_app()

    @other.task("one")
    def one(n: int) -> Number:
        return TaskResult(ok=n)

    class Tried(WorkflowDefinition[int], app=other, name="tried"):
        check_with = ({"n": 1}, {"n": "x"})

        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[int]:
            node = one.node()(n)
            return cls.workflow([node], output=node)

    class Untried(WorkflowDefinition[int], app=other, name="untried"):
        @classmethod
        def build_with(cls, n: int) -> WorkflowSpec[int]:
            raise AssertionError(n)

    findings = list(check_app(other))
    assert [finding.is_problem for finding in findings] == [True, False]
    assert "workflow 'tried'" in findings[0].text
    assert "build_with(n=...)" in findings[0].text
    assert "untried" in findings[1].text
    assert "check_with" in findings[1].text
    assert any("tried  1 nodes" in line for line in describe(other))
    assert issubclass(Tried, WorkflowDefinition)
    assert issubclass(Untried, WorkflowDefinition)


def test_a_key_needs_an_id() -> None:
    node = number.node()(1)
    with pytest.raises(UsageError, match="has no id yet"):
        _ = node.key
    app.workflow("w", [node])
    assert node.key.node_id == "number"


def test_a_context_gives_typed_results() -> None:
    node = number.node(node_id="n")(1)
    ctx = WorkflowContext(
        "w", "me", {"n": {"ok": 5}, "bad": {"err": {"error_code": "DOWN", "message": "", "data": None}}}
    )
    assert ctx.result_for(node.key).ok == ctx.result_for(node).ok == 5
    with pytest.raises(UsageError, match="'n' is neither a node nor a node's key"):
        ctx.result_for("n")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no id yet"):
        ctx.result_for(number.node()(1))
    other = number.node(node_id="other")(1)
    assert ctx.result_for(other.key).err_value.error_code == "RESULT_NOT_AVAILABLE"
    assert ctx.result_for(number.node(node_id="bad")(1).key).err_value.error_code == "DOWN"
    assert ctx.result_for(text.node(node_id="n")("x").key).err_value.error_code == "RESULT_DESERIALIZATION_ERROR"


# -- workflows in workflows --------------------------------------------------------------------------------------


def nested(levels: int, *, copies: int = 1) -> WorkflowSpec[int]:
    """A workflow in a workflow, so many levels deep; each level stands `copies` times in the next."""
    spec = app.workflow("lowest level", [leaf := number.node(node_id="leaf")(1)], output=leaf)
    for _ in range(levels - 1):
        inner = [spec.node(node_id=f"inner {at}") for at in range(copies)]
        spec = app.workflow("level", inner, output=inner[0])
    return spec


def written(spec: WorkflowSpec[int]) -> int:
    return len(str(spec.prepared_start("00000000-0000-4000-8000-000000000000").statement()[1]))


def test_a_nested_workflow_grows_by_its_nodes_and_not_by_its_depth() -> None:
    sizes = [written(nested(levels)) for levels in (1, 17, 33, 49)]
    steps = [after - before for before, after in pairwise(sizes)]
    assert steps[0] < 16 * 2_000
    assert max(steps) - min(steps) < 200


def test_a_nested_workflow_is_refused_before_it_is_built() -> None:
    assert nested(MAX_LEVELS).levels == MAX_LEVELS
    with pytest.raises(WorkflowDefinitionError, match=f"{MAX_LEVELS + 1} levels deep, the limit is {MAX_LEVELS}"):
        nested(MAX_LEVELS + 1)
    # 2 ** 16 nodes stand in 16 small objects; the next level would have twice as many
    with pytest.raises(WorkflowDefinitionError, match="nodes, the limit is 100,000"):
        nested(40, copies=2)


def test_a_nested_workflow_with_too_many_bytes_is_refused_before_it_is_built() -> None:
    spec = app.workflow("lowest level", [text.node(node_id="leaf")("x" * 900_000)])
    for _ in range(5):
        spec = app.workflow("level", [spec.node(node_id=f"inner {at}") for at in range(3)])
    assert spec.least_bytes > MAX_BYTES
    with pytest.raises(TaskSendError, match="bytes of graph and arguments, the limit is 67,108,864"):
        spec.start()


def test_the_fingerprint_of_an_older_client_is_known() -> None:
    """It wrote each nested graph as text."""
    inner = nested(3).node(node_id="in")
    items = numbers.node(node_id="items")(3)
    spec = app.workflow("outer", [inner, items, plus.node(node_id="m").map(items, b=1)])

    def older(made: Any) -> Any:
        for node in made["nodes"]:
            del node["metadata"]
            if node.pop("kind") == "map":
                del node["kwargs"]["map"]["kind"], node["kwargs"]["map"]["metadata"]
            if isinstance(node["kwargs"], dict):
                inside = older(node["kwargs"]) if "nodes" in node["kwargs"] else node["kwargs"]
                node["kwargs"] = json.dumps(inside, separators=(",", ":"))
        return made

    text = json.dumps(older(graph_data(spec)), separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() in Start(spec, None, None).older_fingerprints()
