"""Runs the statements of operators: reads and purges with a time limit, and every failure as a BrokerError in words."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies._pg.probes import close
from horsies._pg.refusals import and_remedy, worded
from horsies._pg.statements import Statement, load
from horsies._pg.transient import Doubt, is_from_driver, is_transient, sqlstate
from horsies.errors import BrokerError, HorsiesError

if TYPE_CHECKING:
    from horsies._pg.pool import Database
    from horsies.config import PostgresConfig
    from horsies.operate.views import ReplicaState

R = TypeVar("R")
Fetch = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
"""Runs a named statement with its values inside a transaction."""

READ_TIMEOUT_MS: Final = 5_000
UNIQUE_VIOLATION: Final = "23505"
NOT_STORED: Final = "not stored (store_result=False)"
NEEDS_OPERATOR: Final = "not visible to this role (messages, arguments, metadata and results need the operator role)"
_PERMISSION_DENIED: Final = "42501"
_TIMED_OUT: Final = "57014"
_NO_TABLE: Final = "42P01"
_FILES: Final = (
    "schema.sql",
    "tasks.sql",
    "control.sql",
    "recover.sql",
    "operate.sql",
    "schedules.sql",
    "policies.sql",
    "unique_keys.sql",
    "workflow_check.sql",
)


class SlowAnswer(BrokerError):
    """A statement of an operator took longer than its time limit."""


class MetadataHidden(BrokerError):
    """A filter has a condition on metadata, which the role may not read."""


def is_denied(error: BaseException) -> bool:
    """Whether the role lacks a right for the statement."""
    return sqlstate(error) == _PERMISSION_DENIED


def statements(schema: str | None, *files: str) -> dict[str, Statement]:
    """The statements of some of the client's files, by name."""
    return {name: found for file in files or _FILES for name, found in load("horsies._pg", file, schema).items()}


def bounded(
    known: Mapping[str, Statement],
    action: Callable[[Fetch], Awaitable[R]],
    timeout_ms: int,
    *,
    readonly: bool = True,
    answer_s: float | None = None,
) -> Callable[[Any], Awaitable[R]]:
    """`action(fetch)` in one transaction with limits of its own, because behind a pooler a session keeps no settings.

    The planner makes a plan for the given values: most conditions of a filter are NULL. `answer_s` is how long the
    client waits for each answer.
    """
    limits = (
        f"SET LOCAL statement_timeout = {timeout_ms}; SET LOCAL plan_cache_mode = force_custom_plan; "
        "SET LOCAL jit = off"  # compiling a plan takes longer than any of these statements
    )

    async def run(connection: Any) -> R:
        async def fetch(name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
            try:
                return await connection.fetch(known[name].sql, *values, timeout=answer_s)
            except Exception as error:
                if is_denied(error) and name.endswith("_by_metadata"):
                    raise MetadataHidden(f"metadata is {NEEDS_OPERATOR}") from error
                raise

        async with connection.transaction(readonly=readonly):
            await connection.execute(limits, timeout=answer_s)
            return await action(fetch)

    return run


class OperatorSession:
    """The statements of operators on one app's database."""

    def __init__(self, database: "Database", config: "PostgresConfig") -> None:
        self._database = database
        self._redact = config.redact
        self._statements = statements(config.schema)

    @property
    def replica_state(self) -> "ReplicaState | None":
        """None: the primary is asked."""
        return None

    async def close(self) -> None:
        """Close connections of the session's own."""

    async def rows(self, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        """One statement without a time limit of its own."""
        sql = self._statements[name].sql
        return await self.run(lambda connection: connection.fetch(sql, *values))

    async def revision(self) -> str | None:
        """The database's revision, also one that this release cannot work with; None when there are no tables. Opens a
        connection of its own, because the pool refuses such a database."""
        connection = await self._database.here().connect()
        try:
            rows = await connection.fetch(self._statements["revisions"].sql)
        except Exception as error:
            if sqlstate(error) != _NO_TABLE:
                raise
            return None
        finally:
            await close(connection)
        return str(rows[0]["version_num"]) if rows else None

    async def rows_shown(self, name: str, fallback: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        """`rows` of a statement that needs the operator role, or of the one that any role may run."""
        return await self._shown(lambda private: self.rows(name if private else fallback, *values))

    async def read(self, action: Callable[[Fetch], Awaitable[R]]) -> R:
        """Run `action(fetch)` in one read-only transaction with a time limit."""
        return await self.bounded(action, READ_TIMEOUT_MS, readonly=True)

    async def read_shown(self, action: Callable[[Fetch, bool], Awaitable[R]]) -> R:
        """`read`, with True for a role that may read messages, arguments and results, and with False for others."""
        return await self._shown(lambda private: self.read(lambda fetch: action(fetch, private)))

    async def _shown(self, read: Callable[[bool], Awaitable[R]]) -> R:
        try:
            return await read(True)
        except BrokerError as error:
            if not is_denied(error):
                raise
            return await read(False)

    async def bounded(self, action: Callable[[Fetch], Awaitable[R]], timeout_ms: int, *, readonly: bool = False) -> R:
        """Run `action(fetch)` in one transaction with a time limit for each statement."""
        try:
            return await self.run(bounded(self._statements, action, timeout_ms, readonly=readonly))
        except BrokerError as error:
            if sqlstate(error) != _TIMED_OUT:
                raise
            raise SlowAnswer(
                f"no answer within {timeout_ms / 1000:g} s: another session has locked the table, or the filter is too "
                "wide for an index; ids, states, error codes and ages narrow it best"
            ) from error

    async def run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        """Run `action(connection)`, again after a transient error; raises BrokerError."""
        doubt = Doubt()
        try:
            return await self._database.here().run(action, doubt)
        except HorsiesError:
            raise
        except Exception as error:
            told = worded(error)
            if is_denied(error):
                told += (
                    "; this login lacks a right: lists need those of a viewer, actions, payloads, keys and metadata "
                    "those of an operator, as in `GRANT horsies_operator TO the_login`; `horsies-migrate grants` "
                    "prints both"
                )
            elif is_transient(error) or is_from_driver(error):
                told = doubt.describe(told)
                if doubt.may_be_done:
                    told += "; what it was to change may or may not be changed"
                told += and_remedy(error)
            raise BrokerError(self._redact(told)) from error
