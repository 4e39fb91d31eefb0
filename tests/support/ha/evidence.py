"""Explains each acknowledged task that is lost, ran twice or failed, by its row, its attempts, the ledger and the logs.

The generation of a claim only grows while one server leads. So a second run whose claim has no higher generation than
the first was claimed on a server that did not know the first claim: the claim was not replicated. With a higher
generation, the claim was known, and what came after it was lost, or the product has run the task again by mistake.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.support.ha.faults import SETTLE_S, Fault
from tests.support.ha.load import Answer, Load
from tests.support.postgres import Database

SEND: Final = "the send was not replicated"
CLAIM: Final = "the claim was not replicated"
END: Final = "the end was not replicated"
STALE: Final = "a leader that had lost its place was believed"
UNEXPLAINED: Final = "unexplained"

LAG_S: Final = SETTLE_S
"""What was written so long before a fault may be lost in it. The fault before is over by then."""
LOSSLESS: Final = ("switch-over",)
"""The leader stops only when the candidate has all of its log: these lose nothing, in both modes."""

_TOLD: Final = (
    "status", "attempt", "outcome", "error_code", "claim_generation", "worker_id", "claimed_by_worker_id", "worker_pid",
    "enqueued_at", "started_at", "finished_at", "terminal_at",
)  # fmt: skip
"""The columns in a report; the file has all."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task's code, from the ledger."""

    run: str
    worker_pid: int
    pid: int
    generation: int
    began: float
    ended: float | None


@dataclass(slots=True)
class Story:
    """One task, and why it came to this."""

    task_id: str
    k: int
    what: str
    """`lost`, `ran twice` or `failed`."""
    cause: str
    fault: str
    """The fault in whose time it happened; empty: in none's."""
    answers: list[Answer] = field(default_factory=list[Answer])
    runs: list[Run] = field(default_factory=list[Run])
    row: dict[str, Any] | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logged: list[str] = field(default_factory=list[str])
    """What the workers have logged about it."""

    @property
    def is_allowed(self) -> bool:
        """Asynchronous replication may lose the last moments of a leader that died; nothing else may come of it."""
        return self.cause not in (STALE, UNEXPLAINED) and bool(self.fault) and not self.fault.startswith(LOSSLESS)

    def lines(self) -> list[str]:
        told = [f"task {self.task_id} (k {self.k}) {self.what}: {self.cause}; {self.fault or 'outside of any fault'}"]
        told += [f"    {a.answer} at {_clock(a.at)} after {a.took_s:.3f} s" for a in self.answers]
        told += [
            f"    run {run.run[:8]} of worker {run.worker_pid} in process {run.pid}, claim {run.generation}: "
            f"{_clock(run.began)} to {_clock(run.ended) if run.ended else 'no end'}"
            for run in self.runs
        ]
        told.append(f"    row {_brief(self.row) if self.row else 'none'}")
        told += [f"    attempt {_brief(attempt)}" for attempt in self.attempts]
        told += [f"    log {line}" for line in self.logged]
        return told

    def to_json(self) -> dict[str, Any]:
        answers = [{"answer": said.answer, "at": said.at, "took_s": said.took_s} for said in self.answers]
        return {**asdict(self), "answers": answers}


def read_runs(ledger: Path) -> dict[int, list[Run]]:
    """The runs of each key, in order of their starts."""
    begun: dict[str, tuple[int, Run]] = {}
    ends: dict[str, float] = {}
    for file in ledger.iterdir():
        for line in file.read_text().splitlines():
            k, run, phase, pid, at, generation, worker_pid = line.split()
            if phase == "start":
                begun[run] = (int(k), Run(run, int(worker_pid), int(pid), int(generation), float(at), None))
            else:
                ends[run] = float(at)
    found: dict[int, list[Run]] = {}
    for k, run in sorted(begun.values(), key=lambda pair: pair[1].began):
        told = Run(run.run, run.worker_pid, run.pid, run.generation, run.began, ends.get(run.run))
        found.setdefault(k, []).append(told)
    return found


def explain(db: Database, load: Load, faults: Sequence[Fault], acknowledged: dict[str, int]) -> list[Story]:
    """One story for each acknowledged task that is absent, started more than once or failed."""
    runs, answers = read_runs(load.folder / "ledger"), load.answers()
    failed = {row[0] for row in db.execute("SELECT id FROM horsies_tasks WHERE status = 'FAILED'")}
    there = {row[0] for row in db.execute("SELECT id FROM horsies_tasks")}
    stories: list[Story] = []
    for task_id, k in acknowledged.items():
        own = runs.get(k, [])
        if task_id in there and task_id not in failed and len(own) < 2:
            continue
        what = "lost" if task_id not in there else "ran twice" if len(own) > 1 else "failed"
        said = [answer for answer in answers if answer.task_id == task_id]
        story = Story(task_id, k, what, UNEXPLAINED, "", said, own)
        story.row = _one(db, "SELECT * FROM horsies_tasks WHERE id = %s", task_id)
        story.attempts = _all(db, "SELECT * FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt", task_id)
        story.logged = [line for worker in load.workers for line in worker.log.splitlines() if task_id in line]
        at, story.cause = cause_of(story)
        story.fault = fault_at(at, faults)
        stories.append(story)
    return stories


def cause_of(story: Story) -> tuple[float, str]:
    """When that was written which the new leader does not have, and what it was."""
    if story.what == "lost":
        return max(a.at for a in story.answers if a.answer == "acknowledged"), SEND
    if story.what == "ran twice":
        for first, second in pairwise(story.runs):
            if second.generation <= first.generation:
                return first.began, CLAIM
            if any("CLAIM_LOST" in line for line in story.logged):
                return first.began, STALE
            # known to have been claimed; only a run that had ended can have lost its end
            if first.ended is not None and first.ended < second.began:
                return first.ended, END
        return story.runs[0].began, UNEXPLAINED
    (run, *_) = story.runs or [None]
    is_crash = story.row is not None and story.row["error_code"] == "WORKER_CRASHED"
    if run is not None and run.ended is not None and is_crash:
        return run.ended, STALE if any("CLAIM_LOST" in line for line in story.logged) else END
    return (run.began if run else 0.0), UNEXPLAINED


def fault_at(at: float, faults: Sequence[Fault]) -> str:
    """The fault that a write at this moment may have been lost in."""
    for number, fault in enumerate(faults, 1):
        if fault.began - LAG_S <= at <= fault.over:
            return (
                f"{fault.kind} {number}, {fault.old} -> {fault.new}, from {_clock(fault.began)} to {_clock(fault.over)}"
            )
    return ""


def write(path: Path, stories: Iterable[Story], faults: Sequence[Fault]) -> None:
    """All of it, as JSON."""
    struck = [
        {"kind": one.kind, "began": one.began, "old": one.old, "new": one.new, "over": one.over} for one in faults
    ]
    told = {"faults": struck, "stories": [story.to_json() for story in stories]}
    path.write_text(json.dumps(told, default=str, indent=1))


def _one(db: Database, statement: str, *values: Any) -> dict[str, Any] | None:
    rows = _all(db, statement, *values)
    return rows[0] if rows else None


def _all(db: Database, statement: str, *values: Any) -> list[dict[str, Any]]:
    wrapped = f"SELECT json_strip_nulls(to_json(found)) FROM ({statement}) AS found"
    return [row[0] for row in db.execute(wrapped, *values)]


def _brief(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in _TOLD if name in row)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S.%f}"[:-3]
