"""Apps for tests of the child pool: real functions, run by real children, without a database.

`App` has the shape that a child needs of a Horsies app (see the protocols in horsies_worker/child/jobs.py).
Tasks that must leave a trace append a line to a file, one write each, so that starts can be counted.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horsies.codec import TaskCodec
from horsies.context import TaskStopped, current_task
from horsies.envelopes import PLAIN_ENVELOPES
from horsies.exception_codes import ExceptionCodes
from horsies.result import TaskError, TaskResult
from horsies_worker.child.frames import FrameReader
from horsies_worker.child.run import INTERRUPT


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


@app.task
def noop() -> Result:
    return TaskResult(ok=0)


@app.task
def add(a: int, b: int) -> Result:
    return TaskResult(ok=a + b)


@app.task
def sleep(seconds: float, path: str = "") -> Result:
    if path:
        note(path, f"start {current_task().task_id}")
    time.sleep(seconds)
    if path:
        note(path, f"end {current_task().task_id}")
    return TaskResult(ok=os.getpid())


@app.task
def counted(path: str, seconds: float = 0.0) -> Result:
    note(path, current_task().task_id)
    time.sleep(seconds)
    return TaskResult(ok=os.getpid())


@app.task
def in_c(seconds: float, path: str = "") -> Result:
    if path:
        note(path, str(os.getpid()))
    hold_gil(seconds)
    return TaskResult(ok=1)


@app.task
def with_subprocess(path: str, seconds: float) -> Result:
    inner = subprocess.Popen(["sleep", "60"])
    note(path, f"{os.getpid()} {inner.pid}")
    hold_gil(seconds)
    return TaskResult(ok=1)


@app.task
def die(how: int) -> Result:
    """Negative: exit code; positive: signal to itself; 0: exit code 0."""
    if how > 0:
        os.kill(os.getpid(), how)
        time.sleep(10)
    os._exit(-how)


@app.task
def segfault() -> Result:
    ctypes.string_at(0)
    return TaskResult(ok=1)


@app.task
def signal_burst() -> Result:
    """Let every signal that can have a handler arrive at the same moment; returns how many there are."""
    forced = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    numbers = signal.valid_signals() - forced
    for number in numbers:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, lambda *_: None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return TaskResult(ok=len(numbers))


@app.task
def stack_overflow() -> Result:
    """Overflow the stack of the main thread in C code."""
    faulthandler._stack_overflow()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    return TaskResult(ok=0)


@app.task
def backtracks(path: str) -> Result:
    """A regular expression that takes years: C code with the GIL held, which looks for signals."""
    note(path, "start")
    re.match("(a+)+$", "a" * 60 + "b")
    return TaskResult(ok=0)


@app.task
def odd_thread(path: str) -> Result:
    """Run beside a thread whose name is no valid text and has two lines, without a stderr."""
    done = threading.Event()
    sys.stderr = None
    thread = threading.Thread(target=done.wait, name="half \ud800\nforged line", daemon=True)
    thread.start()
    note(path, "start")
    time.sleep(60)
    return TaskResult(ok=0)


@app.task
def big(size: int) -> Text:
    return TaskResult(ok="x" * size)


@app.task
def length(text: str) -> Result:
    return TaskResult(ok=len(text))


class Exits(Exception):
    def __str__(self) -> str:  # noqa: PLE0307
        sys.exit(4)


def late(_number: int, _frame: object) -> None:
    raise TimeoutError("too late")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@app.task
def odd(kind: str) -> Result:
    match kind:
        case "exit":
            sys.exit(3)
        case "system_exit":
            raise SystemExit("bye")
        case "interrupt":
            raise KeyboardInterrupt
        case "group":
            raise ExceptionGroup("both", [ValueError("a"), ConnectionResetError("b")])
        case "base":
            raise BaseException("base")
        case "unprintable":
            raise Unprintable
        case "exits":
            raise Exits
        case "nul":
            raise ValueError("a\0b\ud800c")
        case "none":
            return None  # type: ignore[return-value]
        case "wrong":
            return TaskResult(ok="text")  # type: ignore[arg-type]
        case "generator":
            return (x for x in [1])  # type: ignore[return-value]
        case "unserialisable":
            return TaskResult(ok=object())  # type: ignore[arg-type]
        case "nul_error":
            return TaskResult(err=TaskError("MINE", "a\0b", {"o": object()}))
        case "net":
            raise ConnectionResetError("gone")
        case "io":
            raise FileNotFoundError("no such thing")
        case "retry_after":
            return TaskResult(err=TaskError("LATER", "try again", retry_after_ms=1500))
        case "retry_after_float":
            error = TaskError("LATER", "try again", retry_after_ms=1500)
            error.retry_after_ms = 1500.5  # type: ignore[assignment]
            return TaskResult(err=error)
        case "retry_after_negative":
            error = TaskError("LATER", "try again", retry_after_ms=1500)
            error.retry_after_ms = -(2**70)
            return TaskResult(err=error)
        case "alarm":
            signal.signal(signal.SIGALRM, late)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            return TaskResult(ok=1)
        case "deep":
            return odd(kind)
        case "forked":
            if os.fork() == 0:
                return TaskResult(ok=666)
            os.wait()
            return TaskResult(ok=7)
        case "closed_gil_thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
            return TaskResult(ok=1)
    raise AssertionError(kind)


@app.task
def cooperative(path: str, answer: str) -> Text:
    note(path, "start")
    while not current_task().is_cancelled():
        time.sleep(0.01)
    if answer == "ok":
        return TaskResult(ok="partial")
    return TaskResult(err=TaskError("STOPPED_EARLY", "as asked"))


@app.task
def cleans_up(path: str, seconds: float = 30.0) -> Result:
    note(path, "start")
    try:
        time.sleep(seconds)
    except Exception:
        note(path, "swallowed")
    except TaskStopped as stop:
        note(path, f"cleanup {stop.reason}")
        raise
    return TaskResult(ok=1)


@app.task
def stubborn(path: str, seconds: float = 30.0) -> Result:
    """Swallows every exception and ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(path, f"start {os.getpid()}")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            time.sleep(1)
        except BaseException as exc:
            note(path, f"swallowed {type(exc).__name__}")
    return TaskResult(ok=1)


@app.task
def who() -> TaskResult[dict[str, Any], TaskError]:
    task = current_task()
    task.report_progress({"half": 0.5})
    return TaskResult(
        ok={
            "id": task.task_id,
            "name": task.task_name,
            "attempt": task.attempt,
            "token": task.fencing_token,
            "deadline": None if task.deadline is None else task.deadline.isoformat(),
            "cancelled": task.is_cancelled(),
        }
    )


@app.task
def grow(megabytes: int) -> Result:
    _kept.append(bytearray(os.urandom(1) * (megabytes << 20)))
    return TaskResult(ok=os.getpid())


_kept: list[bytearray] = []


@app.task
def say(text: str, times: int = 1, stream: int = 1) -> Result:
    data = text.encode()
    for _ in range(times):
        view = memoryview(data)
        while view:
            view = view[os.write(stream, view) :]
    return TaskResult(ok=len(data) * times)


@app.task
def printing(text: str) -> Result:
    print(text)  # noqa: T201
    return TaskResult(ok=1)


@app.task
def descriptors() -> TaskResult[list[str], TaskError]:
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue
    return TaskResult(ok=found)


@app.task
def inherited() -> TaskResult[list[str], TaskError]:
    """Return the descriptors that a program inherits from user code that closes none."""
    listed = subprocess.run(
        ["find", "/proc/self/fd", "-printf", "%f %l\\n"], close_fds=False, capture_output=True, text=True, check=True
    )
    lines = [line.split(" ", 1) for line in listed.stdout.splitlines()]
    return TaskResult(ok=[link for number, link in lines if number.isdigit() and int(number) > 2])


@app.task
async def async_sleep(seconds: float) -> Result:
    await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())


@app.task
async def async_cleans_up(path: str) -> Result:
    note(path, "start")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note(path, "cleanup")
        raise
    return TaskResult(ok=1)


@app.task
async def async_stubborn(path: str) -> Result:
    note(path, "start")
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            note(path, "swallowed")


@app.task
async def async_odd(kind: str) -> Result:
    if kind == "exit":
        sys.exit(1)
    if kind == "sub_exit":
        inner = asyncio.ensure_future(_exit_soon())
        await asyncio.sleep(0.05)
        return TaskResult(ok=int(inner.done()))
    if kind == "cancel":
        raise asyncio.CancelledError
    if kind == "cancel_all":
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return TaskResult(ok=1)
    if kind == "exits":
        raise Exits
    if kind == "retry_after_float":
        error = TaskError("LATER", "try again", retry_after_ms=1500)
        error.retry_after_ms = float("nan")  # type: ignore[assignment]
        return TaskResult(err=error)
    raise ValueError(kind)


async def _exit_soon() -> None:
    raise SystemExit(9)


@app.task
async def async_forks(how: str) -> Result:
    """Fork, and let both processes go on: `returns` from the task, `awaits` on the event loop, or `raises`."""
    pid = os.fork()
    if pid == 0:
        if how == "awaits":
            await asyncio.sleep(60)
        if how == "raises":
            raise SystemExit(5)
        return TaskResult(ok=666)
    # The event loop goes on while the copy ends, so that a copy with a loop of its own could do harm.
    while os.waitpid(pid, os.WNOHANG) == (0, 0):  # noqa: ASYNC222  (does not block)
        await asyncio.sleep(0.001)
    return TaskResult(ok=7)


@app.task
async def async_steps(path: str, steps: int) -> Result:
    """Leave one line per step."""
    for step in range(steps):
        note(path, str(step))
        await asyncio.sleep(0)
    return TaskResult(ok=os.getpid())


@app.task
async def async_blocks(path: str, until: str) -> Result:
    """Block the event loop until a file exists."""
    note(path, "start")
    while not Path(until).exists():
        time.sleep(0.005)  # noqa: ASYNC251
    return TaskResult(ok=os.getpid())


_runs: list[weakref.ref[Any]] = []


@app.task
async def async_leftovers() -> Result:
    """How many of the earlier runs of this task are still in memory, without help of the garbage collector."""
    gc.disable()
    left = sum(run() is not None for run in _runs)
    _runs.append(weakref.ref(asyncio.current_task()))
    return TaskResult(ok=left)


@app.task
async def async_who() -> Text:
    await asyncio.sleep(0.01)
    task = current_task()
    task.report_progress("async")
    return TaskResult(ok=task.task_id)


# -- apps that misbehave while they are imported or started ---------------------------------------------

hooked = App()
hooked.task(noop)
_hook_calls: list[int] = []


@hooked.task
def hook_calls() -> Result:
    return TaskResult(ok=len(_hook_calls))


hooked.child_start_hooks.append(lambda: _hook_calls.append(os.getpid()))

slow_start = App()
slow_start.task(noop)
slow_start.child_start_hooks.append(lambda: time.sleep(1.3))

patient = App()
"""Its children start as soon as a file exists."""
patient.task(noop)


@patient.child_start_hooks.append
def wait_for_file() -> None:
    while not Path(os.environ["HORSIES_TEST_HOOK_FLAG"]).exists():
        time.sleep(0.01)


broken_hook = App()
broken_hook.task(noop)


@broken_hook.child_start_hooks.append
def _raise_in_hook() -> None:
    flag = os.environ.get("HORSIES_TEST_HOOK_FLAG")
    if flag is None or not Path(flag).exists():
        raise RuntimeError("the hook is broken")


@app.task
def close_descriptors(path: str) -> Result:
    """Close all descriptors, including the lifeline and the sockets of the child."""
    note(path, str(os.getpid()))
    os.closerange(3, 256)
    time.sleep(30)
    return TaskResult(ok=1)


@app.task
def handler_reports(seconds: float) -> Result:
    """Report progress all the time, also from the handler of an alarm; returns how often that rang."""
    task, rung = current_task(), 0

    def on_alarm(*_: object) -> None:
        nonlocal rung
        rung += 1
        task.report_progress({"rung": rung, "text": "y" * 10_000})

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        task.report_progress("x" * 10_000)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return TaskResult(ok=rung)


@app.task
def forks_report(copies: int) -> TaskResult[list[str], TaskError]:
    """Report progress in copies of this process and in itself; returns what the copies got for that."""
    context = multiprocessing.get_context("fork")
    task, answers = current_task(), context.SimpleQueue()

    def report() -> None:
        try:
            for _ in range(50):
                task.report_progress("x" * 10_000)
        except Exception as error:
            answers.put(str(error))
        else:
            answers.put("reported")

    processes = [context.Process(target=report) for _ in range(copies)]
    for process in processes:
        process.start()
    for _ in range(50):
        task.report_progress("y" * 10_000)
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return TaskResult(ok=found)


@app.task
def changes_signals(how: str) -> Result:
    """Leave other handlers behind: those of an event loop that is closed, or our own signals at their defaults."""

    async def serves() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, int)
        await asyncio.sleep(0)

    if how == "event loop":
        asyncio.run(serves())
    else:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, INTERRUPT):
            signal.signal(number, signal.SIG_DFL)
    return TaskResult(ok=os.getpid())


@app.task
def out_of_memory() -> Result:
    """From now on nothing that the parent sends to this child fits into its memory."""

    def feed(_self: FrameReader, _data: bytes) -> list[tuple[int, bytes]]:
        raise MemoryError

    FrameReader.feed = feed  # type: ignore[method-assign]
    return TaskResult(ok=os.getpid())


@app.task
def write_garbage(path: str) -> Result:
    """Write what is no report to every socket of the child."""
    note(path, str(os.getpid()))
    for entry in list(Path("/proc/self/fd").iterdir()):
        number = int(entry.name)
        try:
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(30)
    return TaskResult(ok=1)
