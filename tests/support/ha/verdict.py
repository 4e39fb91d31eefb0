"""Judges a run: what was acknowledged must be there and have ended, what was refused must not be there, and no task may
have run twice or failed. In sync mode each of these fails the run; in async mode, those that the lost moments of a dead
leader do not explain (`evidence.py`)."""

import statistics
from collections import Counter
from dataclasses import dataclass, field

from tests.support import invariants
from tests.support.ha.evidence import Story, explain, write
from tests.support.ha.faults import Fault, pause_of
from tests.support.ha.load import Load
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos

DRAINED_S = 240.0
_LOST = {"L1"}
_DOUBLED = {"L4", "L5", "L6"}


@dataclass(slots=True)
class Verdict:
    mode: str
    acknowledged: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    dishonest: list[str] = field(default_factory=list)
    """Ids of tasks that exist although their send said that they are not enqueued."""
    failed: int = 0
    stories: list[Story] = field(default_factory=list[Story])
    violations: list[invariants.Violation] = field(default_factory=list)
    pauses: dict[str, list[float]] = field(default_factory=dict)
    slowest_send_s: float = 0.0

    @property
    def is_good(self) -> bool:
        clean = not self.violations and not self.dishonest
        if self.mode == "async":
            return clean and all(story.is_allowed for story in self.stories)
        return clean and not (self.lost or self.doubled or self.stories)

    def lines(self) -> list[str]:
        told = [
            f"mode {self.mode}: {'as promised' if self.is_good else 'NOT as promised'}",
            f"sends: {', '.join(f'{count} {answer}' for answer, count in sorted(self.answers.items()))}; "
            f"the slowest answer took {self.slowest_send_s:.1f} s",
            f"acknowledged {self.acknowledged}, lost {len(self.lost)}, doubled {len(self.doubled)}, "
            f"failed {self.failed}, refused but there {len(self.dishonest)}, violations {len(self.violations)}",
            "seconds without a start     times   median      max",
        ]
        for kind, pauses in self.pauses.items():
            told.append(f"  {kind:24} {len(pauses):6} {statistics.median(pauses):8.1f} {max(pauses):8.1f}")
        causes = Counter(f"{story.what}: {story.cause}" for story in self.stories)
        told += [f"{count} {cause}" for cause, count in causes.most_common()]
        # those that must not be come first
        for story in sorted(self.stories, key=lambda story: story.is_allowed)[:20]:
            told += story.lines()
        told += [f"refused but there: {self.dishonest[:20]}"] if self.dishonest else []
        told += [f"violations: {self.violations[:20]}"] if self.violations else []
        return told


def judge(db: Database, load: Load, faults: list[Fault], mode: str) -> Verdict:
    """Stop the producer, wait until everything has ended, and count."""
    load.stop_sending()
    eventually(
        lambda: not db.value("SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"),
        timeout=DRAINED_S, describe="the end of every task",
    )  # fmt: skip
    load.workers[0].stop()
    load.workers[1].stop()
    answers = load.answers()
    verdict = Verdict(mode)
    for answer in answers:
        verdict.answers[answer.answer] = verdict.answers.get(answer.answer, 0) + 1
    verdict.slowest_send_s = max(answer.took_s for answer in answers)
    acknowledged = {answer.task_id: answer.k for answer in answers if answer.answer == "acknowledged"}
    verdict.acknowledged = len(acknowledged)
    chaos = Chaos(db, load.folder)
    chaos.keys = acknowledged
    chaos.load()
    for violation in invariants.check(db, running_stale_s=60, finalizing_stale_s=60, claimed_stale_s=60):
        if violation.rule in _LOST:
            verdict.lost.append(violation.id)
        elif violation.rule in _DOUBLED:
            verdict.doubled.append(violation.id)
        else:
            verdict.violations.append(violation)
    verdict.doubled = sorted(set(verdict.doubled))
    last_words = {answer.task_id: answer.answer for answer in answers}
    refused = [task_id for task_id, word in last_words.items() if word == "refused"]
    verdict.dishonest = [row[0] for row in db.execute("SELECT id FROM horsies_tasks WHERE id = ANY (%s)", refused)]
    verdict.failed = db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'FAILED'")
    verdict.stories = explain(db, load, faults, acknowledged)
    write(load.folder / "evidence.json", verdict.stories, faults)
    starts = load.starts()
    for at, fault in enumerate(faults):
        until = faults[at + 1].began if at + 1 < len(faults) else starts[-1]
        verdict.pauses.setdefault(fault.kind, []).append(pause_of(fault, until, starts))
    return verdict
