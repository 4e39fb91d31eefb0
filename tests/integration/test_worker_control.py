"""What operators ask of workers: which ones a name stands for, how a request is fenced, and when a wait ends."""

import pytest

from horsies import UsageError
from tests.support.apps import async_app_on
from tests.support.factories import ago, worker_state
from tests.support.postgres import Database

FIRST, SECOND, OLDER, GONE = "aaaa1111-1", "aaaa2222-2", "bbbb3333-3", "cccc4444-4"


def some_workers(db: Database) -> None:
    for worker_id, host, pid in ((FIRST, "web-1", 11), (SECOND, "web-1", 12), (OLDER, "web-2", 13)):
        worker_state(db, worker_id=worker_id, hostname=host, pid=pid)
    worker_state(db, worker_id=GONE, hostname="web-3", pid=14, snapshot_at=ago(hours=1))
    db.execute(
        "INSERT INTO horsies_worker_instances (worker_id, period_ms, state) SELECT id, 5000, state "
        "FROM unnest(%s::text[], %s::text[]) AS x (id, state)",
        [FIRST, SECOND, OLDER], ["RUNNING", "RUNNING", None],
    )  # fmt: skip


async def test_names_stand_for_live_workers_and_wrong_ones_are_refused(db: Database) -> None:
    some_workers(db)
    async with async_app_on(db) as app:
        control = app.get_broker().workers
        for name, found in {
            FIRST: [FIRST], "web-1": [FIRST, SECOND], "web-1:12": [SECOND], "aaaa1": [FIRST], "web-2": [OLDER],
        }.items():  # fmt: skip
            assert sorted(one.worker_id for one in await control.find(name)) == found
        assert len(await control.find()) == 3
        for names, why in {
            "aaaa": "is the beginning of 2 workers",
            "nowhere": "there is no live worker 'nowhere': live are",
            "aa": "there is no live worker",
            GONE: f"worker {GONE} is dead",
            OLDER: "runs an older release",
        }.items():
            with pytest.raises(UsageError, match=why):
                await control.drain(names)
        with pytest.raises(UsageError, match="no worker is named"):
            await control.drain([])
        for no_worker in (None, 5, [None], [FIRST, 5]):  # None must not stand for all of them
            with pytest.raises(UsageError, match="a worker is named by a str"):
                await control.drain(no_worker)  # type: ignore[arg-type]
        for wrong in (0, 1_001, True, "2"):
            with pytest.raises(Exception, match="processes"):
                await control.resize(FIRST, wrong)  # type: ignore[arg-type]
    assert db.value("SELECT count(*) FROM horsies_worker_instances WHERE wanted_at IS NOT NULL") == 0


async def test_a_wait_ends_when_it_holds_when_another_asks_and_when_the_time_is_over(db: Database) -> None:
    some_workers(db)
    async with async_app_on(db) as app:
        control = app.get_broker().workers
        (asked,) = await control.drain(FIRST, requested_by="me")
        (problem,) = await control.wait([asked], timeout_s=0)
        assert "it will be drained when they have ended" in problem
        (sized,) = await control.resize(SECOND, 1)
        (problem,) = await control.wait([sized], timeout_s=0)
        assert "does not have 1 child yet" in problem
        db.execute("UPDATE horsies_worker_instances SET state = 'DRAINED' WHERE worker_id = %s", SECOND)
        (again,) = await control.resume(SECOND, requested_by="lone \ud800")
        (problem,) = await control.wait([again], timeout_s=0)
        assert problem.endswith("has not answered yet, or does not have the 1 child of an earlier request yet")
        db.execute("UPDATE horsies_worker_instances SET state = 'RUNNING' WHERE worker_id = %s", SECOND)
        assert await control.wait([again], timeout_s=5) == []  # though its children that are too many have not left
        db.execute("UPDATE horsies_worker_instances SET state = 'DRAINED', reached_at = wanted_at")
        assert await control.wait([asked], timeout_s=5) == []
        (resized,) = await control.resize(FIRST, 3)
        (resumed,) = await control.resume(FIRST, requested_by="you")
        assert asked.wanted_at < resized.wanted_at < resumed.wanted_at
        assert await control.wait([resized], timeout_s=5) == [f"worker {FIRST}: you has asked for something else since"]
        wanted = "SELECT wanted_state, wanted_processes, wanted_by FROM horsies_worker_instances WHERE worker_id = %s"
        assert db.execute(wanted, FIRST) == [("RUNNING", 3, "you")]
        db.execute("UPDATE horsies_worker_instances SET stopped_at = now() WHERE worker_id = %s", FIRST)
        (problem,) = await control.wait([resumed], timeout_s=5)
        assert "has stopped" in problem


async def test_weights_and_ageing_are_fields_of_a_policy(db: Database) -> None:
    async with async_app_on(db) as app:
        policies = app.get_broker().policies
        policy = await policies.set_queue("mail", weight=3, ageing_seconds=0.5)
        assert (policy.effective.weight, policy.effective.ageing_seconds) == (3, 0.5)
        assert (await policies.set_queue("mail", weight=None)).effective.weight is None
        for wrong in (
            {"weight": 0},
            {"weight": 1_001},
            {"weight": 1.5},
            {"ageing_seconds": 0},
            {"ageing_seconds": "1"},
        ):
            with pytest.raises(Exception, match=r"weight|ageing"):
                await policies.set_queue("mail", **wrong)  # type: ignore[arg-type]
    for wrong in ('{"weight": 0}', '{"weight": 1001}', '{"weight": 2.5}', '{"weight": "3"}', '{"ageing_seconds": 0}'):
        with pytest.raises(Exception, match="ck_horsies_queue_state_policy"):
            db.execute("UPDATE horsies_queue_state SET override = %s::jsonb", wrong)
