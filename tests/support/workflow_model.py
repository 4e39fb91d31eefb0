"""Random graphs, and a small model of how they must end: it knows nothing of rows, goes through a graph once, in order,
and says of every node how it ends and what it returns."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horsies import Horsies, SuccessCase, SuccessPolicy, TaskError, TaskNode, TaskResult, WorkflowSpec
from horsies.workflow.nodes import Node


@dataclass
class Plan:
    """A node of the model."""

    kind: str
    value: int
    fails: bool
    waits: list[int]
    join: str = "all"
    quorum: int | None = None
    allow_failed: bool = False
    takes: dict[str, int] = field(default_factory=dict)
    context: list[int] = field(default_factory=list)
    inside: "Graph | None" = None


@dataclass
class Graph:
    nodes: list[Plan]
    policy: list[list[int]] | None
    on_error: str


def random_graph(chance: random.Random, depth: int = 0) -> Graph:
    nodes: list[Plan] = []
    for at in range(chance.randint(1, 4 if depth else 12)):
        waits = sorted(chance.sample(range(at), chance.randint(0, min(at, 3)))) if at else []
        kind = "sub" if depth < 2 and chance.random() < 0.12 else "work"
        if at and kind == "work" and chance.random() < 0.1:
            kind = "list"
        plan = Plan(kind, chance.randint(0, 9), chance.random() < 0.2, waits)
        roll = chance.random()
        if waits and roll < 0.2:
            plan.join = "any"
        elif waits and roll < 0.4:
            plan.join, plan.quorum = "quorum", chance.randint(1, len(waits))
        elif waits and roll < 0.55:
            plan.allow_failed = True
        numbers = [other for other in waits if nodes[other].kind not in ("list", "map")]
        lists = [other for other in waits if nodes[other].kind == "list"]
        if kind == "sub":
            plan.inside = random_graph(chance, depth + 1)
        elif kind == "work" and lists and plan.join == "all":
            plan.kind, plan.takes = "map", {"*": chance.choice(lists)}
            if numbers and chance.random() < 0.7:
                plan.takes["a"] = chance.choice(numbers)
        elif kind == "work" and numbers and chance.random() < 0.6:
            source = chance.choice(numbers)
            if plan.join != "all":  # a value or result could be taken before its source has ended, a context cannot
                plan.kind, plan.context = "weigh", chance.sample(numbers, chance.randint(1, len(numbers)))
            elif chance.random() < 0.6:
                plan.takes = {"a": source}
            else:
                plan.kind, plan.takes = "judge", {"r": source}
        nodes.append(plan)
    policy = None
    if chance.random() < 0.2:
        policy = [
            chance.sample(range(len(nodes)), chance.randint(1, min(2, len(nodes)))) for _ in range(chance.randint(1, 2))
        ]
    return Graph(nodes, policy, chance.choice(["fail", "fail", "pause"]))


@dataclass
class Expected:
    status: str
    states: list[str]
    values: list[Any]
    """None: there is no value, also of a workflow that completed although its output node did not."""
    output: Any


def expect(graph: Graph) -> Expected:
    """The model."""
    states: list[str] = []
    values: list[Any] = []
    for plan in graph.nodes:
        ok = sum(states[at] == "COMPLETED" for at in plan.waits)
        needed = {"any": 1, "quorum": plan.quorum}.get(plan.join, len(plan.waits))
        runs = plan.allow_failed or ok >= needed
        if any(values[source] is None for name, source in plan.takes.items() if name != "r"):
            runs = False  # the default of the parameter does not count
        state, value = "COMPLETED", None
        if not runs:
            state = "SKIPPED"
        elif plan.inside is not None:
            inner = expect(plan.inside)
            # the output of the workflow inside is its first node's; where that is not there, no value is given on
            state, value = inner.status, inner.output if inner.status == "COMPLETED" else None
        elif plan.fails and not (plan.kind == "map" and not values[plan.takes["*"]]):
            state = "FAILED"
        elif plan.kind == "list":
            value = list(range(plan.value % 4))
        elif plan.kind == "map":
            value = [item + plan.value + values[plan.takes.get("a", -1)] if "a" in plan.takes else item + plan.value
                     for item in values[plan.takes["*"]]]  # fmt: skip
        elif plan.kind == "weigh":
            value = plan.value + sum(1000 if values[at] is None else values[at] for at in plan.context)
        else:
            given = values[plan.takes["a"]] if "a" in plan.takes else 0
            if "r" in plan.takes:
                given = 1000 if values[plan.takes["r"]] is None else values[plan.takes["r"]]
            value = plan.value + given
        states.append(state)
        values.append(value)
    if graph.policy is not None:
        success = any(all(states[at] == "COMPLETED" for at in case) for case in graph.policy)
    else:
        success = "FAILED" not in states
    return Expected("COMPLETED" if success else "FAILED", states, values, values[0])


def build(app: Horsies, tasks: Any, graph: Graph, name: str) -> WorkflowSpec[Any]:
    """The graph as a workflow; `tasks` has `work`, `judge`, `weigh`, `listed` and `each`."""
    nodes: list[Node[Any]] = []
    for at, plan in enumerate(graph.nodes):
        options: dict[str, Any] = {
            "node_id": f"n{at}", "waits_for": [nodes[index] for index in plan.waits], "join": plan.join,
            "min_success": plan.quorum, "allow_failed_deps": plan.allow_failed,
        }  # fmt: skip
        if plan.inside is not None:
            nodes.append(build(app, tasks, plan.inside, f"{name}.{at}").node(**options))
            continue
        given: dict[str, Any] = {"n": plan.value, "fails": plan.fails}
        sources = {parameter: nodes[index] for parameter, index in plan.takes.items() if parameter != "*"}
        if plan.kind == "map":
            mapped = tasks.each.node(**options, args_from=sources)
            nodes.append(mapped.map(nodes[plan.takes["*"]], **given))
        else:
            if plan.context:
                options["workflow_ctx_from"] = [nodes[index] for index in plan.context]
            task = getattr(tasks, {"list": "listed"}.get(plan.kind, plan.kind))
            nodes.append(TaskNode(task, kwargs=given, args_from=sources, **options))
    policy = None
    if graph.policy is not None:
        policy = SuccessPolicy([SuccessCase([nodes[at] for at in case]) for case in graph.policy])
    return app.workflow(name, nodes, output=nodes[0], on_error=graph.on_error, success_policy=policy)  # type: ignore[arg-type]


def compare(
    graph: Graph, status: object, states: Sequence[str], results: Mapping[str, TaskResult[Any, TaskError]]
) -> list[str]:
    """Where a run differs from what the model says of its graph."""
    wanted = expect(graph)
    wrong = [] if status == wanted.status else [f"the run is {status}, not {wanted.status}"]
    for at, (state, other) in enumerate(zip(states, wanted.states, strict=True)):
        if state != other:
            wrong.append(f"n{at} is {state}, not {other}")
        elif state == "COMPLETED" and results[f"n{at}"].ok != wanted.values[at]:
            wrong.append(f"n{at} returned {results[f'n{at}'].ok}, not {wanted.values[at]}")
    return wrong
