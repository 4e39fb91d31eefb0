"""Starts a workflow: one statement writes the whole graph, on the same connections as a send of tasks.

The id and the fingerprint are made before the statement is sent, as with tasks: a start that is repeated with the same
id, graph and arguments is the same start; with other ones it is PAYLOAD_MISMATCH.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from horsies._checks import Checks
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.errors import SendErrorCode, TaskSendError, UsageError
from horsies.groups import GroupError
from horsies.ids import new_ids
from horsies.payload_codec import PayloadError
from horsies.workflow.graph import Graph, MapWorkflowNode, SubWorkflowNode
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.nodes import ITEMS, ItemNode, MapNode, Node, TaskNode
from horsies.workflow.run_options import RunOptions
from horsies.workflow.run_start import RunStart
from horsies.workflow.waits import SignalNode, WaitNode

if TYPE_CHECKING:
    from horsies.workflow.wiring import Wired

T = TypeVar("T")
_OLDER_LEVELS: Final = 8
"""Nested workflows up to this depth are also compared in the form of older clients, whose size doubled per level."""
_REGISTERED: Final = frozenset({"task_options", "max_retries", "queue_name", "priority", "good_until", "ttl"})
_KIND: Final = frozenset({"kind", "metadata", "group_key", "own_priority", "compensate"})
"""Left out of fingerprints: older clients did not send them, metadata is no part of a send's identity, and `group_key`
and `compensate` may come from the registration (`group` and `undo` are what the node asks for)."""


def graph_data(
    spec: Graph[Any], around: Sequence[Graph[Any] | None] = (), envelopes: Envelopes = PLAIN_ENVELOPES
) -> dict[str, Any]:
    """A workflow as plain data for its rows. A nested graph is an object, not text: text inside text is escaped again
    at every level, and its size would double. `around`: the graphs of the runs around it; None for the run that holds
    the items of a map. `envelopes`: those of the app, for the arguments in the rows. Raises PayloadError."""
    chain = [spec, *around]
    dependents: list[list[int]] = [[] for _ in spec.wired]
    decides: list[list[int]] = [[] for _ in spec.wired]
    for index, wired in enumerate(spec.wired):
        for dependency in wired.dependencies:
            dependents[dependency].append(index)
        if wired.decider is not None:
            decides[wired.decider].append(index)
    return {
        "name": spec.name,
        "on_error": spec.on_error,
        "output": None if spec.output is None else spec.index[spec.output],
        "success_policy": None if spec.cases is None else {"cases": spec.cases},
        "definition_key": spec.definition_key,
        "nodes": [
            _node(wired, dependents[index], decides[index], chain, envelopes) for index, wired in enumerate(spec.wired)
        ],
    }


def _node(
    wired: Wired, dependents: list[int], decides: list[int], chain: Sequence[Graph[Any] | None], envelopes: Envelopes
) -> dict[str, Any]:
    node, plan, options = wired.node, wired.plan, wired.node.options
    here = chain[0]
    assert here is not None
    sources: dict[str, Any] = {
        name: {**_places(source, wired.others.get(name, ()), chain), **({"bare": True} if bare else {})}
        for name, (source, bare) in wired.sources.items()
    }
    if wired.context_parameter and options.workflow_ctx_from:
        sources[wired.context_parameter] = {"ctx": True}
    if wired.meta_parameter:
        sources[wired.meta_parameter] = {"meta": True}
    args, kwargs = (wired.call.args_json, wired.call.kwargs_json) if wired.call else (None, None)
    # a compensation takes the arguments of its node
    args, kwargs = envelopes.wrap_call(args, kwargs, node.title, "shared_argument" if wired.undo else "argument")
    made: dict[str, Any] = {
        "node_id": wired.node_id,
        "task_name": node.title,
        "args": args,
        "kwargs": kwargs,
        "queue_name": plan.queue_name if plan else "default",
        "priority": plan.priority if plan else 100,
        "dependencies": list(wired.dependencies),
        "dependents": dependents,
        "args_from": sources or None,
        "ctx_from": [here.wired[here.index[source]].node_id for source in dict.fromkeys(options.workflow_ctx_from)]
        or None,
        "join_type": options.join,
        "min_success": options.min_success,
        "allow_failed": options.allow_failed_deps,
        "task_options": plan and plan.task_options,
        "max_retries": plan.max_retries if plan else 0,
        "good_until": plan.good_until.isoformat() if plan and plan.good_until else None,
        "ttl": plan.ttl.total_seconds() if plan and plan.ttl else None,
        "sub_name": None,
        "kind": "task",
        "metadata": dict(plan.default_metadata) if plan and plan.default_metadata else None,
    }
    if (group := _group(wired)) is not None:
        made["group_key"] = group
    if options.group is not None:
        made["group"] = options.group
    made |= _waits(wired, decides, envelopes)
    if isinstance(node, SubWorkflowNode):
        made |= {"kwargs": graph_data(node.spec, chain, envelopes), "sub_name": node.spec.name, "kind": "workflow"}
    elif isinstance(node, MapNode):
        # the worker makes a nested workflow of the items' tasks once the list exists; this is the pattern of its nodes
        kept = {name: source for name, source in sources.items() if name != ITEMS}
        width = _width(cast("Node[Any]", node))
        pattern = {**made, "args_from": _from_inside(kept), "parameter": node.item_parameter, **width}
        made |= {"kwargs": {"map": pattern}, "args": None, "sub_name": f"{node.title}[]", "kind": "map"}
        made.pop("compensate", None)  # each item is undone
    elif isinstance(node, MapWorkflowNode):
        inside = {"graph": graph_data(node.spec, [None, *chain], envelopes), **_width(node)}
        made |= {"kwargs": {"map": inside}, "sub_name": f"{node.title}[]", "kind": "map"}
    return made


def _width(node: Node[Any]) -> dict[str, Any]:
    return {"max_width": node.options.max_width, **({"partial": True} if node.options.partial else {})}


def _waits(wired: Wired, decides: list[int], envelopes: Envelopes) -> dict[str, Any]:
    """What only nodes have that wait, decide, branch or are undone: others keep the fingerprint of older releases."""
    node, options = wired.node, wired.node.options
    made: dict[str, Any] = {}
    if isinstance(node, WaitNode):
        wait = wired.wait
        made |= {
            "kind": node.kind,
            "ttl": wait.total_seconds() if isinstance(wait, timedelta) else None,
            "good_until": wait.isoformat() if isinstance(wait, datetime) else None,
            "wait": None if wait is None else str(wait),
        }
    if isinstance(node, SignalNode):
        made["signal_name"] = node.signal_name
    if wired.decider is not None:
        made |= {"when_index": wired.decider, "when_value": options.unless is None}
    if decides:
        made["decides"] = decides
    if wired.undo is not None:
        made |= {"compensate": _undo(wired, envelopes), "undo": wired.undo.plan.task_name}
    if options.priority is not None:
        made["own_priority"] = True
    return made


def _undo(wired: Wired, envelopes: Envelopes) -> dict[str, Any]:
    """The compensation of a node. Among it are defaults of the node's task, which may be as secret as arguments."""
    assert wired.undo is not None
    data = dict(wired.undo.data())
    if data.get("defaults"):
        name = wired.node.title
        _, defaults = envelopes.wrap_call(None, _dumped(data["defaults"]), name, "shared_argument")
        data["defaults"] = json.loads(defaults or "{}")
    return data


def _group(wired: Wired) -> str | None:
    """The group of a node, as far as it is known before the run: None where it is the run's. `group_by` needs arguments
    that other nodes, the items of a map or the worker provide later."""
    node, plan = wired.node, wired.plan
    if plan is None or plan.group_by is None or not isinstance(node, TaskNode):
        return node.options.group
    later = {*wired.sources, wired.context_parameter, wired.meta_parameter}
    if isinstance(node, MapNode):
        later.add(node.item_parameter)
    if any(name is not None and plan.group_by.needs(name) for name in later):
        return None
    return plan.group_by.of(node.args, node.kwargs)


def _places(source: Node[Any], others: Sequence[Node[Any]], chain: Sequence[Graph[Any] | None]) -> dict[str, Any]:
    """Where a value comes from; `or`: the further branches of `either`, in the same workflow."""
    place = _place(source, chain)
    if not others:
        return place
    found = [_place(one, chain) for one in others]
    if any(one.get("up") != place.get("up") or "at" not in one for one in (place, *found)):
        raise UsageError(f"either(...) takes nodes of one workflow, and {source!r} and {list(others)!r} are in several")
    return {**place, "or": [one["at"] for one in found]}


def _place(source: Node[Any], chain: Sequence[Graph[Any] | None]) -> dict[str, Any]:
    for up, spec in enumerate(chain):
        place: dict[str, Any] = {"up": up} if up else {}
        if isinstance(source, ItemNode):
            # the run whose node holds the item: the one below the run of all items
            if spec is not None and chain[up + 1 : up + 2] == [None] and source in spec.free:
                return {"item": True, **place}
        elif spec is not None and source in spec.index:
            return {"at": spec.index[source], **place}
    name = chain[0].name if chain[0] is not None else ""
    raise UsageError(
        f"{source!r} is used in workflow {name!r} and is in none of the workflows around it: list it in tasks"
    )


def _from_inside(sources: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same sources, seen from a workflow that is nested one level deeper."""
    return {
        name: {**source, "up": source.get("up", 0) + 1} if "at" in source or "item" in source else source
        for name, source in sources.items()
    } or None


def _without(names: frozenset[str], value: Any) -> Any:
    """The graph without these members of its nodes."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        left_out = names if members.keys() >= _REGISTERED else ()  # a node, not the sources of its parameters
        return {name: _without(names, member) for name, member in members.items() if name not in left_out}
    if isinstance(value, list):
        return [_without(names, member) for member in cast("list[Any]", value)]
    return value


def _as_older_clients_wrote(made: Mapping[str, Any]) -> dict[str, Any]:
    """With each nested graph as text."""
    nodes: list[dict[str, Any]] = []
    for node in made["nodes"]:
        inner: Any = node["kwargs"]
        if isinstance(inner, dict):
            inside = cast("dict[str, Any]", inner)
            inner = _dumped(_as_older_clients_wrote(inside) if "nodes" in inside else inside)
        nodes.append({**node, "kwargs": inner})
    return {**made, "nodes": nodes}


def _sha(made: Mapping[str, Any]) -> tuple[str, int]:
    text = _dumped(made).encode()
    return hashlib.sha256(text).hexdigest(), len(text)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Start(RunStart[WorkflowHandle[T]]):
    """The start of one run of a workflow."""

    def __init__(
        self,
        spec: Graph[T],
        workflow_id: str | None,
        connection: Any,
        options: RunOptions = RunOptions(),
    ) -> None:
        super().__init__(spec.app, "start", spec.name, workflow_id, connection, options)
        if spec.free:
            raise TaskSendError(
                SendErrorCode.VALIDATION_FAILED,
                f"workflow {spec.name!r} uses results of {', '.join(map(repr, spec.free))}, which are not in "
                "it: start the workflow that it is a node of",
            )
        self.spec = spec
        self._refuse_above(spec.least_bytes)
        self._check_options(Checks(f"start of workflow {spec.name!r}"))
        try:
            self.graph = graph_data(spec)
        except GroupError as error:
            why = f"start of workflow {spec.name!r}: {error}"
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, why) from error
        self._fingerprint = spec.fingerprint

    def handle(self, written: str | None) -> WorkflowHandle[T]:
        return WorkflowHandle(self.app, written or self.workflow_id, spec=self.spec)

    def older_fingerprints(self) -> tuple[str | None, ...]:
        """The fingerprints that older clients gave the same start. They also covered the registration of its tasks, and
        the oldest had each nested graph as text."""
        older = self._identity(_KIND)
        is_shallow = self.spec.levels <= _OLDER_LEVELS
        return _sha(older)[0], _sha(_as_older_clients_wrote(older))[0] if is_shallow else None

    def _identity(self, left_out: frozenset[str]) -> dict[str, Any]:
        """What makes two starts the same start: the graph without these members of its nodes, and the options."""
        return {**_without(left_out, self.graph), **self._options.identity()}

    def values(self) -> tuple[tuple[Any, ...], str]:
        # the registration of its tasks may change between a start and its repetition
        sha = self._stored_sha(_sha(self._identity(_REGISTERED | _KIND))[0])
        made = self._stored_graph()
        nodes: list[dict[str, Any]] = made["nodes"]
        self._refuse_above(_sha(made)[1])
        ids = new_ids(2 * len(nodes))
        first = [
            not node["dependencies"] and node["kind"] == "task" and node.get("when_index") is None for node in nodes
        ]
        run = {
            **made, "id": self.workflow_id, "enqueue_sha": sha, "sent_at": datetime.now(UTC).isoformat(),
            "metadata": None if self._metadata is None else json.loads(self._metadata), "group_key": self._group,
            **self._options.columns(), "release": self.app.config.release, "fingerprint": self._fingerprint,
            "nodes": [
                {
                    **node, "id": ids[at], "task_id": ids[len(nodes) + at] if first[at] else None,
                    # a nested graph is stored as this text, not as the server would print it
                    "kwargs": _dumped(node["kwargs"]) if isinstance(node["kwargs"], dict) else node["kwargs"],
                    "first_kwargs": self._first_kwargs(at, node) if first[at] else None,
                }
                for at, node in enumerate(nodes)
            ],
        }  # fmt: skip
        return (_dumped(run),), sha

    def _stored_graph(self) -> dict[str, Any]:
        """The graph with encoded arguments. `self.graph` is that of an app without a codec: the fingerprint of a start
        is that of its values."""
        if self.app.config.payload_codec is None:
            return self.graph
        try:
            return graph_data(self.spec, envelopes=self.app.envelopes)
        except PayloadError as error:
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, f"{self.label}: {error}") from error

    def _first_kwargs(self, index: int, node: Mapping[str, Any]) -> str | None:
        """The arguments, with its `WorkflowMeta`, of a node that is enqueued at the start; a worker composes those of
        other nodes."""
        sources: dict[str, dict[str, Any]] = node["args_from"] or {}
        parameter = next((name for name, source in sources.items() if "meta" in source), None)
        if parameter is None:
            return None
        meta = {"workflow_id": self.workflow_id, "workflow_name": self.spec.name, "node_id": node["node_id"],
                "task_index": index}  # fmt: skip
        given = (node["kwargs"] or "{}")[1:-1]
        return "{" + ",".join(part for part in (given, f"{_dumped(parameter)}:{_dumped(meta)}") if part) + "}"
