"""Stops a statement after it has taken its snapshot and before it locks its first row.

The races of a statement that skips locked rows lie there: another session commits between snapshot and lock. A schema
in front of pg_catalog has `statement_timestamp()` and `||`, which nearly every statement evaluates while it
looks for its rows. They wait for an advisory lock, once per statement, and then do what those of pg_catalog do.
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.support.postgres import Database

_KEY: Final = 7_350_000

_SCHEMA: Final = """
CREATE SCHEMA gate;
CREATE FUNCTION gate.pass() RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_catalog.current_setting('gate.armed', true) = '1' THEN
        PERFORM pg_catalog.set_config('gate.armed', '0', false);
        PERFORM pg_catalog.pg_advisory_lock_shared(pg_catalog.current_setting('gate.key')::bigint);
        PERFORM pg_catalog.pg_advisory_unlock_shared(pg_catalog.current_setting('gate.key')::bigint);
    END IF;
END $$;
CREATE FUNCTION gate.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM gate.pass();
    RETURN pg_catalog.statement_timestamp();
END $$;
CREATE FUNCTION gate.joined(text, text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM gate.pass();
    RETURN $1 OPERATOR(pg_catalog.||) $2;
END $$;
CREATE OPERATOR gate.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = gate.joined);
"""


def build(db: Database) -> None:
    db.execute(_SCHEMA)


def settings(actor: int) -> Mapping[str, str]:
    """The server settings of a session that can be stopped."""
    return {"search_path": "gate, pg_catalog, public", "gate.key": str(_KEY + actor), "gate.armed": "0"}


async def close(controller: Any, actor: int) -> None:
    await controller.execute(f"SELECT pg_advisory_lock({_KEY + actor})")


async def let_through(controller: Any, actor: int) -> None:
    """The statement that stands at the gate goes on; the next one finds it closed again."""
    await controller.execute(f"SELECT pg_advisory_unlock({_KEY + actor})")


async def arm(connection: Any) -> None:
    await connection.execute("SELECT pg_catalog.set_config('gate.armed', '1', false)")


async def disarm(connection: Any) -> None:
    """A statement that looked at no row has passed no gate, and has left it armed for the next schedule."""
    await connection.execute("SELECT pg_catalog.set_config('gate.armed', '0', false)")
