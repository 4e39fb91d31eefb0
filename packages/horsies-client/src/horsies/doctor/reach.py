"""Why the database cannot be reached, in words, with what to do. Never with a password."""

from typing import TYPE_CHECKING, Final

from horsies._pg.refusals import is_undeclared_pooler, remedy
from horsies.doctor.finding import Finding, Severity

if TYPE_CHECKING:
    from horsies.config import PostgresConfig

LOST: Final = Finding(
    "reach", Severity.PROBLEM, "the connection was lost in the middle of the examination",
    "a server that restarts or fails over, or a network that drops connections", "ask again in a moment",
)  # fmt: skip


def unreachable(error: Exception, config: "PostgresConfig") -> Finding:
    """The finding for a connection that failed."""
    text = config.redact(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    why = "nothing works without it"
    if is_undeclared_pooler(error):
        return Finding(
            "reach", Severity.PROBLEM, f"this URL leads to a pooler that refuses session settings ({text})",
            "horsies has to know that a pooler is there",
            "set PostgresConfig(pooler=True, direct_url=...) and use --app, or give the server's own URL",
        )  # fmt: skip
    fix = remedy(error)
    if fix is None and isinstance(error, TimeoutError):
        fix = "is the address right, and does a firewall let it through?"
    elif fix is None and isinstance(error, OSError):
        fix = "is the server running, and are host and port right?"
    return Finding("reach", Severity.PROBLEM, f"the database cannot be reached: {text}", why, fix or "see the message")
