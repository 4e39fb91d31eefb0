"""Rows by the thousand or million: a database as the dashboard meets it after a busy day.

The tests of query plans and `just bench tui` fill their databases with it.
"""

from typing import Any

import psycopg

WORKERS = 100
RUNNING = 1_600
FILL = """
INSERT INTO horsies_tasks (id, task_name, queue_name, status, kwargs, sent_at, created_at, enqueued_at, claimed_at,
                           started_at, completed_at, failed_at, terminal_at, result, error_code, claimed_by_worker_id,
                           worker_pid, priority)
SELECT left(h, 8) || '-' || right(h, 4) || '-7000-8000-' || lpad(n::text, 12, '0'), 'task_' || n % 40,
       'queue_' || n % 8, s, '{"order": ' || n || '}', t, t, t, claimed, claimed,
       CASE s WHEN 'COMPLETED' THEN ended END,
       CASE s WHEN 'FAILED' THEN ended END, ended, CASE WHEN ended IS NOT NULL THEN '{"ok": 1}' END,
       CASE s WHEN 'FAILED' THEN 'SMTP_DOWN' END, CASE WHEN s <> 'PENDING' THEN 'worker-' || n % <workers> END,
       CASE WHEN s <> 'PENDING' THEN 1 END, 1 + n % 3
  FROM generate_series(1, <tasks>) AS n, LATERAL (SELECT now() - (<tasks> - n) * interval '80 ms' AS t) AS a,
       LATERAL (SELECT lpad(to_hex((extract(epoch FROM t) * 1000)::bigint), 12, '0') AS h,
                       CASE WHEN n > <tasks> - <running> THEN 'RUNNING' WHEN n % 17 = 0 THEN 'PENDING'
                            WHEN n % 60 = 7 THEN 'FAILED' ELSE 'COMPLETED' END AS s) AS b,
       LATERAL (SELECT CASE WHEN s <> 'PENDING' THEN t + interval '20 ms' END AS claimed,
                       CASE WHEN s IN ('COMPLETED', 'FAILED') THEN t + interval '1 s' END AS ended) AS c;
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, error_code, worker_id)
SELECT id, 1, status, started_at, terminal_at, error_code, claimed_by_worker_id FROM horsies_tasks
 WHERE terminal_at IS NOT NULL;
INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at)
SELECT id, claimed_by_worker_id, 'runner', now() - b * interval '30 s' FROM horsies_tasks, generate_series(0, 3) AS b
 WHERE status = 'RUNNING';
INSERT INTO horsies_worker_states (worker_id, snapshot_at, hostname, pid, processes, queues, tasks_running, cpu_percent,
                                   memory_usage_mb, recovery_config, worker_started_at)
SELECT 'worker-' || w, now() - b * interval '5 s', 'host-' || w, w, 16, ARRAY['queue_1', 'queue_2'], 10, 40, 100,
       '{"running_stale_threshold_ms": 300000}', now() - interval '1 day'
  FROM generate_series(0, <workers> - 1) AS w, generate_series(0, 719) AS b;
INSERT INTO horsies_workflows (id, name, status, created_at, started_at, completed_at)
SELECT 'run-' || n, 'fulfil', CASE WHEN n % 20 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END, now(), now(),
       CASE WHEN n % 20 <> 0 THEN now() - n * interval '1 s' END FROM generate_series(1, 5000) AS n;
INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, status, dependencies)
SELECT w.id || '-' || k, w.id, k, 'node-' || k, 'task',
       CASE w.status WHEN 'COMPLETED' THEN 'COMPLETED' ELSE 'PENDING' END,
       CASE k WHEN 0 THEN '{}'::int[] ELSE ARRAY[k - 1] END FROM horsies_workflows w, generate_series(0, 9) AS k
"""


def fill_for_dashboard(
    connection: psycopg.Connection[Any], *, tasks: int, running: int = RUNNING, workers: int = WORKERS
) -> None:
    """`tasks` tasks, the newest `running` of which run on `workers` workers, and 5,000 workflows of ten nodes each."""
    statements = FILL.replace("<tasks>", str(tasks)).replace("<running>", str(running))
    connection.execute(statements.replace("<workers>", str(workers)))  # type: ignore[arg-type]
    connection.execute("VACUUM ANALYZE")
