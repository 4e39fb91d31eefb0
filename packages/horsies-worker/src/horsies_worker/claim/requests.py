"""How many tasks a claim may ask for, and the request that asks for them. Pure."""

from dataclasses import dataclass
from typing import Any, Final

from horsies_worker.claim.hints import Hints
from horsies_worker.claim.settings import ClaimSettings, TaskKinds
from horsies_worker.claim.state import Places
from horsies_worker.database.queries import ClaimRequest, NextRequest

LOOK: Final = 200
"""Scan this many rows, so that a kind of task without free places cannot hide another. Not right after a full batch: to
scan 200 rows and take 64 is twice the work."""


@dataclass(frozen=True, slots=True)
class Requests:
    settings: ClaimSettings
    kinds: TaskKinds

    def room(self, hints: Hints, places: Places, *, is_fresh: bool) -> tuple[Places, int]:
        """The places that may be filled, and how many tasks may be claimed in all. `is_fresh`: the hints still hold."""
        settings = self.settings
        # Buffered tasks are older claims: free places are theirs. A kind of which the last scan found nothing is left
        # out: otherwise each place that a task of one kind frees would cost two statements that look for the other.
        sync = ahead = asynchronous = 0
        if not places.buffered:
            if self.kinds.sync and not (is_fresh and hints.no_sync):
                sync, ahead = places.sync, places.ahead if settings.run_ahead else 0
            if self.kinds.asynchronous and not (is_fresh and hints.no_async):
                asynchronous = places.asynchronous
        prefetch = max(0, settings.prefetch - places.buffered)
        limit = min(settings.max_batch, sync + ahead + asynchronous + prefetch)
        if settings.max_per_worker is not None:
            limit = min(limit, settings.max_per_worker - places.owned)
        if places.unwritten >= 2 * settings.max_batch:
            limit = 0  # do not make more results while these wait for the database
        if (sync, ahead, asynchronous) != places[:3]:
            places = places._replace(sync=sync, ahead=ahead, asynchronous=asynchronous)
        return places, limit

    @property
    def may_repeat(self) -> bool:
        # the tasks under a cap must be counted, and a buffer be filled: only a full claim does that
        return not self.settings.has_caps and not self.settings.prefetch

    def repeat(self, hints: Hints, places: Places, most: int) -> NextRequest | None:
        """A request for tasks where the last one was, with a leaner statement; None where that cannot be known."""
        if not self.may_repeat:
            return None
        return hints.repeat_request(
            self.kinds, sync=places.sync, ahead=places.ahead, asynchronous=places.asynchronous, most=most,
            short=places.short,
        )  # fmt: skip

    def build(self, places: Places, limit: int, *, was_full: bool, **where: Any) -> ClaimRequest:
        """`was_full`: the last claim brought as many tasks as it asked for."""
        sync = self.kinds.sync
        short = [name for name in sync if name in places.short] if places.ahead else ()
        kinds = bool(self.kinds.asynchronous) + bool(short) + (len(short) < len(sync))
        return ClaimRequest(
            limit=limit,
            room_sync=places.sync,
            room_ahead=places.ahead,
            room_async=places.asynchronous,
            prefetch=max(0, self.settings.prefetch - places.buffered),
            async_names=self.kinds.asynchronous,
            short_names=short,
            sync_names=sync,
            look=LOOK if kinds > 1 and not was_full else 0,
            **where,
        )
