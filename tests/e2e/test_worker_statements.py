"""What a no-op task costs the database: one insert, and a share of one claim and one finalize statement."""

from horsies import gather
from tests.support.counting import calls, said, start_counting
from tests.support.postgres import Database
from tests.support.workers import check_invariants, tasks_on, worker

TASKS = 5_000
SHARE = 20
"""Tasks per statement, at least, under load."""

CLAIM = "query LIKE '%claim_generation = t.claim_generation +%'"
FINALIZE = "query LIKE '%INSERT INTO horsies_task_attempts%'"
SEND = "query LIKE '%CALL horsies_send_tasks%'"


def test_under_load_every_statement_carries_many_tasks(db: Database) -> None:
    start_counting(db)
    with tasks_on(db) as tasks:
        handles = tasks.noop.send_many([() for _ in range(TASKS)])
        with worker(db):
            results = gather(handles, timeout_ms=100_000)
    assert all(result.is_ok() for result in results)
    assert calls(db, SEND) == 1
    for what in (CLAIM, FINALIZE):
        statements = said(db, what)
        rows = sum(rows for _, _, rows in statements)
        assert rows >= TASKS, statements
        assert rows / calls(db, what) >= SHARE, statements
    check_invariants(db)
