"""A worker that goes on while its database is set back: rows that it has claimed are as they were before."""

from pathlib import Path
from typing import Any

from horsies import TaskHandle
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos, tasks_on, worker

LONG_MS = 30_000
NO_BEATS = {
    "runner_heartbeat_interval_ms": 60_000, "running_stale_threshold_ms": 200_000,
    "finalizing_stale_threshold_ms": 200_000,
}  # fmt: skip
"""The claim, not a heartbeat, is to notice it."""
SET_BACK = """
UPDATE horsies_tasks
   SET status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       started_at = NULL, worker_hostname = NULL, worker_pid = NULL, worker_process_name = NULL,
       claim_generation = claim_generation - %s
 WHERE id = %s"""


def lines(chaos: Chaos, handle: TaskHandle[Any], phase: str) -> list[str]:
    """The runs that have reached this phase."""
    return [run for k, run, reached, *_ in chaos.lines() if k == chaos.keys[handle.task_id] and reached == phase]


def test_a_run_goes_on_under_the_next_claim_of_the_same_generation(db: Database, tmp_path: Path) -> None:
    chaos = Chaos(db, tmp_path)
    with tasks_on(db, recovery=NO_BEATS) as tasks, worker(db, folder=tmp_path, recovery=NO_BEATS) as one:
        (handle,) = chaos.send(tasks.chaos, 1, 4.0)
        eventually(lambda: lines(chaos, handle, "start"), timeout=20)
        generation = db.value("SELECT claim_generation FROM horsies_tasks WHERE id = %s", handle.task_id)
        db.execute(SET_BACK, 1, handle.task_id)
        one.wait_for_log("it is claimed again, and goes on")
        assert handle.get(LONG_MS).is_ok()
        assert len(lines(chaos, handle, "start")) == 1
        assert db.value("SELECT claim_generation FROM horsies_tasks WHERE id = %s", handle.task_id) == generation
        assert len(handle.attempts()) == 1
    chaos.check()


def test_a_run_is_stopped_when_the_next_claim_has_a_lower_generation(db: Database, tmp_path: Path) -> None:
    """Its end could not be written: owner and generation are not those of the row any more."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db, recovery=NO_BEATS) as tasks:
        (handle,) = chaos.send(tasks.chaos, 1, 4.0)
        db.execute("UPDATE horsies_tasks SET claim_generation = 5")
        with worker(db, folder=tmp_path, recovery=NO_BEATS) as one:
            (first,) = eventually(lambda: lines(chaos, handle, "start"), timeout=20)
            db.execute(SET_BACK, 3, handle.task_id)
            one.wait_for_log("its former run is stopped")
            assert handle.get(LONG_MS).is_ok()
            first_again, second = lines(chaos, handle, "start")
            assert first_again == first
            assert lines(chaos, handle, "end") == [second]
            assert len(handle.attempts()) == 1
    chaos.check(allowed=["L4", "L5", "L6"])  # it was started twice: the database has forgotten the first time
