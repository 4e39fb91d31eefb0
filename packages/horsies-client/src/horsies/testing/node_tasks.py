"""The task of a ready node of an inline run: what `enqueue_nodes` in the worker's workflows.sql does with rows."""

import json
from typing import Any

from horsies.app import Horsies
from horsies.envelopes import stored_bytes
from horsies.ids import new_id
from horsies.metadata import NODE, TRACE, WORKFLOW, decode
from horsies.result import TaskError
from horsies.testing.calls import Call, read_call
from horsies.testing.inline_run import InlineNode, InlineRun
from horsies.testing.node_values import compose
from horsies.testing.records import SentTask
from horsies.testing.store import TaskRow
from horsies_worker.workflows.refused import too_large


def task_of(app: Horsies, run: InlineRun, node: InlineNode) -> tuple[TaskRow, Call] | TaskError:
    """The row of the task, or why it cannot be written."""
    data, envelopes = node.data, app.envelopes
    max_bytes = stored_bytes(app.config.payload_max_bytes) if envelopes.codec else app.config.payload_max_bytes
    kwargs = compose(run, node)
    if len((kwargs or "").encode()) > max_bytes:
        return too_large(max_bytes)
    definition = app.registry.get(data["task_name"])
    found: dict[str, Any] = {**(data["metadata"] or {}), **(run.metadata or {})}
    if TRACE in found:
        found |= {WORKFLOW: run.id, NODE: node.node_id}
    metadata = json.dumps(found) if found else None
    try:
        call = read_call(definition, data["args"], kwargs, envelopes, task_name=data["task_name"])
    except Exception:  # the attempt itself will tell
        call = Call((), {}, {}, {})
    priority = data["priority"] if data.get("own_priority") or run.priority is None else run.priority
    sent = SentTask(
        id=new_id(), task_name=data["task_name"], args=call.args, kwargs=call.kwargs, arguments=call.arguments,
        queue_name=data["queue_name"], priority=priority, delay=None, eta=None, good_until=None,
        unique_key=None, metadata=decode(metadata), group=data.get("group_key") or run.group,
        workflow_id=run.id, node_id=node.node_id,
    )  # fmt: skip
    row = TaskRow(sent, definition, data["args"], kwargs, data["task_options"], data["max_retries"], metadata)
    return row, call
