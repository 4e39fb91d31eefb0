"""Server settings of a worker's sessions."""

from typing import Final

# A claim prepared on an empty table must still walk its index when the table is full and never analyzed. The same holds
# for the other statements of a worker: each reads a few rows by an index.
CLAIM_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_material": "off",
}
# Enforced by the server: a statement whose client has given up must not run minutes later, and a worker that is frozen
# inside a transaction must not block the locks of caps and sweep for all other workers.
_MAX_IDLE_S: Final = 5.0
_MIN_IDLE_S: Final = 1.0
_LIMITS: Final = {"statement_timeout": "20s", "idle_in_transaction_session_timeout": f"{_MAX_IDLE_S:.0f}s"}
# By default TCP keeps the session of a vanished host, and with it its locks, for hours. Any role may set these; on a
# unix socket they have no effect and are not needed.
KEEPALIVE: Final = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
SETTINGS: Final = {**_LIMITS, **CLAIM_SETTINGS, **KEEPALIVE}
# A client that is frozen between the Parse and the Bind of a statement leaves its session active, and the two limits
# above do not end it: PostgreSQL takes no cancel while it reads. transaction_timeout does, from PostgreSQL 17 on.
_TRANSACTION_LIMIT_S: Final = 60


def _limit_transactions(*, is_local: bool) -> str:
    return (
        f"SELECT set_config('transaction_timeout', '{_TRANSACTION_LIMIT_S}s', {str(is_local).lower()})"
        " WHERE current_setting('server_version_num')::int >= 170000"
    )


LIMIT_TRANSACTIONS: Final = _limit_transactions(is_local=False)
"""For a session of one's own, after it was opened: as a start parameter an older server would refuse it."""
SET_LOCAL: Final = "; ".join(
    [
        *(f"SET LOCAL {name} = '{value}'" for name, value in {**_LIMITS, **CLAIM_SETTINGS}.items()),
        _limit_transactions(is_local=True),
    ]
)
"""The settings for one transaction: through a pooler, sessions are shared."""


def idle_limit_ms(round_trip_s: float) -> int:
    """`idle_in_transaction_session_timeout` while a transaction holds the lock of the caps. All claims wait for that
    lock, also those of a worker that is frozen then: in a soak, three of six freezes and partitions stopped the whole
    fleet for 4 to 5 s. Ten round trips, so that a slow line, or a busy machine, is not taken for a frozen worker."""
    return int(1000 * min(max(_MIN_IDLE_S, 10 * round_trip_s), _MAX_IDLE_S))
