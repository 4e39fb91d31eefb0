"""The values that the nodes of an inline run take from each other: what `enqueue_nodes`, `missing_values`,
`launch_map`, `count_down` and `finish_workflow` in the worker's workflows.sql do with rows."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from horsies.envelopes import MARK, Envelopes
from horsies.payload_codec import PayloadError
from horsies.result import TaskError
from horsies.status import NodeStatus
from horsies.testing.inline_run import InlineNode, InlineRun
from horsies.workflow.context import SUMMARIES
from horsies_worker.workflows.halting import is_partial
from horsies_worker.workflows.refused import NO_OUTPUT, no_value
from horsies_worker.workflows.resolve import Join
from horsies_worker.workflows.starting import GAPS


def join_of(run: InlineRun, node: InlineNode) -> Join:
    data = node.data
    is_open = any(not run.by_id[source].status.is_terminal for source in data["ctx_from"] or ())
    return Join(
        data["join_type"], data["min_success"], data["allow_failed"], len(data["dependencies"]), node.left, node.ok,
        is_open, node.void, _when(run, node),
    )  # fmt: skip


def _when(run: InlineRun, node: InlineNode) -> str | None:
    """What the node's `when` or `unless` says."""
    if node.decider is None:
        return None
    decider = run.nodes[node.decider]
    if not decider.status.is_terminal:
        return "open"
    if decider.is_not_taken:
        return "not taken"
    value = bare(decider) if decider.status is NodeStatus.COMPLETED else None
    if value is None:
        return "upstream"
    if value not in ("true", "false"):
        return "no bool"
    return "taken" if (value == "true") is node.data["when_value"] else "not taken"


def decode_condition(node: InlineNode, envelopes: Envelopes) -> None:
    """Decode the value of a node on which others depend by `when` or `unless`, as `decode_conditions` does."""
    if node.result is None or not node.data.get("decides"):
        return
    try:
        text = envelopes.unwrap(node.result)
    except PayloadError:
        return
    if text in ('{"ok":true}', '{"ok":false}'):
        node.result = text


def output_of(run: InlineRun) -> str | None:
    """The result of the run: that of its output node, or the list of a map's values or results."""
    if run.is_map:
        is_whole = not is_partial(json.dumps(run.data["success_policy"]))
        values = [bare(node) if is_whole else node.text for node in run.nodes]
        if any(value is None for value in values):
            return None
        return '{"ok":[' + ",".join(value for value in values if value is not None) + "]}"
    index: int | None = run.data["output"]
    if index is None:
        return '{"ok":null}'
    node = run.nodes[index]
    return node.result or (NO_OUTPUT if node.is_not_taken else node.error)


def gap_of(run: InlineRun, node: InlineNode) -> TaskError | str | None:
    """Why a bare value that the node takes does not exist: "skipped", "not taken", or the error that the node ends
    with."""
    gaps: set[str] = set()
    missing: list[str] = []
    for source in node.sources.values():
        if source.get("bare") is not True or "item" in source:
            continue
        found = _source(run, source)
        if found.is_not_taken:
            gaps.add("not taken")
        elif found.status is not NodeStatus.COMPLETED or (found.result is not None and bare(found) is None):
            gaps.add("skipped")
        elif found.result is None:
            missing.append(found.node_id)
    for gap in GAPS:  # the first that is found wins
        if gap in gaps:
            return gap
    return no_value(min(missing)) if missing else None


def compose(run: InlineRun, node: InlineNode) -> str | None:
    """The node's keyword arguments, with the values that it takes."""
    given: str | None = node.data["kwargs"]
    members: list[str] = []
    for parameter, source in node.sources.items():
        if "meta" in source:
            text = dumped({"workflow_id": run.id, "workflow_name": run.data["name"], "node_id": node.node_id,
                           "task_index": node.index})  # fmt: skip
        elif "ctx" in source:
            results = ",".join(
                f"{dumped(one)}:{run.by_id[one].text}" for one in node.data["ctx_from"] or () if one in run.by_id
            )
            if inner := {one: counts for one in node.data["ctx_from"] or () if (counts := _counts(run.by_id.get(one)))}:
                results += f",{dumped(SUMMARIES)}:{dumped(inner)}"
            text = f'{{"workflow_id":{dumped(run.id)},"node_id":{dumped(node.node_id)},"results":{{{results}}}}}'
        elif "batch" in source:
            text = _summary(run, node)
        else:
            text = _value(run, source)
        members.append(f"{dumped(parameter)}:{text}")
    if not members:
        return given
    inner = (given or "{}")[1:-1]
    return "{" + ",".join([inner, *members] if inner else members) + "}"


def _counts(node: InlineNode | None) -> dict[str, Any] | None:
    """How the nodes of the run in this node ended, if it has one."""
    if node is None or node.child is None:
        return None
    ended = [one.status for one in node.child.nodes if not one.is_undo]
    return {"status": node.child.status, "total": len(ended), "completed": ended.count(NodeStatus.COMPLETED),
            "failed": ended.count(NodeStatus.FAILED), "skipped": ended.count(NodeStatus.SKIPPED)}  # fmt: skip


def _summary(run: InlineRun, then: InlineNode) -> str:
    """How the members of a batch ended."""
    ended = [node for node in run.nodes if node is not then]
    cancelled = sum(node.status is NodeStatus.SKIPPED or _is_cancelled(node) for node in ended)
    completed = sum(node.status is NodeStatus.COMPLETED for node in ended)
    return dumped({"batch_id": run.id, "total": len(ended), "completed": completed,
                    "failed": len(ended) - completed - cancelled, "cancelled": cancelled})  # fmt: skip


def _is_cancelled(node: InlineNode) -> bool:
    return (node.error or "").startswith('{"err":{"error_code":"TASK_CANCELLED"')


def items_of(run: InlineRun, node: InlineNode, envelopes: Envelopes) -> list[Any] | None:
    """The list that a map goes through; None when the value is none. Raises PayloadError."""
    text = _value(run, node.sources["*"])
    if text.startswith(f"{{{MARK}"):
        items = envelopes.rewrap_items(text)
        return None if items is None else [json.loads(item) for item in items]
    value: Any = json.loads(text)
    return cast("list[Any]", value) if isinstance(value, list) else None


def map_graph(name: str, pattern: Mapping[str, Any], items: Sequence[Any]) -> dict[str, Any]:
    """One node per item, as `launch_map` writes them: a task, or a workflow that holds the item in `args`."""
    alone: dict[str, Any] = {
        "dependencies": [], "dependents": [], "ctx_from": None, "join_type": "all", "min_success": None,
        "allow_failed": False, "kind": "task", "when_index": None, "decides": (),
    }  # fmt: skip
    graph: Mapping[str, Any] | None = pattern.get("graph")
    nodes: list[dict[str, Any]] = []
    for at, item in enumerate(items):
        node: dict[str, Any] = {**pattern, **alone, "node_id": f"item-{at}"}
        if graph is not None:
            node |= {"kind": "workflow", "kwargs": graph, "args": dumped(item), "args_from": None,
                     "sub_name": graph["name"]}  # fmt: skip
        else:
            node["kwargs"] = dumped({**json.loads(pattern["kwargs"] or "{}"), pattern["parameter"]: item})
        nodes.append(node)
    policy = {"partial": True} if pattern.get("partial") else None
    return {"name": name, "on_error": "fail", "output": None, "success_policy": policy, "definition_key": "map",
            "nodes": nodes}  # fmt: skip


def _value(run: InlineRun, source: Mapping[str, Any]) -> str:
    if "item" in source:
        around = _around(run, source).around
        assert around is not None
        item: str = around[1].data["args"]
        return item if source.get("bare") is True else f'{{"ok":{item}}}'
    found = _source(run, source)
    return bare(found) or "null" if source.get("bare") is True else found.text


def _source(run: InlineRun, source: Mapping[str, Any]) -> InlineNode:
    nodes = _around(run, source).nodes
    indexes: list[int] = [source["at"], *source.get("or", ())]
    found = [nodes[index] for index in indexes]
    # of `either`: the branch that completed, else one that was taken, else the first
    return min(found, key=lambda node: (node.status is not NodeStatus.COMPLETED, node.is_not_taken))


def _around(run: InlineRun, source: Mapping[str, Any]) -> InlineRun:
    for _ in range(source.get("up", 0)):
        assert run.around is not None
        run = run.around[0]
    return run


def bare(node: InlineNode) -> str | None:
    """The text of the value in the node's result; None when the result is an err, or missing."""
    if node.result is None:
        return None
    if node.result.startswith('{"ok":'):
        return node.result[6:-1]
    found: Any = json.loads(node.result)
    return dumped(found["ok"]) if "ok" in found else None


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
