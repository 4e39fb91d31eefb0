"""The jobs that one child has: which one is current, which are next, and how much work that is by forecast. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from horsies_worker.child.jobs import Job
from horsies_worker.children.durations import OVERRUN_S
from horsies_worker.children.stop_ladder import Stop


@dataclass(slots=True, eq=False)
class AssignedJob:
    """A job that a child has."""

    job: Job
    seq: int
    assigned_at: float
    """For an async job this is also its start."""
    forecast: float
    """Seconds that it takes at most; infinite when unknown."""
    prefetch_after: float
    """Seconds after its start at which the child may get its next job; infinite when its end is unknown."""
    frame_end: int = 0
    """The position in the byte stream to the child at which its frame ends."""
    stop: Stop | None = None
    is_completing: bool = False
    """The task has called `complete()`, so that its end may be in the database already."""
    call: "AssignedJob | None" = None
    """Of a member of a call: the call. A member that is being stopped has a `stop`, but only the call has a ladder."""
    unreported: set[int] | None = None
    """Of a call: the numbers of the members that have not ended."""


class AssignedJobs:
    """Synchronous jobs run one after another in the order of their start tokens; async jobs all run at once."""

    __slots__ = ("asynchronous", "current_since", "members", "predicted", "sync", "total")

    def __init__(self) -> None:
        self.sync: dict[int, AssignedJob] = {}
        """By number. The first is the current job: it runs, or is about to."""
        self.asynchronous: dict[int, AssignedJob] = {}
        self.members: dict[int, AssignedJob] = {}
        """The members of the calls in `sync` and `asynchronous`, until they end."""
        self.predicted = 0.0
        """Seconds of work in `sync`, by forecast."""
        self.current_since = 0.0
        """The time at which the current job became current."""
        self.total = 0
        """All jobs that the child got and the parent did not take back."""

    def __iter__(self) -> Iterator[AssignedJob]:
        yield from self.sync.values()
        yield from self.asynchronous.values()

    def tasks(self) -> Iterator[AssignedJob]:
        """Each task of its own: the members of a call in place of the call."""
        for assigned in self:
            if assigned.unreported is None:
                yield assigned
        yield from self.members.values()

    @property
    def current(self) -> AssignedJob | None:
        return next(iter(self.sync.values()), None)

    def started_at(self, assigned: AssignedJob) -> float:
        """Return the start as the parent knows it: an async job starts on arrival, another when it becomes current."""
        return assigned.assigned_at if assigned.job.is_async else max(assigned.assigned_at, self.current_since)

    def find(self, task_id: str, generation: int) -> AssignedJob | None:
        """Find the job of this attempt, which may be a member of a call."""
        for assigned in self.tasks():
            if assigned.job.task_id == task_id and assigned.job.generation == generation:
                return assigned
        return None

    def add(self, jobs: Sequence[AssignedJob], now: float) -> None:
        if not self.sync:
            self.current_since = now
        self.put_back(jobs)

    def add_async(self, jobs: Sequence[AssignedJob]) -> None:
        for assigned in jobs:
            self.asynchronous[assigned.seq] = assigned
        self.total += len(jobs)

    def add_call(self, call: AssignedJob, now: float) -> None:
        """Add a call of a batch task. Its members have the numbers after its own."""
        members = [
            AssignedJob(job, call.seq + at, now, inf, inf, call=call) for at, job in enumerate(call.job.members, 1)
        ]
        call.unreported = {member.seq for member in members}
        self.members.update((member.seq, member) for member in members)
        if call.job.is_async:
            self.add_async([call])
        else:
            self.add([call], now)

    def put_back(self, jobs: Sequence[AssignedJob]) -> None:
        """Undo `take` for these synchronous jobs."""
        for assigned in jobs:
            self.sync[assigned.seq] = assigned
            if assigned.forecast != inf:
                self.predicted += assigned.forecast
        self.total += len(jobs)

    def finish(self, seq: int) -> AssignedJob | None:
        """Remove a job that has ended; None when it is unknown."""
        assigned = self.sync.pop(seq, None)
        if assigned is None:
            return self.asynchronous.pop(seq, None) or self._finish_member(seq)
        self._subtract(assigned.forecast)
        return assigned

    def _finish_member(self, seq: int) -> AssignedJob | None:
        member = self.members.pop(seq, None)
        if member is not None and member.call is not None and member.call.unreported is not None:
            member.call.unreported.discard(seq)
            if not member.call.unreported:
                self.finish(member.call.seq)
        return member

    def _without_members(self, jobs: Sequence[AssignedJob]) -> None:
        for call in jobs:
            for seq in call.unreported or ():
                del self.members[seq]

    def take(self, seqs: Sequence[int]) -> list[AssignedJob]:
        """Remove synchronous jobs that have not started."""
        taken: list[AssignedJob] = []
        for seq in seqs:
            assigned = self.sync.pop(seq, None)
            if assigned is not None:
                taken.append(assigned)
                self._subtract(assigned.forecast)
        self.total -= len(taken)
        self._without_members(taken)
        return taken

    def take_unsent(self, jobs_sent: int, commands_sent: int) -> list[AssignedJob]:
        """Remove the jobs whose frames did not leave this process completely."""
        unsent: list[AssignedJob] = []
        for jobs, sent in ((self.sync, jobs_sent), (self.asynchronous, commands_sent)):
            late = [assigned for assigned in jobs.values() if assigned.frame_end > sent]
            for assigned in late:
                del jobs[assigned.seq]
            unsent += late
        self._without_members(unsent)
        return unsent

    def take_all(self) -> list[AssignedJob]:
        """Remove all jobs, of a call its members that have not ended."""
        taken = list(self.tasks())
        for member in self.members.values():
            if member.call is not None and member.stop is None:
                member.stop = member.call.stop
        for jobs in (self.sync, self.asynchronous, self.members):
            jobs.clear()
        return taken

    def _subtract(self, forecast: float) -> None:
        if forecast != inf:
            # Never below zero, and exactly zero when empty: sums of floats drift.
            self.predicted = max(0.0, self.predicted - forecast) if self.sync else 0.0


def overrun_after(current: AssignedJob) -> float:
    """Seconds after which a current job is late by its forecast."""
    return (current.forecast if current.forecast != inf else 0.0) + OVERRUN_S
