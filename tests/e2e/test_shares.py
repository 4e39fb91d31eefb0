"""Queues share the places of real workers by weight, and old tasks of a low priority are late but not starved."""

from typing import Any

from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import check_invariants, tasks_on, worker

CONFIG: dict[str, Any] = {"recovery": {"worker_state_interval_ms": 1_000}}
STARTED = """
SELECT count(*) FILTER (WHERE t.queue_name = 'fast'), count(*)
  FROM (SELECT t.queue_name FROM horsies_tasks t WHERE t.started_at IS NOT NULL ORDER BY t.started_at LIMIT %s) AS t
"""


def first_started(db: Database, count: int) -> tuple[float, int]:
    """The part of the queue `fast` in the first tasks that started, and how many these are."""
    ((fast, found),) = db.execute(STARTED, count)
    return fast / max(1, found), found


def send_both(tasks: Any, count: int, seconds: float) -> None:
    """As many tasks to both queues; those of `slow` have the better priority."""
    for queue, priority in (("slow", 1), ("fast", 100)):
        tasks.sleep.with_options(queue_name=queue, priority=priority).send_many([(seconds,)] * count)


def test_weights_of_3_to_1_hold_under_saturation(db: Database) -> None:
    queues = {"fast": {"weight": 3}, "slow": {"weight": 1}}
    with tasks_on(db, queues=queues) as tasks:
        send_both(tasks, 400, 0.005)  # before the worker starts, which else takes those of one queue meanwhile
    with worker(db, processes=2, queues=queues, **CONFIG):
        eventually(lambda: first_started(db, 200)[1] == 200)
        share, _ = first_started(db, 200)
        assert 0.75 * 0.9 <= share <= 0.75 * 1.1, share
        # the rest is run too: a share is no limit
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 800)
        check_invariants(db)


def test_a_low_priority_is_late_but_not_starved(db: Database) -> None:
    queues = {"fast": {"ageing_seconds": 0.5}, "slow": {}}
    with tasks_on(db, queues=queues) as tasks:
        send_both(tasks, 300, 0.005)  # `fast` has the worse priority here
        with worker(db, processes=2, queues=queues, **CONFIG):
            eventually(lambda: first_started(db, 250)[1] == 250)
        share, _ = first_started(db, 250)
        assert 0.05 <= share <= 0.13, share
