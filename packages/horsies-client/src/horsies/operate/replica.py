"""Reads of operators from a streaming replica (`replica_url`), and from the primary while the replica cannot answer.

A read asks the replica first: one statement for its lag, then its own. A replica that cannot be reached, that is no
standby (any more) or whose schema does not fit is left alone for a while, and the primary answers instead. A read that
the replica refuses for another reason, such as a missing right or the time limit, is not repeated on the primary.

Rows of a replica are as old as its lag, and so are the signs of life in them: the silence of workers and tasks is
judged less the lag. The lag is 0 while the replica is connected and has replayed all that it received; otherwise it is
the age of the last replayed commit.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies._pg.pool import Database
from horsies._pg.refusals import worded
from horsies._pg.statements import load
from horsies._pg.transient import is_from_driver, is_transient, sqlstate
from horsies.config.resilience import ResilienceConfig
from horsies.errors import BrokerError, HorsiesError, SchemaError
from horsies.operate.session import Fetch, OperatorSession
from horsies.operate.views import ReplicaState

if TYPE_CHECKING:
    from horsies.config import PostgresConfig

R = TypeVar("R")

TRY_AGAIN_S: Final = 15.0
"""A replica that could not answer is asked again after this long: one that drops packets costs `connect_timeout_ms`
each time."""
NO_STANDBY: Final = "is no standby: it was promoted, or the URL leads to a primary"
_SILENCES: Final = {"worker_snapshots": "age", "stale_tasks": "silence"}
"""The statements whose rows tell how long ago a sign of life was, and the column."""
_OWN_FAULT: Final = ("57014", "42501", "25006")
"""The time limit, a missing right and a write: the primary is not asked instead."""
_READ_ONLY: Final = "25006"


class NoStandby(HorsiesError):
    """The server behind `replica_url` accepts writes."""


class Replica:
    """The server of `replica_url`, for one process."""

    def __init__(self, config: "PostgresConfig", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        # a single attempt: the primary is the second one
        self._database = Database(config, ResilienceConfig(), replica=True)
        self._look = load("horsies._pg", "replica.sql", config.schema)["replica_lag"].sql
        self._ask_again_at = 0.0
        self.state = ReplicaState(None, None)

    async def first(self, action: Callable[[Any], Awaitable[R]], primary: Callable[[], Awaitable[R]]) -> R:
        """`action(connection)` on the replica; `primary()` while that cannot answer."""
        if self._clock() >= self._ask_again_at:
            try:
                return await self._database.here().run_once(lambda connection: self._on_standby(connection, action))
            except Exception as error:
                if not _is_away(error):
                    raise
                self._leave(error)
        return await primary()

    async def _on_standby(self, connection: Any, action: Callable[[Any], Awaitable[R]]) -> R:
        row = await connection.fetchrow(self._look)
        if not row["is_standby"]:
            raise NoStandby(NO_STANDBY)
        self.state = ReplicaState(row["lag"], None)
        return await action(connection)

    def _leave(self, error: Exception) -> None:
        told = str(error) if isinstance(error, HorsiesError) else worded(error)
        self.state = ReplicaState(None, self._config.redact(told))
        # a read that was cancelled because it stood in the way of the replay says nothing about the next one
        if sqlstate(error) != "40001":
            self._ask_again_at = self._clock() + TRY_AGAIN_S

    def judged(self, action: Callable[[Fetch], Awaitable[R]]) -> Callable[[Fetch], Awaitable[R]]:
        """The action with a `fetch` that takes the lag from the silence of workers and tasks."""

        async def with_lag(fetch: Fetch) -> R:
            async def corrected(name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
                return self.less_lag(name, await fetch(name, *values))

            return await action(corrected)

        return with_lag

    def less_lag(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        column, lag = _SILENCES.get(name), self.state.lag
        if column is None or not lag:
            return rows
        return [{**row, column: max(row[column] - lag, timedelta())} for row in rows]

    async def close(self) -> None:
        """Close the connections of the running loop."""
        await self._database.close_here()


class ReplicaSession(OperatorSession):
    """`OperatorSession` for reads, on the replica. A write that reaches it is refused."""

    def __init__(self, database: Database, config: "PostgresConfig") -> None:
        super().__init__(database, config)
        self._replica = Replica(config)

    @property
    def replica_state(self) -> ReplicaState:
        return self._replica.state

    async def close(self) -> None:
        await self._replica.close()

    async def rows(self, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        found = await super().rows(name, *values)
        return self._replica.less_lag(name, found)

    async def bounded(self, action: Callable[[Fetch], Awaitable[R]], timeout_ms: int, *, readonly: bool = False) -> R:
        return await super().bounded(self._replica.judged(action), timeout_ms, readonly=readonly)

    async def run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        async def on_primary() -> R:
            return await super(ReplicaSession, self).run(action)

        try:
            return await self._replica.first(action, on_primary)
        except HorsiesError:
            raise
        except Exception as error:
            told = worded(error)
            if sqlstate(error) == _READ_ONLY:
                told = "this broker reads from the replica and changes nothing: act with app.get_broker()"
            raise BrokerError(self._redact(told)) from error


def _is_away(error: Exception) -> bool:
    """Whether the primary should answer instead. Errors of the statement itself would be the same there."""
    if isinstance(error, SchemaError | NoStandby | OSError):  # TimeoutError is an OSError
        return True
    if isinstance(error, HorsiesError):
        return False
    code = sqlstate(error)
    if code is None:
        return is_transient(error) or is_from_driver(error)
    return code not in _OWN_FAULT and code[:2] not in ("42", "22")
