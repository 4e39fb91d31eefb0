"""Let operators drain, resume and resize workers at run time, and give policies of queues a weight and an ageing time.

Deploy: before the code that needs it, while workers run. Afterwards run `horsies-migrate grants` again.

An operator writes what a worker shall do (`wanted_*`) to its row of horsies_worker_instances. The worker reads that
with its heartbeat, and writes what holds: `state`, and in `reached_at` the `wanted_at` that it has carried out
completely. A worker of an older release writes no `state`, hence operators see that it cannot be asked. The columns are
nullable and in no index: a heartbeat stays a HOT update. Weights and ageing times are fields of the
policies of queues, which a function checks; releases that do not know them ignore them.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
breaking = False

COLUMNS = {
    "state": "varchar(16)",
    "wanted_state": "varchar(16)",
    "wanted_processes": "integer",
    "wanted_at": "timestamptz",
    "wanted_by": "varchar(255)",
    "reached_at": "timestamptz",
}
CHECKS = {
    "state": "state IN ('RUNNING', 'DRAINING', 'DRAINED')",
    "wanted": "wanted_state IN ('RUNNING', 'DRAINED') AND wanted_processes BETWEEN 1 AND 1000"
    " AND (wanted_at IS NOT NULL OR (wanted_state IS NULL AND wanted_processes IS NULL))",
}
TIMES = "started_at, beat_at, stopped_at, judged_dead_at, recovered_at"

# The fields of revision 0021, and these two. A weight is compared with other weights, so a thousand steps are enough.
# PL/pgSQL ends a condition at the first THEN outside parentheses.
SOUND_FIELDS = [
    (
        "    most constant jsonb := nullif(policy -> 'max_concurrency', 'null');\n",
        "    most constant jsonb := nullif(policy -> 'max_concurrency', 'null');\n"
        "    weight constant jsonb := nullif(policy -> 'weight', 'null');\n"
        "    ageing constant jsonb := nullif(policy -> 'ageing_seconds', 'null');\n",
    ),
    ("'{max_concurrency,rate,fair,limits}'", "'{max_concurrency,rate,fair,limits,weight,ageing_seconds}'"),
    (
        "        OR coalesce(jsonb_typeof(policy -> 'fair'), 'boolean') <> 'boolean'\n",
        "        OR (CASE WHEN weight IS NULL THEN false WHEN jsonb_typeof(weight) <> 'number' THEN true\n"
        "                ELSE (weight #>> '{}')::numeric NOT BETWEEN 1 AND 1000\n"
        "                  OR scale((weight #>> '{}')::numeric) <> 0 END)\n"
        "        OR (CASE WHEN ageing IS NULL THEN false WHEN jsonb_typeof(ageing) <> 'number' THEN true\n"
        "                ELSE (ageing #>> '{}')::numeric NOT BETWEEN 0.1 AND 2678400 END)\n"
        "        OR coalesce(jsonb_typeof(policy -> 'fair'), 'boolean') <> 'boolean'\n",
    ),
]


def upgrade() -> None:
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in COLUMNS.items())
    op.execute(f"ALTER TABLE horsies_worker_instances {added}")
    for name, rule in CHECKS.items():
        op.execute(
            f"ALTER TABLE horsies_worker_instances ADD CONSTRAINT ck_horsies_worker_instances_{name} CHECK ({rule})"
        )
    _check_times(f"{TIMES}, wanted_at, reached_at")
    op.execute(_replaced("horsies_policy_is_sound", SOUND_FIELDS))


def downgrade() -> None:
    for part in ("declared", "override"):
        op.execute(
            f"UPDATE horsies_queue_state SET {part} = nullif({part} - '{{weight,ageing_seconds}}'::text[], '{{}}')"
            f" WHERE {part} ?| '{{weight,ageing_seconds}}'"
        )
        op.execute(f"UPDATE horsies_queue_state SET {part}_at = NULL WHERE {part} IS NULL AND {part}_at IS NOT NULL")
    op.execute(_replaced("horsies_policy_is_sound", [(new, old) for old, new in SOUND_FIELDS]))
    _check_times(TIMES)
    for name in CHECKS:
        op.execute(f"ALTER TABLE horsies_worker_instances DROP CONSTRAINT ck_horsies_worker_instances_{name}")
    op.execute(f"ALTER TABLE horsies_worker_instances {', '.join(f'DROP COLUMN {name}' for name in COLUMNS)}")


def _check_times(columns: str) -> None:
    op.execute(
        "ALTER TABLE horsies_worker_instances DROP CONSTRAINT ck_horsies_worker_instances_time_range,"
        " ADD CONSTRAINT ck_horsies_worker_instances_time_range CHECK"
        f" (least({columns}) >= to_timestamp(0) AND greatest({columns}) <= to_timestamp(221845392000))"
    )


def _replaced(name: str, changes: list[tuple[str, str]]) -> str:
    """The function with parts of its text changed; its settings, owner and rights stay."""
    text = f"pg_get_functiondef('{name}'::regproc)"
    for old, new in changes:
        text = f"replace({text}, $text${old}$text$, $text${new}$text$)"
    return f"DO $do$ BEGIN EXECUTE {text}; END $do$"
