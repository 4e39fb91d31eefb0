"""Which fillfactor and autovacuum settings suit the task table? Bare SQL, no Python pool, one connection.

Each round inserts tasks, claims and finishes them in batches (with attempt rows, as a worker does), and
repeats on the same table so that dead row versions accumulate. Prints rate, size, the share of HOT updates
and the buffers of a claim at the end. Run: `just bench-table-settings` with HORSIES_DATABASE_URL set to a
scratch database, or without it on an embedded server.
"""

import asyncio
import os
import time
import uuid

import asyncpg

from horsies_schema import downgrade_async, upgrade_async
from horsies_schema.migrate import normalize_url

TASKS, BATCH, ROUNDS = 10_000, 100, 6

VACUUM_EAGER = (
    "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0"
)
VARIANTS = {
    "defaults": "",
    "fillfactor 90": "fillfactor = 90",
    "fillfactor 70": "fillfactor = 70",
    "eager vacuum": VACUUM_EAGER,
    "eager vacuum, fillfactor 90": f"fillfactor = 90, {VACUUM_EAGER}",
    "no vacuum": "autovacuum_enabled = false",
}

INSERT = """INSERT INTO horsies_tasks (id, task_name, queue_name, kwargs, enqueue_sha)
SELECT x, 'bench', 'default', '{"n": 1}', repeat('a', 64) FROM unnest($1::text[]) AS x"""

CLAIM = """WITH picked AS MATERIALIZED (
  SELECT ctid AS tid FROM horsies_tasks WHERE status = 'PENDING' AND queue_name = 'default' AND priority = 100
     AND enqueued_at <= now() ORDER BY enqueued_at, id LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE horsies_tasks t SET status = 'RUNNING', claimed_at = now(), started_at = now(), claimed_by_worker_id = 'w',
       worker_pid = 1, claim_generation = claim_generation + 1, updated_at = now()
 WHERE t.ctid = ANY (ARRAY(SELECT tid FROM picked)) AND t.status || '' = 'PENDING' RETURNING t.id"""

FINISH = """WITH done AS (
  UPDATE horsies_tasks t SET status = 'COMPLETED', completed_at = now(), terminal_at = now(), result = '{"ok": 1}',
         updated_at = now() WHERE t.id = ANY ($1::text[]) AND t.status = 'RUNNING'
  RETURNING t.id, t.started_at)
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, worker_id)
SELECT id, 1, 'COMPLETED', started_at, now(), 'w' FROM done"""

KNOBS = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan"


async def lifecycle(connection: asyncpg.Connection) -> None:
    ids = [str(uuid.uuid4()) for _ in range(TASKS)]
    for start in range(0, TASKS, 1000):
        await connection.execute(INSERT, ids[start : start + 1000])
    while rows := await connection.fetch(CLAIM, BATCH):
        await connection.execute(FINISH, [row["id"] for row in rows])


async def measure(url: str, options: str) -> str:
    await downgrade_async(url, "base")
    await upgrade_async(url)
    connection = await asyncpg.connect(normalize_url(url))
    try:
        await connection.execute(
            "ALTER TABLE horsies_tasks RESET (fillfactor, autovacuum_vacuum_scale_factor, "
            "autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay, autovacuum_enabled)"
        )
        if options:
            await connection.execute(f"ALTER TABLE horsies_tasks SET ({options})")
        await connection.execute(KNOBS)
        rates: list[float] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await lifecycle(connection)
            rates.append(TASKS / (time.perf_counter() - began))
        size = await connection.fetchval("SELECT pg_total_relation_size('horsies_tasks') / 1024 / 1024")
        hot = await connection.fetchrow(
            "SELECT n_tup_hot_upd * 100 / greatest(1, n_tup_upd) AS hot, n_dead_tup, autovacuum_count "
            "FROM pg_stat_user_tables WHERE relname = 'horsies_tasks'"
        )
        plan = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS) {CLAIM.replace('$1', '1')}")
        buffers = next(row[0].strip() for row in plan if "Buffers" in row[0])
        return (
            f"{min(rates):8,.0f} to {max(rates):8,.0f} tasks/s   last {rates[-1]:8,.0f}   {size:5} MB   HOT {hot['hot']:3} %   "
            f"dead {hot['n_dead_tup']:7}   autovacuums {hot['autovacuum_count']}   empty claim: {buffers}"
        )
    finally:
        await connection.close()


async def main() -> None:
    url = os.environ.get("HORSIES_DATABASE_URL", "embedded://?dbname=bench")
    print(f"{ROUNDS} rounds of {TASKS:,} tasks, batches of {BATCH}")
    for name, options in VARIANTS.items():
        print(f"{name:30} {await measure(url, options)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
