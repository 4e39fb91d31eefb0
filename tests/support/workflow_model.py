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
        plan = Plan(kind, chance.randint(0, 9), chance.random() < 0.2, waits)
        roll = chance.random()
        if waits and roll < 0.2:
            plan.join = "any"
        elif waits and roll < 0.4:
            plan.join, plan.quorum = "quorum", chance.randint(1, len(waits))
        elif waits and roll < 0.55:
            plan.allow_failed = True
        if kind == "sub":
            plan.inside = random_graph(chance, depth + 1)
        elif waits and chance.random() < 0.6:
            source = chance.choice(waits)
            if plan.join == "all" and chance.random() < 0.6:
                plan.takes = {"a": source}
            elif plan.join == "all":  # with another join it may come before its source has ended
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
    values: list[int | None]
    output: int | None


def expect(graph: Graph) -> Expected:
    """The model."""
    states: list[str] = []
    values: list[int | None] = []
    for plan in graph.nodes:
        ok = sum(states[at] == "COMPLETED" for at in plan.waits)
        needed = {"any": 1, "quorum": plan.quorum}.get(plan.join, len(plan.waits))
        runs = plan.allow_failed or ok >= needed
        if "a" in plan.takes and states[plan.takes["a"]] != "COMPLETED":
            runs = False
        if not runs:
            states.append("SKIPPED")
            values.append(None)
        elif plan.inside is not None:
            inner = expect(plan.inside)
            # the output of the workflow inside is its last node's; where that is not there, no value is given on
            done = inner.status == "COMPLETED"
            states.append("COMPLETED" if done else "FAILED")
            values.append(inner.output if done else None)
        elif plan.fails:
            states.append("FAILED")
            values.append(None)
        else:
            given = 0
            if "a" in plan.takes:
                given = values[plan.takes["a"]] or 0
            elif "r" in plan.takes:
                taken = plan.takes["r"]
                given = (values[taken] or 0) if states[taken] == "COMPLETED" else 1000
            states.append("COMPLETED")
            values.append(plan.value + given)
    if graph.policy is not None:
        success = any(all(states[at] == "COMPLETED" for at in case) for case in graph.policy)
    else:
        success = "FAILED" not in states
    return Expected("COMPLETED" if success else "FAILED", states, values, values[0])


def build(app: Horsies, tasks: Any, graph: Graph, name: str) -> WorkflowSpec[Any]:
    """The graph as a workflow; `tasks` has `work` and `judge`."""
    nodes: list[Node[Any]] = []
    for at, plan in enumerate(graph.nodes):
        options: dict[str, Any] = {
            "node_id": f"n{at}", "waits_for": [nodes[index] for index in plan.waits], "join": plan.join,
            "min_success": plan.quorum, "allow_failed_deps": plan.allow_failed,
        }  # fmt: skip
        if plan.inside is not None:
            nodes.append(build(app, tasks, plan.inside, f"{name}.{at}").node(**options))
        else:
            sources = {parameter: nodes[index] for parameter, index in plan.takes.items()}
            task = tasks.judge if plan.kind == "judge" else tasks.work
            nodes.append(TaskNode(task, kwargs={"n": plan.value, "fails": plan.fails}, args_from=sources, **options))
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
