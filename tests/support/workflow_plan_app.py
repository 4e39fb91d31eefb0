"""The graphs of `workflow_plans` as workflows, and what their tasks answer."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from horsies import (
    Continue,
    Horsies,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowSpec,
    either,
    from_node,
    map_workflow,
    result_from,
    sleep,
    wait_for_signal,
)
from horsies.workflow.nodes import Node
from tests.support.workflow_plans import SIGNALS, Graph, Plan

Number = TaskResult[int, TaskError]
FAR = 3_600.0
"""Seconds of a wait: no clock comes for itself while a test runs, the test moves it."""
UNDO = {"flag": "undo_flag", "list": "undo_list"}
NAMES = [
    "work", "judge", "weigh", "listed", "each", "flag", "later", "total", "undo", "undo_flag", "undo_list",
]  # fmt: skip


def register(app: Horsies) -> SimpleNamespace:
    """Tasks that no process runs: `Plans.answer` answers for them."""

    @app.task("work")
    def work(n: int, a: int = 0, fails: bool = False, odd: bool = False) -> Number: ...

    @app.task("judge")
    def judge(n: int, r: Number, fails: bool = False) -> Number: ...

    @app.task("weigh")
    def weigh(n: int, fails: bool = False, ctx: WorkflowContext | None = None) -> Number: ...

    @app.task("listed")
    def listed(n: int, fails: bool = False) -> TaskResult[list[int], TaskError]: ...

    @app.task("each")
    def each(item: int, n: int, a: int = 0, fails: bool = False) -> Number: ...

    @app.task("flag")
    def flag(n: int, fails: bool = False) -> TaskResult[bool, TaskError]: ...

    @app.task("later")
    def later(n: int, key: str, fails: bool = False) -> Number: ...

    @app.task("total")
    def total(n: int, results: list[Number], fails: bool = False) -> Number: ...

    @app.task("undo")
    def undo(value: int, n: int = 0) -> Number: ...

    @app.task("undo_flag")
    def undo_flag(value: bool, n: int = 0) -> Number: ...

    @app.task("undo_list")
    def undo_list(value: list[int]) -> Number: ...

    return SimpleNamespace(**{name: task for name, task in locals().items() if name != "app"})


class Plans:
    """Builds workflows of graphs. `undo_fails` says of each compensation whether it fails."""

    def __init__(self, app: Horsies, undo_fails: Callable[[], bool]) -> None:
        self._app = app
        self._tasks = register(app)
        self._undo_fails = undo_fails
        self._later: dict[str, Graph] = {}
        self._built: dict[str, WorkflowSpec[Any]] = {}

    def build(self, graph: Graph, name: str, item: Any = None) -> WorkflowSpec[Any]:
        nodes: list[Node[Any]] = []
        for at, plan in enumerate(graph.nodes):
            nodes.append(self._node(plan, f"{name}.{at}", f"n{at}", nodes, item))
        policy = None
        if graph.policy is not None:
            policy = SuccessPolicy([SuccessCase([nodes[at] for at in case]) for case in graph.policy])
        return self._app.workflow(
            name, nodes, output=nodes[graph.output], on_error=graph.on_error, success_policy=policy  # type: ignore[arg-type]
        )  # fmt: skip

    def _node(self, plan: Plan, name: str, node_id: str, nodes: list[Node[Any]], item: Any) -> Node[Any]:
        options: dict[str, Any] = {
            "node_id": node_id, "waits_for": [nodes[index] for index in plan.waits], "join": plan.join,
            "min_success": plan.quorum, "allow_failed_deps": plan.allow_failed,
        }  # fmt: skip
        if plan.decider is not None:
            options["when" if plan.wanted else "unless"] = nodes[plan.decider]
        if plan.kind == "sleep":
            return sleep(0.0 if plan.value == 0 else FAR, **options)
        if plan.kind in SIGNALS:
            timeout = FAR if plan.timeout else None
            return wait_for_signal(plan.signal_name, int if plan.kind == "told" else bool, timeout=timeout, **options)
        if plan.kind in ("wmap", "wpmap"):
            inside = plan.inside
            assert inside is not None
            return map_workflow(
                nodes[plan.takes["*"][0]], lambda one: self.build(inside, name, one), partial=plan.kind == "wpmap",
                **options,
            )  # fmt: skip
        if plan.undo:
            options["compensate"] = getattr(self._tasks, UNDO.get(plan.kind, "undo"))
        if plan.kind == "sub":
            assert plan.inside is not None
            return self.build(plan.inside, name).node(**options)
        given = {"n": plan.value, "fails": plan.fails, **_values(plan, nodes)}
        if plan.kind in ("map", "pmap"):
            made = self._tasks.each.node(**options)
            return (made.map if plan.kind == "map" else made.map_partial)(nodes[plan.takes["*"][0]], **given)
        if plan.item:
            given |= {"a": item, "odd": True}
        if plan.inside is not None:
            self._later[name] = plan.inside
            given["key"] = name
        if plan.context:
            options["workflow_ctx_from"] = [nodes[index] for index in plan.context]
        return TaskNode(getattr(self._tasks, {"list": "listed"}.get(plan.kind, plan.kind)), kwargs=given, **options)

    def answer(self, name: str, given: Mapping[str, Any]) -> Any:
        """What a task returns."""
        if name.startswith("undo"):
            return TaskError("UNWANTED") if self._undo_fails() else 0
        if given["fails"]:
            condition = given["item"] if name == "each" else given["a"] if given.get("odd") else 1
            if condition % 2:
                return TaskError("WANTED")
        if "r" in given:
            assert given["r"].get("err", {}).get("error_code") != "RESULT_NOT_READY"
        match name:
            case "later":
                return Continue(self._continued(given["key"]))
            case "listed":
                return list(range(given["n"] % 4))
            case "flag":
                return given["n"] % 2 == 1
            case "weigh":
                return given["n"] + sum(
                    result.get("ok", 1000) for node, result in given["ctx"]["results"].items() if node
                )
            case "judge":
                return given["n"] + given["r"].get("ok", 1000)
            case "total":
                return given["n"] + sum(result.get("ok", 1000) for result in given["results"])
            case _:
                return given["n"] + given.get("item", 0) + given.get("a", 0)

    def _continued(self, key: str) -> WorkflowSpec[Any]:
        if key not in self._built:
            self._built[key] = self.build(self._later[key], key)
        return self._built[key]


def _values(plan: Plan, nodes: list[Node[Any]]) -> dict[str, Any]:
    """The arguments that other nodes give."""
    found: dict[str, Any] = {}
    for name, sources in plan.takes.items():
        if name == "r":
            found[name] = result_from(nodes[sources[0]])
        elif name != "*":
            several = len(sources) > 1
            found[name] = either(*(nodes[at] for at in sources)) if several else from_node(nodes[sources[0]])
    return found
