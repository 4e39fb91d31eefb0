"""Tasks that end, break or mislead the child that runs them."""

import asyncio
import ctypes
import faulthandler
import multiprocessing
import os
import re
import signal
import stat
import sys
import threading
import time
from pathlib import Path

from horsies.context import current_task
from horsies.result import TaskError, TaskResult
from horsies_worker.child.frames import FrameReader
from horsies_worker.child.run import INTERRUPT
from tests.support.pool_kit import Result, app, note


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
