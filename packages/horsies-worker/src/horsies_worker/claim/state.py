"""The claimer's state, the moves it can make, and the wake-ups that change it at any time. Pure.

`State.move` is the move that is being carried out. A wake-up may arrive beside any move, also while a claim is in
flight: it changes the state, and the next decision of `plan.py` sees it.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Self

from horsies_worker.claim.hints import Hints, Scan
from horsies_worker.claim.sharing import Shares, Sharing
from horsies_worker.database.queries import ClaimRequest, Head, NextRequest, Outlook

CAPPED_REST: Final = 10
"""After a claim that a cap kept empty, ignore the ends of other workers' tasks for this many times its duration: each
end is announced, and each such claim counts the tasks under the one lock of the caps."""

# -- moves -----------------------------------------------------------------------------------------------------


class Wait(NamedTuple):
    """Wait until this time or the next wake-up."""

    until: float
    is_calm: bool = False
    """All announced tasks were taken, and the queues have not been scanned since."""


class Rest(NamedTuple):
    """Do nothing until this time, also when woken."""

    until: float


class LeaveDuty(NamedTuple):
    """Offer the duty to a worker that waits for it."""


class Drain(NamedTuple):
    """Leave the duty to other workers, and return the buffered tasks."""


class StayAwake(NamedTuple):
    """Let producers leave out notifications: this worker claims again and again."""


class GoToSleep(NamedTuple):
    """Have producers notify again. A scan must follow: what was sent before this was not announced."""


class StartBuffer(NamedTuple):
    """Start buffered tasks."""


class Claim(NamedTuple):
    request: ClaimRequest | NextRequest
    scan: Scan = Scan.HINTED
    announced: int = 0
    """The number of notifications that this claim answers; 0 for a claim that takes all there is room for."""
    queue: str | None = None
    """The queue whose turn it is, where queues share by weights."""
    is_aged: bool = False
    """It takes tasks that have waited for long."""


class AskDue(NamedTuple):
    """Ask when the next delayed task of these names is due."""

    queues: Sequence[str]
    names: Sequence[str]
    since_s: float
    """Tasks that became ready within this time count: the last scan may not have seen them."""
    is_partial: bool
    """Tasks may be ready that were not looked for: of a kind without room, or at other places than the last ones."""


class AskAged(NamedTuple):
    """Ask for the first task of each priority of these queues, and how long it has waited."""

    queues: Sequence[str]


class Stop(NamedTuple):
    """End the loop."""


Move = Wait | Rest | LeaveDuty | Drain | StayAwake | GoToSleep | StartBuffer | Claim | AskDue | AskAged | Stop


# -- answers ---------------------------------------------------------------------------------------------------


class DutyOffered(NamedTuple):
    is_taken: bool
    """Another worker is on duty now; False when none waits for it."""


class Drained(NamedTuple):
    """Nothing is buffered any more."""

    has_resigned: bool
    """The duty was left. False when the worker was resumed meanwhile."""
    in_line: bool
    """There is a connection for the duty, so another worker of the group can take it."""


class IsAwake(NamedTuple):
    """Producers leave out notifications from now on."""


class IsAsleep(NamedTuple):
    """Producers notify from now on."""


class Started(NamedTuple):
    is_blocked: bool
    """Other sessions hold the rows of buffered tasks."""


class Claimed(NamedTuple):
    rows: Sequence[Mapping[str, Any]]
    is_capped: bool
    sent_at: float
    took_s: float


class Aged(NamedTuple):
    heads: Sequence[Head]


class Failed(NamedTuple):
    """A statement failed; whether it was carried out is unknown."""

    delay_s: float


Answer = DutyOffered | Drained | IsAwake | IsAsleep | Started | Claimed | Outlook | Aged | Failed | None
"""The result of the last move. None after a wait, and at the beginning."""


class Places(NamedTuple):
    """What this worker can take now."""

    sync: int
    ahead: int
    asynchronous: int
    buffered: int
    owned: int
    unwritten: int
    """Results that wait for the database."""
    short: frozenset[str]
    """Names of tasks that may be assigned ahead of a free child."""


# -- state -----------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Everything that the next decision depends on. Immutable, as a named tuple: see `Hints`."""

    move: Move = Rest(-inf)
    hints: Hints = Hints()
    is_stopped: bool = False
    is_drained: bool = False
    """An operator wants this worker to claim nothing until it is resumed."""
    has_left: bool = False
    """It is drained, has left the duty and buffers nothing."""

    # wake-ups since this round began
    is_woken: bool = False
    has_news: bool = False
    announced: int = 0
    """Notifications since the queues were found empty: each stands for one task."""
    has_new_room: bool = False
    place_freed: bool = False
    """A task of another worker ended, which may have freed a place under a cap."""

    # this round
    taken: int = 0
    by_news: bool = False
    is_blocked: bool = False

    # what earlier rounds found
    is_idle: bool = False
    """The queues were empty, and every kind of task had room."""
    was_full: bool = False
    """The last claim brought as many tasks as it asked for, of the kind that is there."""
    sent_at: float = -inf
    """When the last claim was sent."""
    capped_until: float | None = None
    """The last claim was kept empty by a cap; ends elsewhere do not lead to a claim before this time."""
    due_at: float = inf
    due_asked_at: float = -inf
    fruitless: int = 0
    """Rounds in a row that notifications began and that took nothing."""
    full_since: float | None = None
    """There has been no room since this time."""

    sharing: Sharing = Sharing()

    # the duty to listen, which the workers of a group take in turns
    on_duty: bool = True
    """True without a line to wait in, too: then every worker acts for itself."""
    duty_since: float = -inf
    duty_taken: int = 0
    """Tasks that were taken since the duty began."""
    leave_after: float = -inf
    """The duty is not offered before this time: no worker waited for it a moment ago."""
    is_awake: bool = False
    """Producers leave out notifications."""
    streak: int = 0
    """Claims in a row that took several tasks."""
    needs_news: bool = False
    """Another claimer waits for tasks of these queues, so producers must not leave out notifications."""

    def with_news(self) -> Self:
        """A notification: a task in our queues became ready, or was sent with a delay."""
        if not self.on_duty:
            return self  # the worker on duty hears it too
        if self.is_idle:
            return self._replace(announced=self.announced + 1, is_woken=True, has_news=True)
        return self.with_scan_wanted()

    def with_scan_wanted(self) -> Self:
        """There may be tasks where a scan found none, or where a cap left none to take."""
        if self.is_woken and self.has_news and self.hints.scan_wanted:
            return self
        return self._replace(hints=self.hints.want_scan(), is_woken=True, has_news=True)

    def with_room(self, *, buffered: bool) -> Self:
        """The pool or a limit can take more. That is no reason to look into queues that were found empty: new tasks are
        announced. Without this rule an idle round trip would cost two statements more. A claim in flight may return
        more than fits, so the end of the round decides again."""
        if not isinstance(self.move, Wait):
            return self if self.has_new_room else self._replace(has_new_room=True)
        return self._replace(is_woken=True) if buffered or not self.is_idle else self

    def with_place_freed(self) -> Self:
        """A task of another worker ended. It matters after a claim that a cap kept empty, or beside one in flight."""
        if self.place_freed or (self.capped_until is None and not isinstance(self.move, Claim)):
            return self
        return self._replace(place_freed=True)

    def without_place_freed(self) -> Self:
        """A claim is made now, and looks for the freed place."""
        return self._replace(place_freed=False) if self.place_freed else self

    def with_claimed(self, answer: "Claimed") -> Self:
        return self._replace(
            taken=self.taken + len(answer.rows),
            sent_at=answer.sent_at,
            capped_until=answer.sent_at + (1 + CAPPED_REST) * answer.took_s if answer.is_capped else None,
            place_freed=self.place_freed and answer.is_capped,
        )

    def with_queue_state(self) -> Self:
        """A queue was paused or resumed. A resumed one has tasks where scans found none."""
        return self._replace(hints=self.hints.forget(), is_woken=True, has_news=True)

    def with_duty(self, now: float) -> Self:
        """This worker is on duty from now on. What was sent before that was announced to another one."""
        return self._replace(
            on_duty=True, duty_since=now, duty_taken=0, is_awake=False, streak=0, hints=self.hints.forget(),
            is_woken=True,
        )  # fmt: skip

    def without_duty(self) -> Self:
        """Another worker is on duty. It also waits for delayed tasks, and learns of resumed queues: the floor is not
        kept."""
        hints = self.hints._replace(floor=None)
        return self._replace(on_duty=False, is_awake=False, streak=0, due_at=inf, announced=0, hints=hints)

    def with_shares(self, shares: Shares) -> Self:
        """The weights and ageing times of the queues."""
        sharing = self.sharing.with_shares(shares)
        return self if sharing is self.sharing else self._replace(sharing=sharing)

    def with_drain(self) -> Self:
        return self._replace(is_drained=True, is_woken=True)

    def with_resume(self) -> Self:
        """Claim again. What was sent meanwhile was announced to other workers, if there were any."""
        return self._replace(
            is_drained=False, has_left=False, hints=self.hints.forget(), is_woken=True, is_idle=False, full_since=None,
        )  # fmt: skip

    def with_stop(self) -> Self:
        return self._replace(is_stopped=True)
