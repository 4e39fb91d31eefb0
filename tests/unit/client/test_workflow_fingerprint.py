"""The fingerprint of a workflow: a changed definition or signature changes it, changed arguments do not."""

import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from horsies import TaskError, TaskResult, from_node
from horsies.workflow.graph import Graph
from tests.support.apps import make_app

Number = TaskResult[int, TaskError]


def plain(n: int, more: str = "") -> Number:
    return TaskResult(ok=n)


def flow(fn: Callable[..., Any] = plain, n: Any = 1, *, depth: int = 0, map_it: bool = False, **options: Any) -> str:
    return made(fn, n, depth=depth, map_it=map_it, **options).fingerprint


def made(
    fn: Callable[..., Any] = plain, n: Any = 1, *, depth: int = 0, map_it: bool = False, **options: Any
) -> Graph[Any]:
    app = make_app("dbname=unused")
    task = app.task("task")(fn)

    @app.task("many")
    def many(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[n])

    nodes: list[Any] = [task.node(node_id="one")(n)]
    if map_it:
        source = many.node()(1)
        nodes += [source, task.node(node_id="each").map(source)]
    spec = app.workflow("flow", nodes, **options)
    for level in range(depth):
        spec = app.workflow(f"outer {level}", [spec.node()])
    return spec


def test_arguments_do_not_change_it() -> None:
    assert len(flow()) == 64
    assert int(flow(), 16)
    assert flow(n=1) == flow(n=2)
    assert made().fingerprint is not None
    spec = made()
    assert spec.fingerprint is spec.fingerprint


def test_the_body_and_a_default_do_not_change_it() -> None:
    def other(n: int, more: str = "x") -> Number:
        return TaskResult(ok=n + 1)

    assert flow(other) == flow()


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("map_it", [False, True])
def test_a_changed_signature_changes_it(depth: int, map_it: bool) -> None:
    def typed(n: float, more: str = "") -> Number:
        return TaskResult(ok=int(n))

    def renamed(m: int, more: str = "") -> Number:
        return TaskResult(ok=m)

    def fewer(n: int) -> Number:
        return TaskResult(ok=n)

    def required(n: int, *, more: str = "") -> Number:
        return TaskResult(ok=n)

    def returns(n: int, more: str = "") -> TaskResult[str, TaskError]:
        return TaskResult(ok=more)

    same: dict[str, Any] = {"depth": depth, "map_it": map_it}
    prints = [flow(fn, **same) for fn in (plain, typed, renamed, fewer, required, returns)]
    assert len(set(prints)) == len(prints)
    assert flow(**same) == prints[0]


def test_a_changed_model_changes_it() -> None:
    """It keeps its name."""

    def with_model(**fields: Any) -> str:
        model = type("Order", (BaseModel,), {"__annotations__": fields, "__module__": __name__})

        def take(order: model) -> Number:
            return TaskResult(ok=1)

        return flow(take, model(id=1))

    assert with_model(id=int) == with_model(id=int)
    assert with_model(id=int) != with_model(id=float)


def test_a_changed_definition_changes_it() -> None:
    app = make_app("dbname=unused")
    task = app.task("task")(plain)

    def graph(**options: Any) -> str:
        first = task.node(node_id="first")(1)
        return app.workflow("flow", [first, task.node(node_id="second", **options)(from_node(first))]).fingerprint

    first = task.node(node_id="first")(1)
    given = task.node(node_id="second", waits_for=[first])(5)
    assert graph() == graph()
    assert app.workflow("flow", [first, given]).fingerprint != graph()  # the same edges
    assert flow(on_error="pause") != flow()
    assert flow(map_it=True) != flow()


def test_an_annotation_that_cannot_be_described_or_hashed() -> None:
    class Odd:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
            from pydantic_core import core_schema

            return core_schema.no_info_plain_validator_function(lambda value: value)

    def odd(n: Annotated[int, Field(json_schema_extra={"x": []})], o: Odd | None = None) -> Number:
        return TaskResult(ok=n)

    assert flow(odd) == flow(odd)


def test_it_is_the_same_in_another_process() -> None:
    code = "from tests.unit.client.test_workflow_fingerprint import flow; print(flow(depth=1, map_it=True))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == flow(depth=1, map_it=True)


def test_the_registry_knows_the_fingerprints_of_all_shapes() -> None:
    app = make_app("dbname=unused")
    task = app.task("task")(plain)

    def build(count: int) -> Graph[Any]:
        return app.workflow("flow", [task.node(node_id=f"n{at}")(at) for at in range(count)])

    assert app.workflows.fingerprints() == {}
    made = {build(1).fingerprint, build(2).fingerprint}
    assert app.workflows.fingerprints() == {"flow": made}
