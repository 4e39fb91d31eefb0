"""Turns a dead child's exit status into the outcome of its job, with a `failed_reason` that a person can act on.

The kernel does not report "out of memory" to the parent: the child gets SIGKILL like any other. The evidence is an
OOM kill that the kernel counted meanwhile, or a memory peak near the limit.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from horsies.errors import OperationalErrorCode
from horsies.events import ExitReason
from horsies_worker.child.execute import stopped_outcome
from horsies_worker.child.frames import StopCode
from horsies_worker.child.outcome import Outcome, OutcomeKind, error_outcome

_NEAR = 0.9


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended. `status` is from wait4; None when no process could collect it."""

    status: int | None
    peak_kb: int
    killed_by_us: bool = False
    broke_off: str = ""
    """What the child did to its connection to the worker, if that is why it was killed."""
    oom_kills: int = 0
    """OOM kills that the kernel counted around the time of death."""
    memory_limit_kb: int | None = None

    @property
    def is_by_us(self) -> bool:
        """Whether this worker ended it for reasons of its own. A child that has broken its connection can only be
        killed, but that is a crash like any other: a task that does so each time must reach its `max_crashes`."""
        return self.killed_by_us and not self.broke_off


def outcome_of_death(stop: StopCode | None, end: Exit) -> Outcome | None:
    """Return the outcome of a job that ran when its child died, without times and process; None if the claim is lost.

    `stop` is the reason for which the parent was stopping this very job."""
    reason = describe(end)
    if stop is not None:
        if stop is StopCode.ABANDON:
            return None
        outcome = stopped_outcome(stop, None)
        outcome.failed_reason = f"{outcome.error_message}: {reason}"
        return outcome
    if end.is_by_us:
        reason = f"the child process was killed to stop another task in it; {reason}"
    outcome = error_outcome(OperationalErrorCode.WORKER_CRASHED, reason)
    outcome.kind = OutcomeKind.CRASHED
    outcome.is_counted = not end.is_by_us
    outcome.failed_reason = reason
    return outcome


def exit_reason(end: Exit, *, was_ready: bool, was_asked: bool) -> ExitReason:
    """Return why the child ended, in one word for events and metrics."""
    if end.is_by_us:
        return "killed"
    if was_asked and not end.status:  # a task that runs during the stop may still crash its process
        return "requested"
    return "crashed" if was_ready else "start_failed"


def describe(end: Exit) -> str:
    """Return one sentence: signal or exit code, peak memory, and whether memory was probably the reason."""
    text = _signal_or_code(end)
    if end.peak_kb:
        text += f"; peak memory {end.peak_kb // 1024} MB"
    if end.status is not None and os.WIFSIGNALED(end.status) and os.WTERMSIG(end.status) == signal.SIGKILL:
        text += _memory_verdict(end)
    return text


def _signal_or_code(end: Exit) -> str:
    if end.status is None:
        return "the child process died (its exit status was lost with the template process)"
    if os.WIFSIGNALED(end.status):
        number = os.WTERMSIG(end.status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "unnamed"
        by = ", sent by this worker" if end.killed_by_us else ""
        why = f": {end.broke_off}" if end.broke_off and number == signal.SIGKILL else ""
        return f"the child process was killed by signal {number} ({name}{by}){why}"
    return f"the child process exited with code {os.WEXITSTATUS(end.status)}"


def _memory_verdict(end: Exit) -> str:
    if end.killed_by_us:
        return ""
    if end.oom_kills:
        return "; probably out of memory (the kernel counted an OOM kill)"
    limit = end.memory_limit_kb
    if limit and end.peak_kb >= limit * _NEAR:
        return f"; probably out of memory (the limit is {limit // 1024} MB)"
    return "; possibly out of memory: not sent by this worker"


class OomWatch:
    """Counts the OOM kills since the last call, as far as this process can see them."""

    def __init__(self) -> None:
        self._seen = _oom_kills()

    def since_last_call(self) -> int:
        now = _oom_kills()
        found = max(0, now - self._seen)
        self._seen = now
        return found


def memory_limit_kb() -> int | None:
    """Return the memory limit of this process's cgroup (v2, then v1), or None."""
    for folder, name in ((_cgroup("0::"), "memory.max"), (_cgroup(":memory:"), "memory.limit_in_bytes")):
        text = _read(folder / name) if folder is not None else None
        if text is not None and text.strip().isdigit():
            limit = int(text) // 1024
            return limit if limit < 1 << 40 else None
    return None


def _oom_kills() -> int:
    # The machine-wide counter (Linux 4.13) includes the kills in every cgroup, also in a child's own one. In a
    # container it may count a neighbour's, so the text says "probably".
    for line in (_read(Path("/proc/vmstat")) or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _cgroup(prefix: str) -> Path | None:
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        if prefix in line:
            path = line.rsplit(":", 1)[1].lstrip("/")
            base = Path("/sys/fs/cgroup")
            return base / path if prefix == "0::" else base / "memory" / path
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
