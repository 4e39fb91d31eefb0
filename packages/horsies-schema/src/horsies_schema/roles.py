"""Least-privilege roles, printed as SQL for a database owner to read and run."""

from collections.abc import Mapping
from typing import Final

from horsies_schema.connection import quote_identifier
from horsies_schema.environment import VERSION_TABLE
from horsies_schema.errors import ExitCode, MigrationError
from horsies_schema.models import Base
from horsies_schema.revisions import head

ROLES: Final = ("producer", "worker", "viewer", "operator")
PREFIX: Final = "horsies_"
"""How the names of the roles begin unless told otherwise."""
_LONGEST_NAME: Final = 63

# A viewer sees states, counts, codes and names: not what a task was told, what it answered, nor a message that quotes
# either. A hash of arguments is no secret's cover: few values are tried quickly.
PRIVATE: Final = {
    "horsies_tasks": frozenset(
        {
            "args",
            "kwargs",
            "result",
            "progress",
            "task_options",
            "failed_reason",
            "unique_key",
            "enqueue_sha",
            "metadata",
        }
    ),
    "horsies_task_attempts": frozenset({"error_message", "failed_reason"}),
    "horsies_workflow_tasks": frozenset(
        {"args", "kwargs", "args_from", "result", "error", "task_options", "metadata", "compensate"}
    ),
    "horsies_workflows": frozenset({"result", "error", "enqueue_sha", "success_policy", "metadata", "unique_key"}),
    "horsies_workflow_signals": frozenset({"value"}),
    "horsies_worker_instances": frozenset({"completion_key"}),
    "horsies_unique_keys": frozenset({"key", "recent"}),
    "horsies_schedule_state": frozenset({"config_hash", "problem"}),
    "horsies_schedules": frozenset({"kwargs"}),
}

# With the key of a worker its tasks can be completed: an operator does not see it either.
SECRET: Final = {"horsies_worker_instances": frozenset({"completion_key"})}

# What describes a new task. Its state, owner and outcome have defaults, which a producer cannot override.
SENT_COLUMNS: Final = (
    "id", "task_name", "queue_name", "priority", "args", "kwargs", "sent_at", "enqueued_at", "good_until",
    "max_retries", "task_options", "unique_key", "enqueue_sha", "metadata", "group_key", "keep_seconds",
)  # fmt: skip

# What a producer reads: results, and how far its runs are.
PRODUCED: Final = (
    "horsies_tasks", "horsies_task_attempts", "horsies_workflows", "horsies_workflow_tasks", "horsies_workflow_signals",
)  # fmt: skip

# What an operator writes of a schedule. Its version and its times are set by a trigger.
SCHEDULE_COLUMNS: Final = (
    "task_name", "workflow", "pattern", "kwargs", "queue_name", "group_key", "timezone", "skipped_times", "overlap",
    "catch_up_missed", "max_catch_up_runs", "jitter_s", "enabled",
)  # fmt: skip
# What the operator's verbs write. Not among them: what a task is and was given, the claim's generation, which fences
# workers, and `completed_at`, without which no task is COMPLETED.
OPERATED_COLUMNS: Final = {
    "horsies_tasks": (
        "status", "claimed", "claimed_at", "claimed_by_worker_id", "claim_expires_at", "started_at", "failed_at",
        "terminal_at", "cancel_requested_at", "result", "failed_reason", "error_code", "good_until", "enqueued_at",
        "retry_count", "max_retries", "manual_retries", "next_retry_at", "progress", "worker_pid", "worker_hostname",
        "worker_process_name", "finalizing_at", "finalizing_by_worker_id", "is_workflow_task", "former_node_id",
        "withdrawn", "snoozes", "crash_count", "updated_at",
    ),
    "horsies_workflows": (
        "status", "result", "error", "completed_at", "nodes_left", "paused_inside", "updated_at", "wake_at", "deadline",
        "ends_as", "unsettled", "started_at",
    ),
    "horsies_workflow_tasks": (
        "status", "task_id", "result", "error", "started_at", "completed_at", "deps_left", "deps_ok", "updated_at",
        "wake_at", "skip_reason", "deps_void", "ended_seq",
    ),
    "horsies_queue_state": ("paused_at", "updated_at", "override", "override_at"),
    "horsies_limits": ("override", "override_at", "updated_at"),
    "horsies_unique_keys": ("until",),
    "horsies_schedule_state": ("paused_at", "run_requested_at", "updated_at"),
    "horsies_schedules": SCHEDULE_COLUMNS,
    "horsies_worker_instances": ("wanted_state", "wanted_processes", "wanted_at", "wanted_by"),
}  # fmt: skip
# The attempt that an operator ends with a stale task.
ATTEMPT_COLUMNS: Final = (
    "task_id", "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message",
    "failed_reason", "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
)  # fmt: skip

# Evaluated by every INSERT and UPDATE with the rights of the role that writes.
CHECK_FUNCTION: Final = "horsies_task_is_sound"
# They run with the rights of the owner of the tables.
START: Final = "horsies_start_workflow(jsonb)"
CANCEL: Final = ("horsies_cancel_tasks(text[])", "horsies_cancel_workflow(text)")
PURGE: Final = "horsies_purge_tasks(text[])"
SIGNAL: Final = "horsies_signal(text, text, jsonb, text, text)"
FORGET: Final = "horsies_forget_compensations(text[], text[])"
COMPLETE: Final = "horsies_complete_task(text, text, int, text, bigint, text, float8, float8, int, text, boolean)"
SEND_UNIQUE: Final = (
    "horsies_send_unique(text, text, text, varchar, varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text, jsonb, varchar, varchar, text, interval, interval, interval, int, boolean)"
)
# It runs with the rights of its caller: a worker ends a run whose rows cannot be processed.
STOP: Final = "horsies_stop_workflows(text[], text, text, text, text, text, text, boolean)"
# It runs with the rights of its caller, too; only roles that send may execute it.
SEND_FROM_SQL: Final = "horsies_send(text, jsonb, jsonb)"

# Views read their tables with the rights of the tables' owner; this one has names of queues and counts only.
QUEUE_LOAD: Final = "horsies_queue_load"

# They run with the rights of their caller, and PUBLIC may execute them; a database may have taken that away.
_SENT: Final = "varchar, varchar, int, timestamptz, timestamptz, interval, timestamptz, interval, int, text, jsonb"
SEND: Final = (
    f"horsies_send_task(text, text, text, varchar, {_SENT}, varchar)",
    f"horsies_send_tasks(text[], text[], text[], text[], {_SENT}, text[])",
    "horsies_notify_sent(text, text)",
    "horsies_notify_groups_sent(text, text[], text[])",
    "horsies_send_calls(jsonb, text[], int[], text[], text[], text[], text[], timestamptz)",
    "horsies_moment_problem(jsonb)",
)
DUTY: Final = (
    "horsies_wait_for_duty(bigint, int, text[], text[], text[], int, interval, boolean, text)",
    "horsies_has_late_task(text[], text[], int)",
    "horsies_fall_asleep(text[])",
    "horsies_leave_duty(bigint, text[], boolean, boolean, boolean)",
    "horsies_set_awake(text[], boolean)",
)
# What a claim of grouped tasks calls; the check of policies is called by those who declare or override one.
RATE_ROOM: Final = "horsies_rate_room(jsonb, timestamptz, timestamptz, timestamptz)"
CLAIM: Final = (
    "horsies_claim_grouped(text[], text[], text[], boolean, text[], int[], text[], boolean[], text[], int, int, int,"
    " int, int, text[], text[], text[], text[], int[], int, int, text, text, text, float8)",
    RATE_ROOM,
)
POLICY: Final = ("horsies_policy_is_sound(jsonb)", "horsies_is_count(jsonb)")

# The claim's plan depends on these; behind a transaction pooler a session cannot keep them, a role can.
_CLAIM_SETTINGS: Final = (
    "jit = off", "plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_hashjoin = off",
    "enable_mergejoin = off", "enable_bitmapscan = off", "enable_material = off",
)  # fmt: skip


def prefix_problem(prefix: str) -> str | None:
    """Why the names of the roles cannot begin like this, or None."""
    if not prefix:
        return (
            "it is empty: the roles would be called producer, worker, viewer and operator, for all databases of the "
            "server; give one such as shop_"
        )
    if prefix.startswith("pg_"):
        return "PostgreSQL keeps names that begin with pg_ for itself"
    if not prefix.isprintable() or "$$" in prefix:
        return "it has control characters or $$"
    if len((prefix + "producer").encode()) > _LONGEST_NAME:
        return f"it makes names of roles that are longer than {_LONGEST_NAME} bytes"
    return None


def grants(*, schema: str | None = None, prefix: str = "horsies_") -> str:
    """SQL that creates `<prefix>producer`, `worker`, `viewer` and `operator` and grants each what it needs.

    It takes back first what an older release granted, all in one transaction: run it again after every upgrade.
    """
    if (problem := prefix_problem(prefix)) is not None:
        raise MigrationError(f"the prefix {prefix!r} cannot be used: {problem}", ExitCode.USAGE)
    place = quote_identifier(schema or "public")
    tables = sorted(Base.metadata.tables)

    def on(*names: str) -> str:
        return ", ".join(f"{place}.{name}" for name in names)

    producer, worker, viewer, operator = roles = [quote_identifier(prefix + name) for name in ROLES]
    everyone = ", ".join(roles)
    lines = [
        "-- Roles without login: grant them to the accounts that your services use,",
        f"-- for example: CREATE ROLE web LOGIN PASSWORD '...' IN ROLE {producer};",
        "-- Run it as the owner of the tables, and again after every upgrade of the schema. Roles that do not exist",
        "-- yet are created, for which that owner needs CREATEROLE; or an administrator creates these four first.",
        "BEGIN;",
        f"DO $$ BEGIN IF (SELECT version_num FROM {on(VERSION_TABLE)}) < '{head()}' THEN",
        f"    RAISE 'these grants are for revision {head()}, the database is behind: run `horsies-migrate up` first';",
        "END IF; END $$;",
    ]
    for role in roles:
        literal = role.replace('""', '"')[1:-1].replace("'", "''")
        lines.append(
            f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{literal}') "
            f"THEN CREATE ROLE {role} NOLOGIN; END IF; END $$;"
        )
    lines += [
        "",
        "-- take back what an older release granted, columns included",
        f"REVOKE ALL ON {on(VERSION_TABLE, *tables)} FROM {everyone};",
        f"REVOKE ALL ON {on(QUEUE_LOAD)} FROM PUBLIC, {everyone};",
        f"REVOKE ALL ON FUNCTION {on(START, STOP, PURGE, SIGNAL, FORGET, COMPLETE, SEND_FROM_SQL, SEND_UNIQUE)}"
        f" FROM PUBLIC, {everyone};",
        f"REVOKE ALL ON FUNCTION {on(*CANCEL)} FROM PUBLIC, {everyone};",
        f"GRANT USAGE ON SCHEMA {place} TO {everyone};",
        f"GRANT SELECT ON {on(VERSION_TABLE)} TO {everyone};",
        "",
        "-- producer: send tasks, start workflows and send them signals, wait for results, cancel",
        f"GRANT INSERT ({', '.join(SENT_COLUMNS)}) ON {on('horsies_tasks')} TO {producer};",
        f"GRANT SELECT ON {on(*PRODUCED)} TO {producer};",
        f"GRANT EXECUTE ON FUNCTION {on(CHECK_FUNCTION, START, SIGNAL, SEND_UNIQUE, *CANCEL)} TO {producer};",
        "-- a task that completes itself does so on its own connection, which is often a producer's",
        f"GRANT EXECUTE ON FUNCTION {on(COMPLETE)} TO {producer}, {worker};",
        f"GRANT EXECUTE ON ROUTINE {on(SEND_FROM_SQL, *SEND)} TO {producer};",
        "",
        "-- worker: claim, run, finish, recover and prune; migrations need the owner, so either run",
        "-- `horsies-migrate up` as the owner and workers with auto_migrate=False, or let the worker own the tables",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {on(*tables)} TO {worker};",
        f"GRANT EXECUTE ON FUNCTION {on(CHECK_FUNCTION, START, STOP, PURGE, SIGNAL, FORGET, SEND_UNIQUE, *CANCEL)}"
        f" TO {worker};",
        f"GRANT EXECUTE ON ROUTINE {on(SEND_FROM_SQL, *SEND, *DUTY, *CLAIM, *POLICY)} TO {worker};",
        "-- behind a transaction-mode pooler, give the worker's login account its planner settings (sessions cannot",
        "-- keep them there; settings of a role count for the role that logs in, not for its members):",
        *(f"--   ALTER ROLE <login account> SET {setting};" for setting in _CLAIM_SETTINGS),
        "",
        "-- viewer: states, counts, codes and names; no messages, arguments and results",
    ]
    for name in tables:
        lines.append(f"GRANT SELECT ({', '.join(columns_without(name, PRIVATE))}) ON {on(name)} TO {viewer};")
    lines += [
        f"GRANT EXECUTE ON FUNCTION {on(RATE_ROOM)} TO {viewer};",
        f"GRANT SELECT ON {on(QUEUE_LOAD)} TO {viewer}, {operator}, {worker};",
        "-- the account of an autoscaler needs no role:",
        f"--   GRANT USAGE ON SCHEMA {place} TO <account>; GRANT SELECT ON {on(QUEUE_LOAD)} TO <account>;",
        "",
        "-- operator: sees everything; cancels, retries, requeues, purges ended tasks, pauses, steers schedules",
        f"GRANT SELECT ON {on(*(name for name in tables if name not in SECRET))} TO {operator};",
        *(
            f"GRANT SELECT ({', '.join(columns_without(name, SECRET))}) ON {on(name)} TO {operator};"
            for name in sorted(SECRET)
        ),
        *(
            f"GRANT UPDATE ({', '.join(columns)}) ON {on(name)} TO {operator};"
            for name, columns in OPERATED_COLUMNS.items()
        ),
        f"GRANT INSERT ({', '.join(ATTEMPT_COLUMNS)}) ON {on('horsies_task_attempts')} TO {operator};",
        f"GRANT INSERT (queue_name, paused_at, override, override_at) ON {on('horsies_queue_state')} TO {operator};",
        f"GRANT INSERT (name, created_by, {', '.join(SCHEDULE_COLUMNS)}), DELETE"
        f" ON {on('horsies_schedules')} TO {operator};",
        f"GRANT EXECUTE ON FUNCTION {on(CHECK_FUNCTION, PURGE, SIGNAL, FORGET, RATE_ROOM, *CANCEL, *POLICY)}"
        f" TO {operator};",
        "COMMIT;",
    ]
    return "\n".join(lines) + "\n"


def columns_without(table: str, hidden: Mapping[str, frozenset[str]]) -> list[str]:
    return [column.name for column in Base.metadata.tables[table].columns if column.name not in hidden.get(table, ())]
