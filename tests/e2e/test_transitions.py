"""Every legal state change of a task happens when a real worker and an operator do their work, and no other one."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from horsies import CancelResult, TaskHandle, TaskStatus
from horsies.status import TRANSITIONS
from tests.support import factories, transitions
from tests.support.operator import as_process
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import tasks_on, worker

CONFIG: dict[str, Any] = {"prefetch_buffer": 3, "claim_lease_ms": 90_000, "unknown_task_grace_ms": 1_000}


def test_every_edge_of_the_state_machine_is_seen_and_no_other(db: Database, tmp_path: Path) -> None:
    def wait_for(status: TaskStatus, *handles: TaskHandle[object]) -> None:
        eventually(lambda: all(factories.read(db, one.task_id)["status"] == status for one in handles), timeout=60)

    def retry(handle: TaskHandle[object]) -> None:
        ran = as_process("tasks", "retry", handle.task_id, "--yes", url=db.url)
        assert ran.code == 0, ran

    transitions.watch(db)
    with tasks_on(db, **CONFIG) as tasks:
        cancelled = tasks.add.send(1)
        assert cancelled.cancel() is CancelResult.CANCELLED
        retry(cancelled)
        unknown = tasks.app.send("add_to_ledger_of_no_release", 1)
        overdue = tasks.add.with_options(good_until=timedelta(milliseconds=100)).send(4)
        eventually(lambda: db.value("SELECT good_until < now() FROM horsies_tasks WHERE id = %s", overdue.task_id))
        with worker(db, processes=1, **CONFIG):
            wait_for(TaskStatus.EXPIRED, overdue)
            assert cancelled.get(60_000).unwrap() == 1
            wait_for(TaskStatus.FAILED, unknown)

            # one slot: the first runs, the next three wait in the worker's buffer
            gate = tmp_path / "gate"
            blocker = tasks.progress.send(str(gate))
            wait_for(TaskStatus.RUNNING, blocker)
            soon = timedelta(seconds=3)
            held = tasks.add.send(1)
            held_too_long = tasks.add.with_options(good_until=soon).send(2)
            held_and_cancelled = tasks.add.send(3)
            wait_for(TaskStatus.CLAIMED, held, held_too_long, held_and_cancelled)
            assert held_and_cancelled.cancel() is CancelResult.CANCELLED
            wait_for(TaskStatus.EXPIRED, held_too_long)
            gate.touch()
            assert held.get(60_000).unwrap() == 1

            assert tasks.flaky.send(2).get(60_000).unwrap() is not None  # fails once, and is retried
            failed = tasks.flaky.send(2, "NO_SUCH_USER")
            wait_for(TaskStatus.FAILED, failed)
            retry(failed)
            wait_for(TaskStatus.COMPLETED, failed)
            stopped = tasks.cleans_up.send(str(tmp_path / "cleans"))
            eventually((tmp_path / "cleans").exists, timeout=60)
            assert stopped.cancel() is CancelResult.REQUESTED
            wait_for(TaskStatus.CANCELLED, stopped)

            # the stop hands back what waits in the buffer
            last = tasks.sleep.send(1)
            wait_for(TaskStatus.RUNNING, last)
            returned = tasks.add.send(5)
            wait_for(TaskStatus.CLAIMED, returned)
        wait_for(TaskStatus.PENDING, returned)
        db.execute("UPDATE horsies_tasks SET good_until = NULL WHERE id = %s", held_too_long.task_id)
        retry(held_too_long)
    found = transitions.seen(db)
    assert {str(edge) for edge in found - TRANSITIONS} == set(), "a state change that status.py does not allow"
    assert {str(edge) for edge in TRANSITIONS - found} == set(), "a legal state change that nothing here makes"
