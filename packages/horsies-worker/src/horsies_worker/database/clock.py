"""The offset from this machine's monotonic clock to the database's clock, measured once and then kept.

Attempt rows hold the real start and end of user code. The child measures them on the monotonic clock, and this offset
converts them. It is kept, not refreshed: two spans of one child must not overlap because the offset drifted.
"""

import time
from math import inf
from typing import Any

_TRIES = 5
_SLOW_S = 0.5
"""After a try this slow no better one is sought: on a slow line that costs seconds and gains little."""
_TOLERANCE_S = 1.0


class DatabaseClock:
    def __init__(self) -> None:
        self._offset: float | None = None

    async def read(self, connection: Any) -> None:
        """Measure the offset; again after a reconnect, because a failover may bring another clock.

        The server reads its clock between request and answer. Counted from the request, the offset is never too small,
        and the quickest of a few tries is hardly too large. A span before the start of its row would be moved there,
        into the span of the next task.
        """
        quickest, offset = inf, 0.0
        for attempt in range(_TRIES):
            if attempt > 1 and quickest > _SLOW_S:
                break
            before = time.monotonic()
            moment: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
            took = time.monotonic() - before
            if took < quickest:
                quickest, offset = took, moment - before
        if self._offset is None or abs(offset - self._offset) > _TOLERANCE_S:
            self._offset = offset

    def at(self, mono: float) -> float:
        """The database's time at a time of `time.monotonic()`, in seconds since 1970. A float costs a quarter of a
        datetime, here and on the wire, twice per task."""
        if self._offset is None:
            raise RuntimeError("the database's clock has not been read yet")
        return self._offset + mono
