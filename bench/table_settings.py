"""Which fillfactor and autovacuum settings suit the task table?

Each round inserts tasks and runs the worker's own statements over them (see bare_sql.py), again and again on the same table,
so that dead row versions accumulate. Prints rates, size, the share of HOT updates and the buffers that an empty claim reads.
BENCH_TASKS=1000,2 (tasks, rounds) makes it shorter.
"""

import asyncio

import asyncpg

from bench import bare_sql, support

EAGER = "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0"
VARIANTS = {
    "defaults": "autovacuum_enabled = true",
    "fillfactor 90": "fillfactor = 90",
    "fillfactor 70": "fillfactor = 70",
    "eager vacuum": EAGER,
    "eager vacuum, fillfactor 90": f"fillfactor = 90, {EAGER}",
    "no vacuum": "autovacuum_enabled = false",
}
RESET = """
TRUNCATE horsies_tasks CASCADE;
ALTER TABLE horsies_tasks RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
                                 autovacuum_vacuum_cost_delay, autovacuum_enabled);
SELECT pg_stat_reset_single_table_counters('horsies_tasks'::regclass)
"""
INSERT = """
INSERT INTO horsies_tasks (id, task_name, kwargs, enqueue_sha)
SELECT gen_random_uuid()::text, 'noop', '{"n": 1}', repeat('a', 32) FROM generate_series(1, %s)
"""
OUTCOME = """
SELECT pg_total_relation_size(relid) / 1024 / 1024 || ' MB   HOT ' || n_tup_hot_upd * 100 / greatest(1, n_tup_upd) ||
       ' %   dead ' || n_dead_tup || '   autovacuums ' || autovacuum_count
  FROM pg_stat_user_tables WHERE relname = 'horsies_tasks'
"""
BUFFERS = "SELECT sum(shared_blks_hit + shared_blks_read)::int FROM pg_stat_statements WHERE query LIKE 'WITH%claim%'"


async def empty_claim(url: str) -> None:
    connection = await asyncpg.connect(url, server_settings=bare_sql.CLAIM_SETTINGS)
    await bare_sql.claim(connection, 1)
    await connection.close()


def main() -> None:
    tasks, rounds = support.numbers("BENCH_TASKS", "10000,6")
    print(f"{rounds} rounds of {tasks:,} tasks")
    with support.horsies(autovacuum_naptime="1") as sut:
        for name, options in VARIANTS.items():
            sut.broker.connection.execute(RESET)
            sut.broker.connection.execute(f"ALTER TABLE horsies_tasks SET ({options})")
            rates: list[float] = []
            for _ in range(rounds):
                sut.broker.connection.execute(INSERT, (tasks,))
                rates.append(asyncio.run(bare_sql.drain(sut.url, 100)))
            outcome = sut.broker.value(OUTCOME)
            sut.broker.value("SELECT pg_stat_statements_reset()")
            asyncio.run(empty_claim(sut.url))
            spread = f"{min(rates):7,.0f} to {max(rates):7,.0f} tasks/s"
            print(f"{name:28} {spread}   {outcome}   empty claim: {sut.broker.value(BUFFERS)} buffers", flush=True)
