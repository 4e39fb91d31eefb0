"""What each child does, in the log: its tasks, for how long they have run, and the stacks of its threads.

It is for an operator who looks at a worker that hangs, so it must not depend on the child: one that does not answer
in time is still reported.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from horsies._text import Lines, one_line, plural, short, span
from horsies_worker.children.assigned_jobs import AssignedJob
from horsies_worker.children.child_process import ChildProcess, State
from horsies_worker.children.stacks import StacksUnknown
from horsies_worker.children.usage import resident_kb

logger = logging.getLogger("horsies.worker.pool")

_ANSWER_S: Final = 1.5
_MAX_TASKS: Final = 20


class StackReport:
    """`children` is the pool's own mapping, which changes."""

    def __init__(self, children: Mapping[int, ChildProcess]) -> None:
        self._children = children
        self._writing: dict[int, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Write one report; while that takes place, another request is ignored."""
        if self._writing:
            logger.info("SIGUSR1: the report of the children is being written already")
            return
        for number, child in self._children.items():
            self._writing[number] = asyncio.create_task(self._write(child), name=f"stacks of {child.name}")

    async def _write(self, child: ChildProcess) -> None:
        try:
            try:
                stacks = await _stacks_of(child)
            finally:
                del self._writing[child.number]
            if child.state is State.DEAD:
                logger.warning("SIGUSR1: %s (pid %d) has ended meanwhile", child.name, child.pid)
                return
            memory_mb = (resident_kb(child.pid) or child.rss_kb) // 1024
            logger.warning(
                "SIGUSR1: %s, pid %d, %s, %d MB resident, %s\n%s", child.name, child.pid, child.state.value, memory_mb,
                plural(len(child.jobs.sync) + len(child.jobs.asynchronous), "task"),
                Lines("\n".join([*_tasks_of(child), stacks])),
                extra={"child_pid": child.pid, "task_ids": [assigned.job.task_id for assigned in _longest(child)]},
            )  # fmt: skip
        except Exception:
            logger.exception("SIGUSR1: no report of %s", child.name)


async def _stacks_of(child: ChildProcess) -> str:
    answer = None
    if child.state is State.STARTING:
        silent = "it is starting"  # its event loop does not run yet
    else:
        answer = await child.stacks.ask(_ANSWER_S)
        silent = (
            f"its event loop did not answer within {_ANSWER_S:g} s: code in C holds the GIL, an async task blocks the "
            "loop, or the process has no processor"
        )
    if answer is not None or child.state is State.DEAD:
        return answer or ""
    try:
        written = await child.stacks.write_by_signal()
    except StacksUnknown as exc:
        return f"no stacks: {silent}; {exc}"
    return f"{silent}. The stacks of its threads, without those of waiting async tasks:\n{written}"


def _longest(child: ChildProcess) -> list[AssignedJob]:
    """Return the jobs that have run longest, and then the others, up to a number that can be read."""
    jobs = child.jobs
    return sorted(jobs, key=lambda assigned: (jobs.started_at(assigned), assigned.seq))[:_MAX_TASKS]


def _tasks_of(child: ChildProcess) -> Iterator[str]:
    now = time.monotonic()
    sync = list(child.jobs.sync)
    unstarted = set(sync[len(sync) - child.unstarted :])
    shown = _longest(child)
    for assigned in shown:
        job = assigned.job
        ran = span(timedelta(seconds=now - child.jobs.started_at(assigned)))
        state = "not started" if assigned.seq in unstarted else f"running for {ran}"
        if assigned.stop is not None:
            state += f", being stopped ({assigned.stop.code.name.lower()})"
        kind = "async task" if job.is_async else "task"
        name, task_id = one_line(short(job.task_name, 200)), one_line(short(job.task_id))
        yield f"{kind} {name} {task_id} attempt {job.attempt}: {state}"
    rest = sum(1 for _ in child.jobs) - len(shown)
    if rest:
        yield f"and {plural(rest, 'more task')}"
