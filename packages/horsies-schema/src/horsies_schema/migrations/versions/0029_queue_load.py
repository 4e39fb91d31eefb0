"""Add the view `horsies_queue_load`: what an autoscaler asks of each queue.

Deploy: in any order with the code, which does not read it. Afterwards run `horsies-migrate grants` again, which lets
viewers, operators and workers read it.

A view reads its tables with the rights of its owner, the owner of the tables: an account of an autoscaler needs SELECT
on the view alone. It shows names of queues and counts, which every role of `grants` but the producer may see anyway.

What it costs does not depend on the number of tasks that have ended. Queues and priorities are found by one descent of
an index for each; ready tasks are counted up to a bound along the same indexes as claims. The order in these counts is
the order of the index, and the first bound is a constant: with them the planner prefers no bitmap, which would be
made of the whole queue before the first row is counted. A condition on `queue_name` is applied before anything is
counted. Each priority has its own bound, which gets smaller when there are many pairs of queue and priority.
"""

from alembic import op

from horsies_schema.migrations.routines import own_like_the_tables

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
breaking = False

ALONE = "t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL"
GROUPED = "t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL"
HELD = "t.status IN ('CLAIMED', 'RUNNING')"


def upgrade() -> None:
    op.execute(
        f"""CREATE VIEW horsies_queue_load AS
WITH RECURSIVE {_pairs("alone", ALONE)}, {_pairs("grouped", GROUPED)}, held AS (
    (SELECT t.queue_name FROM horsies_tasks t WHERE {HELD} ORDER BY t.queue_name LIMIT 1)
    UNION ALL
    SELECT n.queue_name FROM held h
     CROSS JOIN LATERAL (SELECT t.queue_name FROM horsies_tasks t WHERE {HELD} AND t.queue_name > h.queue_name
                          ORDER BY t.queue_name LIMIT 1) AS n
), name AS (
    SELECT queue_name FROM alone UNION SELECT queue_name FROM grouped UNION SELECT queue_name FROM held
    UNION SELECT queue_name FROM horsies_queue_state
), bound AS MATERIALIZED (
    SELECT greatest(100, 200000 / greatest(20, (SELECT count(*) FROM alone) + (SELECT count(*) FROM grouped))) AS tasks
)
SELECT name.queue_name,
       waiting.ready,
       work.claimed,
       work.running,
       CASE WHEN pause.paused_at IS NULL THEN waiting.ready ELSE 0 END + work.claimed + work.running AS load,
       coalesce(extract(epoch FROM statement_timestamp() - waiting.since), 0)::double precision AS oldest_ready_seconds,
       pause.paused_at IS NOT NULL AS paused,
       waiting.capped
  FROM name
  LEFT JOIN horsies_queue_state pause ON pause.queue_name = name.queue_name
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(x.ready), 0)::bigint AS ready, min(x.since) AS since,
              coalesce(bool_or(x.ready >= (SELECT tasks FROM bound)), false) AS capped
         FROM ({_counts("alone", ALONE)}
               UNION ALL
               {_counts("grouped", GROUPED)}) AS x) AS waiting
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE t.status = 'CLAIMED') AS claimed,
              count(*) FILTER (WHERE t.status = 'RUNNING') AS running
         FROM horsies_tasks t WHERE {HELD} AND t.queue_name = name.queue_name) AS work"""
    )
    own_like_the_tables("horsies_queue_load", kind="VIEW")
    op.execute(
        "COMMENT ON VIEW horsies_queue_load IS"
        " 'Ready, claimed and running tasks of each queue, for autoscalers; see operations/deploying.md'"
    )


def downgrade() -> None:
    op.execute("DROP VIEW horsies_queue_load")


def _pairs(name: str, waits: str) -> str:
    """The pairs of queue and priority that have waiting tasks, by one index descent for each."""
    return f"""{name} AS (
    (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE {waits} ORDER BY t.queue_name, t.priority LIMIT 1)
    UNION ALL
    SELECT n.queue_name, n.priority FROM {name} p
     CROSS JOIN LATERAL (SELECT t.queue_name, t.priority FROM horsies_tasks t
                          WHERE {waits} AND (t.queue_name, t.priority) > (p.queue_name, p.priority)
                          ORDER BY t.queue_name, t.priority LIMIT 1) AS n
)"""


def _counts(name: str, waits: str) -> str:
    """For each priority of the queue: the ready tasks up to the bound, and since when the oldest is due."""
    return f"""SELECT count(*) AS ready, min(r.enqueued_at) AS since
                 FROM {name} p
                CROSS JOIN LATERAL (
                      SELECT first.enqueued_at
                        FROM (SELECT t.enqueued_at FROM horsies_tasks t
                               WHERE {waits} AND t.queue_name = p.queue_name AND t.priority = p.priority
                                 AND t.enqueued_at <= statement_timestamp()
                               ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 10000) AS first
                       LIMIT (SELECT tasks FROM bound)) AS r
                WHERE p.queue_name = name.queue_name GROUP BY p.priority"""
