"""Tables, migrations and roles of horsies, for the people who own the database.

`upgrade(url)` and its neighbours do what `horsies-migrate` does; each has an `_async` twin for code
that already runs on an event loop. `horsies_schema.models` has SQLAlchemy models of every table, and
`horsies_schema.embedded` a PostgreSQL that needs no installation. Alembic is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from horsies_schema.migrate import (
        MigrationError as MigrationError,
        apply_grants as apply_grants,
        apply_grants_async as apply_grants_async,
        check as check,
        check_async as check_async,
        current as current,
        current_async as current_async,
        downgrade as downgrade,
        downgrade_async as downgrade_async,
        head as head,
        sql as sql,
        upgrade as upgrade,
        upgrade_async as upgrade_async,
    )
    from horsies_schema.roles import grants as grants

__all__ = [
    "MigrationError",
    "apply_grants",
    "apply_grants_async",
    "check",
    "check_async",
    "current",
    "current_async",
    "downgrade",
    "downgrade_async",
    "grants",
    "head",
    "sql",
    "upgrade",
    "upgrade_async",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'horsies_schema' has no attribute {name!r}")
    from horsies_schema import migrate, roles

    return getattr(roles if name == "grants" else migrate, name)
