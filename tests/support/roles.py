"""Accounts that really log in with one of the roles of `horsies-migrate grants`."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

import horsies_schema
from tests.support.postgres import Database

PASSWORD = "p@ss/word"
ROLES = ("producer", "worker", "viewer", "operator")


@contextmanager
def accounts(db: Database, *, schema: str | None = None, before: str = "") -> Iterator[dict[str, Database]]:
    """The database as each role sees it, and as `stranger`, an account without any role, does. Roles belong to the
    server: their names are this test's own, and they are dropped. `before`: SQL that runs first, with `{prefix}`."""
    prefix = f"t{uuid.uuid4().hex[:8]}_"
    kinds = [*ROLES, *(f"{role}_login" for role in (*ROLES, "stranger"))]
    try:
        if before:
            db.execute(before.replace("{prefix}", prefix))
        db.execute(horsies_schema.grants(prefix=prefix, schema=schema))
        yield {
            role: login(db, f"{prefix}{role}_login", f'IN ROLE "{prefix}{role}"' if role in ROLES else "")
            for role in (*ROLES, "stranger")
        }
    finally:
        for kind in kinds:
            if db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", prefix + kind):
                db.execute(f'DROP OWNED BY "{prefix}{kind}" CASCADE')
                db.execute(f'DROP ROLE "{prefix}{kind}"')


def login(db: Database, account: str, options: str = "") -> Database:
    db.execute(f"CREATE ROLE \"{account}\" LOGIN PASSWORD '{PASSWORD}' {options}")
    parts = urlsplit(db.url)
    host = parts.netloc.rpartition("@")[2]
    return Database(db.name, urlunsplit(parts._replace(netloc=f"{account}:{quote(PASSWORD, safe='')}@{host}")))


def account(who: Database) -> str:
    """The name that it logs in with."""
    return urlsplit(who.url).netloc.partition(":")[0]


def may(who: Database, sql: str) -> bool:
    return bool(allowed(who, [sql]))


def allowed(who: Database, statements: Iterable[str]) -> list[str]:
    """Those of them that it may run, each in a transaction that is rolled back; on one connection."""
    found: list[str] = []
    with psycopg.connect(who.url, autocommit=True) as connection:
        for sql in statements:
            try:
                with connection.transaction(force_rollback=True):
                    connection.execute(sql)  # type: ignore[call-overload]
            except psycopg.errors.InsufficientPrivilege:
                continue
            found.append(sql)
    return found
