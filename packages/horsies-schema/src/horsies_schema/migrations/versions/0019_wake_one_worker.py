"""Wake one worker for a new task, and let producers commit without the lock of NOTIFY.

Deploy: before the code that needs it.

Workers of one group (the same queues and task names) take turns in listening: `horsies_wait_for_duty` blocks on a
session lock, so that the lock manager wakes exactly one of them. NOTIFY holds a lock over the commit of its
transaction, so that producers cannot share an fsync: `horsies_send_task` commits the row first and notifies in a second
transaction, which needs no fsync, and leaves the notification out while the workers of the queue are busy claiming.

The three procedures end transactions, hence they cannot pin their search_path and run with the rights of their caller.
They name the schema of everything they use instead. docs/decisions/0013-fleet.md has the protocol and the measurements.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# A worker on duty holds one of these locks, shared, for each of its queues. `asleep`: it waits for notifications, and a
# producer must send one. `awake`: it claims again and again, and looks once more before it sleeps.
ASLEEP = "hashtextextended('horsies asleep ' || @name@ || ' ' || {queue}, 0)"
AWAKE = "hashtextextended('horsies awake ' || @name@ || ' ' || {queue}, 0)"

# Whether a task waits that a healthy worker on duty would have claimed. Only tasks that became ready a short time ago
# count: older ones wait for another reason, such as a cap. It needs the planner settings of the caller.
HAS_LATE_TASK = """
CREATE OR REPLACE FUNCTION @schema@.horsies_has_late_task(
    queues text[], names text[], slower int)
RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    latest constant timestamptz := clock_timestamp() - slower * interval '80 ms';
BEGIN
    RETURN EXISTS (
        WITH RECURSIVE found AS (
            SELECT q.name::text AS queue_name, f.priority FROM unnest(queues) AS q (name)
             CROSS JOIN LATERAL (SELECT t.priority FROM @schema@.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.queue_name = q.name
                                  ORDER BY t.priority LIMIT 1) AS f
             WHERE NOT EXISTS (SELECT FROM @schema@.horsies_queue_state s
                                WHERE s.queue_name = q.name AND s.paused_at IS NOT NULL)
            UNION ALL
            SELECT p.queue_name, f.priority FROM found p
             CROSS JOIN LATERAL (SELECT t.priority FROM @schema@.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn
                                    AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                                  ORDER BY t.priority LIMIT 1) AS f
        )
        SELECT FROM found p CROSS JOIN LATERAL (
            SELECT FROM @schema@.horsies_tasks t
             WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= latest AND t.enqueued_at >= latest - interval '10 seconds'
               AND t.task_name = ANY (names) LIMIT 1) AS late);
END
$function$
"""

# The first lock of a group is the duty. The next locks are the places of backups, which look every 150 ms whether tasks
# are late, because the worker on duty may be frozen. All others wait for a backup's place, and look less often. A wait
# is short and then repeated, because a blocked statement holds back vacuum; below a second `log_lock_waits` is silent.
# Answers: 'duty'; 'late', with which the caller acts for the worker on duty; '' when `patience` is over: the client
# then knows that its connection works, and calls again.
WAIT_FOR_DUTY = """
CREATE OR REPLACE PROCEDURE @schema@.horsies_wait_for_duty(
    group_key bigint, place int, channels text[], queues text[], names text[], slower int, patience interval,
    INOUT is_backup boolean, INOUT answer text)
LANGUAGE plpgsql AS $procedure$
DECLARE
    give_up constant timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) patience;
    place_key constant bigint := group_key OPERATOR(pg_catalog.+) place;
    next_look timestamptz := pg_catalog.clock_timestamp();
    began timestamptz;
    setting text;
    channel text;
BEGIN
    answer := '';
    UNLISTEN *;
    COMMIT;
    LOOP
        setting := pg_catalog.set_config('lock_timeout', CASE WHEN is_backup THEN '150ms' ELSE '900ms' END, true);
        BEGIN
            IF is_backup THEN
                PERFORM pg_catalog.pg_advisory_lock(group_key);
                answer := 'duty';
            ELSIF pg_catalog.pg_try_advisory_lock(group_key) THEN
                answer := 'duty';
            ELSE
                PERFORM pg_catalog.pg_advisory_lock(place_key);
                is_backup := true;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
        IF answer OPERATOR(pg_catalog.=) 'duty' THEN
            IF is_backup THEN
                is_backup := NOT pg_catalog.pg_advisory_unlock(place_key);
            END IF;
        ELSE
            began := pg_catalog.clock_timestamp();
            IF began OPERATOR(pg_catalog.>=) next_look THEN
                IF @schema@.horsies_has_late_task(queues, names, slower) THEN
                    answer := 'late';
                END IF;
                -- a look that must pass many dead entries gets a twentieth of the time
                next_look := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (20 OPERATOR(pg_catalog.*)
                    (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) began));
            END IF;
        END IF;
        IF answer OPERATOR(pg_catalog.<>) '' THEN
            FOREACH channel IN ARRAY channels LOOP
                EXECUTE pg_catalog.concat('LISTEN ', pg_catalog.quote_ident(channel));
            END LOOP;
            PERFORM @schema@.horsies_fall_asleep(queues);
        END IF;
        COMMIT;
        EXIT WHEN answer OPERATOR(pg_catalog.<>) '' OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) give_up;
    END LOOP;
END
$procedure$
"""

# With `only_if_awaited`, the caller leaves if another worker waits: to unlock grants the lock to that one before it can
# be locked again. A caller that acts for a frozen worker does not hold the lock. It goes on listening for a moment: the
# next worker does not listen yet.
LEAVE_DUTY = f"""
CREATE OR REPLACE FUNCTION @schema@.horsies_leave_duty(
    group_key bigint, queues text[], has_lock boolean, only_if_awaited boolean, is_awake boolean)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF has_lock THEN
        PERFORM pg_advisory_unlock(group_key);
        IF only_if_awaited AND pg_try_advisory_lock(group_key) THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM pg_advisory_unlock_shared(CASE WHEN is_awake THEN {AWAKE.format(queue="q.name")}
                                           ELSE {ASLEEP.format(queue="q.name")} END)
       FROM unnest(queues) AS q (name);
    RETURN true;
END
$function$
"""

# A worker on duty tells producers whether it needs notifications. It holds one of the two locks of each queue at any
# time. Where a foreign session holds one of them, it goes on without: producers then notify more often.
FALL_ASLEEP = f"""
CREATE OR REPLACE FUNCTION @schema@.horsies_fall_asleep(queues text[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    setting constant text := set_config('lock_timeout', '20ms', true);
BEGIN
    PERFORM pg_advisory_lock_shared({ASLEEP.format(queue="q.name")}) FROM unnest(queues) AS q (name);
EXCEPTION WHEN lock_not_available THEN
    NULL;
END
$function$
"""
SET_AWAKE = f"""
CREATE OR REPLACE FUNCTION @schema@.horsies_set_awake(queues text[], is_awake boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF is_awake THEN
        PERFORM pg_try_advisory_lock_shared({AWAKE.format(queue="q.name")}) FROM unnest(queues) AS q (name);
        PERFORM pg_advisory_unlock_shared({ASLEEP.format(queue="q.name")}) FROM unnest(queues) AS q (name);
    ELSE
        PERFORM @schema@.horsies_fall_asleep(queues);
        PERFORM pg_advisory_unlock_shared({AWAKE.format(queue="q.name")}) FROM unnest(queues) AS q (name);
    END IF;
END
$function$
"""

# Called after the commit of the rows: a worker that goes to sleep takes the lock `asleep` and looks once more, hence it
# either sees them or is found asleep. Producers hold the locks for a moment only, or they would take each other for
# workers; both calls are in one expression, which a cancel does not interrupt. Without any worker on duty the
# notification is sent all the same, for other listeners. Calls are expressions: PERFORM would run a query for each.
_ASLEEP, _AWAKE = ASLEEP.format(queue="queue_name"), AWAKE.format(queue="queue_name")
NOTIFY_SENT = f"""
CREATE OR REPLACE FUNCTION @schema@.horsies_notify_sent(queue_name text, task_id text)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF pg_try_advisory_lock({_ASLEEP}) AND pg_advisory_unlock({_ASLEEP})
        AND NOT (pg_try_advisory_lock({_AWAKE}) AND pg_advisory_unlock({_AWAKE}))
    THEN
        RETURN false;
    END IF;
    RETURN pg_notify('task_new', task_id) IS NOT NULL AND pg_notify('task_queue_' || queue_name, task_id) IS NOT NULL;
END
$function$
"""
SENT = (
    "task_name varchar, queue_name varchar, priority int, sent_at timestamptz, eta timestamptz, delay interval,"
    " good_until timestamptz, ttl interval, max_retries int, task_options text"
)
WRITTEN = (
    "id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options,"
    " enqueue_sha"
)
# The trigger notifies inside the transaction; here the notification follows it.
SEND_TASK = f"""
CREATE OR REPLACE PROCEDURE @schema@.horsies_send_task(
    id text, args text, kwargs text, enqueue_sha varchar, {SENT})
LANGUAGE plpgsql AS $procedure$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO @schema@.horsies_tasks ({WRITTEN})
    VALUES (id, task_name, queue_name, priority, args, kwargs, sent_at,
            coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
            coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
            max_retries, task_options, enqueue_sha);
    COMMIT;
    is_told := @schema@.horsies_notify_sent(queue_name, id);
END
$procedure$
"""
SEND_TASKS = f"""
CREATE OR REPLACE PROCEDURE @schema@.horsies_send_tasks(
    ids text[], args text[], kwargs text[], enqueue_shas text[], {SENT})
LANGUAGE plpgsql AS $procedure$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO @schema@.horsies_tasks ({WRITTEN})
    SELECT x.id, task_name, queue_name, priority, x.args, x.kwargs, sent_at,
           coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
           coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
           max_retries, task_options, x.enqueue_sha
      FROM ROWS FROM (pg_catalog.unnest(ids), pg_catalog.unnest(args), pg_catalog.unnest(kwargs),
                      pg_catalog.unnest(enqueue_shas)) AS x (id, args, kwargs, enqueue_sha);
    COMMIT;
    is_told := @schema@.horsies_notify_sent(queue_name, ids[1]);
END
$procedure$
"""

ARGUMENTS = {
    "horsies_has_late_task": "text[], text[], int",
    "horsies_fall_asleep": "text[]",
    "horsies_wait_for_duty": "bigint, int, text[], text[], text[], int, interval, boolean, text",
    "horsies_leave_duty": "bigint, text[], boolean, boolean, boolean",
    "horsies_set_awake": "text[], boolean",
    "horsies_notify_sent": "text, text",
    "horsies_send_task": "text, text, text, varchar, varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text",
    "horsies_send_tasks": "text[], text[], text[], text[], varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text",
}


def upgrade() -> None:
    for text in (HAS_LATE_TASK, WAIT_FOR_DUTY, LEAVE_DUTY, FALL_ASLEEP, SET_AWAKE, NOTIFY_SENT, SEND_TASK, SEND_TASKS):
        op.execute(_in_this_schema(text))
    for name, arguments in ARGUMENTS.items():
        op.execute(_owned_like_the_tables(f"{name}({arguments})"))
    op.execute(_insert_trigger("WHEN (current_setting('horsies.notify', true) IS DISTINCT FROM 'off')"))


def downgrade() -> None:
    op.execute(_insert_trigger(""))
    for name, arguments in ARGUMENTS.items():
        op.execute(f"DROP ROUTINE {name}({arguments})")


def _insert_trigger(condition: str) -> str:
    return f"""CREATE OR REPLACE TRIGGER horsies_task_notify_trigger AFTER INSERT ON horsies_tasks
        REFERENCING NEW TABLE AS inserted
        FOR EACH STATEMENT {condition} EXECUTE FUNCTION horsies_notify_task_changes()"""


def _in_this_schema(text: str) -> str:
    """Without a search_path nothing is found by its name alone: the text names the schema, which is known where it
    runs, also offline."""
    return f"""
DO $do$ BEGIN
    EXECUTE replace(replace($text${text}$text$, '@schema@', quote_ident(current_schema())),
                    '@name@', quote_literal(current_schema()));
END $do$
"""


def _owned_like_the_tables(name: str) -> str:
    """A superuser who migrates the tables of another role must not leave routines that others cannot replace."""
    return f"""
DO $do$ DECLARE owner text; BEGIN
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'horsies_tasks'::regclass;
    IF owner <> current_user THEN EXECUTE format('ALTER ROUTINE {name} OWNER TO %I', owner); END IF;
END $do$
"""
