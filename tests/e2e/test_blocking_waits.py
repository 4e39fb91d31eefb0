"""A task that waits for another one: its worker's log says so once per process and task name."""

from pathlib import Path

from tests.support import waiting_app
from tests.support.postgres import Database
from tests.support.worker_app import build
from tests.support.workers import describe, ended, start_worker


def test_a_worker_warns_of_tasks_that_wait(db: Database, tmp_path: Path) -> None:
    started = start_worker(describe(db), tmp_path, app=waiting_app.APP, processes=2)
    with ended(started) as one, build(describe(db)) as app:
        tasks = waiting_app.register(app)
        for n in range(4):  # one at a time: with both slots occupied, none would be left for `add`
            assert tasks.waits.send(n).get(30_000).ok == n + 1
            assert tasks.waits_async.send(n).get(30_000).ok == n + 1
            assert tasks.gathers.send(n).get(30_000).ok == 2 * n + 3
        for name in ("waits", "waits_async", "gathers"):
            one.wait_for_log(f"task '{name}' waits inside a worker for the result of task ")
    for name in ("waits", "waits_async", "gathers"):
        assert 1 <= one.log.count(f"task '{name}' waits") <= 2  # one per process that runs tasks
    assert "task 'add' waits" not in one.log
