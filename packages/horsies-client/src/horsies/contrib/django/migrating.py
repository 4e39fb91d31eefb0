# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""`manage.py migrate` creates and upgrades the tables of horsies, also those of a test database.

They have migrations of their own (`horsies-schema`), so they follow the release that is installed and not a list of
Django's migrations. In a test run, the flush that ends every TransactionTestCase empties them.
"""

import gc
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.core import mail
from django.core.management.base import CommandError
from django.db import connections

from horsies.config import PostgresConfig
from horsies.contrib.django.project import DjangoApp, project_app

_KEPT: Final = "horsies_alembic_version"
_TABLES: Final = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relname LIKE 'horsies\\_%%' AND c.relname <> %s
   AND CASE WHEN %s::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = %s END
"""


def after_migrate(
    using: str, verbosity: int = 1, stdout: Any = None, plan: object = None, **_others: object
) -> None:  # the signal's handler
    """Upgrade the tables after `migrate`; empty them after a flush in a test run.

    A flush has no plan. Projects send this signal themselves without one, too, for example to have permissions early:
    outside of tests it must not delete anything.
    """
    app = project_app()
    if using != app.conf.database:
        return
    if plan is None:
        if hasattr(mail, "outbox"):  # set by Django's `setup_test_environment`, and removed at the end of the run
            _empty(app)
    elif app.conf.migrate:
        _close_before_drop(app)
        revision = upgrade(app)
        if verbosity >= 1:
            told = f"  Horsies: its tables are at revision {revision}"
            stdout.write(told) if stdout is not None else print(told)  # noqa: T201


def upgrade(app: DjangoApp) -> str | None:
    """Bring the tables to the revision that the installed release needs. Raises CommandError."""
    try:
        import horsies_schema
    except ImportError:
        raise CommandError(
            "the tables of horsies cannot be made without the package horsies-schema: pip install horsies-schema, or "
            "set HORSIES = {'MIGRATE': False} where another deployment makes them"
        ) from None
    app.get_broker()  # follow the settings: a test run has changed the database
    try:
        return horsies_schema.upgrade(migration_url(app.config.broker), schema=app.config.broker.schema)
    except horsies_schema.MigrationError as error:
        raise CommandError(f"the tables of horsies: {error}", returncode=int(error.code)) from error


def migration_url(broker: PostgresConfig) -> str:
    """The URL of the server itself: a transaction-mode pooler loses the locks of a migration."""
    return broker.listen_url


def _empty(app: DjangoApp) -> None:
    """Delete what horsies has stored, as the flush does with all other tables."""
    schema = app.config.broker.schema
    with connections[app.conf.database].cursor() as cursor:
        cursor.execute(_TABLES, [_KEPT, schema, schema])
        tables = [row[0] for row in cursor.fetchall()]
        if tables:
            cursor.execute(f"TRUNCATE {', '.join(tables)}")


def _close_before_drop(app: DjangoApp) -> None:
    """A test runner cannot drop its database while the app's pool is connected to it."""
    creation: Any = connections[app.conf.database].creation
    drop: Callable[..., Any] = creation.destroy_test_db
    if getattr(drop, "closes_horsies", False):
        return

    @wraps(drop)
    def close_and_drop(*args: Any, **kwargs: Any) -> Any:
        app.close()
        gc.collect()  # connections of event loops that async tests have left
        return drop(*args, **kwargs)

    close_and_drop.closes_horsies = True  # type: ignore[attr-defined]
    creation.destroy_test_db = close_and_drop
