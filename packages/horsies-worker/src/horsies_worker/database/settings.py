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
_LIMITS: Final = {"statement_timeout": "20s", "idle_in_transaction_session_timeout": "5s"}
SETTINGS: Final = {**_LIMITS, **CLAIM_SETTINGS}
SET_LOCAL: Final = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items())
"""The settings for one transaction: through a pooler, sessions are shared."""
