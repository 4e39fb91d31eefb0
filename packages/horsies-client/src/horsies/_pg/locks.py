"""The advisory locks of horsies, and who holds them.

PostgreSQL lets every role take every advisory lock: a session that has nothing to do with horsies can hold one. So a
lock that is held for long is reported with the session that holds it.
"""

from collections.abc import Mapping
from typing import Any, Final

# "caps", "reap", "prun" and "hors" in ASCII; the other half of each key is the schema
CAPS_LOCK: Final = 0x63617073
REAPER_LOCK: Final = 0x72656170
PRUNE_LOCK: Final = 0x7072756E
MIGRATION_LOCK: Final = 0x686F7273

PURPOSES: Final[Mapping[int, str]] = {
    CAPS_LOCK: "of the caps",
    REAPER_LOCK: "of the reaper",
    PRUNE_LOCK: "of the pruner",
    MIGRATION_LOCK: "of migrations",
}

HELD_TABLES: Final = ("horsies_tasks", "horsies_workflows")
"""A transaction that stays open and has rows of these makes runs, or slots of schedules, wait for it."""


def holder(row: Mapping[str, Any]) -> str:
    """Who holds a lock, of a row of `lock_holders`."""
    return f"session {row['pid']} (role {row['role']}, application {row['application_name'] or 'unnamed'!r})"
