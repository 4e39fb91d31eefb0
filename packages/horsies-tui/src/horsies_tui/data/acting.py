"""Carries out the dashboard's actions through the client's broker, each fenced by the state that the operator saw.

The states are read again just before the action; a task that has changed meanwhile is left alone and reported. The
broker's statements check the state once more, so a task that changes between the two is refused. (A waiting task that
starts in that moment is asked to stop, which is what cancelling it means.)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from horsies.operate import actions
from horsies.operate.actions import Outcome
from horsies.operate.broker import PostgresBroker
from horsies.operate.filters import TaskFilter
from horsies.operate.policy_control import PolicyControl
from horsies.operate.worker_control import MAX_PROCESSES, WorkerControl
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus
from horsies.workflow.control import WorkflowControl
from horsies.workflow.info import WorkflowNodeInfo
from horsies.workflow.retrying import why_not
from horsies_tui.data.policies import Subject, parse, state_of
from horsies_tui.data.source import Target

CHANGED: Final = "changed meanwhile"
GONE: Final = "is gone"
NOT_PURGED: Final = "its workflow has not ended"
BY: Final = "the dashboard"
NOTHING_TO_RETRY: Final = "there is nothing to retry"
DELIVERED: Final = "DELIVERED"
UNDELIVERED: Final = {
    "REPEATED": "it was delivered before",
    "WORKFLOW_ENDED": "the workflow has ended, or undoes what it did",
    "WORKFLOW_NOT_FOUND": "the workflow is gone",
    "NODE_NOT_FOUND": "the workflow has no such node",
    "NOT_STARTED": "the workflow in this node has not started",
}
"""The outcomes of a signal that was not stored."""

Left = list[tuple[str, str]]


async def act(broker: PostgresBroker, action: str, targets: Sequence[Target]) -> Outcome:
    """Carry out an action of `horsies_tui.actions`."""
    if action in ("retry_node", "signal"):
        return await (_retry_nodes if action == "retry_node" else _signal)(broker.workflows, targets)
    if action.endswith("_workflow"):
        return await _act_on_workflows(broker, action, targets)
    if action.endswith("_schedule"):
        return await _act_on_schedules(broker, action, targets)
    if action == "pause_queue":
        paused = await broker.get_paused_queues()
        states = {target.id: "paused" if target.id in paused else "open" for target in targets}
        return await _each(targets, states, broker.pause_queue, broker.resume_queue)
    if action.endswith("_worker"):
        return await _act_on_workers(broker.workers, action, targets)
    if action.endswith("_policy"):
        return await _act_on_policies(broker.policies, action, targets)
    states = {name: one.status for name, one in (await broker.get_task_states([one.id for one in targets])).items()}
    kept, left = _unmoved(targets, states)
    if action in ("cancel", "retry"):
        change = actions.cancel if action == "cancel" else actions.retry
        outcome = await change(broker, [target.id for target in kept])
        return replace(outcome, not_done=(*left, *outcome.not_done))
    if action == "purge":
        return await _purge(broker, kept, left)
    return await _recover(
        kept, left, broker.requeue_stale_claimed if action == "requeue_stale" else broker.mark_stale_tasks_as_failed
    )


async def _purge(broker: PostgresBroker, kept: Sequence[Target], left: Left) -> Outcome:
    """Delete the rows of these ended tasks; those of a workflow that has not ended stay."""
    ids = [target.id for target in kept]
    states = frozenset(TaskStatus(target.expected) for target in kept)
    done = await broker.purge_tasks(TaskFilter(ids=ids, statuses=states)) if ids else 0
    there = await broker.get_task_states(ids) if done < len(ids) else {}
    left += [(one, NOT_PURGED if state.workflow_is_live else CHANGED) for one, state in there.items()]
    return Outcome(done, not_done=tuple(left))


async def _recover(kept: Sequence[Target], left: Left, recover: Callable[[int, list[str]], Awaitable[int]]) -> Outcome:
    """Each task must have been silent for as long as the operator saw: a worker that came back keeps its task."""
    silent = [target for target in kept if await recover(target.guard_ms, [target.id])]
    left += [(target.id, f"{CHANGED}: its worker gave a sign of life") for target in kept if target not in silent]
    return Outcome(len(silent), not_done=tuple(left))


async def _act_on_schedules(broker: PostgresBroker, action: str, targets: Sequence[Target]) -> Outcome:
    control = broker.schedules
    states: dict[str, str] = {}
    for target in targets:
        if (one := await control.state(target.id)) is not None:
            states[one.schedule_name] = ("data " if one.is_data else "") + ("paused" if one.paused_at else "active")
    if action == "remove_schedule":
        return await _each(targets, states, control.delete, control.delete, GONE)
    if action == "pause_schedule":
        return await _each(targets, states, control.pause, control.resume, GONE)
    found = await _each(targets, states, control.run_now, control.run_now, GONE)
    return replace(found, done=0, asked=found.done)


async def _act_on_workers(control: WorkerControl, action: str, targets: Sequence[Target]) -> Outcome:
    """Ask workers; the screen shows when they have acted."""
    workers = {one.worker_id: one for one in await control.find()}
    kept, left = _unmoved(targets, {name: one.standing for name, one in workers.items()})
    for target in kept:
        size = (workers[target.id].wanted_processes or workers[target.id].processes) + (
            1 if action == "grow_worker" else -1
        )
        if action == "drain_worker":
            is_drained = target.expected in ("draining", "drained")
            await (control.resume if is_drained else control.drain)(target.id, requested_by=BY)
        elif not 1 <= size <= MAX_PROCESSES:
            left.append((target.id, f"a worker has 1 to {MAX_PROCESSES:,} children"))
        else:
            await control.resize(target.id, size, requested_by=BY)
    return Outcome(0, asked=len(targets) - len(left), not_done=tuple(left))


async def _act_on_policies(control: PolicyControl, action: str, targets: Sequence[Target]) -> Outcome:
    limits = {one.name: one for one in await control.limits()}
    states: dict[str, str] = {}
    for target in targets:
        subject = Subject.parse(target.id)
        one = await control.queue(subject.name) if subject.kind == "queue" else limits.get(subject.name)
        if one is not None:
            states[target.id] = state_of(one)
    kept, left = _unmoved(targets, states)
    for target in kept:
        subject = Subject.parse(target.id)
        is_queue = subject.kind == "queue"
        if action == "set_policy":
            change, _ = parse(target.change, subject.fields)
            await (control.set_queue if is_queue else control.set_limit)(subject.name, **change)
        elif not await (control.unset_queue if is_queue else control.unset_limit)(subject.name):
            left.append((target.id, CHANGED))
    return Outcome(len(targets) - len(left), not_done=tuple(left))


async def _act_on_workflows(broker: PostgresBroker, action: str, targets: Sequence[Target]) -> Outcome:
    control = broker.workflows
    infos = [await control.info(target.id) for target in targets]
    states = {info.id: info.status for info in infos if info is not None}
    change = {"cancel_workflow": control.cancel, "retry_workflow": control.retry}.get(action)
    return await _each(targets, states, change or control.pause, change or control.resume)


def node_state(node: WorkflowNodeInfo) -> str:
    """The state of a node for a retry: a running one whose workflow is paused is PAUSED."""
    is_paused = node.status is NodeStatus.RUNNING and node.sub_workflow_status is WorkflowStatus.PAUSED
    return str(WorkflowStatus.PAUSED if is_paused else node.status)


async def _retry_nodes(control: WorkflowControl, targets: Sequence[Target]) -> Outcome:
    """Retry one node of each run, if it is in the state in which the operator saw it."""
    left: Left = []
    for target in targets:
        nodes = await control.nodes(target.id)
        state = next((node_state(node) for node in nodes if node.node_id == target.part), None)
        _, moved = _unmoved([target], {} if state is None else {target.id: state})
        if moved:
            left += moved
        elif not await control.retry(target.id, target.part):
            left.append((target.id, why_not(nodes, target.part) or NOTHING_TO_RETRY))
    return Outcome(len(targets) - len(left), not_done=tuple(left))


async def _signal(control: WorkflowControl, targets: Sequence[Target]) -> Outcome:
    """Send one signal to each run. The state that the operator saw does not matter: a signal is kept for a node that
    will wait for it, and the database refuses it for a run that has ended."""
    told = [(target.id, await control.signal(target.id, target.part, target.change)) for target in targets]
    left = tuple((one, UNDELIVERED.get(outcome, outcome)) for one, outcome in told if outcome != DELIVERED)
    return Outcome(len(told) - len(left), not_done=left)


def _unmoved(targets: Sequence[Target], states: Mapping[str, str]) -> tuple[list[Target], Left]:
    """The targets in the state in which the operator saw them; and the others, each with the reason to leave it."""
    kept: list[Target] = []
    left: Left = []
    for target in targets:
        state = states.get(target.id)
        if state == target.expected:
            kept.append(target)
        else:
            left.append((target.id, f"{CHANGED}: it was {target.expected}, is {state}" if state is not None else GONE))
    return kept, left


async def _each(
    targets: Sequence[Target],
    states: Mapping[str, str],
    change: Callable[[str], Awaitable[bool | None]],
    resume: Callable[[str], Awaitable[bool | None]],
    refused: str = CHANGED,
) -> Outcome:
    """Resume what the operator saw paused, and change the others. A change that returns False was refused."""
    kept, left = _unmoved(targets, states)
    for target in kept:
        if await (resume if target.expected.lower().endswith("paused") else change)(target.id) is False:
            left.append((target.id, refused))
    return Outcome(len(targets) - len(left), not_done=tuple(left))
