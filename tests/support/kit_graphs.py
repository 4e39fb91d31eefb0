"""Random workflows of every kind of node: tasks, branches, waits, maps, workflows inside, continuations and
compensations. The same seed gives the same workflow in any app."""

import random
from typing import Any

from horsies import Horsies, WorkflowSpec, either, from_node, map_workflow, result_from, sleep, wait_for_signal
from horsies.workflow.nodes import Node


def random_workflow(
    app: Horsies, t: Any, seed: int, name: str, depth: int = 0, *, minute: float = 60
) -> WorkflowSpec[Any]:
    """`t`: the tasks of `kit_app`. It waits for signals `s0` and `s1` at most, and only at depth 0. `minute`: of
    sleeps, in seconds."""
    chance = random.Random(seed)
    nodes: list[Node[Any]] = []
    numbers: list[Node[Any]] = []
    deciders: list[Node[Any]] = []
    lists: list[Node[Any]] = []
    for at in range(chance.randint(2, 4 if depth else 10)):
        waits = chance.sample(nodes, min(len(nodes), chance.choice([0, 0, 1, 2, 3])))
        options: dict[str, Any] = {"node_id": f"n{at}", "waits_for": waits}
        if deciders and chance.random() < 0.35:
            options[chance.choice(["when", "unless"])] = chance.choice(deciders)
        roll = chance.random()
        bare = True
        if waits and roll < 0.15:
            options["join"], bare = "any", False
        elif waits and roll < 0.3:
            options |= {"join": "quorum", "min_success": chance.randint(1, len(waits))}
            bare = False
        elif waits and roll < 0.4:
            options["allow_failed_deps"] = True
        source = chance.choice(numbers) if numbers and bare and chance.random() < 0.6 else None
        given: Any = chance.randint(0, 20) if source is None else from_node(source)
        if source is not None and len(numbers) > 1 and chance.random() < 0.4:
            given = either(*chance.sample(numbers, 2))
        undo: dict[str, Any] = {"compensate": t.unnumber} if chance.random() < 0.4 else {}
        kind = chance.choice(["number", "number", "plus", "fail", "decide", "decide", "sleep", "signal", "list", "map",
                              "partial", "runs", "sub", "continue", "code"])  # fmt: skip
        node: Node[Any]
        match kind:
            case "number" | "plus":
                node = t.plus.node(**options, **undo)(given, 1)
                numbers.append(node)
            case "fail" if chance.random() < 0.5:
                node = t.fail.node(**options)()
                numbers.append(node)
            case "decide":
                node = t.is_large.node(**options)(given)
                deciders.append(node)
            case "sleep":
                node = sleep(chance.choice([0, minute, 2 * minute]), **options)
            case "signal" if not depth:
                node = wait_for_signal(f"s{chance.randint(0, 1)}", int, **options)
                numbers.append(node)
            case "list":
                node = t.spread.node(**options)(chance.randint(0, 3))
                lists.append(node)
            case "map" if lists and bare:
                node = t.even.node(**options, **undo).map(chance.choice(lists))
            case "partial" if lists and bare:
                node = t.even.node(**options, **undo).map_partial(chance.choice(lists))
            case "runs" if lists and bare and not depth:
                inner = f"{name}.{at}"

                def each(item: Any, inner: str = inner) -> WorkflowSpec[int]:
                    one = t.plus.node(node_id="one", compensate=t.unnumber)(item, 5)
                    two = t.even.node(node_id="two")(from_node(one))
                    return app.workflow(inner, [one, two], output=two)

                node = map_workflow(chance.choice(lists), each, partial=chance.random() < 0.5, **options)
            case "sub" if depth < 2:
                node = random_workflow(app, t, chance.randrange(10**6), f"{name}.{at}", depth + 1, minute=minute).node(
                    **options
                )
            case "continue" if bare:
                # not a number: as the output it would go on in the run's place, if all others happen to have ended
                node = t.countdown.node(**options)(chance.randint(0, 2))
            case "code" if numbers and bare:
                options["allow_failed_deps"] = True
                node = t.code_of.node(**options)(result_from(chance.choice(numbers)))
            case _:
                node = t.number.node(**options, **undo)(at)
                numbers.append(node)
        nodes.append(node)
    output = chance.choice(numbers) if numbers else nodes[-1]
    return app.workflow(name, nodes, output=output)
