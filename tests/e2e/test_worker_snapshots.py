"""What a worker says of itself every few seconds: every column of the snapshot, true."""

from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from horsies import RecoveryConfig
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import check_invariants, tasks_on, worker

CONFIG = {
    "queues": {"mail": 7, "slow": None},
    "cluster_wide_cap": 40,
    "recovery": {"worker_state_interval_ms": 1_000, "heartbeat_retention_hours": None},
}


def newest(db: Database) -> dict[str, Any]:
    with psycopg.connect(db.url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("SELECT * FROM horsies_worker_states ORDER BY id DESC LIMIT 1").fetchone()
    return found or {}


def test_a_snapshot_tells_everything(db: Database, tmp_path: Path) -> None:
    arguments = ("--queues=mail", "--max-claim-per-worker=9", "--max-claim-batch=50")
    with tasks_on(db, **CONFIG) as tasks, worker(db, *arguments, folder=tmp_path, **CONFIG) as process:
        handles = [tasks.burn.with_options(queue_name="mail").send(2.0) for _ in range(2)]
        eventually(lambda: newest(db).get("tasks_running") == 2, timeout=20)
        # the children's work is in it: the parent alone does next to nothing
        eventually(lambda: newest(db)["cpu_percent"] > 15, timeout=20)
        seen = newest(db)
        assert all(handle.get(30_000).is_ok() for handle in handles)
        assert None not in seen.values()
        assert (seen["worker_id"], seen["pid"], seen["processes"]) == (process.worker_id, process.pid, 2)
        assert (seen["queues"], seen["tasks_claimed"]) == (["mail"], 0)
        assert (seen["max_claim_batch"], seen["max_claim_per_worker"], seen["cluster_wide_cap"]) == (50, 9, 40)
        assert seen["queue_max_concurrency"] == {"mail": 7}
        assert seen["queue_priorities"] == {"mail": 100}
        recovery = seen["recovery_config"]
        assert isinstance(recovery, dict)
        assert RecoveryConfig(**recovery).worker_state_interval_ms == 1_000
        assert 5 < seen["memory_usage_mb"] < 500
        assert 5 < seen["children_memory_mb"] < 1_000
        assert 0 < seen["memory_percent"] < 50
        assert seen["worker_started_at"] < seen["snapshot_at"]
        eventually(lambda: newest(db)["tasks_running"] == 0, timeout=20)
    check_invariants(db)
