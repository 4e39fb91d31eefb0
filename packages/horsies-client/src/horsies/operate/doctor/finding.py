"""The findings of the checks, the facts that they read, and their limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horsies.operate.groups import QueueGroups
    from horsies.operate.views import WorkerStatus

Row = Mapping[str, Any]


class Severity(StrEnum):
    """The severity of a finding, the worst first."""

    PROBLEM = "problem"
    """Something does not work, or will soon stop working."""
    WARN = "warn"
    """It can become a problem."""
    HIDDEN = "hidden"
    """This role may not see it, so it may be good or bad."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's page."""

    check: str
    """The name of the check, which stays the same from release to release."""
    severity: Severity
    what: str
    why: str = ""
    """Why it matters."""
    fix: str = ""
    """What to do about it."""
    was_made: bool = True
    """False when this role may not read what the check needs, so that nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The thresholds of the checks."""

    clock: timedelta = timedelta(seconds=5)
    transaction_warn: timedelta = timedelta(minutes=1)
    transaction_problem: timedelta = timedelta(minutes=10)
    transactions_held: int = 1_000_000
    """The distance in transactions, for a slot, or for a session whose age this role may not see."""
    own_transaction: timedelta = timedelta(seconds=30)
    dead_rows: int = 10_000
    """Added to a tenth of the live rows. Ten times as many more than the live rows are a problem."""
    notify_warn: float = 0.1
    notify_problem: float = 0.5
    connections_warn: int = 10
    connections_problem: int = 3
    ready: timedelta = timedelta(minutes=5)
    """How long a task may be ready before the queue has a backlog."""
    unserved: timedelta = timedelta(seconds=30)
    """The same for a queue that no worker serves; shorter silences happen during a deploy."""
    overdue: timedelta = timedelta(minutes=1)
    """Added to two sweep intervals of the reaper."""
    retention: timedelta = timedelta(hours=3)
    """Added to the workers' retention, because they prune hourly."""
    silence: timedelta = timedelta(seconds=30)
    """After so long without a sign of any worker or scheduler, the rows may be those of a restored backup."""
    restored: timedelta = timedelta(days=1)
    """How long a point in time recovery is told of after workers have started again."""
    question_ms: int = 5_000
    """The time limit of one statement."""
    notification_ms: int = 5_000
    """The time limit of the notification."""


class Unavailable(Exception):
    """A fact could not be read."""

    def __init__(self, why: str, *, hidden: bool = False, missing: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.hidden = hidden
        """This role may not read it."""
        self.missing = missing
        """A table or column does not exist: the schema is absent or too old."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """What two connections reveal about a pooler in front of the server."""

    between: bool
    """Another process than the one that accepted the connection runs the statements."""
    shared: bool
    """Two clients shared one session: the pooler is in transaction mode, where session state is lost."""
    declared: bool
    direct_between: bool
    """The same for the connection that is meant to be direct."""


@dataclass(frozen=True, slots=True)
class AppPolicies:
    """The policies that an app declares, as rows of the database hold them."""

    queues: Mapping[str, Mapping[str, Any] | None]
    limits: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What one look at the replica found."""

    away: str | None = None
    """Why it could not be looked at."""
    is_standby: bool = True
    is_connected: bool = True
    lag: timedelta = timedelta()
    is_other: bool = False
    """It is a copy of another server."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read. Asking for a fact that could not be read raises `Unavailable`."""

    found: Mapping[str, "Sequence[Row] | Unavailable"]
    limits: Limits = field(default_factory=Limits)
    clock_ahead: timedelta = timedelta()
    pooler: Pooler | None = None
    elsewhere: str | None = None
    """Says that `direct_url` leads to another database, if it does."""
    notify_ms: float | None = None
    """How long the notification took; None when it did not arrive."""
    workers: "Sequence[WorkerStatus] | Unavailable" = ()
    names: frozenset[str] | None = None
    """The tasks that the user's app knows; None without an app."""
    app: "AppPolicies | None" = None
    """What the user's app declares; None without an app."""
    groups: "Sequence[QueueGroups] | Unavailable" = ()
    """The groups of the queues in which a task of a group has been ready for long."""
    replica: ReplicaFacts | None = None
    """None without a `replica_url`."""
    schema: str | None = None
    application_name: str = "horsies"

    def rows(self, name: str) -> Sequence[Row]:
        found = self.found.get(name, Unavailable("it was not asked for"))
        if isinstance(found, Unavailable):
            raise found
        return found

    @property
    def missing_right(self) -> Row | None:
        """The right without which this role sees no table of horsies."""
        found = self.found.get("missing_rights", ())
        return None if isinstance(found, Unavailable) or not found else found[0]

    def row(self, name: str) -> Row:
        return self.rows(name)[0]

    def all_workers(self) -> "Sequence[WorkerStatus]":
        if isinstance(self.workers, Unavailable):
            raise self.workers
        return self.workers

    def all_groups(self) -> "Sequence[QueueGroups]":
        if isinstance(self.groups, Unavailable):
            raise self.groups
        return self.groups

    def live_workers(self) -> "list[WorkerStatus]":
        return [worker for worker in self.all_workers() if worker.liveness.is_there]
