"""Least-privilege roles, printed as SQL for a database owner to read and run."""

from horsies_schema.environment import VERSION_TABLE
from horsies_schema.migrate import quote_identifier
from horsies_schema.models import Base

# A viewer sees that a task exists and how it fares, not what it was told or what it answered.
_PRIVATE = {
    "horsies_tasks": {"args", "kwargs", "result", "progress", "task_options"},
    "horsies_workflow_tasks": {"args", "kwargs", "args_from", "result", "error", "task_options"},
    "horsies_workflows": {"result", "error"},
}

# What cancelling a task writes; a producer can end a task before it runs, not rewrite what it does.
_CANCEL_COLUMNS = (
    "status", "claimed", "claimed_at", "claimed_by_worker_id", "claim_expires_at", "result", "error_code",
    "failed_reason", "terminal_at", "cancel_requested_at", "updated_at",
)  # fmt: skip

# The claim's plan depends on these; behind a transaction pooler a session cannot keep them, a role can.
_CLAIM_SETTINGS = (
    "jit = off", "plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_hashjoin = off",
    "enable_mergejoin = off", "enable_bitmapscan = off", "enable_material = off",
)  # fmt: skip


def grants(*, schema: str | None = None, prefix: str = "horsies_") -> str:
    """SQL that creates `<prefix>producer`, `worker`, `viewer` and `operator` and grants each what it needs."""
    place = quote_identifier(schema or "public")
    tables = sorted(Base.metadata.tables)

    def on(*names: str) -> str:
        return ", ".join(f"{place}.{name}" for name in names)

    producer, worker, viewer, operator = (
        quote_identifier(prefix + name) for name in ("producer", "worker", "viewer", "operator")
    )
    lines = [
        "-- Roles without login: grant them to the accounts that your services use,",
        f"-- for example: CREATE ROLE web LOGIN PASSWORD '...' IN ROLE {producer};",
    ]
    for role in (producer, worker, viewer, operator):
        literal = role.replace('""', '"')[1:-1].replace("'", "''")
        lines += [
            f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{literal}') "
            f"THEN CREATE ROLE {role} NOLOGIN; END IF; END $$;",
            f"GRANT USAGE ON SCHEMA {place} TO {role};",
            f"GRANT SELECT ON {on(VERSION_TABLE)} TO {role};",
        ]
    lines += [
        "",
        "-- producer: send tasks, start workflows, wait for results, cancel",
        f"GRANT SELECT, INSERT ON {on('horsies_tasks', 'horsies_workflows', 'horsies_workflow_tasks')} TO {producer};",
        f"GRANT SELECT ON {on('horsies_task_attempts')} TO {producer};",
        f"GRANT UPDATE ({', '.join(_CANCEL_COLUMNS)}) ON {on('horsies_tasks')} TO {producer};",
        "",
        "-- worker: claim, run, finish, recover and prune; migrations need the owner, so either run",
        "-- `horsies-migrate up` as the owner and workers with auto_migrate=False, or let the worker own the tables",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {on(*tables)} TO {worker};",
        "-- behind a transaction-mode pooler, give the worker's login account its planner settings (sessions cannot",
        "-- keep them there; settings of a role count for the role that logs in, not for its members):",
        *(f"--   ALTER ROLE <login account> SET {setting};" for setting in _CLAIM_SETTINGS),
        "",
        "-- viewer: everything but arguments, results and progress",
    ]
    for name in tables:
        columns = [
            column.name for column in Base.metadata.tables[name].columns if column.name not in _PRIVATE.get(name, ())
        ]
        lines.append(f"GRANT SELECT ({', '.join(columns)}) ON {on(name)} TO {viewer};")
    lines += [
        "",
        "-- operator: sees everything; cancels, retries, requeues, purges ended tasks, pauses, asks a schedule to run",
        f"GRANT SELECT ON {on(*tables)} TO {operator};",
        f"GRANT UPDATE ON {on('horsies_tasks', 'horsies_workflows', 'horsies_workflow_tasks')} TO {operator};",
        f"GRANT DELETE ON {on('horsies_tasks')} TO {operator};",
        f"GRANT INSERT ON {on('horsies_task_attempts')} TO {operator};",
        f"GRANT INSERT, UPDATE ON {on('horsies_queue_state')} TO {operator};",
        f"GRANT UPDATE (paused_at, run_requested_at, updated_at) ON {on('horsies_schedule_state')} TO {operator};",
    ]
    return "\n".join(lines) + "\n"
