"""This worker process among the others: its row, and the session lock that says it lives.

The lock sits on the direct LISTEN connection. Through a transaction pooler it would belong to a pooled session, which
outlives the worker or vanishes under it; so it is only taken on a connection that has passed the LISTEN self-test.
"""

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

from horsies_worker.identity import Identity
from horsies_worker.queries import Queries

_log = logging.getLogger("horsies.worker")

# A host that is gone says no goodbye, and by default TCP keeps its session, and our lock, for hours. Any role may set
# these; on a unix socket they do nothing, and need not.
_KEEPALIVE: Final = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 10000"
)
_TRIES: Final = 20
_TRY_EVERY_S: Final = 0.1


class WorkerInstance:
    def __init__(
        self,
        identity: Identity,
        queries: Queries,
        period_ms: int,
        *,
        queues: Sequence[str] = (),
        names: Iterable[str] = (),
    ) -> None:
        """`queues` that it serves, and the `names` of the tasks that it can run."""
        self._identity = identity
        self._queries = queries
        self._period_ms = period_ms
        self._queues = list(queues)
        self._names = sorted(set(names))
        # half of a random id: keys of two workers do not meet
        self._key = int.from_bytes(uuid.UUID(identity.worker_id).bytes[:8], "big", signed=True)
        self.lock_key: int | None = None
        """None until the lock has been held once: whoever cannot hold it is not judged by it."""
        self.backend_pid: int | None = None

    async def register(self, connection: Any) -> None:
        sha = hashlib.sha256("\0".join(self._names).encode()).hexdigest()
        await connection.execute(
            self._queries.sql("register_instance"), self._identity.worker_id, self._period_ms, self._queues, sha,
            self._names,
        )  # fmt: skip

    async def close(self, connection: Any) -> None:
        await connection.execute(self._queries.sql("close_instance"), self._identity.worker_id)

    async def take_lock(self, connection: Any) -> None:
        """On a fresh direct connection. Tried, never waited for: a session that waits hears no notifications."""
        await connection.execute(_KEEPALIVE)
        for _ in range(_TRIES):
            if await connection.fetchval(self._queries.sql("try_own_lock"), self._key):
                self.lock_key = self._key
                self.backend_pid = connection.get_server_pid()
                return
            if self.backend_pid is not None:
                await connection.fetchval(self._queries.sql("end_former_session"), self.backend_pid, self._key)
            await asyncio.sleep(_TRY_EVERY_S)
        _log.warning(
            "the session lock of this worker is held by another session; if this worker dies, its tasks are recovered "
            "by the heartbeat thresholds only"
        )
