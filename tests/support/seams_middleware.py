"""Middleware for tests. What it does is decided by the metadata of a task: `mischief` names one misbehaviour, `note` a
file for the order of calls."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from horsies import (
    AttemptEnd,
    Lifespan,
    Middleware,
    Outgoing,
    TaskContext,
    TaskError,
    TaskResult,
    TaskSendError,
    TaskStopped,
    current_task,
)
from tests.support.worker_app import note


def write(ctx: TaskContext, text: str) -> None:
    if path := ctx.metadata.get("note"):
        note(path, text)


class Noting(Middleware):
    """Notes all that it sees."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sends: list[tuple[str, Outgoing, TaskSendError | None]] = []

    def on_send(self, task: Outgoing) -> None:
        self.sends.append(("on_send", task, None))
        task.metadata.setdefault("seen", []).append(self.name)

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None:
        self.sends.append(("on_sent", task, error))

    @contextmanager
    def scope(self, ctx: TaskContext) -> Iterator[None]:
        write(ctx, f"{self.name} enters")
        try:
            yield
        except BaseException as error:
            write(ctx, f"{self.name} leaves by {type(error).__name__}")
            raise
        write(ctx, f"{self.name} leaves")

    def run_task(self, ctx: TaskContext, call: Callable[[], Any]) -> Any:
        write(ctx, f"{self.name} calls")
        result = call()
        write(ctx, f"{self.name} has {result!r}")
        return result

    async def run_task_async(self, ctx: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
        write(ctx, f"{self.name} calls")
        result = await call()
        write(ctx, f"{self.name} has {result!r}")
        return result

    def on_attempt_end(self, end: AttemptEnd) -> None:
        what = type(end.exception).__name__ if end.exception else end.result
        write(end.context, f"{self.name} ends {end.outcome} {what} retry={end.retry_expected}")


class Mischief(Middleware):
    """Does what the metadata asks for."""

    lifespans: Sequence[Lifespan[Any]] = ()

    def on_send(self, task: Outgoing) -> None:
        match task.metadata.get("at_send"):
            case "raise":
                raise PermissionError("not for you")
            case "edit":
                task.metadata["edited"] = True
            case "large":
                task.metadata["large"] = "x" * 20_000
            case "not json":
                task.metadata["odd"] = {1, 2}
            case "not a dict":
                task.metadata = ["tenant"]  # type: ignore[assignment]
            case _:
                pass

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None:
        if task.metadata and "at_sent" in task.metadata:
            raise ValueError("after the send")

    def scope(self, ctx: TaskContext) -> Any:
        match ctx.metadata.get("mischief"):
            case "scope raises":
                raise LookupError("no scope")
            case "returns None":
                return None
            case "not decorated":
                return self.undecorated()
            case "never yields":
                return self.never()
            case "yields twice":
                return self.twice()
            case "enter raises":
                return self.enter_raises()
            case "exit raises":
                return self.exit_raises()
            case "swallows":
                return self.swallows()
            case _:
                return super().scope(ctx)

    def undecorated(self) -> Iterator[None]:
        yield

    @contextmanager
    def never(self) -> Iterator[None]:
        if self is None:
            yield

    @contextmanager
    def twice(self) -> Iterator[None]:
        yield
        yield

    @contextmanager
    def enter_raises(self) -> Iterator[None]:
        raise LookupError("at enter")
        yield

    @contextmanager
    def exit_raises(self) -> Iterator[None]:
        yield
        raise LookupError("at exit")

    @contextmanager
    def swallows(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            pass

    def run_task(self, ctx: TaskContext, call: Callable[[], Any]) -> Any:
        kind = ctx.metadata.get("mischief")
        self.before(kind)
        if kind == "hangs before":
            time.sleep(60)
        try:
            result = call()
        except TaskStopped as stop:
            if kind == "catches the stop":
                return TaskResult(ok=-1)
            if kind == "turns the stop":
                raise ValueError(stop.reason) from stop
            raise
        except LookupError as error:
            if kind == "translates":
                raise PermissionError("translated") from error
            raise
        if kind == "hangs after":
            time.sleep(60)
        return self.after(kind, result)

    async def run_task_async(self, ctx: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
        kind = ctx.metadata.get("mischief")
        self.before(kind)
        if kind == "hangs before":
            await asyncio.sleep(60)
        try:
            result = await call()
        except asyncio.CancelledError:
            write(ctx, f"stopped by {ctx.stop_reason}")
            if kind == "catches the stop":
                return TaskResult(ok=-1)
            raise
        if kind == "hangs after":
            await asyncio.sleep(60)
        return self.after(kind, result)

    def before(self, kind: object) -> None:
        if kind == "raises before":
            raise LookupError("before")
        if kind == "dies":
            os._exit(9)

    def after(self, kind: object, result: Any) -> Any:
        match kind:
            case "raises after":
                raise LookupError("after")
            case "replaces":
                return TaskResult(ok=result.ok + 1_000)
            case "replaces by an error":
                return TaskResult(err=TaskError("REPLACED", "by middleware"))
            case "replaces by a text":
                return TaskResult(ok="text")
            case "returns nothing":
                return None
            case _:
                return result

    def on_attempt_end(self, end: AttemptEnd) -> None:
        match end.context.metadata.get("at_end"):
            case "raise":
                raise ValueError("at the end")
            case "lifespan":
                time.sleep(0.3)
                write(end.context, f"{self.lifespans[0].value} is open")
            case "exit":
                raise SystemExit(3)
            case "slow":
                write(end.context, "slow")
                time.sleep(60)
            case "thread":
                write(end.context, f"{threading.current_thread().name} {current_task().task_id}")
            case _:
                pass


class OnlySync(Middleware):
    """Forgets the async tasks."""

    def run_task(self, ctx: TaskContext, call: Callable[[], Any]) -> Any:
        return call()


KINDS: dict[str, Callable[[], Middleware]] = {
    "outer": lambda: Noting("outer"), "inner": lambda: Noting("inner"), "mischief": Mischief, "only sync": OnlySync,
}  # fmt: skip
