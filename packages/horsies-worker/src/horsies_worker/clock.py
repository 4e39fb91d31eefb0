"""The database's clock, seen from here: one offset to this machine's monotonic clock, taken and then kept.

Attempt rows carry the real span of user code. The child measures it on the monotonic clock; this places it on the
database's clock. The offset is kept, not refreshed: two spans of one child must not overlap because it drifted.
"""

import time
from math import inf
from typing import Any

_LOOKS = 5
_SLOW_S = 0.5
"""A look that takes this long is not repeated for a better one: on a slow line that costs seconds and gains little."""
_TOLERANCE_S = 1.0


class DatabaseClock:
    def __init__(self) -> None:
        self._offset: float | None = None

    async def read(self, connection: Any) -> None:
        """Take the offset; again after a reconnect, where a failover may have brought another clock.

        The server looks at its clock somewhere between question and answer. Taken as at the question, the offset is
        never too small, and by the quickest of a few hardly too large: a span that lies before the start of its row
        would be moved there, into the span of the next task.
        """
        quickest, offset = inf, 0.0
        for look in range(_LOOKS):
            if look > 1 and quickest > _SLOW_S:
                break
            before = time.monotonic()
            moment: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
            took = time.monotonic() - before
            if took < quickest:
                quickest, offset = took, moment - before
        if self._offset is None or abs(offset - self._offset) > _TOLERANCE_S:
            self._offset = offset

    def at(self, mono: float) -> float:
        """The database's time at a moment of `time.monotonic()`, in seconds since 1970: a quarter of the cost of a
        datetime, here and on the wire, twice per task."""
        if self._offset is None:
            raise RuntimeError("the database's clock has not been read yet")
        return self._offset + mono
