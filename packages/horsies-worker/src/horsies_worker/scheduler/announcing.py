"""Calls the middleware's `on_send` and `on_sent` for runs of schedules, beside the scheduler's event loop.

They are user code, which may look up a tenant over the network: in the loop's thread, one that hangs would stop claims,
heartbeats and signals with it. A run whose `on_send` raises, or does not return in time, is left out.
"""

import asyncio
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from horsies._runtime import AppRuntime
from horsies._text import Lines, one_line
from horsies.middleware import Outgoing, tell_sent
from horsies.new_tasks import NewTasks
from horsies.scheduled import ScheduledTask
from horsies.send import outgoing
from horsies.workflow.start import Start
from horsies_worker.output.log_context import indented, log
from horsies_worker.scheduler.slots import Fire, Move

R = TypeVar("R")
PATIENCE_S: Final = 5.0
MAX_HANGING: Final = 8


class _NotReturned(Exception):
    """A call of the middleware hangs, or so many do that no other is made."""


@dataclass(slots=True)
class Announced:
    """One run, after the middleware's `on_send`."""

    target: NewTasks | Start[Any] | None
    """None: middleware refused it."""
    outgoing: Outgoing | None
    error: Exception | None = None
    """Why the database does not take it."""


class Announcer:
    """Remembers the runs of one transaction: `on_send` is called once for each, also when it is repeated or split."""

    def __init__(self, app: AppRuntime) -> None:
        self._app = app
        self._made: dict[str, Announced] = {}
        self._hanging: list[threading.Thread] = []

    async def announce(self, task: ScheduledTask, fire: Fire) -> Announced:
        """What to write for this run."""
        if (known := self._made.get(fire.task_id)) is None:
            known = self._made[fire.task_id] = await self._announce(task, fire)
        return known

    async def _announce(self, task: ScheduledTask, fire: Fire) -> Announced:
        target, app = task.target, self._app

        def ask() -> Announced:
            if isinstance(target, NewTasks):
                plan = target.plan
                metadata, announced = outgoing(
                    app, plan.task_name, [fire.task_id], plan.default_metadata, plan.metadata,
                    queue_name=plan.queue_name, schedule=task.name, groups=target.groups,
                )  # fmt: skip
                return Announced(target._replace(metadata=metadata), announced)
            start = target.prepared_start(fire.task_id, task.schedule.group).announced(schedule=task.name)
            return Announced(start, start.outgoing)

        try:
            return await self._beside_the_loop(ask) if self._calls_user_code(target) else ask()
        except _NotReturned as error:
            why = f"on_send of the middleware, or the group_by of a node's task, {error}"
        except Exception as error:
            why = (
                f"{type(error).__name__}: {one_line(str(error))}{indented(''.join(traceback.format_exception(error)))}"
            )
        log.error("schedule %r: its run of %s is refused and left out: %s", task.name, fire.slot, Lines(why))
        return Announced(None, None)

    def _calls_user_code(self, target: object) -> bool:
        """Whether a run may call user code: middleware, or `group_by` for the nodes of a workflow. The group of a task
        was asked for when the scheduler started."""
        if self._app.config.middleware:
            return True
        return not isinstance(target, NewTasks) and any(task.group_by is not None for task in self._app.registry)

    def is_refused(self, task_id: str) -> bool:
        """Whether middleware has refused this run of the present transaction."""
        announced = self._made.get(task_id)
        return announced is not None and announced.target is None

    def note_refusal(self, move: Move, error: Exception) -> None:
        """The database does not take the runs of this move."""
        for fire in move.fires:
            if (announced := self._made.get(fire.task_id)) is not None:
                announced.error = error

    async def tell_sent(self, error: BaseException | None = None) -> None:
        """Call the middleware's `on_sent` for the runs of the last transaction, which has ended. A run that another
        scheduler has written is sent as well."""
        made, self._made = self._made, {}
        told = [(one.outgoing, error or one.error) for one in made.values() if one.outgoing is not None]
        if not told:
            return

        def tell() -> None:
            for sent, why in told:
                tell_sent(self._app.config.middleware, sent, why)

        try:
            await self._beside_the_loop(tell)
        except Exception as failure:
            log.error("on_sent of the middleware %s", failure)

    async def _beside_the_loop(self, call: Callable[[], R]) -> R:
        """Run it in a daemon thread: one that hangs must not hold up the exit of the process either."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= MAX_HANGING:
            raise _NotReturned(f"is not called: {MAX_HANGING} earlier calls have not returned")
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        found: list[R] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                found.append(call())
            except BaseException as error:  # a SystemExit is no reason to end the scheduler
                raised.append(error)
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop was closed meanwhile

        thread = threading.Thread(target=work, name="horsies-on-send", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()
        except TimeoutError:
            self._hanging.append(thread)
            raise _NotReturned(f"has not returned within {PATIENCE_S:g} s") from None
        if raised:
            error = raised[0]
            raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        return found[0]
