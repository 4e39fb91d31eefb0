"""The story that the dashboard is for: a worker is killed, and the operator sees it, sees what it held, and acts."""

import asyncio
from pathlib import Path

from horsies_tui.data.models import worker_name
from tests.support.dashboards import go, on_database, said, seen, settled, shows, table, text_of
from tests.support.factories import read
from tests.support.postgres import Database
from tests.support.waiting import eventually, eventually_async
from tests.support.workers import tasks_on, worker

PROMISED_S = 20.0
"""Nine missed snapshots of one second, and a poll; the guide promises nine of five seconds for a lone worker."""


async def test_a_killed_worker_is_seen_dead_with_what_it_held_and_the_operator_acts(
    db: Database, tmp_path: Path
) -> None:
    # nobody but the operator recovers here: the survivors leave stale tasks where they are
    alone = {
        "recovery": {
            "auto_fail_stale_running": False, "auto_requeue_stale_claimed": False, "worker_state_interval_ms": 1_000
        }
    }  # fmt: skip
    with tasks_on(db) as tasks, worker(db, processes=1, folder=tmp_path, **alone) as one:
        handle = await asyncio.to_thread(tasks.nap.send, 600)
        eventually(lambda: read(db, handle.task_id)["status"] == "RUNNING", timeout=20)
        async with on_database(db, refresh_s=1.0) as (app, pilot):
            await go(app, pilot, "3")
            await shows(app, pilot, "● alive")
            await pilot.press("4")
            await settled(app, pilot)
            assert handle.task_id not in table(app, "stale")._lines
            worker_id = one.worker_id
            one.kill_all()

            def dead() -> bool:
                data = seen(app).data
                return data is not None and worker_id in {gone.worker_id for gone in data.dead}

            await eventually_async(dead, timeout=PROMISED_S, describe="the dead worker is on the screen")
            name = worker_name(next(gone for gone in seen(app).data.dead if gone.worker_id == worker_id))
            await shows(app, pilot, f"✗ {name}"[:18])
            held = [task.id for task in seen(app).data.tasks]
            assert held == [handle.task_id], "and what it held"
            await go(app, pilot, "1")
            await shows(app, pilot, "is dead and still holds 1")
            await go(app, pilot, "4")
            await pilot.press("F")
            await shows(app, pilot, "Fail 1 stale task?")
            await pilot.press("right", "enter")
            await said(app, pilot, "1 stale task failed")
            await settled(app, pilot)
            assert "No task is stale" in text_of(app)
        row = read(db, handle.task_id)
        assert (row["status"], row["error_code"]) == ("FAILED", "WORKER_CRASHED")
        assert (await asyncio.to_thread(handle.get, 5_000)).is_err()
