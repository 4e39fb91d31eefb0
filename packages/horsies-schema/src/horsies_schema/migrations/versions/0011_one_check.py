"""What makes a row sound is one function for a task, not eight expressions; and for an attempt one, not four.

Deploy: before or after the code; both work with either.

PostgreSQL reads the text of every CHECK and of a trigger's WHEN anew for each statement that writes, and ours was 24 KB
of it: of the server's time for the claim of a single task a third, of its end a quarter. A PL/pgSQL function is
compiled once for each session; in batches of 200 rows it costs no more than the expressions did. It names the rule that
a row breaks, as the name of the CHECK did.
"""

from collections.abc import Iterable, Mapping

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

FUNCTION = """
CREATE OR REPLACE FUNCTION horsies_task_is_sound(
    task_name varchar, queue_name varchar, unique_key varchar, priority integer, status varchar, claimed boolean,
    claimed_by_worker_id varchar, claimed_at timestamptz, claim_expires_at timestamptz, claim_generation integer,
    started_at timestamptz, good_until timestamptz, worker_pid integer, finalizing_at timestamptz,
    completed_at timestamptz, failed_at timestamptz, terminal_at timestamptz, result text, error_code text,
    retry_count integer, max_retries integer, manual_retries integer
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    sound boolean;
    rule text;
BEGIN
    -- A branch for each status: an expression is made ready once per transaction, and only those that are reached. New
    -- rows come first, for they come one by one.
    IF status = 'PENDING' THEN
        sound := NOT claimed AND claimed_by_worker_id IS NULL AND claimed_at IS NULL AND claim_expires_at IS NULL
            AND started_at IS NULL AND finalizing_at IS NULL
            AND completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND result IS NULL AND error_code IS NULL AND queue_name ~ '^[A-Za-z0-9_.-]{1,52}$';
    ELSIF status = 'RUNNING' THEN
        sound := NOT claimed AND claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
            AND claim_expires_at IS NULL AND started_at IS NOT NULL AND worker_pid IS NOT NULL
            AND completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND (result IS NULL AND error_code IS NULL OR finalizing_at IS NOT NULL);
    ELSIF status = 'COMPLETED' THEN
        sound := NOT claimed AND completed_at IS NOT NULL AND terminal_at IS NOT NULL AND result IS NOT NULL
            AND failed_at IS NULL AND error_code IS NULL;
    ELSIF status = 'CLAIMED' THEN
        sound := claimed AND claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
            AND claim_expires_at IS NOT NULL AND started_at IS NULL
            AND completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND result IS NULL AND error_code IS NULL;
    ELSIF status IN ('FAILED', 'EXPIRED') THEN
        sound := NOT claimed AND failed_at IS NOT NULL AND terminal_at IS NOT NULL AND result IS NOT NULL
            AND error_code IS NOT NULL AND completed_at IS NULL;
    ELSIF status = 'CANCELLED' THEN
        sound := NOT claimed AND terminal_at IS NOT NULL AND result IS NOT NULL AND completed_at IS NULL;
    END IF;
    IF sound AND priority BETWEEN 1 AND 100
        AND retry_count BETWEEN 0 AND max_retries AND max_retries <= 10000
        AND manual_retries >= 0 AND claim_generation >= 0
        AND task_name <> '' AND (unique_key IS NULL OR unique_key <> '')
        AND (good_until IS NULL OR started_at IS NULL OR started_at < good_until)
    THEN
        RETURN sound;
    END IF;
    rule := CASE
        WHEN task_name = '' OR unique_key = '' THEN 'names'
        WHEN status = 'PENDING' AND queue_name !~ '^[A-Za-z0-9_.-]{1,52}$' THEN 'queue_name'
        WHEN priority NOT BETWEEN 1 AND 100 THEN 'priority'
        WHEN retry_count NOT BETWEEN 0 AND max_retries OR max_retries > 10000 OR manual_retries < 0
            OR claim_generation < 0 THEN 'retries'
        WHEN started_at >= good_until THEN 'good_until'
        ELSE 'state' END;
    RAISE check_violation USING
        MESSAGE = 'a row of horsies_tasks (task ' || quote_literal(task_name) || ', status ' || quote_literal(status)
            || ') breaks the rule ' || quote_literal(rule),
        HINT = 'The rules are in the function horsies_task_is_sound.',
        TABLE = 'horsies_tasks', CONSTRAINT = 'ck_horsies_tasks_' || rule;
END
$$
"""

SOUND = """horsies_task_is_sound(task_name, queue_name, unique_key, priority, status, claimed, claimed_by_worker_id,
    claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, finalizing_at, completed_at,
    failed_at, terminal_at, result, error_code, retry_count, max_retries, manual_retries)"""

ATTEMPT_SOUND = """attempt >= 1 AND finished_at >= started_at
    AND CASE WHEN error_code IS NULL THEN outcome = 'COMPLETED' AND NOT will_retry
             ELSE outcome = 'FAILED' OR outcome = 'WORKER_FAILURE' END"""

ATTEMPT_BEFORE = {
    "attempt": "attempt >= 1",
    "span": "finished_at >= started_at",
    "outcome": "outcome IN ('COMPLETED', 'FAILED', 'WORKER_FAILURE')",
    "error": "(outcome = 'COMPLETED') = (error_code IS NULL) AND NOT (will_retry AND outcome = 'COMPLETED')",
}

BEFORE = {
    "names": "task_name <> '' AND unique_key <> ''",
    "queue_name": "status <> 'PENDING' OR queue_name ~ '^[A-Za-z0-9_.-]{1,52}$'",
    "priority": "priority BETWEEN 1 AND 100",
    "retries": """retry_count BETWEEN 0 AND max_retries AND max_retries <= 10000 AND manual_retries >= 0
        AND claim_generation >= 0""",
    "good_until": "started_at < good_until",
    "status": "status IN ('PENDING', 'CLAIMED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')",
    "ownership": """claimed = (status = 'CLAIMED') AND CASE status
        WHEN 'PENDING' THEN claimed_by_worker_id IS NULL AND claimed_at IS NULL AND claim_expires_at IS NULL
            AND started_at IS NULL AND finalizing_at IS NULL
        WHEN 'CLAIMED' THEN claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
            AND claim_expires_at IS NOT NULL AND started_at IS NULL
        WHEN 'RUNNING' THEN claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
            AND claim_expires_at IS NULL AND started_at IS NOT NULL AND worker_pid IS NOT NULL
        ELSE true END""",
    "outcome": """CASE status
        WHEN 'COMPLETED' THEN completed_at IS NOT NULL AND failed_at IS NULL AND terminal_at IS NOT NULL
            AND result IS NOT NULL AND error_code IS NULL
        WHEN 'FAILED' THEN failed_at IS NOT NULL AND completed_at IS NULL AND terminal_at IS NOT NULL
            AND result IS NOT NULL AND error_code IS NOT NULL
        WHEN 'EXPIRED' THEN failed_at IS NOT NULL AND completed_at IS NULL AND terminal_at IS NOT NULL
            AND result IS NOT NULL AND error_code IS NOT NULL
        WHEN 'CANCELLED' THEN completed_at IS NULL AND terminal_at IS NOT NULL AND result IS NOT NULL
        ELSE completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND ((result IS NULL AND error_code IS NULL) OR (status = 'RUNNING' AND finalizing_at IS NOT NULL))
        END""",
}

# Short text, and false for what happens most, a claim: whether the status changed is then asked by the function.
WHEN = "NEW.terminal_at IS NOT NULL OR NEW.claimed_at IS NULL"
WHEN_BEFORE = """OLD.status IS DISTINCT FROM NEW.status
    AND NEW.status IN ('PENDING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')"""

# pg_notify in an assignment, not in a PERFORM: PL/pgSQL evaluates it by itself and starts no statement.
NOTIFY = """
CREATE OR REPLACE FUNCTION horsies_notify_task_changes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    first_id text;
    first_queue text;
    last_queue text;
    told boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT min(id), min(queue_name), max(queue_name) INTO first_id, first_queue, last_queue
          FROM inserted WHERE status = 'PENDING';
        IF first_queue = last_queue THEN
            told := pg_notify('task_new', first_id) IS NULL
                OR pg_notify('task_queue_' || first_queue, first_id) IS NULL;
        ELSE
            PERFORM pg_notify('task_new', fresh.id), pg_notify('task_queue_' || fresh.queue_name, fresh.id)
               FROM (SELECT queue_name, min(id) AS id FROM inserted WHERE status = 'PENDING'
                      GROUP BY queue_name) AS fresh;
        END IF;
    ELSIF OLD.status = NEW.status THEN
        RETURN NULL;
    ELSIF NEW.status = 'PENDING' THEN
        told := pg_notify('task_new', NEW.id) IS NULL OR pg_notify('task_queue_' || NEW.queue_name, NEW.id) IS NULL;
    ELSE
        told := pg_notify('task_done', NEW.id) IS NULL;
    END IF;
    RETURN NULL;
END
$$
"""

NOTIFY_BEFORE = """
CREATE OR REPLACE FUNCTION horsies_notify_task_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM pg_notify('task_new', fresh.id), pg_notify('task_queue_' || fresh.queue_name, fresh.id)
           FROM (SELECT queue_name, min(id) AS id FROM inserted WHERE status = 'PENDING' GROUP BY queue_name) AS fresh;
    ELSIF NEW.status = 'PENDING' THEN
        PERFORM pg_notify('task_new', NEW.id), pg_notify('task_queue_' || NEW.queue_name, NEW.id);
    ELSE
        PERFORM pg_notify('task_done', NEW.id);
    END IF;
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    op.execute(FUNCTION)
    op.execute(NOTIFY)
    op.execute(_trigger(WHEN))
    _replace("horsies_tasks", BEFORE, {"sound": SOUND})
    _replace("horsies_task_attempts", ATTEMPT_BEFORE, {"sound": ATTEMPT_SOUND})


def downgrade() -> None:
    op.execute(_trigger(WHEN_BEFORE))
    op.execute(NOTIFY_BEFORE)
    _replace("horsies_task_attempts", ("sound",), ATTEMPT_BEFORE)
    _replace("horsies_tasks", ("sound",), BEFORE)
    op.execute("DROP FUNCTION horsies_task_is_sound")


def _trigger(when: str) -> str:
    return f"""
CREATE OR REPLACE TRIGGER horsies_task_notify_update_trigger AFTER UPDATE ON horsies_tasks
    FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION horsies_notify_task_changes()
"""


def _replace(table: str, old: Iterable[str], new: Mapping[str, str]) -> None:
    """In two transactions: the first locks the table for a moment, the second reads all rows without blocking writers.
    Interrupted in between, it is repeated."""
    drops = [f"DROP CONSTRAINT IF EXISTS ck_{table}_{name}" for name in (*old, *new)]
    adds = [f"ADD CONSTRAINT ck_{table}_{name} CHECK ({condition}) NOT VALID" for name, condition in new.items()]
    op.execute(f"ALTER TABLE {table} {', '.join((*drops, *adds))}")
    with op.get_context().autocommit_block():
        for name in new:
            op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_{name}")
