"""Watches which state changes really happen to the tasks of a database."""

from horsies.status import Edge, TaskStatus
from tests.support.postgres import Database

_WATCH = """
CREATE TABLE watched_transitions (source text, target text NOT NULL);
CREATE FUNCTION watch_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO public.watched_transitions VALUES (NULL, NEW.status);
    ELSIF OLD.status <> NEW.status THEN
        INSERT INTO public.watched_transitions VALUES (OLD.status, NEW.status);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER watch_transition AFTER INSERT OR UPDATE OF status ON horsies_tasks
    FOR EACH ROW EXECUTE FUNCTION watch_transition();
"""


def watch(db: Database) -> None:
    """Record every state change from now on."""
    db.execute(_WATCH)


def seen(db: Database) -> set[Edge]:
    rows = db.execute("SELECT DISTINCT source, target FROM watched_transitions")
    return {Edge(None if source is None else TaskStatus(source), TaskStatus(target)) for source, target in rows}
