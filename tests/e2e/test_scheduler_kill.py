"""Two schedulers that are killed with SIGKILL again and again, at every named moment of a fire: each slot has its
task, and none has two (F114)."""

import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from horsies import Interval, TaskSchedule
from tests.support.apps import add_task, app_on
from tests.support.postgres import Database
from tests.support.scheduler_app import scheduler, start_scheduler
from tests.support.schedulers import schedule
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, check_invariants, ended

_log = logging.getLogger(__name__)

POINTS = ("before_fire", "after_enqueue", "before_fire_commit", "after_fire")
SCHEDULES = {f"s{number}": 1 for number in range(12)}
SLOTS = 200
KILLS = 3
"""Of each scheduler at each point, at least."""
STORED_KILLS = int(os.environ.get("HORSIES_TEST_SCHEDULE_KILLS", "1"))
"""The same for schedules that were made at run time; `just schedule-kills` kills more often."""
SECOND = timedelta(seconds=1)


class Lane(threading.Thread):
    """One scheduler after the other, each killed where it stands."""

    def __init__(
        self, db: Database, folder: Path, number: int, over: threading.Event, points: Sequence[str] = POINTS,
        schedules: Mapping[str, int] = SCHEDULES,
    ) -> None:  # fmt: skip
        super().__init__()
        self._points, self._schedules = points, schedules
        self.kills: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._db, self._folder, self._number, self._over = db, folder, number, over

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._one_life()
        except BaseException as error:  # told by the test, which runs in another thread
            self.error = error

    def _one_life(self) -> None:
        # each lane begins elsewhere, so that most of the time they stand at different points
        point = self._points[(sum(self.kills.values()) + 2 * self._number) % len(self._points)]
        file = self._folder / f"{self._number}-{sum(self.kills.values())}"
        process = start_scheduler(self._db, self._schedules, self._folder, sync_points={point: file})
        with ended(process, code=None):
            self._wait(process, file)
            process.kill()
        if file.exists():
            self.kills[point] += 1

    def _wait(self, process: WorkerProcess, file: Path) -> None:
        def has_come() -> bool:
            assert process.is_running, process.log
            return file.exists() or self._over.is_set()

        eventually(has_come, timeout=40, interval=0.01, describe=f"{file.name} is reached")


@pytest.mark.long
def test_kill_loops_at_every_point(db: Database, tmp_path: Path) -> None:
    count = "SELECT count(*) FROM horsies_tasks"
    over = threading.Event()
    lanes = [Lane(db, tmp_path, number, over) for number in range(2)]
    for lane in lanes:
        lane.start()
    try:
        eventually(
            lambda: (
                any(lane.error for lane in lanes)
                or (db.value(count) >= SLOTS and all(lane.kills[point] >= KILLS for lane in lanes for point in POINTS))
            ),
            timeout=90,
            interval=0.1,
            describe="enough slots and enough kills",
        )
    finally:
        over.set()
        for lane in lanes:
            lane.join(60)
    assert [lane.error for lane in lanes] == [None, None]
    # the dead are dead: what they had begun is rolled back, and the next one owes the rest
    with scheduler(db, SCHEDULES, tmp_path):
        owed = "SELECT count(*) FROM horsies_schedule_state WHERE next_run_at < now() - interval '1 second'"
        eventually(lambda: db.value(owed) == 0, timeout=20)
    fired = db.execute("SELECT kwargs::json->>'a', sent_at, count(*) FROM horsies_tasks GROUP BY 1, 2 ORDER BY 1, 2")
    assert len(fired) >= SLOTS
    assert {number for *_, number in fired} == {1}, "a slot has two tasks"
    for number, (name, _) in enumerate(SCHEDULES.items()):
        slots = [slot for key, slot, _ in fired if key == str(number)]
        assert slots == [slots[0] + n * SECOND for n in range(len(slots))], f"a slot of {name} has no task"
        found = db.execute("SELECT run_count, next_run_at FROM horsies_schedule_state WHERE schedule_name = %s", name)
        assert found == [(len(slots), slots[-1] + SECOND)]
    check_invariants(db)


def stored(name: str, number: int) -> TaskSchedule:
    return schedule(
        name, Interval(seconds=1), kwargs={"a": number}, catch_up_missed=True, max_catch_up_runs=1_000
    )  # fmt: skip


@pytest.mark.long
def test_kill_loops_with_schedules_made_at_run_time(db: Database, tmp_path: Path) -> None:
    """The same for rows of `horsies_schedules`, while one of them is made and edited again and again: its plan is
    killed, too."""
    points = (*POINTS, "before_plan_commit")
    over = threading.Event()
    with app_on(db) as app:
        add_task(app)
        app.schedules.put_many(stored(name, number) for number, name in enumerate(SCHEDULES))
        lanes = [Lane(db, tmp_path, number, over, points, {}) for number in range(2)]
        for lane in lanes:
            lane.start()
        edits = 0

        def are_killed() -> bool:
            nonlocal edits
            edits += 1
            app.schedules.put(schedule("edited", Interval(seconds=1 + edits % 2), kwargs={"a": 99}))
            return any(lane.error for lane in lanes) or all(
                lane.kills[point] >= STORED_KILLS for lane in lanes for point in points
            )

        try:
            eventually(are_killed, timeout=60 + 30 * STORED_KILLS, interval=0.2, describe="enough kills")
        finally:
            over.set()
            for lane in lanes:
                lane.join(60)
        assert [lane.error for lane in lanes] == [None, None]
        app.schedules.delete("edited")
        with scheduler(db, {}, tmp_path):
            owed = "SELECT count(*) FROM horsies_schedule_state WHERE next_run_at < now() - interval '1 second'"
            eventually(lambda: db.value(owed) == 0, timeout=20)
    count = "SELECT kwargs::json->>'a', sent_at, count(*) FROM horsies_tasks GROUP BY 1, 2 ORDER BY 1, 2"
    fired = db.execute(count)
    assert {number for *_, number in fired} == {1}, "a slot has two tasks"
    for number, name in enumerate(SCHEDULES):
        slots = [slot for key, slot, _ in fired if key == str(number)]
        assert slots == [slots[0] + n * SECOND for n in range(len(slots))], f"a slot of {name} has no task"
        found = db.execute(
            "SELECT s.run_count, s.next_run_at, d.timed_at < %s FROM horsies_schedule_state s"
            " JOIN horsies_schedules d ON d.name = s.schedule_name WHERE d.name = %s", slots[0], name,
        )  # fmt: skip
        assert found == [(len(slots), slots[-1] + SECOND, True)]
        noted = db.execute("SELECT slot FROM horsies_schedule_runs WHERE schedule_name = %s ORDER BY entry", name)
        assert [slot for (slot,) in noted] == slots[-20:], "the history has each of the last runs once"
    kills = sum(sum(lane.kills.values()) for lane in lanes)
    _log.warning("%d kills, %d slots, %d edits", kills, len(fired), edits)
    check_invariants(db)


@pytest.mark.long
def test_two_schedulers_and_random_deaths(db: Database, tmp_path: Path) -> None:
    """No named moment: killed whenever it comes, while the other one works on."""
    chance = random.Random(7)
    with scheduler(db, SCHEDULES, tmp_path):
        for _ in range(4):
            victim = start_scheduler(db, SCHEDULES, tmp_path)
            with ended(victim, code=None):
                victim.wait_up()
                more = db.value("SELECT count(*) FROM horsies_tasks") + chance.randrange(1, 3 * len(SCHEDULES))
                eventually(lambda more=more: db.value("SELECT count(*) FROM horsies_tasks") >= more, interval=0.005)
                victim.kill()
    fired = db.execute("SELECT kwargs::json->>'a', min(sent_at), max(sent_at), count(*) FROM horsies_tasks GROUP BY 1")
    assert len(fired) == len(SCHEDULES)
    for _, first, last, number in fired:
        assert (last - first) / SECOND + 1 == number
    check_invariants(db)


@pytest.mark.long
def test_one_that_freezes_in_the_middle_of_a_fire(db: Database, tmp_path: Path) -> None:
    """The server takes the rows from it after a while; what it had written is gone, and when it wakes it goes on."""
    point = tmp_path / "point"
    frozen = start_scheduler(db, SCHEDULES, tmp_path, sync_points={"after_enqueue": point})
    with ended(frozen):
        eventually(point.exists, timeout=40)
        behind = "SELECT count(*) FROM horsies_schedule_state WHERE next_run_at < now() - interval '1 second'"
        with scheduler(db, SCHEDULES, tmp_path):
            eventually(
                lambda: db.value("SELECT count(*) FROM horsies_tasks") >= len(SCHEDULES) and db.value(behind) == 0,
                timeout=30,
                describe="somebody else fires what the frozen one holds",
            )
        point.with_name("point.go").touch()
        frozen.wait_for_log("trying again in")
        before = db.value("SELECT count(*) FROM horsies_tasks")
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks") >= before + 2 * len(SCHEDULES), timeout=20)
    fired = db.execute("SELECT kwargs::json->>'a', min(sent_at), max(sent_at), count(*) FROM horsies_tasks GROUP BY 1")
    for _, first, last, number in fired:
        assert (last - first) / SECOND + 1 == number
    check_invariants(db)
