"""A server that refuses some statements, with an error code of the test's choice."""

from collections.abc import Generator
from contextlib import contextmanager

from tests.support.postgres import Database


def updates_of(task_id: str) -> str:
    """A trigger on every change of one task."""
    return f"BEFORE UPDATE ON horsies_tasks FOR EACH ROW WHEN (OLD.id = '{task_id}')"


@contextmanager
def refusing(db: Database, *triggers: str, code: str) -> Generator[None]:
    """While this holds, statements that one of the triggers meets fail. A trigger is written as far as its body:
    `BEFORE DELETE ON horsies_tasks`."""
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$"
    )
    try:
        for number, trigger in enumerate(triggers):
            db.execute(f"CREATE TRIGGER refuse_{number} {trigger} EXECUTE FUNCTION refuse()")
        yield
    finally:
        db.execute("DROP FUNCTION refuse() CASCADE")
