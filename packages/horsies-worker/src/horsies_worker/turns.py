"""What a worker does when it goes on duty, and when it leaves."""

import math
import time
from typing import Final

from horsies_worker.claim.claimers import Claimers
from horsies_worker.liveness.cancels import CancelRequests
from horsies_worker.liveness.reaper import Reaper

HALTED_EVERY_S: Final = 10.0
"""A worker whose turn it is looks for halted workflows at most this often."""


class Turns:
    """Tells the services that this worker hears every notification from now on, or none."""

    def __init__(self, claimers: Claimers, cancels: CancelRequests, reaper: Reaper) -> None:
        self._plain, self._grouped = claimers.plain, claimers.grouped
        self._cancels = cancels
        self._reaper = reaper
        self._halted_checked_at = -math.inf

    def on_duty(self) -> None:
        """Catch up with what was announced to another worker."""
        self._plain.on_duty()
        self._grouped.on_duty()
        self._cancels.poll()
        if time.monotonic() >= self._halted_checked_at + HALTED_EVERY_S:
            # a worker that died on duty may have heard of a step and not taken it
            self._halted_checked_at = time.monotonic()
            self._reaper.find_halted_workflows()

    def off_duty(self) -> None:
        self._plain.off_duty()
        self._grouped.off_duty()

    @property
    def was_useful(self) -> bool:
        """Tasks were taken since this worker went on duty."""
        return self._plain.state.duty_taken + self._grouped.state.duty_taken > 0
