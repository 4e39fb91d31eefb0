"""The kill matrix: at each named moment of a task's life the child, the parent, or both are killed with SIGKILL.

Every victim has a queue of its own, so all moments of one kind of death are tried at once. A rescuer that serves all
queues is up before the blow. What must become of each task follows from its row at the moment of the blow:

    PENDING, CLAIMED            nothing ran: COMPLETED by somebody, one attempt
    RUNNING, the parent lives   the parent knows what its children did: only what really ran is a crash
    RUNNING, the parent dead    WORKER_CRASHED: FAILED, or COMPLETED at the second attempt where the policy says so
    RUNNING with a staged end   COMPLETED with the real result, one attempt (F05)
    ended                       not touched again
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from horsies import TaskHandle
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import BOUND_S
from tests.support.workers import Chaos, WorkerProcess, describe, ended, start_worker, tasks_on

POINTS = (
    "before_claim", "after_claim", "before_start", "running", "before_finalize", "after_stage", "after_finalize",
    "before_hand_back",
)  # fmt: skip
CONFIG: dict[str, Any] = {"queues": dict.fromkeys(POINTS)}
# Nobody vouches for a row while its worker waits at a point, so only the rescuer, which comes last, may judge.
INNOCENT = {"auto_fail_stale_running": False, "auto_requeue_stale_claimed": False}
LONG_S = 60.0


@dataclass
class Victim:
    point: str
    files: dict[str, Path]
    process: WorkerProcess
    handles: list[TaskHandle[Any]]
    retried: set[str]
    """Ids of the tasks whose policy lists WORKER_CRASHED."""
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The rows at the moment of the blow."""
    pids: list[psutil.Process] = field(default_factory=list)

    def release(self) -> None:
        for file in self.files.values():
            file.with_name(file.name + ".go").touch()


def send(chaos: Chaos, tasks: SimpleNamespace, queue: str, each: int, seconds: float) -> tuple[list[Any], set[str]]:
    once = chaos.send(tasks.chaos.with_options(queue_name=queue), each, seconds)
    again = chaos.send(tasks.chaos_retried.with_options(queue_name=queue), each, seconds)
    return [*once, *again], {handle.task_id for handle in again}


@contextmanager
def victims(db: Database, chaos: Chaos, tasks: SimpleNamespace, folder: Path) -> Iterator[list[Victim]]:
    """One worker per point, all waiting there."""
    with ExitStack() as stack:
        found: list[Victim] = []
        for point in POINTS:
            ahead = point in ("before_start", "before_hand_back")
            # what runs when it is told to leave must not end by itself meanwhile
            seconds = {"running": LONG_S, "before_hand_back": LONG_S, "before_start": 0.5}.get(point, 0.05)
            handles, retried = send(chaos, tasks, point, 3 if point == "before_start" else 1, seconds)
            # an end that is not written is staged; both points are held to have the one without the other
            names = {"running": [], "before_finalize": ["before_finalize", "before_stage"],
                     "after_stage": ["after_stage", "before_finalize"]}.get(point, [point])  # fmt: skip
            points = {name: folder / f"{point}-{name}" for name in names}
            described = describe(db, **CONFIG, recovery=INNOCENT, prefetch_buffer=4 if ahead else 0)
            process = start_worker(described, folder, f"--queues={point}", "--shutdown-timeout=60", sync_points=points)
            stack.enter_context(ended(process, code=None))
            found.append(Victim(point, points, process, handles, retried))
        for victim in found:
            if victim.point == "running":
                eventually(lambda v=victim: sum(chaos.starts(h) for h in v.handles) == 2, timeout=40)
                continue
            if victim.point == "before_hand_back":
                # running and held ahead, then told to leave
                eventually(lambda v=victim: sum(chaos.starts(h) for h in v.handles) == 2, timeout=40)
                handles, retried = send(chaos, tasks, victim.point, 2, 0.05)
                victim.handles += handles
                victim.retried |= retried
                eventually(lambda v=victim: statuses(db, v).count("CLAIMED") == 4, timeout=20)
                victim.process.terminate()
            eventually(victim.files[victim.point].exists, timeout=40, describe=f"{victim.point} is reached")
        yield found


def rows(db: Database, handles: Sequence[TaskHandle[Any]]) -> dict[str, dict[str, Any]]:
    columns = (
        "id", "status", "result", "error_code", "retry_count", "finalizing_at", "updated_at", "claimed_by_worker_id",
        "started_at",
    )  # fmt: skip
    found = db.execute(
        f"SELECT {', '.join(columns)} FROM horsies_tasks WHERE id = ANY(%s)", [handle.task_id for handle in handles]
    )
    return {row[0]: dict(zip(columns, row, strict=True)) for row in found}


def statuses(db: Database, victim: Victim) -> list[str]:
    return [row["status"] for row in rows(db, victim.handles).values()]


def attempts(db: Database, task_id: str) -> list[tuple[str, str | None, bool]]:
    return [
        (outcome, code, will_retry)
        for outcome, code, will_retry in db.execute(
            "SELECT outcome, error_code, will_retry FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt",
            task_id,
        )
    ]


CRASH = ("WORKER_FAILURE", "WORKER_CRASHED")
DONE = ("COMPLETED", None, False)


def expected(victim: Victim, row: dict[str, Any], *, parent_died: bool, started: bool) -> tuple[str, list[Any]]:
    """Status and attempts that must follow from the row at the moment of the blow."""
    retried = row["id"] in victim.retried
    crashed: tuple[str, list[Any]] = ("COMPLETED", [(*CRASH, True), DONE]) if retried else ("FAILED", [(*CRASH, False)])
    if row["status"] != "RUNNING" or row["finalizing_at"] is not None:
        return "COMPLETED", [DONE]
    if parent_died:
        return crashed
    # the parent lives: a crash is what a child was really doing when it died
    was_inside = victim.point in ("running", "before_hand_back") and started
    return crashed if was_inside else ("COMPLETED", [DONE])


THE_POINT_IS = {
    "before_claim": lambda row: row["status"] == "PENDING",
    "after_claim": lambda row: row["status"] == "RUNNING",
    "before_start": lambda row: row["status"] == "CLAIMED",
    "running": lambda row: row["status"] == "RUNNING",
    "before_finalize": lambda row: row["status"] == "RUNNING" and row["finalizing_at"] is None,
    "after_stage": lambda row: row["status"] == "RUNNING" and row["finalizing_at"] is not None,
    "after_finalize": lambda row: row["status"] == "COMPLETED",
    "before_hand_back": lambda row: row["status"] == "CLAIMED",
}


@pytest.mark.long
@pytest.mark.parametrize("blow", ["child", "parent", "both"])
def test_kill_matrix(db: Database, tmp_path: Path, blow: str) -> None:
    chaos = Chaos(db, tmp_path)
    with ExitStack() as stack:
        tasks = stack.enter_context(tasks_on(db, **CONFIG))
        found = stack.enter_context(victims(db, chaos, tasks, tmp_path))
        # It takes the tasks that wait in "before_claim"; held back by a pause until the blow has fallen.
        broker = tasks.app.get_broker()
        for point in POINTS:
            tasks.app.run_sync("pause", lambda point=point: broker.pause_queue(point))
        rescuer = start_worker(describe(db, **CONFIG), tmp_path)
        stack.enter_context(ended(rescuer))
        rescuer.wait_up()

        starts = {handle.task_id: chaos.starts(handle) for victim in found for handle in victim.handles}
        for victim in found:
            victim.before = rows(db, victim.handles)
            victim.pids = victim.process.offspring()
            assert any(THE_POINT_IS[victim.point](row) for row in victim.before.values()), (victim.point, victim.before)
        for victim in found:
            if blow == "child":
                killed = victim.process.children()
                assert victim.process.kill_children()
                # dead, not dying: one that takes its token in its last moment counts as started
                eventually(lambda killed=killed: not any(map(lives, killed)))
                victim.release()
            elif blow == "parent":
                victim.process.kill()
            else:
                victim.process.kill_all()
        struck = time.monotonic()
        for point in POINTS:
            tasks.app.run_sync("resume", lambda point=point: broker.resume_queue(point))

        if blow != "child":
            # nobody outlives the parent, whatever it was doing
            gone = [process for victim in found for process in victim.pids]
            eventually(lambda: not any(map(lives, gone)), timeout=2)
        ids = [handle.task_id for victim in found for handle in victim.handles]
        left = "SELECT id, status, queue_name FROM horsies_tasks WHERE id = ANY(%s) AND terminal_at IS NULL"
        eventually(lambda: not db.execute(left, ids), timeout=BOUND_S + 10, describe="everything has ended")
        took = time.monotonic() - struck
        assert took < BOUND_S + 2, f"recovered after {took:.1f} s"  # 2 s: this machine has two cores for 30 processes

        for victim in found:
            after = rows(db, victim.handles)
            for task_id, row in victim.before.items():
                status, history = expected(victim, row, parent_died=blow != "child", started=bool(starts[task_id]))
                told = (victim.point, blow, row, after[task_id], attempts(db, task_id))
                assert after[task_id]["status"] == status, told
                assert attempts(db, task_id) == history, told
                if status == "COMPLETED":
                    assert after[task_id]["result"] == f'{{"ok":{chaos.keys[task_id] * 2}}}', told
                if row["status"] == "COMPLETED":
                    assert after[task_id]["updated_at"] == row["updated_at"], told
            if blow == "child" and victim.point != "before_hand_back":
                assert victim.process.is_running, victim.process.log
    chaos.check()


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
