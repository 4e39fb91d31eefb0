"""The app that real workers run in the end-to-end tests, and the same tasks for the test that sends them.

A worker process imports this module and finds its configuration in an environment variable; a test builds its own
app from the same description. Every task that must leave a trace appends whole lines to files, never to the database
under test: those survive a SIGKILL, and a lost connection.
"""

import asyncio
import base64
import ctypes
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    ResilienceConfig,
    RetryPolicy,
    TaskError,
    TaskResult,
    TaskStopped,
    current_task,
)

VARIABLE = "HORSIES_TEST_APP"
LEDGER_VARIABLE = "HORSIES_TEST_LEDGER"

FAST_RECOVERY: Mapping[str, int] = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "running_stale_threshold_ms": 3_000,
    "claimed_stale_threshold_ms": 3_000,
    "finalizing_stale_threshold_ms": 3_000,
    "check_interval_ms": 1_000,
    "crashed_worker_recovery_grace_ms": 1_000,
}
FAST_RESILIENCE: Mapping[str, int] = {
    "notify_poll_interval_ms": 1_000,
    "reconnect_initial_ms": 20,
    "reconnect_max_ms": 500,
}
"""The fast config: every recovery must be visible within BOUND_S."""
BOUND_S = 9.0

Number = TaskResult[int, TaskError]
Text = TaskResult[str, TaskError]
ON_CRASH = RetryPolicy.fixed(0.2, 3, auto_retry_for=["WORKER_CRASHED"])
ASYNC_TASKS = ("nap", "async_odd")

_hooks: list[int] = []
_kept: list[bytearray] = []


def build(described: Mapping[str, Any]) -> Horsies:
    """An app from plain values: `url`, `broker`, `recovery`, `resilience`, `queues` and fields of AppConfig."""
    given = dict(described)
    broker = PostgresConfig(given.pop("url"), **given.pop("broker", {}))
    recovery = RecoveryConfig(**{**FAST_RECOVERY, **given.pop("recovery", {})})
    resilience = ResilienceConfig(**{**FAST_RESILIENCE, **given.pop("resilience", {})})
    queues = given.pop("queues", None)
    if queues:
        given |= {
            "queue_mode": QueueMode.CUSTOM,
            "custom_queues": [
                CustomQueueConfig(name, **(kept if isinstance(kept, dict) else {"max_concurrency": kept}))
                for name, kept in queues.items()
            ],
        }
    given.setdefault("claim_lease_ms", 3_000)
    return Horsies(AppConfig(broker, recovery=recovery, resilience=resilience, **given))


def note(path: str, text: str) -> None:
    """One line, whole: several processes write to one file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (text + "\n").encode())
    os.close(handle)


def ledger(k: int, run: str, phase: str) -> None:
    """One line of a run: key, run, phase, pid, time; then the claim's generation and the pid of the worker."""
    folder = Path(os.environ[LEDGER_VARIABLE])
    claim = current_task().fencing_token
    note(str(folder / str(os.getpid())), f"{k} {run} {phase} {os.getpid()} {time.time()!r} {claim} {os.getsid(0)}")


def hold_gil(seconds: float) -> None:
    """C code that holds the GIL, runs no Python and goes on when a signal would interrupt it."""
    libc = ctypes.PyDLL(None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    libc.usleep(int(seconds * 1_000_000))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Smtp(Exception):
    pass


def register(app: Horsies) -> SimpleNamespace:
    """Every task on this app; the namespace has them by name."""
    queue = {} if app.config.queue_mode is QueueMode.DEFAULT else {"queue_name": app.config.queue_names[0]}

    @app.on_child_start
    def started() -> None:
        _hooks.append(os.getpid())

    @app.task("add", **queue)
    def add(a: int, b: int = 0) -> Number:
        return TaskResult(ok=a + b)

    @app.task("noop", **queue)
    def noop() -> Number:
        return TaskResult(ok=0)

    @app.task("who", **queue)
    def who() -> TaskResult[dict[str, Any], TaskError]:
        task = current_task()
        return TaskResult(
            ok={
                "id": task.task_id, "name": task.task_name, "attempt": task.attempt, "token": task.fencing_token,
                "pid": os.getpid(), "hooks": list(_hooks), "cancelled": task.is_cancelled(),
                "deadline": None if task.deadline is None else task.deadline.isoformat(),
            }
        )  # fmt: skip

    @app.task("sleep", **queue)
    def sleep(seconds: float) -> Number:
        time.sleep(seconds)
        return TaskResult(ok=os.getpid())

    @app.task("sleep_briefly", timeout_ms=300, **queue)
    def sleep_briefly(seconds: float) -> Number:
        time.sleep(seconds)
        return TaskResult(ok=0)

    @app.task("burn", **queue)
    def burn(seconds: float) -> Number:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        return TaskResult(ok=0)

    @app.task("in_c", **queue)
    def in_c(seconds: float) -> Number:
        hold_gil(seconds)
        return TaskResult(ok=os.getpid())

    @app.task("in_c_briefly", timeout_ms=300, **queue)
    def in_c_briefly(seconds: float) -> Number:
        hold_gil(seconds)
        return TaskResult(ok=0)

    @app.task("nap", **queue)
    async def nap(seconds: float) -> Number:
        await asyncio.sleep(seconds)
        return TaskResult(ok=os.getpid())

    @app.task("nap_briefly", timeout_ms=300, **queue)
    async def nap_briefly(seconds: float) -> Number:
        await asyncio.sleep(seconds)
        return TaskResult(ok=0)

    @app.task("flaky", retry_policy=RetryPolicy.fixed(0.1, 3, auto_retry_for=["SMTP_DOWN"]), **queue)
    def flaky(until: int, code: str = "SMTP_DOWN", retry_after_ms: int | None = None) -> Number:
        """Fails until attempt `until`."""
        attempt = current_task().attempt
        if attempt < until:
            error = TaskError(code, f"attempt {attempt}", retry_after_ms=retry_after_ms)
            return TaskResult(err=error)
        return TaskResult(ok=attempt)

    @app.task("die", **queue)
    def die(how: int) -> Number:
        """Positive: a signal to itself; else an exit code."""
        if how > 0:
            os.kill(os.getpid(), how)
            time.sleep(10)
        os._exit(-how)

    @app.task("poison", retry_policy=ON_CRASH, **queue)
    def poison() -> Number:
        os.kill(os.getpid(), signal.SIGKILL)
        return TaskResult(ok=0)

    @app.task("segfault", **queue)
    def segfault() -> Number:
        ctypes.string_at(0)
        return TaskResult(ok=0)

    @app.task("odd", **queue)
    def odd(kind: str) -> Text:
        return _odd(kind)

    @app.task("async_odd", **queue)
    async def async_odd(kind: str) -> Text:
        await asyncio.sleep(0)
        return _odd(kind)

    @app.task("progress", **queue)
    def progress(path: str) -> Number:
        """Reports a value and waits for the file."""
        current_task().report_progress({"done": 0.5, "of": "it"})
        while not Path(path).exists():
            time.sleep(0.01)
        return TaskResult(ok=1)

    @app.task("cooperative", **queue)
    def cooperative(path: str) -> Text:
        note(path, "start")
        while not current_task().is_cancelled():
            time.sleep(0.01)
        note(path, "asked")
        return TaskResult(err=TaskError("STOPPED_EARLY", "as asked"))

    @app.task("cleans_up", **queue)
    def cleans_up(path: str) -> Number:
        note(path, "start")
        try:
            time.sleep(60)
        except TaskStopped as stop:
            note(path, f"cleanup {stop.reason}")
            raise
        return TaskResult(ok=1)

    @app.task("stubborn", **queue)
    def stubborn(path: str, seconds: float = 60.0) -> Number:
        """Swallows every exception and ignores SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(path, "start")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                time.sleep(1)
            except BaseException as exc:
                note(path, f"swallowed {type(exc).__name__}")
        return TaskResult(ok=1)

    @app.task("grow", **queue)
    def grow(megabytes: int) -> Number:
        _kept.append(bytearray(os.urandom(1) * (megabytes << 20)))
        return TaskResult(ok=os.getpid())

    @app.task("say", **queue)
    def say(text: str, times: int = 1) -> Number:
        for _ in range(times):
            print(text)  # noqa: T201
            print(text, file=sys.stderr)  # noqa: T201
        return TaskResult(ok=len(text) * times)

    @app.task("vault", **queue)
    def vault(secret: str, fails: bool = False, told: str = "no such order") -> Text:
        local = f"local-{secret}"
        if fails:
            raise LookupError(told)
        return TaskResult(ok=local.replace("local", "result"))

    @app.task("log", **queue)
    def log(text: str) -> Number:
        import logging

        logging.getLogger("shop").warning("%s", text)
        return TaskResult(ok=1)

    @app.task("chaos", **queue)
    def chaos(k: int, seconds: float = 0.0) -> Number:
        """Never repeated: one start at most."""
        return _chaos(k, seconds)

    @app.task("chaos_retried", retry_policy=ON_CRASH, **queue)
    def chaos_retried(k: int, seconds: float = 0.0) -> Number:
        """A crash is tried again; only its first attempt takes `seconds`."""
        return _chaos(k, seconds if current_task().attempt == 1 else 0.0)

    @app.task("gated", **queue)
    def gated(k: int, gate: str) -> Number:
        """Runs until the file is there. Never repeated: one start at most."""
        run = str(uuid.uuid4())
        ledger(k, run, "start")
        while not Path(gate).exists():
            time.sleep(0.01)
        ledger(k, run, "end")
        return TaskResult(ok=k * 2)

    @app.task("gated_noise", **queue)
    def gated_noise(gate: str, size: int) -> Text:
        """Runs until the file is there, and returns a text that cannot be compressed."""
        while not Path(gate).exists():
            time.sleep(0.01)
        return TaskResult(ok=base64.b85encode(os.urandom(size)).decode())

    del started
    return SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "queue")})


def _chaos(k: int, seconds: float) -> Number:
    run = str(uuid.uuid4())
    ledger(k, run, "start")
    time.sleep(seconds)
    ledger(k, run, "end")
    return TaskResult(ok=k * 2)


def _odd(kind: str) -> Text:
    match kind:
        case "exit":
            sys.exit(3)
        case "system_exit":
            raise SystemExit("bye")
        case "interrupt":
            raise KeyboardInterrupt
        case "base":
            raise BaseException("base")
        case "group":
            raise ExceptionGroup("both", [ValueError("a"), ConnectionResetError("b")])
        case "unprintable":
            raise Unprintable
        case "nul":
            raise ValueError("a\0b\ud800c")
        case "none":
            return None  # type: ignore[return-value]
        case "wrong":
            return TaskResult(ok=5)  # type: ignore[arg-type]
        case "unserialisable":
            return TaskResult(ok=object())  # type: ignore[arg-type]
        case "nul_result":
            return TaskResult(ok="a\0b")
        case "surrogate_result":
            return TaskResult(ok="a\ud800b")
        case "nul_error":
            return TaskResult(err=TaskError("MINE", "a\0b", {"o": object()}))
        case "deep":
            return _odd(kind)
        case "mapped":
            raise Smtp("down")
        case _:
            raise AssertionError(kind)


if VARIABLE in os.environ:
    app = build({**json.loads(os.environ[VARIABLE]), "exception_mapper": {Smtp: "SMTP_DOWN"}})
    tasks = register(app)
