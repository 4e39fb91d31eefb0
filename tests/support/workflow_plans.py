"""Random graphs with every kind of node, and a small model of how they must end. As `workflow_model`, it knows nothing
of rows and goes through a graph once, in order; here nodes also wait, branch, continue and are undone."""

import random
from dataclasses import dataclass, field
from typing import Any, Final

INTS: Final = ("work", "judge", "weigh", "told", "sub", "later", "total")
BOOLS: Final = ("flag", "asked")
LISTS: Final = ("list", "map", "wmap")
PARTIAL: Final = ("pmap", "wpmap")
MAPS: Final = ("map", "pmap", "wmap", "wpmap")
SIGNALS: Final = ("told", "asked")
UNDOABLE: Final = ("work", "judge", "weigh", "sub", "later", "total", "flag", "list", "map", "pmap")
GONE: Final = "completed without a stored result"
"""The value of a map that completed although an item has no value: what takes it fails."""


@dataclass
class Plan:
    """A node of the model. `fails`: its task fails, or no signal comes; of a map, the tasks of odd items."""

    kind: str
    value: int
    fails: bool
    waits: list[int]
    join: str = "all"
    quorum: int | None = None
    allow_failed: bool = False
    takes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By parameter: a node, or the branches of `either`. `*` is the list of a map, `r` takes a TaskResult."""
    context: list[int] = field(default_factory=list[int])
    decider: int | None = None
    wanted: bool = True
    """`when`, or else `unless`."""
    undo: bool = False
    item: bool = False
    """It takes the item of the map around its workflow, and fails only for odd ones."""
    timeout: bool = False
    inside: "Graph | None" = None

    @property
    def signal_name(self) -> str:
        """It names the value, so that nodes may wait for the same signal and get any of those that were sent."""
        return f"{'never' if self.fails else self.kind}-{self.value}"


@dataclass
class Graph:
    nodes: list[Plan]
    output: int
    policy: list[list[int]] | None
    on_error: str


def random_graph(chance: random.Random, depth: int = 0, *, item: bool = False) -> Graph:
    nodes: list[Plan] = []
    for at in range(chance.randint(1, 4 if depth else 10)):
        nodes.append(_random_node(chance, nodes, depth, item=item, first=at == 0))
    if depth < 3 and chance.random() < 0.3:  # it goes on in its place, if nothing else is open: a loop of some rounds
        last = Plan("later", 0, chance.random() < 0.1, list(range(len(nodes))), allow_failed=chance.random() < 0.5)
        last.inside, last.undo = random_graph(chance, depth + 1), chance.random() < 0.3
        nodes.append(last)
    ints = [at for at, plan in enumerate(nodes) if plan.kind in INTS]
    output = len(nodes) - 1 if nodes[-1].kind == "later" else chance.choice(ints)
    policy = None
    if chance.random() < 0.2:
        policy = [
            chance.sample(range(len(nodes)), chance.randint(1, min(2, len(nodes)))) for _ in range(chance.randint(1, 2))
        ]
    return Graph(nodes, output, policy, chance.choice(["fail", "fail", "pause"]))


def _random_node(chance: random.Random, nodes: list[Plan], depth: int, *, item: bool, first: bool) -> Plan:
    at = len(nodes)
    waits = sorted(chance.sample(range(at), chance.randint(0, min(at, 3)))) if at else []
    kinds = {"work": 7, "flag": 2, "told": 1, "asked": 1, "list": 1, "sleep": 1}
    if depth < 2:
        kinds |= {"sub": 1}
    if depth < 3:
        kinds |= {"later": 1}
    kind = "work" if first else chance.choices(list(kinds), list(kinds.values()))[0]
    plan = Plan(kind, chance.randint(0, 9), chance.random() < 0.15, waits)
    roll = chance.random()
    if waits and roll < 0.15:
        plan.join = "any"
    elif waits and roll < 0.3:
        plan.join, plan.quorum = "quorum", chance.randint(1, len(waits))
    elif waits and roll < 0.5:
        plan.allow_failed = True
    bools = [other for other in range(at) if nodes[other].kind in BOOLS]
    if bools and chance.random() < 0.5:
        plan.decider, plan.wanted = chance.choice(bools), chance.random() < 0.5
    by_kind = {
        name: [one for one in waits if nodes[one].kind in kinds_of]
        for name, kinds_of in (("ints", INTS), ("lists", LISTS), ("partial", PARTIAL))
    }
    if kind in ("sub", "later"):
        plan.inside = random_graph(chance, depth + 1)
    elif kind == "work" and plan.join == "all" and by_kind["lists"]:
        plan.kind = chance.choice(MAPS if depth < 2 else MAPS[:2])
        plan.takes = {"*": [chance.choice(by_kind["lists"])]}
        if plan.kind in ("wmap", "wpmap"):
            plan.inside = random_graph(chance, 2, item=True)
        elif by_kind["ints"] and chance.random() < 0.6:
            plan.takes["a"] = [chance.choice(by_kind["ints"])]
    elif kind == "work" and plan.join == "all" and by_kind["partial"]:
        plan.kind, plan.takes = "total", {"results": [chance.choice(by_kind["partial"])]}
    elif kind == "work" and by_kind["ints"] and chance.random() < 0.7:
        _take(chance, plan, by_kind["ints"])
    elif kind == "work" and item and chance.random() < 0.7:
        plan.item = True
    plan.undo = plan.kind in UNDOABLE and chance.random() < 0.3
    plan.timeout = plan.fails or chance.random() < 0.5
    return plan


def _take(chance: random.Random, plan: Plan, ints: list[int]) -> None:
    """What a task takes of other nodes."""
    if plan.join != "all":  # a value or result could be taken before its source has ended, a context cannot
        plan.kind, plan.context = "weigh", chance.sample(ints, chance.randint(1, len(ints)))
    elif len(ints) > 1 and chance.random() < 0.6:
        plan.takes = {"a": chance.sample(ints, 2)}
    elif chance.random() < 0.6:
        plan.takes = {"a": [chance.choice(ints)]}
    else:
        plan.kind, plan.takes = "judge", {"r": [chance.choice(ints)]}


@dataclass
class Expected:
    status: str
    states: list[str]
    reasons: list[str | None]
    values: list[Any]
    """None: there is no value, also of a workflow that completed although its output node did not."""
    output: Any


def expect(graph: Graph, item: int | None = None) -> Expected:
    """The model. `item`: what a map runs this workflow for."""
    so_far = Expected("", [], [], [], None)
    for plan in graph.nodes:
        reason = _skipped(plan, so_far)
        state, value = ("SKIPPED", None) if reason in ("upstream", "not_taken") else ("FAILED", None)
        if reason is None:
            state, value = _ran(plan, so_far.values, item)
        so_far.states.append(state)
        so_far.reasons.append(reason if state == "SKIPPED" else None)
        so_far.values.append(value)
    if graph.policy is not None:
        success = any(all(so_far.states[at] == "COMPLETED" for at in case) for case in graph.policy)
    else:
        success = "FAILED" not in so_far.states
    so_far.status = "COMPLETED" if success else "FAILED"
    so_far.output = so_far.values[graph.output] if success else None
    return so_far


def _skipped(plan: Plan, known: Expected) -> str | None:
    """Why a node does not run: the condition decides first, then the join, then the values that it takes."""
    states, reasons, values = known.states, known.reasons, known.values
    if plan.decider is not None:
        if reasons[plan.decider] == "not_taken":
            return "not_taken"
        if states[plan.decider] != "COMPLETED":
            return "upstream"
        if values[plan.decider] is not plan.wanted:
            return "not_taken"
    total = len(plan.waits)
    void = sum(reasons[at] == "not_taken" for at in plan.waits)
    ok = sum(states[at] == "COMPLETED" for at in plan.waits)
    if plan.join == "all":
        if ok + void < total and not plan.allow_failed:
            return "upstream"
        if total and void == total:
            return "not_taken"
    else:
        needed = 1 if plan.quorum is None else plan.quorum
        if ok < needed:
            return "not_taken" if total - void < needed else "upstream"
    gaps = {_gap([(states[at], reasons[at], values[at]) for at in sources])
            for name, sources in plan.takes.items() if name != "r"}  # fmt: skip
    return next((gap for gap in ("upstream", "not_taken", "failed") if gap in gaps), None)


def _gap(sources: list[tuple[str, str | None, Any]]) -> str | None:
    """Why there is no value to take; of several branches, the first that completed counts."""
    ran = [one for one in sources if one[0] == "COMPLETED"]
    if not ran:
        return "not_taken" if all(reason == "not_taken" for _, reason, _ in sources) else "upstream"
    value = ran[0][2]
    return "failed" if value is GONE else "upstream" if value is None else None


def _ran(plan: Plan, values: list[Any], item: int | None) -> tuple[str, Any]:
    """How a node ends that runs."""
    if plan.kind in MAPS:
        return _mapped(plan, values)
    if plan.fails and (not plan.item or (item or 0) % 2) and plan.kind not in ("sub", "sleep"):
        return "FAILED", None
    if plan.inside is not None:
        inner = expect(plan.inside)
        return inner.status, inner.output
    match plan.kind:
        case "sleep":
            return "COMPLETED", None
        case "flag" | "asked":
            return "COMPLETED", plan.value % 2 == 1
        case "list":
            return "COMPLETED", list(range(plan.value % 4))
        case "weigh":
            return "COMPLETED", plan.value + sum(1000 if values[at] is None else values[at] for at in plan.context)
        case "total":
            taken = values[plan.takes["results"][0]]
            return "COMPLETED", plan.value + sum(1000 if one is None else one for one in taken)
        case "judge":
            given = values[plan.takes["r"][0]]
            return "COMPLETED", plan.value + (1000 if given is None else given)
        case _:
            return "COMPLETED", plan.value + (item or 0 if plan.item else _taken(plan, values))


def _taken(plan: Plan, values: list[Any]) -> int:
    # no completed branch is without a value here: the node would have been skipped
    return next((values[at] for at in plan.takes.get("a", ()) if values[at] is not None), 0)


def item_ends(plan: Plan, items: list[int], values: list[Any]) -> list[tuple[str, Any]]:
    """How the items of a map end."""
    if plan.inside is not None:
        inner = [expect(plan.inside, one) for one in items]
        return [(one.status, one.output) for one in inner]
    more = _taken(plan, values)
    return [("FAILED", None) if plan.fails and one % 2 else ("COMPLETED", one + plan.value + more) for one in items]


def _mapped(plan: Plan, values: list[Any]) -> tuple[str, Any]:
    ends = item_ends(plan, values[plan.takes["*"][0]], values)
    found = [value for _, value in ends]
    if plan.kind in PARTIAL:
        return "COMPLETED", found
    if any(state == "FAILED" for state, _ in ends):
        return "FAILED", None
    return "COMPLETED", GONE if any(value is None for value in found) else found
