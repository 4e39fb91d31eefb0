"""The database's clock, seen from here: one offset to this machine's monotonic clock, taken and then kept.

Attempt rows carry the real span of user code. The child measures it on the monotonic clock; this places it on the
database's clock. The offset is kept, not refreshed: two spans of one child must not overlap because it drifted.
"""

import time
from datetime import datetime, timedelta
from typing import Any

_TOLERANCE_S = 1.0


class DatabaseClock:
    def __init__(self) -> None:
        self._epoch: datetime | None = None
        self._mono = 0.0

    async def read(self, connection: Any) -> None:
        """Take the offset; again after a reconnect, where a failover may have brought another clock."""
        before = time.monotonic()
        moment: datetime = await connection.fetchval("SELECT clock_timestamp()")
        mono = (before + time.monotonic()) / 2
        if self._epoch is None or abs((moment - self.at(mono)).total_seconds()) > _TOLERANCE_S:
            self._epoch, self._mono = moment, mono

    @property
    def is_set(self) -> bool:
        return self._epoch is not None

    def at(self, mono: float) -> datetime:
        """The database's time at a moment of `time.monotonic()`."""
        if self._epoch is None:
            raise RuntimeError("the database's clock has not been read yet")
        return self._epoch + timedelta(seconds=mono - self._mono)
