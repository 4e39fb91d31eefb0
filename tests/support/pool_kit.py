"""What the apps of the child pool's tests are made of.

`App` has the shape that a child needs of a Horsies app (see the protocols in horsies_worker/child/jobs.py).
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from horsies.codec import TaskCodec
from horsies.envelopes import PLAIN_ENVELOPES
from horsies.exception_codes import ExceptionCodes
from horsies.result import TaskError, TaskResult


@dataclass
class Config:
    exception_mapper: dict[type[BaseException], str] = field(default_factory=dict)
    default_unhandled_error_code: str = "UNHANDLED_EXCEPTION"
    payload_warn_bytes: int = 1024 * 1024
    payload_max_bytes: int = 16 * 1024 * 1024
    middleware: tuple[()] = ()

    @property
    def exception_codes(self) -> ExceptionCodes:
        return ExceptionCodes(self.exception_mapper, self.default_unhandled_error_code)


@dataclass
class Definition:
    name: str
    fn: Callable[..., Any]
    is_async: bool
    codec: TaskCodec
    config: Config

    @property
    def exception_codes(self) -> ExceptionCodes:
        return self.config.exception_codes


class App:
    def __init__(self) -> None:
        self.tasks: dict[str, Definition] = {}
        self.config = Config()
        self.child_start_hooks: list[Callable[[], None]] = []
        self.lifespans: list[Any] = []
        self.envelopes = PLAIN_ENVELOPES

    @property
    def registry(self) -> dict[str, Definition]:
        return self.tasks

    def task(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        name = fn.__name__
        codec = TaskCodec.from_function(fn, task_name=name)
        self.tasks[name] = Definition(name, fn, asyncio.iscoroutinefunction(fn), codec, self.config)
        return fn


app = App()
"""That of most tests; its tasks are in `pool_tasks`, `pool_async_tasks` and `pool_harmful_tasks`."""
app.config.exception_mapper = {OSError: "IO", ConnectionError: "NET", TimeoutError: "SLOW"}
Result = TaskResult[int, TaskError]
Text = TaskResult[str, TaskError]


def note(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (text + "\n").encode())
    os.close(handle)


def hold_gil(seconds: float) -> None:
    """C code that holds the GIL, runs no Python and goes on when a signal interrupts it."""
    libc = ctypes.PyDLL(None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    libc.usleep(int(min(seconds, 2000) * 1_000_000))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
