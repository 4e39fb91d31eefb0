"""Turns the nodes of a workflow into a numbered graph with encoded arguments, and collects all its problems.

A problem that is not found here would only show at run time, as a workflow that hangs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, cast, get_args

from horsies._checks import Checks
from horsies.codec import EncodedCall
from horsies.codec.adapter import listed_result, taken_result
from horsies.codec.errors import type_name
from horsies.codec.fit import fits
from horsies.codec.task_codec import without_parameters
from horsies.errors import HorsiesError, Problem
from horsies.groups import check_group
from horsies.new_tasks import Plan, checked_plan
from horsies.options import SendOptions, check_name
from horsies.workflow.arguments import check_arguments, constants, inner_placeholder
from horsies.workflow.compensation import Undo, undo_of
from horsies.workflow.context import WorkflowContext, WorkflowMeta, injected_by_type
from horsies.workflow.node_checks import (
    check_items,
    check_join,
    check_stored,
    check_workflow_items,
    parameters_of,
    wait_of,
)
from horsies.workflow.nodes import ITEMS, MAX_WIDTH, ItemNode, MapNode, Node, TaskNode, listed, not_a_list
from horsies.workflow.paths import ITEM

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime


@dataclass(frozen=True, slots=True)
class Wired:
    """A node with its resolved edges and its encoded call."""

    node: Node[Any]
    node_id: str
    dependencies: tuple[int, ...]
    sources: Mapping[str, tuple[Node[Any], bool]]
    """By parameter: the node whose result it takes, and whether it takes the bare value or a `TaskResult`."""
    context_parameter: str | None = None
    meta_parameter: str | None = None
    call: EncodedCall | None = None
    plan: Plan | None = None
    others: Mapping[str, tuple[Node[Any], ...]] = field(default_factory=dict[str, "tuple[Node[Any], ...]"])
    """By parameter: the further branches of `either`."""
    decider: int | None = None
    """The node whose value decides whether this one runs."""
    undo: Undo | None = None
    wait: timedelta | datetime | None = None
    """Of a node that waits: how long, or until when."""


class Wiring:
    """Wires the nodes of one workflow. `open_ended`: they may also take results of nodes of a surrounding workflow."""

    def __init__(
        self,
        app: "AppRuntime",
        nodes: Sequence[Node[Any]],
        *,
        attributes: Mapping[Node[Any], str],
        open_ended: bool,
    ) -> None:
        self._app = app
        self._open_ended = open_ended
        self.problems: list[Problem] = []
        self.free: dict[Node[Any], bool] = {}
        """Nodes of surrounding workflows whose results are used here, and whether a parameter takes the bare value."""
        self.nodes = self._usable(nodes)
        self.index = {node: index for index, node in enumerate(self.nodes)}
        self._named: list[Node[Any]] = []
        self._ids = self._name_all(attributes)
        self.wired = [self._wire(node) for node in self.nodes]
        self._refuse_cycles()

    def refuse(self, where: str, why: str, fix: str) -> None:
        self.problems.append(Problem(where, why, fix))

    def has(self, node: object) -> bool:
        """True for a node of this workflow."""
        return isinstance(node, Node) and node in self.index

    def check_name(self, where: str, field: str, name: object) -> None:
        checks = Checks(where)
        check_name(checks, field, name)
        self.problems += checks.problems

    def check_output(self, output: object, wanted: Any) -> None:
        """Compare what the output returns with what a class says that its workflow returns. Nothing is converted here,
        so that a subclass of the wanted type is right too."""
        check_stored([output], "output", self.refuse)
        if not isinstance(output, Node) or wanted in (Any, object):
            return
        returned = cast("Node[Any]", output).result_type
        if wanted not in getattr(returned, "__mro__", ()) and not fits(returned, wanted):
            why = (
                f"{output!r} returns {type_name(returned)}, and the class is a WorkflowDefinition[{type_name(wanted)}]"
            )
            self.refuse("output", why, "change one of the two types, or name another node")

    def _at(self, node: Node[Any]) -> str:
        return f"node {self._ids.get(node) or node.title!r}"

    # -- names -----------------------------------------------------------------------------------

    def _usable(self, given: object) -> list[Node[Any]]:
        found: dict[Node[Any], None] = {}
        nodes = listed(given)
        if nodes is None:
            self.refuse("workflow", *not_a_list("tasks", given))
        elif not nodes:
            self.refuse("tasks", "there is no node", "list at least one")
        for at, node in enumerate(cast("Iterable[object]", nodes or ())):
            if not isinstance(node, Node):
                fix = "give nodes: task.node(...)(...), spec.node(...)"
                self.refuse(f"tasks[{at}]", f"is a {type(node).__name__}, not a node", fix)
            elif node in found:
                self.refuse(f"tasks[{at}]", f"{node!r} is listed twice", "list every node once")
            else:
                found[node] = None
        return list(found)

    def _name_all(self, attributes: Mapping[Node[Any], str]) -> dict[Node[Any], str]:
        """A node's id is its `node_id`, else the attribute of its class, else the name of its task with a number. It is
        the same in all workflows of the node: a node is asked for by its id, and other processes may define fewer of
        the workflows, or in another order."""
        ids: dict[Node[Any], str] = {}
        taken: set[str] = set()
        for node in self.nodes:
            given = None if node.is_numbered else node.node_id
            if node.options.node_id is None:
                given = attributes.get(node, given)
            if given is None:
                continue
            self.check_name(f"node {node.title!r}", "node_id", given)
            ids[node] = str(given)
            if ids[node] in taken:
                self.refuse(f"node {ids[node]!r}", "two nodes have this node_id", "give each an id of its own")
            taken.add(ids[node])
        for node in self.nodes:
            is_numbered = node not in ids
            if is_numbered:
                ids[node] = next(name for name in _candidates(node.title) if name not in taken)
                taken.add(ids[node])
            if ITEM.fullmatch(ids[node]):
                why = f"{ids[node]!r} is the path of a map's item, and cannot be the id of a node"
                self.refuse(f"node {node.title!r}", why, "give it another node_id=...")
            if node.node_id is None:
                node.node_id, node.is_numbered = ids[node], is_numbered
                self._named.append(node)
            elif str(node.node_id) != ids[node]:
                why = f"it has the id {node.node_id!r:.60} in another workflow, and a node has one id in all of them"
                self.refuse(f"node {ids[node]!r}", why, "give it node_id=..., or make a node for each workflow")
        return ids

    def take_names_back(self) -> None:
        """Take back the ids that this wiring gave, because the workflow is refused."""
        for node in self._named:
            node.node_id, node.is_numbered = None, False

    # -- one node --------------------------------------------------------------------------------

    def _wire(self, node: Node[Any]) -> Wired:
        at, options = self._at(node), node.options
        for why, fix in options.wrong:
            self.refuse(at, why, fix)
        sources: dict[str, tuple[Node[Any], bool]] = {}
        others: dict[str, tuple[Node[Any], ...]] = {}
        context = meta = None
        call = settled = None
        if not isinstance(node, TaskNode):
            if node.app not in (self._app, None):
                self.refuse(at, "its workflow belongs to another app", "build both with the same app")
            sources = dict(node.inputs)
            if node.is_map:
                check_workflow_items(node, at, self.refuse)
            for name in ("workflow_ctx_from", "queue_name", "priority", "good_until"):
                if getattr(options, name):
                    self.refuse(at, f"a workflow takes no {name}", "give it to the nodes inside")
            checks = Checks(at)
            check_group(checks, options.group)
            self._refuse_all(at, checks)
        else:
            if node.app is not self._app:
                self.refuse(at, f"task {node.task.name!r} belongs to another app", "use tasks of this app")
            sources = self._sources(node, at)
            others = {name: source.others for name, source in node.sources.items() if source.others and name in sources}
            annotations = {
                name: parameter.annotation for name, parameter in parameters_of(node.definition.codec).items()
            }
            given = node.bound()
            context = injected_by_type(annotations, WorkflowContext)
            context = None if context in given else context
            meta = injected_by_type(annotations, WorkflowMeta)
            meta = None if meta in given else meta
            self._check_context(node, at, context)
            if check_arguments(node, at, self.refuse):
                call = self._encode(node, at, {*sources, context, meta} - {None})
            settled = self._plan(node, at)
        is_map = node.is_map
        if options.max_width != MAX_WIDTH and not is_map:
            self.refuse(at, "max_width has a meaning for a map only", "leave it out, or use .map(...)")
        if options.partial and not is_map:
            self.refuse(at, "partial has a meaning for a map only", "use .map_partial(...), or map_workflow")
        taken = [source for source, _ in sources.values()]
        taken += [one for found in others.values() for one in found]
        dependencies = self._dependencies(node, at, taken)
        undone = () if options.compensate is None else (node,)
        check_stored((*taken, *options.workflow_ctx_from, node.decider, *undone), at, self.refuse)
        check_join(node, at, len(dependencies), any(bare for _, bare in sources.values()), self.refuse)
        return Wired(
            node, self._ids[node], dependencies, sources, context, meta, call, settled, others,
            self._decider(node, at), self._undo(node, at), wait_of(node, at, self.refuse),
        )  # fmt: skip

    def _sources(self, node: TaskNode[Any], at: str) -> dict[str, tuple[Node[Any], bool]]:
        parameters = parameters_of(node.definition.codec)
        extras = node.definition.codec.signature.var_keyword
        found: dict[str, tuple[Node[Any], bool]] = {}
        for name, given in node.sources.items():
            wrong = next(
                (one for one in (given.node, *given.others) if not isinstance(cast("object", one), Node)), None
            )
            source = given.node
            if wrong is not None or not isinstance(cast("object", source), Node):
                where = "items_from" if name == ITEMS else f"parameter {name!r}"
                fix = "give the node"
                if name == ITEMS and isinstance(wrong, list | tuple | range):
                    fix += (
                        " that returns the list; for items that are known now, make a node for each, or use app.batch"
                    )
                self.refuse(at, f"{where} takes the result of {wrong!r:.60}, which is not a node", fix)
                continue
            if name == ITEMS:
                found[name] = (source, True)
                check_items(cast("MapNode[Any, Any]", node), at, self.refuse)
                continue
            parameter = parameters.get(name, extras)
            if parameter is None:
                takes = ", ".join(parameters) or "nothing"
                self.refuse(at, f"task {node.task.name!r} has no parameter {name!r}", f"it takes: {takes}")
                continue
            taken = taken_result(parameter.annotation)
            bare = taken is None
            wanted = parameter.annotation if bare else get_args(taken)[0]
            found[name] = (source, bare)
            for one in (source, *given.others):
                if not _edge_fits(one.result_type, wanted):
                    self.refuse(
                        at,
                        f"parameter {name!r} takes {type_name(parameter.annotation)}, and {one!r} returns "
                        f"{type_name(one.result_type)}",
                        "change one of the two types, or put a task between them that converts",
                    )
        return found

    def _decider(self, node: Node[Any], at: str) -> int | None:
        decider = node.decider
        if decider is None:
            return None
        name = "when" if node.options.when is not None else "unless"
        if decider not in self.index:
            self.refuse(at, f"{name} names {decider!r}, which is not in this workflow", "list it in tasks")
            return None
        if decider is node:
            self.refuse(at, f"{name} names the node itself", "decide on the value of a node before it")
            return None
        if not fits(decider.result_type, bool) or decider.result_type is Any:
            found = type_name(decider.result_type)
            why = f"{name} decides on the value of {decider!r}, which returns {found}, not a bool"
            self.refuse(at, why, "put a task between them that returns a bool")
        return self.index[decider]

    def _undo(self, node: Node[Any], at: str) -> Undo | None:
        if node.options.compensate is None:
            return None
        undo, problems = undo_of(self._app, node)
        for why, fix in problems:
            self.refuse(at, f"compensate: {why}", fix)
        return undo

    def _check_context(self, node: TaskNode[Any], at: str, parameter: str | None) -> None:
        sources = node.options.workflow_ctx_from
        if sources and isinstance(node, MapNode):
            self.refuse(at, "a map takes no workflow_ctx_from", "pass what its tasks need by from_node(...)")
        elif sources and parameter is None:
            why = f"workflow_ctx_from is given, and task {node.task.name!r} has no parameter of type WorkflowContext"
            self.refuse(at, why, "add one, such as ctx: WorkflowContext")
        elif parameter is not None and not sources and parameters_of(node.definition.codec)[parameter].required:
            self.refuse(at, f"parameter {parameter!r} is a WorkflowContext", "say from which nodes: workflow_ctx_from")
        for source in sources:
            if not self.has(source):
                self.refuse(
                    at, f"workflow_ctx_from names {source!r}, which is not in this workflow", "list it in tasks"
                )

    def _encode(self, node: TaskNode[Any], at: str, injected: Iterable[str | None]) -> EncodedCall | None:
        names = {str(name) for name in injected if name not in (None, ITEMS)}
        if node.is_map and (item := cast("MapNode[Any, Any]", node).item_parameter) is not None:
            names.add(item)
        args, kwargs = constants(node)
        try:
            return without_parameters(node.definition.codec, frozenset(names)).encode_call(
                args, kwargs, limits=self._app.payload_limits
            )
        except HorsiesError as error:
            told = inner_placeholder(node) or (str(error), "give every parameter once: a value, or from_node(...)")
            self.refuse(at, *told)
            return None

    def _plan(self, node: TaskNode[Any], at: str) -> Plan | None:
        options = node.options
        chosen = SendOptions(
            queue_name=options.queue_name, priority=options.priority, good_until=options.good_until, group=options.group
        )
        checks = Checks(at)
        settled = checked_plan(self._app.config, node.task.name, node.definition, chosen, checks)
        self._refuse_all(at, checks)
        return settled

    def _refuse_all(self, at: str, checks: Checks) -> None:
        for problem in checks.problems:
            self.refuse(at, f"{problem.where.removeprefix(f'{at}.')}: {problem.why}", problem.fix)

    # -- edges -----------------------------------------------------------------------------------

    def _dependencies(self, node: Node[Any], at: str, sources: Iterable[Node[Any]]) -> tuple[int, ...]:
        found: set[int] = set()
        for source in sources:
            if source in self.index:
                found.add(self.index[source])
            elif not self._open_ended and not isinstance(source, ItemNode):
                self.refuse(at, f"it takes the result of {source!r}, which is not in this workflow", "list it in tasks")
        for waited in node.options.waits_for:
            if self.has(waited):
                found.add(self.index[waited])
            else:
                self.refuse(at, f"it waits for {waited!r}, which is not in this workflow", "list it in tasks")
        found |= {self.index[source] for source in node.options.workflow_ctx_from if self.has(source)}
        if self.index[node] in found:
            self.refuse(at, "it waits for itself", "take it out of its own waits_for")
            found.discard(self.index[node])
        return tuple(sorted(found))

    def collect_free(self) -> None:
        """Collect the nodes outside of this workflow whose results are used in it."""
        for wired in self.wired:
            for name, (source, bare) in wired.sources.items():
                for one in (source, *wired.others.get(name, ())):
                    if one not in self.index:
                        self.free[one] = self.free.get(one, False) or bare

    def _refuse_cycles(self) -> None:
        try:
            TopologicalSorter(
                {
                    index: wired.dependencies if wired.decider is None else (*wired.dependencies, wired.decider)
                    for index, wired in enumerate(self.wired)
                }
            ).prepare()
        except CycleError as error:
            circle: list[int] = error.args[1][:0:-1]  # each of them waits for the next
            first = circle.index(min(circle))
            ids = [self.wired[index].node_id for index in (*circle[first:], *circle[: first + 1])]
            self.refuse(f"node {ids[0]!r}", f"it waits in a circle: {' <- '.join(ids)}", "break the circle")


def _edge_fits(produced: Any, wanted: Any) -> bool:
    """`fits`, and for the results of a partial map their values."""
    given, taken = listed_result(produced), listed_result(wanted)
    if given is not None and taken is not None:
        return fits(get_args(given)[0], get_args(taken)[0])
    return given is None and taken is None and fits(produced, wanted)


def _candidates(title: str) -> Iterable[str]:
    yield title[:240]
    number = 2
    while True:
        yield f"{title[:240]}-{number}"
        number += 1
