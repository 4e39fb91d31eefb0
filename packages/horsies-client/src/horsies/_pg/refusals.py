"""What to do about a database that does not let this program work, by what it said. Never with a password."""

from typing import Final

POOLER_FIX: Final = (
    "a transaction-mode pooler such as PgBouncer stands in front of the server: set PostgresConfig(pooler=True, "
    "direct_url=<the server's own URL>), or give the server's own URL"
)
_FIXES: Final = {
    "28P01": "correct the password or the role in the URL",
    "28000": "check the role (may it log in?), pg_hba.conf and the TLS settings (sslmode)",
    "3D000": "create the database, or correct its name in the URL",
    "42501": "let the owner of the tables run what `horsies-migrate grants` prints, and grant its role to this one; if "
    "the database refuses the connection itself, GRANT CONNECT ON DATABASE",
    "53300": "end idle sessions, lower pool sizes, raise max_connections, or put a pooler in front (pooler=True)",
    "57P03": "the server is starting or stopping: try again in a moment",
    # prepared statements that another client of the same pooled session made, or did not make
    "26000": POOLER_FIX,
    "42P05": POOLER_FIX,
}


def is_undeclared_pooler(error: BaseException) -> bool:
    """A pooler that was not told of, which refuses the settings that a session of ours begins with."""
    return "unsupported startup parameter" in str(error)


def remedy(error: BaseException) -> str | None:
    """What to do, or None when the message itself has to do."""
    if is_undeclared_pooler(error):
        return POOLER_FIX
    return _FIXES.get(getattr(error, "sqlstate", None) or "")
