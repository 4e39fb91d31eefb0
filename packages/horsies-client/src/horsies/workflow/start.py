"""From a spec to rows: the whole graph as columns, written by one statement on whichever connection carries it.

The id and the fingerprint are made before the first byte goes out, as with tasks: a start that is repeated with the
same id and the same graph and arguments is the same start, with others it is PAYLOAD_MISMATCH.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from horsies._pg.transient import Doubt
from horsies.errors import UsageError
from horsies.ids import id_problem, new_id, new_ids
from horsies.send import SendErrorCode, TaskSendError
from horsies.sending import carry, carry_async
from horsies.workflow.nodes import ITEMS, MapNode, Node, SubWorkflowNode

if TYPE_CHECKING:
    from horsies._pg.enqueue import ExecuteAsync
    from horsies.app import Horsies
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.spec import WorkflowSpec
    from horsies.workflow.wiring import Wired

T = TypeVar("T")
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one workflow's arguments and nested graphs: one statement carries them."""
_OLDER_LEVELS: Final = 8
"""Nested workflows up to this depth are also compared in the form that older clients wrote, which doubled per level."""
_RACES: Final = 5
_REGISTERED: Final = frozenset({"task_options", "max_retries", "queue_name", "priority", "good_until", "ttl"})


def graph(spec: WorkflowSpec[Any], around: Sequence[WorkflowSpec[Any]] = ()) -> dict[str, Any]:
    """A workflow as plain data: what is written for it, and what a node holds for a workflow inside. A graph stands in
    the one around it as an object, not as text: text inside text would be escaped anew at every level, and double."""
    chain = [spec, *around]
    dependents: list[list[int]] = [[] for _ in spec.wired]
    for index, wired in enumerate(spec.wired):
        for dependency in wired.dependencies:
            dependents[dependency].append(index)
    return {
        "name": spec.name,
        "on_error": spec.on_error,
        "output": None if spec.output is None else spec.index[spec.output],
        "success_policy": None if spec.cases is None else {"cases": spec.cases},
        "definition_key": spec.definition_key,
        "nodes": [_node(wired, dependents[index], chain) for index, wired in enumerate(spec.wired)],
    }


def _node(wired: Wired, dependents: list[int], chain: Sequence[WorkflowSpec[Any]]) -> dict[str, Any]:
    node, plan, options = wired.node, wired.plan, wired.node.options
    sources: dict[str, Any] = {
        name: {**_place(source, chain), **({"bare": True} if bare else {})}
        for name, (source, bare) in wired.sources.items()
    }
    if wired.context_parameter and options.workflow_ctx_from:
        sources[wired.context_parameter] = {"ctx": True}
    if wired.meta_parameter:
        sources[wired.meta_parameter] = {"meta": True}
    made: dict[str, Any] = {
        "node_id": wired.node_id,
        "task_name": node.title,
        "args": wired.call and wired.call.args_json,
        "kwargs": wired.call and wired.call.kwargs_json,
        "queue_name": plan.queue_name if plan else "default",
        "priority": plan.priority if plan else 100,
        "dependencies": list(wired.dependencies),
        "dependents": dependents,
        "args_from": sources or None,
        "ctx_from": [
            chain[0].wired[chain[0].index[source]].node_id for source in dict.fromkeys(options.workflow_ctx_from)
        ]
        or None,
        "join_type": options.join,
        "min_success": options.min_success,
        "allow_failed": options.allow_failed_deps,
        "task_options": plan and plan.task_options,
        "max_retries": plan.max_retries if plan else 0,
        "good_until": plan.good_until.isoformat() if plan and plan.good_until else None,
        "ttl": plan.ttl.total_seconds() if plan and plan.ttl else None,
        "sub_name": None,
    }
    if isinstance(node, SubWorkflowNode):
        made |= {"kwargs": graph(node.spec, chain), "sub_name": node.spec.name}
    elif isinstance(node, MapNode):
        # the items' tasks are nodes of a workflow that exists once the list does; this is their pattern
        kept = {name: source for name, source in sources.items() if name != ITEMS}
        pattern = {**made, "args_from": _from_inside(kept), "parameter": node.item_parameter,
                   "max_width": options.max_width}  # fmt: skip
        made |= {"kwargs": {"map": pattern}, "args": None, "sub_name": f"{node.title}[]"}
    return made


def _place(source: Node[Any], chain: Sequence[WorkflowSpec[Any]]) -> dict[str, Any]:
    for up, spec in enumerate(chain):
        if source in spec.index:
            return {"at": spec.index[source], **({"up": up} if up else {})}
    raise UsageError(
        f"{source!r} is used in workflow {chain[0].name!r} and is in none of the workflows around it: list it in tasks"
    )


def _from_inside(sources: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same sources, seen from one workflow further in."""
    return {
        name: {**source, "up": source.get("up", 0) + 1} if "at" in source else source
        for name, source in sources.items()
    } or None


def _as_asked_for(value: Any) -> Any:
    """Without what the registration of its tasks says: that may change between a start and its repetition."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        left_out = _REGISTERED if members.keys() >= _REGISTERED else ()  # a node, and not the sources of its parameters
        return {name: _as_asked_for(member) for name, member in members.items() if name not in left_out}
    if isinstance(value, list):
        return [_as_asked_for(member) for member in cast("list[Any]", value)]
    return value


def _as_older_clients_wrote(made: Mapping[str, Any]) -> dict[str, Any]:
    """With each graph inside as a text."""
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


@dataclass(frozen=True)
class Starting(Generic[T]):
    """One start under way; may be driven again, the id stays the same."""

    spec: WorkflowSpec[T]
    given_id: str | None
    connection: Any
    workflow_id: str = field(init=False)
    graph: dict[str, Any] = field(init=False)
    doubt: Doubt = field(init=False, default_factory=Doubt)

    def __post_init__(self) -> None:
        if self.given_id is not None and (why := id_problem(self.given_id)):
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, f"workflow_id: {why}")
        if self.spec.free:
            raise TaskSendError(
                SendErrorCode.VALIDATION_FAILED,
                f"workflow {self.spec.name!r} uses results of {', '.join(map(repr, self.spec.free))}, which are not in "
                "it: start the workflow that it is a node of",
            )
        self._refuse_above(self.spec.least_bytes)
        object.__setattr__(self, "workflow_id", self.given_id or new_id())
        object.__setattr__(self, "graph", graph(self.spec))

    def _refuse_above(self, size: int) -> None:
        if size > MAX_BYTES:
            raise TaskSendError(
                SendErrorCode.VALIDATION_FAILED,
                f"workflow {self.spec.name!r} is {size:,} bytes of graph and arguments, the limit is {MAX_BYTES:,}: "
                "store large data elsewhere and send its address",
            )

    # -- verbs -----------------------------------------------------------------------------------

    def start(self) -> WorkflowHandle[T]:
        if self.connection is None:
            return self.app.run_sync("start", self.start_async)
        carry(self, "start", self._write)
        return self._handle()

    async def start_async(self) -> WorkflowHandle[T]:
        await carry_async(self, "start", self._write)
        return self._handle()

    def _handle(self) -> WorkflowHandle[T]:
        from horsies.workflow.handle import WorkflowHandle

        return WorkflowHandle(self.app, self.workflow_id, spec=self.spec)

    # -- as a cargo, and for `TaskSendError.retry` -------------------------------------------------

    @property
    def app(self) -> Horsies:
        return self.spec.app

    @property
    def ids(self) -> list[str]:
        return [self.workflow_id]

    def label(self) -> str:
        return f"workflow {self.spec.name!r}"

    def resend(self, _verb: str) -> Starting[T]:
        return self

    def send(self) -> WorkflowHandle[T]:
        return self.start()

    async def send_async(self) -> WorkflowHandle[T]:
        return await self.start_async()

    # -- rows ------------------------------------------------------------------------------------

    def statement(self) -> tuple[str, tuple[Any, ...]]:
        """What writes the run: no row comes back when its id exists already."""
        return self._sql("start_workflow"), self._values()[0]

    def _sql(self, name: str) -> str:
        from horsies._pg.statements import load

        return load("horsies._pg", "workflows.sql", self.app.schema)[name].sql

    async def _write(self, execute: ExecuteAsync) -> None:
        values, sha = self._values()
        for _ in range(_RACES):
            if await execute(self._sql("start_workflow"), *values):
                return
            found = await execute(self._sql("find_workflow"), self.workflow_id)
            if found:
                if found[0][1] != sha and found[0][1] not in self._older_shas():
                    raise TaskSendError(
                        SendErrorCode.PAYLOAD_MISMATCH,
                        f"workflow id {self.workflow_id} is taken by another graph or other arguments; it was left "
                        "untouched",
                        task_ids=[self.workflow_id],
                    )
                return
        raise TaskSendError(
            SendErrorCode.ENQUEUE_FAILED,
            f"workflow {self.spec.name!r}: another transaction that cannot be seen from here holds its id",
            task_ids=[self.workflow_id],
        )

    def _older_shas(self) -> tuple[str | None, ...]:
        """The fingerprints that older clients gave the same start: also of how its tasks are registered."""
        return _sha(self.graph)[0], self._older_sha()

    def _older_sha(self) -> str | None:
        """The same, when each graph inside was a text."""
        if self.spec.levels > _OLDER_LEVELS:
            return None
        return _sha(_as_older_clients_wrote(self.graph))[0]

    def _values(self) -> tuple[tuple[Any, ...], str]:
        made = self.graph
        nodes: list[dict[str, Any]] = made["nodes"]
        sha = _sha(_as_asked_for(made))[0]
        self._refuse_above(_sha(made)[1])
        ids = new_ids(2 * len(nodes))
        first = [not node["dependencies"] and node["sub_name"] is None for node in nodes]
        run = {
            **made, "id": self.workflow_id, "enqueue_sha": sha, "sent_at": datetime.now(UTC).isoformat(),
            "nodes": [
                {
                    **node, "id": ids[at], "task_id": ids[len(nodes) + at] if first[at] else None,
                    # the graph of a workflow inside is stored as this text, not as the server would print it
                    "kwargs": _dumped(node["kwargs"]) if isinstance(node["kwargs"], dict) else node["kwargs"],
                    "first_kwargs": self._first_kwargs(at) if first[at] else None,
                }
                for at, node in enumerate(nodes)
            ],
        }  # fmt: skip
        return (_dumped(run),), sha

    def _first_kwargs(self, index: int) -> str | None:
        """Of a node that is enqueued here and wants to know where it stands; all others are composed by a worker."""
        node: dict[str, Any] = self.graph["nodes"][index]
        sources: dict[str, dict[str, Any]] = node["args_from"] or {}
        parameter = next((name for name, source in sources.items() if "meta" in source), None)
        if parameter is None:
            return None
        meta = {"workflow_id": self.workflow_id, "workflow_name": self.spec.name, "node_id": node["node_id"],
                "task_index": index}  # fmt: skip
        given = (node["kwargs"] or "{}")[1:-1]
        return "{" + ",".join(part for part in (given, f"{_dumped(parameter)}:{_dumped(meta)}") if part) + "}"
