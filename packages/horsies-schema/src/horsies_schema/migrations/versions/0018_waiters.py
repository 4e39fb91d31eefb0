"""Announce the end of a task or a workflow to those who wait for its bucket, the last two characters of its id.

Deploy: before the code that needs it. Older clients go on: `task_done` and `workflow_done` are sent as before.

A process that waits for one task used to hear of every end in the database. Now it listens to `task_done_<xx>`, where
<xx> is the end of the id; a process gives all its ids the same end. The public channels can be switched off:
`SELECT horsies_set_public_done(false)` gives both triggers an argument, and `tasks_ended` (with the worker's id) and
`workflows_ended` take their place, once per transaction. A trigger's argument, because it costs next to nothing to read
for each row, and the owner of the tables can set it: a custom setting of the database needs a superuser since
PostgreSQL 15.
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# pg_notify in an assignment, not in a PERFORM: see revision 0011. The worker's id is the same for a whole batch, and
# PostgreSQL drops duplicates within a transaction.
TASK_DONE = (
    "        told := pg_notify('task_done', NEW.id) IS NULL;\n",
    """        IF TG_NARGS = 0 THEN
            told := pg_notify('task_done', NEW.id) IS NULL
                OR pg_notify('task_done_' || right(NEW.id, 2), NEW.id) IS NULL;
        ELSE
            told := pg_notify('tasks_ended', NEW.claimed_by_worker_id) IS NULL
                OR pg_notify('task_done_' || right(NEW.id, 2), NEW.id) IS NULL;
        END IF;
""",
)
WORKFLOW_DONE = (
    "BEGIN\n    PERFORM pg_notify('workflow_done', NEW.id);\n",
    """DECLARE
    told boolean;
BEGIN
    IF TG_NARGS = 0 THEN
        told := pg_notify('workflow_done', NEW.id) IS NULL
            OR pg_notify('workflow_done_' || right(NEW.id, 2), NEW.id) IS NULL;
    ELSE
        told := pg_notify('workflows_ended', '') IS NULL
            OR pg_notify('workflow_done_' || right(NEW.id, 2), NEW.id) IS NULL;
    END IF;
""",
)
CHANGED = {
    "horsies_notify_task_changes": TASK_DONE,
    "horsies_notify_workflow_changes": WORKFLOW_DONE,
}

SWITCH = "horsies_set_public_done(boolean)"
# The triggers keep their conditions, whichever revision made them. It runs with the rights of its caller, who must be
# allowed to make triggers on the tables.
SET_PUBLIC_DONE = """
CREATE FUNCTION @schema@.horsies_set_public_done(enabled boolean) RETURNS void
LANGUAGE plpgsql STRICT SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    definition text;
BEGIN
    FOR definition IN
        SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g
          JOIN pg_class t ON t.oid = g.tgrelid JOIN pg_namespace s ON s.oid = t.relnamespace
         WHERE s.nspname = @schema_name@ AND (t.relname, g.tgname) IN (
               ('horsies_tasks', 'horsies_task_notify_update_trigger'),
               ('horsies_workflows', 'horsies_workflow_notify_trigger'))
           AND enabled = (g.tgnargs > 0)
         ORDER BY t.relname
    LOOP
        EXECUTE regexp_replace(
            regexp_replace(definition, '^CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER'),
            '[(][^()]*[)]$', CASE WHEN enabled THEN '()' ELSE '(''without_ids'')' END);
    END LOOP;
END
$function$
"""


def upgrade() -> None:
    for name, change in CHANGED.items():
        op.execute(_replaced(name, *change))
    op.execute(_in_this_schema(SET_PUBLIC_DONE))
    op.execute(f"REVOKE ALL ON FUNCTION {SWITCH} FROM PUBLIC")
    op.execute(_owned_like_the_tables(SWITCH))


def downgrade() -> None:
    op.execute("SELECT horsies_set_public_done(true)")
    op.execute(f"DROP FUNCTION {SWITCH}")
    for name, (before, after) in CHANGED.items():
        op.execute(_replaced(name, after, before))


def _replaced(name: str, old: str, new: str) -> str:
    """The function with a part of its text changed; its settings, owner and rights stay."""
    text = f"replace(pg_get_functiondef('{name}'::regproc), $text${old}$text$, $text${new}$text$)"
    return f"DO $do$ BEGIN EXECUTE {text}; END $do$"


def _in_this_schema(text: str) -> str:
    """A pinned search_path finds no tables: the text names their schema, which is known where it runs, also offline."""
    return f"""
DO $do$ BEGIN
    EXECUTE replace(replace($text${text}$text$, '@schema@', quote_ident(current_schema())),
                    '@schema_name@', quote_literal(current_schema()));
END $do$
"""


def _owned_like_the_tables(name: str) -> str:
    return f"""
DO $do$ DECLARE owner text; BEGIN
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'horsies_tasks'::regclass;
    IF owner <> current_user THEN EXECUTE format('ALTER FUNCTION {name} OWNER TO %I', owner); END IF;
END $do$
"""
