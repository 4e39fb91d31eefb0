"""The Python stacks of this process as text: where each thread and each asyncio task is. Places only, no values."""

import asyncio
import linecache
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final, NamedTuple, cast

from horsies._text import Lines, one_line, plural, short
from horsies_worker.output.log_context import log

MAX_TEXT: Final = 60_000
_MAX_FRAMES: Final = 50
_MAX_NAMES: Final = 5
_ATTRIBUTES: Final[Mapping[type, tuple[str, str]]] = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}
"""The attributes with an object's frame and with the object that it waits for."""


class _Stack(NamedTuple):
    """Equal for threads and asyncio tasks that are at the same place: a pool has many of them."""

    kind: str
    outer_frames: int
    """Frames above the innermost ones, which are left out."""
    places: tuple[tuple[str, int, str], ...]
    """File, line and function; the innermost is the last."""


def log_own_stacks() -> None:
    log.warning("SIGUSR1: the stacks of this process\n%s", Lines(stacks_text({})))


def stacks_text(tasks_of_queue: Mapping["asyncio.Task[Any]", str]) -> str:
    """Return the stacks of all threads, and of all asyncio tasks of the running loop. The named ones run tasks of the
    queue and come first. The names of those with the same stack are listed together."""
    found: dict[_Stack, list[str]] = {}
    for name, frame in _threads():
        found.setdefault(_stack("thread", frame), []).append(name)
    tasks = asyncio.all_tasks()
    for task, name in tasks_of_queue.items():
        found.setdefault(_stack("async task", _awaited(task)), []).append(name)
    for task in sorted(tasks.difference(tasks_of_queue), key=lambda one: one.get_name()):
        found.setdefault(_stack("asyncio task", _awaited(task)), []).append(task.get_name())
    return _bounded(found)


def _threads() -> Iterator[tuple[str, Iterable[FrameType]]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] # documented
    main = threading.main_thread().ident
    for ident in sorted(frames, key=lambda one: (one != main, names.get(one, ""))):
        name = names.get(ident, f"{ident}, which `threading` did not start")
        if ident == threading.get_ident():
            yield f"{name}, which writes this report", ()
        else:
            yield name, reversed(list(_callers(frames[ident])))


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(task: "asyncio.Task[Any]") -> Iterator[FrameType]:
    """Yield the frames from the outermost coroutine to the innermost: `Task.get_stack` has only the outermost."""
    waiting: object = task.get_coro()
    # Only these types, because attributes of another awaitable may be user code.
    while (names := _ATTRIBUTES.get(cast("type", type(waiting)))) is not None:
        frame = getattr(waiting, names[0])
        if frame is None:
            return  # it has ended
        yield frame
        waiting = getattr(waiting, names[1])


def _stack(kind: str, frames: Iterable[FrameType]) -> _Stack:
    places = [(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name) for frame in frames]
    return _Stack(kind, max(0, len(places) - _MAX_FRAMES), tuple(places[-_MAX_FRAMES:]))


def _bounded(found: Mapping[_Stack, Sequence[str]]) -> str:
    blocks: list[str] = []
    room = MAX_TEXT
    left_out = 0
    for stack, names in found.items():
        block = _block(stack, names) if room > 0 else ""
        room -= len(block) + 1
        if room > 0:
            blocks.append(block)
        else:
            left_out += len(names)
    if left_out:
        blocks.append(f"{plural(left_out, 'more stack')} left out")
    return "\n".join(blocks)


def _block(stack: _Stack, names: Sequence[str]) -> str:
    shown = "; ".join(one_line(short(name, 200)) for name in names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        shown += f"; and {len(names) - _MAX_NAMES:,} more"
    lines = [f"{stack.kind} {shown}" if len(names) == 1 else f"{plural(len(names), stack.kind)}: {shown}"]
    if stack.outer_frames:
        lines.append(f"  ... {plural(stack.outer_frames, 'outer frame')} left out")
    for file, line, function in stack.places:
        lines.append(f'  File "{one_line(short(file, 300))}", line {line}, in {one_line(short(function, 200))}')
        if source := linecache.getline(file, line).strip():
            lines.append(f"    {one_line(short(source, 200))}")
    return "\n".join(lines)
