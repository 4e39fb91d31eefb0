"""`crash_at`: kill an attempt at a chosen moment, in a process of its own, and let recovery run.

The attempt runs in a fork of the test's process, as a worker's child is a fork of its template. Connections of horsies
are never shared with the fork. At the moment the fork sends SIGKILL to itself, so nothing of it runs on: no `finally`,
no rollback by hand, no report. What it has sent to other systems by then is sent.
"""

import os
import pickle
import signal
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NoReturn

from horsies import crash_points
from horsies._checks import Checks
from horsies.app import Horsies
from horsies.context import BatchCall, TaskContext
from horsies.errors import ConfigurationError, UsageError
from horsies.middleware import Middleware
from horsies.result import TaskError, TaskResult
from horsies.tasks import Sender
from horsies.testing.attempts import forget_opened

if TYPE_CHECKING:
    from horsies_worker.child.outcome import Outcome

Moment = Literal["before_start", "started", "returned", "written"]
MOMENTS: Final = ("before_start", "started", "returned", "written")
Call = TaskResult[Any, TaskError]


@dataclass(slots=True, eq=False)
class Crash:
    """What a block of `crash_at` has found so far."""

    moment: str
    task: str | None
    attempt: int
    task_id: str | None = None
    """The task whose attempt was killed; None: the moment has not come yet."""
    seen: list[str] = field(default_factory=list[str])
    """The crash points that attempts passed, in order."""
    ran: list[str] = field(default_factory=list[str])
    """The attempts that ran in the block."""

    @property
    def happened(self) -> bool:
        return self.task_id is not None

    def wants(self, task_name: str, attempt: int) -> bool:
        """Whether this attempt is to be killed, or may pass the crash point."""
        self.ran.append(f"{task_name} (attempt {attempt})")
        return not self.happened and self.task in (None, task_name) and self.attempt == attempt

    def __str__(self) -> str:
        task = "" if self.task is None else f", task={self.task!r}"
        return f"crash_at({self.moment!r}{task}, attempt={self.attempt})"


_active: Final[list[Crash]] = []


def wanted_crash(task_name: str, attempt: int) -> Crash | None:
    """The innermost block that waits for its moment in this attempt."""
    found: Crash | None = None
    for crash in _active:
        if crash.wants(task_name, attempt):
            found = crash
    return found


@contextmanager
def crash_at(
    moment: Moment | str, *, task: "Sender[..., Any] | str | None" = None, attempt: int = 1
) -> Generator[Crash]:
    """Inside the block, the next `drain` kills an attempt with SIGKILL at this moment, and recovers it as a worker does
    for one that has died: the attempt counts as crashed, and the task is tried again at once if its policy says so.

    `moment`: `"before_start"`, before anything of the attempt runs; `"started"`, where the function is called;
    `"returned"`, when it has returned, which no other process knows; `"written"`, when its end is in the database; or
    the name of a `crash_point` in the task. `task`: kill an attempt of this one, given by its name or itself; None: of
    the first that comes to the moment. `attempt`: the number of the attempt, from 1.

    The block fails with an AssertionError if the moment never came."""
    crash = _checked(moment, task, attempt)
    _active.append(crash)
    try:
        yield crash
    finally:
        _active.remove(crash)
    if not crash.happened:
        raise AssertionError(_never(crash))


def _checked(moment: object, task: object, attempt: object) -> Crash:
    checks = Checks("crash_at")
    if checks.text("moment", moment) and not moment:
        checks.add("moment", "is empty", f"give one of {', '.join(MOMENTS)}, or the name of a crash_point")
    if task is not None and not isinstance(task, str) and not hasattr(task, "definition"):
        checks.add("task", "is no task", "give the task itself, or its name")
    checks.integer("attempt", attempt, 1, 1_001)
    if checks.problems:
        raise ConfigurationError(checks.problems, subject=checks.subject)
    name = task if isinstance(task, str) or task is None else getattr(task, "name", "")
    return Crash(str(moment), name, int(str(attempt)))


def _never(crash: Crash) -> str:
    told = f"{crash}: this moment never came. "
    if not crash.ran:
        return told + "No task ran in the block: does it drain the database of testing.real?"
    ran = f"What ran: {', '.join(crash.ran[:10])}. "
    if crash.moment in MOMENTS:
        return told + ran
    seen = f"it passed {', '.join(map(repr, crash.seen))}" if crash.seen else "it passed no crash_point"
    return f"{told}{ran}Of the wanted attempt, {seen}"


# -- the child -----------------------------------------------------------------------------------


class Died(Exception):
    """The attempt was killed at its moment."""


class ChildOfTest:
    """A fork that runs one attempt."""

    def __init__(self, app: Horsies, crash: Crash) -> None:
        self._app = app
        self._crash = crash
        self._pid: int | None = None

    def run(self, work: "Callable[[], list[Outcome]]") -> "list[Outcome]":
        """Run the attempt. Raises Died when it was killed at the moment. For the moment "written" it lives on."""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
            self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _be_the_child(self._app, self._crash, writing, work)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            for kind, value in _messages(pipe):
                if kind == "seen":
                    self._crash.seen.append(value)
                    continue
                if self._crash.moment != "written" or kind == "raised":
                    self._wait()
                if kind == "raised":
                    raise value
                return value
        status = self._wait()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            raise Died
        raise UsageError(
            f"{self._crash}: the process of the attempt ended by itself, with status {status}, before the moment came"
        )

    def kill(self) -> None:
        """Kill it, if it lives."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        assert self._pid is not None
        _, status = os.waitpid(self._pid, 0)
        self._pid = None
        return status


def _messages(pipe: BinaryIO) -> Generator[tuple[str, Any]]:
    while size := pipe.read(8):
        yield pickle.loads(pipe.read(int.from_bytes(size, "little")))


def _be_the_child(app: Horsies, crash: Crash, pipe: int, work: "Callable[[], list[Outcome]]") -> NoReturn:
    def tell(kind: str, value: object) -> None:
        data = pickle.dumps((kind, value))
        with os.fdopen(os.dup(pipe), "wb") as out:
            out.write(len(data).to_bytes(8, "little") + data)

    def reached(name: str) -> None:
        tell("seen", name)
        if name == crash.moment:
            die()

    try:
        if crash.moment == "before_start":
            die()
        forget_opened(app)
        if crash.moment in MOMENTS:
            app.redirect(replace(app.config, middleware=[*app.config.middleware, _Innermost(crash.moment)]))
        else:
            crash_points.watch(reached)
        outcomes = [replace(one, returned=None, exception=None, members=None) for one in work()]
        tell("outcomes", outcomes)
        if crash.moment == "written":
            signal.pause()
    except BaseException as error:
        try:
            tell("raised", error)
        except Exception:  # it cannot be pickled
            tell("raised", UsageError(f"the attempt raised {type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class _Innermost(Middleware):
    """Stands directly around the function."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def run_task(self, ctx: TaskContext, call: Callable[[], Call]) -> Call:
        if self._moment == "started":
            die()
        result = call()
        if self._moment == "returned":
            die()
        return result

    @contextmanager
    def batch_scope(self, call: BatchCall) -> Generator[None]:
        if self._moment == "started":
            die()
        yield
        if self._moment == "returned":
            die()

    async def run_task_async(self, ctx: TaskContext, call: Callable[[], Awaitable[Call]]) -> Call:
        if self._moment == "started":
            die()
        result = await call()
        if self._moment == "returned":
            die()
        return result
