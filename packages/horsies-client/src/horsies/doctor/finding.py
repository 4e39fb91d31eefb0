"""What a check says, what it looks at, and from where on it says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horsies.info import WorkerStatus

Row = Mapping[str, Any]


class Severity(StrEnum):
    """How bad it is, the worst first."""

    PROBLEM = "problem"
    """Something does not work, or will soon not."""
    WARN = "warn"
    """Worth a look before it becomes a problem."""
    HIDDEN = "hidden"
    """This role may not see it: neither good nor bad."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's page."""

    check: str
    """Which check says so: a word that stays the same from release to release."""
    severity: Severity
    what: str
    why: str = ""
    """Why it matters."""
    fix: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on something is worth a word."""

    clock: timedelta = timedelta(seconds=5)
    transaction_warn: timedelta = timedelta(minutes=1)
    transaction_problem: timedelta = timedelta(minutes=10)
    transactions_held: int = 1_000_000
    """Distance in transactions: for a slot, or a session whose age this role is not shown."""
    own_transaction: timedelta = timedelta(seconds=30)
    dead_rows: int = 10_000
    """Plus a tenth of the live ones; a hundred thousand more than live ones is a problem."""
    notify_warn: float = 0.1
    notify_problem: float = 0.5
    connections_warn: int = 10
    connections_problem: int = 3
    ready: timedelta = timedelta(minutes=5)
    """How long a task may be ready before that is a backlog."""
    unserved: timedelta = timedelta(seconds=30)
    """The same for a queue that no worker serves: a deploy may be under way."""
    overdue: timedelta = timedelta(minutes=1)
    """Beyond two sweeps of the reaper."""
    retention: timedelta = timedelta(hours=3)
    """Beyond the workers' retention; they prune hourly."""
    question_ms: int = 5_000
    """How long one question may take."""
    notification_ms: int = 5_000
    """How long a notification may take."""


class NotSeen(Exception):
    """A check cannot look: the fact could not be had."""

    def __init__(self, why: str, *, hidden: bool = False, missing: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.hidden = hidden
        """It is there, but not for this role."""
        self.missing = missing
        """A table or column is not there: the schema is absent or behind."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """What two connections showed of whatever stands in between."""

    between: bool
    """The process that greeted us is not the one that answers."""
    shared: bool
    """Two clients were served by one session: transaction mode, where nothing of a session stays."""
    declared: bool
    direct_between: bool
    """The same for the connection that is meant to be direct."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found out. A fact that could not be had raises `NotSeen` where it is asked for."""

    found: Mapping[str, "Sequence[Row] | NotSeen"]
    limits: Limits = field(default_factory=Limits)
    clock_ahead: timedelta = timedelta()
    pooler: Pooler | None = None
    notify_ms: float | None = None
    """How long a notification took; None when it did not arrive."""
    workers: "Sequence[WorkerStatus] | NotSeen" = ()
    names: frozenset[str] | None = None
    """The tasks that the user's app knows, when there is one."""
    schema: str | None = None
    application_name: str = "horsies"

    def rows(self, name: str) -> Sequence[Row]:
        found = self.found.get(name, NotSeen("it was not asked for"))
        if isinstance(found, NotSeen):
            raise found
        return found

    def row(self, name: str) -> Row:
        return self.rows(name)[0]

    def all_workers(self) -> "Sequence[WorkerStatus]":
        if isinstance(self.workers, NotSeen):
            raise self.workers
        return self.workers

    def live_workers(self) -> "list[WorkerStatus]":
        return [worker for worker in self.all_workers() if worker.liveness.is_there]
