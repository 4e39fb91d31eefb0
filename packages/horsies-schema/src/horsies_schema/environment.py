"""The one Alembic environment: shared by the wheel's own migrations and by the `alembic/` workbench.

It expects either a connection in `config.attributes` (how `horsies_schema.migrate` calls it, already
locked and with its search_path set), or a URL in HORSIES_DATABASE_URL (the developer's `alembic`).
"""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from sqlalchemy import Connection

from horsies_schema.models import Base

# users have an `alembic_version` of their own
VERSION_TABLE = "horsies_alembic_version"
_BREAKING_SINCE: Final = "0013"
"""The revision that gave the version table its column `breaking`."""


def run() -> None:
    """Called by `env.py`, inside Alembic's context."""
    if context.is_offline_mode():
        context.configure(
            dialect_name="postgresql",
            target_metadata=Base.metadata,
            version_table=VERSION_TABLE,
            transaction_per_migration=True,
            literal_binds=True,
            on_version_apply=_record_breaking,
        )
        with context.begin_transaction():
            context.run_migrations()
        return
    connection = cast("Connection | None", context.config.attributes.get("connection"))
    if connection is not None:
        _migrate(connection)
        return
    # only the workbench arrives here; it borrows the locking road of horsies-migrate
    from horsies_schema.migrate import on_connection

    url = os.environ.get("HORSIES_DATABASE_URL")
    if not url:
        raise SystemExit("set HORSIES_DATABASE_URL to the database that the workbench should use")
    on_connection(url, _migrate)


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        # each revision commits alone: its locks are held no longer than it needs them, and a run that is
        # killed half-way keeps what it finished
        transaction_per_migration=True,
        compare_server_default=True,
        on_version_apply=_record_breaking,
    )
    with context.begin_transaction():
        context.run_migrations()


def breaking_number(marks: Iterable[tuple[str, bool]]) -> str | None:
    """Of revisions, each with whether it says `breaking = True`: the newest that does."""
    return max((revision for revision, breaks in marks if breaks), default=None)


def _record_breaking(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
) -> None:
    """After each step, up or down: code that is older than the newest breaking revision finds out, and stops."""
    if (on_step := context.config.attributes.get("on_step")) is not None:
        on_step(str(step.up_revision_id if step.is_upgrade else next(iter(step.down_revision_ids), "base")))
    for head in heads:
        if str(head) < _BREAKING_SINCE:
            continue
        found = breaking_number(
            (script.revision, getattr(script.module, "breaking", False))
            for script in context.script.iterate_revisions(head, "base")
        )
        ctx.execute(f"UPDATE {VERSION_TABLE} SET breaking = {'NULL' if found is None else repr(found)}")
