"""Rights that this process lacks in the database, found before it starts and reported with the command that helps."""

from collections.abc import Mapping
from typing import Any, Final

from horsies._pg.statements import load

_ALL: Final = "SELECT INSERT UPDATE"
RIGHTS: Final[Mapping[str, Mapping[str, str]]] = {
    "worker": {
        "horsies_alembic_version": "SELECT",
        "horsies_tasks": _ALL,
        "horsies_task_attempts": "SELECT INSERT",
        "horsies_heartbeats": "SELECT INSERT",
        "horsies_worker_states": "SELECT INSERT",
        "horsies_worker_instances": _ALL,
        "horsies_task_sets": "SELECT INSERT",
        "horsies_task_names": _ALL,
        "horsies_queue_state": "SELECT",
        "horsies_workflows": _ALL,
        "horsies_workflow_tasks": _ALL,
    },
    "scheduler": {
        "horsies_alembic_version": "SELECT",
        "horsies_tasks": "SELECT INSERT",
        "horsies_schedule_state": _ALL,
        "horsies_schedule_runs": _ALL,
        "horsies_schedulers": _ALL,
        "horsies_schedules": "SELECT",
    },
}
"""Needed rights by kind of process. DELETE is not required: without it only retention fails, and logs it."""
_SHOWN: Final = 3


async def find_refusal(connection: Any, schema: str | None, who: str) -> str | None:
    """Why this session cannot work as a `who` (worker or scheduler), and how to fix it; None when it can."""
    wanted = RIGHTS[who]
    row = await connection.fetchrow(
        load("horsies_worker.database", "access.sql")["session_access"].sql, schema, list(wanted), list(wanted.values())
    )
    return told_refusal(row, who)


def told_refusal(found: Mapping[str, Any], who: str) -> str | None:
    """The same for a row of `session_access`."""
    role, refused = found["role"], found["refused"]
    if found["in_recovery"]:
        return (
            "the server is in recovery (a read-only standby): connect to the primary, or give all hosts in the URL "
            "with target_session_attrs=read-write"
        )
    if found["read_only"]:
        return (
            f"every transaction of role {role!r} is read-only (default_transaction_read_only): {_made_writable(found)}"
        )
    if refused:
        more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        return (
            f"role {role!r} has no {', no '.join(refused[:_SHOWN])}{more}: as the owner of the tables run what "
            f'`horsies-migrate grants` prints, then GRANT horsies_worker TO "{role}"'
        )
    return None


def _made_writable(found: Mapping[str, Any]) -> str:
    match found["read_only_by"]:
        case "user":
            return f'ALTER ROLE "{found["role"]}" RESET default_transaction_read_only, or use another role'
        case "database" | "database user":
            role = (
                f'ALTER ROLE "{found["role"]}" IN DATABASE' if found["read_only_by"] != "database" else "ALTER DATABASE"
            )
            return f'{role} "{found["database"]}" RESET default_transaction_read_only'
        case "client" | "environment variable":
            return "remove it from the options of the URL, or from PGOPTIONS"
        case _:
            return "set it to off in the server's configuration, or connect to the primary"
