"""Actions on the database, through the client's broker only. Each is fenced by the state in which it was seen.

The states are read again just before; what moved meanwhile is left alone and reported. The broker's own statements
guard the rest: between the look and the act a task can only be refused, never changed from a state it was not in
(but a waiting task that starts in that instant is asked to stop, which is what a cancellation of it means).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from horsies.broker import PostgresBroker
from horsies.handle import CancelResult
from horsies.info import RetryResult
from horsies_tui.data.source import Outcome, Target

Act = Callable[[PostgresBroker, Sequence[Target]], Awaitable[Outcome]]

CHANGED: Final = "changed meanwhile"
GONE: Final = "is gone"

_NOT_RETRIED: Final = {
    RetryResult.NOT_ENDED: f"{CHANGED}: it waits or runs",
    RetryResult.SUCCEEDED: f"{CHANGED}: it is completed",
    RetryResult.IN_WORKFLOW: "is a node of a workflow: retry that",
    RetryResult.REPLACED: "is a former task of a workflow's node: retry the workflow",
    RetryResult.KEY_TAKEN: "another live task has its unique key",
    RetryResult.CHANGED: CHANGED,
    RetryResult.NOT_FOUND: GONE,
}
_NOT_CANCELLED: Final = {
    CancelResult.ALREADY_ENDED: f"{CHANGED}: it has ended",
    CancelResult.NOT_FOUND: GONE,
}


async def act(broker: PostgresBroker, action: str, targets: Sequence[Target]) -> Outcome:
    """Carry out one action of the table of actions."""
    return await _ACTS[action](broker, targets)


async def _unmoved(broker: PostgresBroker, targets: Sequence[Target]) -> tuple[list[Target], list[tuple[str, str]]]:
    states = await broker.get_task_states([target.id for target in targets])
    kept: list[Target] = []
    moved: list[tuple[str, str]] = []
    for target in targets:
        state = states.get(target.id)
        if state is None:
            moved.append((target.id, GONE))
        elif state.status != target.expected:
            moved.append((target.id, f"{CHANGED}: it was {target.expected}, is {state.status}"))
        else:
            kept.append(target)
    return kept, moved


async def _cancel(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    kept, left = await _unmoved(broker, targets)
    results = await broker.cancel_many([target.id for target in kept])
    left += [(task_id, _NOT_CANCELLED[result]) for task_id, result in results.items() if result in _NOT_CANCELLED]
    return Outcome(
        done=sum(result is CancelResult.CANCELLED for result in results.values()),
        asked=sum(result is CancelResult.REQUESTED for result in results.values()),
        not_done=tuple(left),
    )


async def _retry(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    kept, left = await _unmoved(broker, targets)
    results = await broker.retry_tasks([target.id for target in kept])
    of_workflows = [one for one, result in results.items() if result in (RetryResult.IN_WORKFLOW, RetryResult.REPLACED)]
    states = await broker.get_task_states(of_workflows) if of_workflows else {}
    told = {task_id: state.why_not_alone for task_id, state in states.items()}
    left += [
        (task_id, told.get(task_id) or _NOT_RETRIED[result])
        for task_id, result in results.items()
        if result in _NOT_RETRIED
    ]
    return Outcome(sum(result is RetryResult.RETRIED for result in results.values()), not_done=tuple(left))


async def _requeue_stale(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    return await _recover(broker, targets, broker.requeue_stale_claimed)


async def _fail_stale(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    return await _recover(broker, targets, broker.mark_stale_tasks_as_failed)


async def _recover(
    broker: PostgresBroker, targets: Sequence[Target], recover: Callable[[int, list[str]], Awaitable[int]]
) -> Outcome:
    """Every task is guarded by the silence that it was shown with: a worker that came back keeps it."""
    kept, left = await _unmoved(broker, targets)
    done = 0
    for target in kept:
        if await recover(target.guard_ms, [target.id]):
            done += 1
        else:
            left.append((target.id, f"{CHANGED}: its worker gave a sign of life"))
    return Outcome(done, not_done=tuple(left))


async def _pause_queue(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    """Pauses what was seen running and resumes what was seen paused."""
    paused = await broker.get_paused_queues()
    done, left = 0, list[tuple[str, str]]()
    for target in targets:
        is_paused = target.id in paused
        if is_paused != (target.expected == "paused"):
            left.append((target.id, f"{CHANGED}: it is {'paused' if is_paused else 'not paused'}"))
            continue
        await (broker.resume_queue(target.id) if is_paused else broker.pause_queue(target.id))
        done += 1
    return Outcome(done, not_done=tuple(left))


async def _run_schedule(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    return await _on_schedules(broker, targets, lambda target: broker.run_schedule_now(target.id), is_asked=True)


async def _pause_schedule(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    """Pauses what was seen active and resumes what was seen paused."""
    return await _on_schedules(
        broker,
        targets,
        lambda target: (broker.resume_schedule if target.expected == "paused" else broker.pause_schedule)(target.id),
    )


async def _on_schedules(
    broker: PostgresBroker,
    targets: Sequence[Target],
    change: Callable[[Target], Awaitable[bool]],
    *,
    is_asked: bool = False,
) -> Outcome:
    states = {one.schedule_name: "paused" if one.paused_at else "active" for one in await broker.get_schedules()}
    done, left = 0, list[tuple[str, str]]()
    for target in targets:
        state = states.get(target.id)
        if state is not None and state != target.expected:
            left.append((target.id, f"{CHANGED}: it is {state}"))
        elif state is not None and await change(target):
            done += 1
        else:
            left.append((target.id, GONE))
    return Outcome(0 if is_asked else done, asked=done if is_asked else 0, not_done=tuple(left))


async def _pause_workflow(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    """Pauses what was seen running and resumes what was seen paused."""
    control = broker.workflows
    return await _on_workflows(
        broker, targets, lambda target: (control.resume if target.expected == "PAUSED" else control.pause)(target.id)
    )


async def _cancel_workflow(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    return await _on_workflows(broker, targets, lambda target: broker.workflows.cancel(target.id))


async def _retry_workflow(broker: PostgresBroker, targets: Sequence[Target]) -> Outcome:
    return await _on_workflows(broker, targets, lambda target: broker.workflows.retry(target.id))


async def _on_workflows(
    broker: PostgresBroker, targets: Sequence[Target], change: Callable[[Target], Awaitable[bool]]
) -> Outcome:
    done, left = 0, list[tuple[str, str]]()
    for target in targets:
        info = await broker.workflows.info(target.id)
        if info is None:
            left.append((target.id, GONE))
        elif info.status != target.expected:
            left.append((target.id, f"{CHANGED}: it was {target.expected}, is {info.status}"))
        elif await change(target):
            done += 1
        else:
            left.append((target.id, CHANGED))
    return Outcome(done, not_done=tuple(left))


_ACTS: Final[Mapping[str, Act]] = {
    "cancel": _cancel,
    "retry": _retry,
    "requeue_stale": _requeue_stale,
    "fail_stale": _fail_stale,
    "pause_queue": _pause_queue,
    "pause_workflow": _pause_workflow,
    "cancel_workflow": _cancel_workflow,
    "retry_workflow": _retry_workflow,
    "run_schedule": _run_schedule,
    "pause_schedule": _pause_schedule,
}
