"""The row of this worker process, and the session lock that shows other workers that it is alive.

The lock is held on the direct LISTEN connection. Through a transaction pooler it would belong to a pooled session,
which outlives the worker or ends before it: it is only taken on a connection that has passed the LISTEN test.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from horsies_worker.database.queries import Queries
from horsies_worker.database.settings import KEEPALIVE
from horsies_worker.output.log_context import log

# the lock must not outlive a host that has vanished
_KEEPALIVE: Final = "; ".join(f"SET {name} = {value}" for name, value in KEEPALIVE.items())
_TRIES: Final = 20
_TRY_EVERY_S: Final = 0.1


class WorkerInstance:
    def __init__(
        self,
        queries: Queries,
        period_ms: int,
        *,
        queues: Sequence[str] = (),
        names: Iterable[str] = (),
        wanted: tuple[str | None, int | None, str | None] = (None, None, None),
    ) -> None:
        """`queues`: the queues that this worker serves; `names`: the tasks that it can run; `wanted`: the state and the
        number of children that operators wanted of this process under its former id, and who asked."""
        self._worker_id = queries.identity.worker_id
        self._queries = queries
        self._period_ms = period_ms
        self._queues = list(queues)
        self._names = sorted(set(names))
        self._wanted = wanted
        # half of a random id: unique in practice
        self._key = int.from_bytes(uuid.UUID(self._worker_id).bytes[:8], "big", signed=True)
        self.lock_key: int | None = None
        """None until the lock has been held once: a worker without a key is never declared dead."""
        self.backend_pid: int | None = None
        self.started_at: datetime | None = None
        """On the database's clock; None until `register`."""

    async def register(self, connection: Any) -> None:
        sha = hashlib.sha256("\0".join(self._names).encode()).hexdigest()
        await connection.execute(
            self._queries.sql("register_instance"),
            self._worker_id,
            self._period_ms,
            self._queues,
            sha,
            self._names,
            self._queries.identity.completion_key,
            *self._wanted,
        )
        self.started_at = await connection.fetchval("SELECT clock_timestamp()")

    async def close(self, connection: Any) -> None:
        await connection.execute(self._queries.sql("close_instance"), self._worker_id)

    async def take_lock(self, connection: Any) -> None:
        """Take the lock on a fresh direct connection. It is tried repeatedly: a session that waits for a lock receives
        no notifications."""
        await connection.execute(_KEEPALIVE)
        for _ in range(_TRIES):
            if await connection.fetchval(self._queries.sql("try_own_lock"), self._key):
                self.lock_key = self._key
                self.backend_pid = connection.get_server_pid()
                return
            if self.backend_pid is not None:
                await connection.fetchval(self._queries.sql("end_former_session"), self.backend_pid, self._key)
            await asyncio.sleep(_TRY_EVERY_S)
        log.warning(
            "the session lock of this worker is held by another session; if this worker dies, its tasks are recovered "
            "by the heartbeat thresholds only"
        )
