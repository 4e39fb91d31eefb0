"""`horsies schedules` and the broker's methods behind it: on rows alone, without an app's code."""

import json
import uuid
from datetime import UTC, datetime

import pytest

from horsies import BrokerError, ScheduleInfo, TaskStatus
from horsies.cli import main
from tests.support import factories
from tests.support.apps import UNREACHABLE, async_app_on
from tests.support.factories import ago, ahead
from tests.support.postgres import Database, empty

SOON = datetime(2040, 5, 1, 8, 30, tzinfo=UTC)
BEFORE = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)


pytestmark = pytest.mark.shared_database


@pytest.fixture(autouse=True)
def as_the_environment_says(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", db.url)


def row(db: Database, name: str, **columns: object) -> None:
    factories.insert(db, "horsies_schedule_state", schedule_name=name, **columns)


def three(db: Database) -> str:
    task_id = factories.task(db, "COMPLETED")
    row(db, "nightly", next_run_at=SOON, last_run_at=BEFORE, last_task_id=task_id, run_count=4)
    row(db, "by hand")
    row(db, "\x1b[31mred", next_run_at=SOON, paused_at=BEFORE, run_requested_at=BEFORE)
    return task_id


def horsies(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["schedules", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_an_empty_list_says_how_it_fills(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert horsies(capsys, "list") == (
        0, "no schedule yet: they appear when `horsies scheduler` has served them for the first time\n", "",
    )  # fmt: skip
    assert horsies(capsys, "--json") == (0, '{\n  "schedules": []\n}\n', "")


@pytest.mark.parametrize("status", ["RUNNING", "PAUSED", "COMPLETED", "FAILED"])
def test_a_schedule_of_a_workflow_shows_the_state_of_its_last_run(
    db: Database, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    ended = BEFORE if status in ("COMPLETED", "FAILED") else None
    run = str(uuid.uuid4())
    factories.insert(db, "horsies_workflows", id=run, name="report", status=status, completed_at=ended)
    row(db, "weekly", next_run_at=SOON, last_run_at=BEFORE, last_task_id=run, run_count=1)
    (weekly,) = json.loads(horsies(capsys, "--json")[1])["schedules"]
    assert (weekly["last_task_status"], weekly["last_workflow_status"]) == (None, status)
    assert horsies(capsys, "list")[1].splitlines()[1].split()[-1] == status


def test_the_list_is_a_table_of_inert_text(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    task_id = three(db)
    code, out, err = horsies(capsys, "list")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split("  ")[0] == "SCHEDULE"
    assert head.split() == ["SCHEDULE", "STATE", "NEXT", "RUN", "LAST", "RUN", "RUNS", "LAST", "TASK", "ITS", "STATUS"]
    assert horsies(capsys)[1] == out
    assert "\x1b" not in out
    by_name = {line.split("  ")[0]: line for line in lines}
    assert by_name.keys() == {"nightly", "by hand", r"\x1b[31mred"}
    for text in ("active", "2040-05-01 08:30:00.000+00:00", "2026-05-01 08:30:00.000+00:00", "4", task_id, "COMPLETED"):
        assert text in by_name["nightly"]
    assert "by hand only" in by_name["by hand"]
    assert "paused, run asked for" in by_name[r"\x1b[31mred"]
    assert "2040" not in by_name[r"\x1b[31mred"]


def test_the_list_as_json(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    task_id = three(db)
    code, out, _ = horsies(capsys, "list", "--json")
    assert code == 0
    found = {one["schedule_name"]: one for one in json.loads(out)["schedules"]}
    nightly = found["nightly"]
    assert 0 <= nightly.pop("scheduler_seen") <= nightly.pop("unlisted_for") < 60
    assert nightly | {"updated_at": ""} == {
        "schedule_name": "nightly", "next_run_at": SOON.isoformat(), "last_run_at": BEFORE.isoformat(),
        "last_task_id": task_id, "last_task_status": "COMPLETED", "last_workflow_status": None, "run_count": 4,
        "paused_at": None, "run_requested_at": None, "updated_at": "", "overdue_by": None, "state": "active",
    }  # fmt: skip


def states(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    return {
        one["schedule_name"]: one["state"] for one in json.loads(horsies(capsys, *arguments, "--json")[1])["schedules"]
    }


def test_a_list_says_what_is_overdue_and_that_no_scheduler_runs(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    row(db, "late", next_run_at=ago(hours=2), updated_at=ago(hours=2))
    row(db, "asked", next_run_at=ago(hours=2), updated_at=ago(hours=2), run_requested_at=ago(hours=1))
    row(db, "paused", next_run_at=ago(hours=2), updated_at=ago(hours=2), paused_at=ago(hours=3))
    row(db, "soon", next_run_at=ahead(hours=2), updated_at=ago(hours=2))
    out = horsies(capsys)[1]
    by_name = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "overdue by 2 h" in by_name["late"]
    assert "overdue by 2 h" in by_name["asked"]
    assert "run asked for" in by_name["asked"]
    assert "overdue" not in by_name["paused"]
    assert " active " in by_name["soon"]
    assert "no scheduler is running: the last sign of one is 2 h" in out
    assert states(capsys) == {"late": "overdue", "asked": "overdue", "paused": "paused", "soon": "active"}
    assert "no scheduler is running" in horsies(capsys, "run-now", "soon")[2]
    db.execute("UPDATE horsies_schedule_state SET updated_at = now()")
    assert "no scheduler is running" not in horsies(capsys)[1]


def test_an_operators_mark_is_no_sign_of_a_scheduler(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    row(db, "s", next_run_at=ago(hours=2), updated_at=ago(hours=2))
    for verb in ("pause", "resume", "run-now"):
        assert horsies(capsys, verb, "s")[0] == 0
    assert "no scheduler is running" in horsies(capsys)[1]


def test_what_no_live_scheduler_lists_is_removed(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    row(db, "kept", next_run_at=ahead(hours=1))
    row(db, "gone", next_run_at=ago(minutes=3), updated_at=ago(minutes=5))
    row(db, "long gone", next_run_at=ago(days=9), updated_at=ago(days=9))
    out = horsies(capsys)[1]
    assert "removed, last listed 5 m" in out
    assert "no live scheduler lists the removed ones" in out
    assert states(capsys) == {"kept": "active", "gone": "removed"}
    assert states(capsys, "list", "--all") == {"kept": "active", "gone": "removed", "long gone": "removed"}


@pytest.mark.parametrize(
    ("verb", "column", "set_to"),
    [("run-now", "run_requested_at", True), ("pause", "paused_at", True), ("resume", "paused_at", False)],
)
def test_acting(db: Database, capsys: pytest.CaptureFixture[str], verb: str, column: str, set_to: bool) -> None:
    three(db)
    if verb == "resume":
        db.execute("UPDATE horsies_schedule_state SET paused_at = now()")
    code, out, err = horsies(capsys, verb, "nightly", "by hand", "nightly")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == ["nightly", "by hand"]
    found = db.execute(
        f"SELECT {column} IS NOT NULL FROM horsies_schedule_state WHERE schedule_name IN ('nightly', 'by hand')"
    )
    assert found == [(set_to,), (set_to,)]
    code, out, _ = horsies(capsys, verb, "nightly", "--json")
    assert json.loads(out) == {"verb": verb, "done": ["nightly"], "problems": []}


@pytest.mark.parametrize("verb", ["run-now", "pause", "resume"])
def test_an_unknown_name_changes_nothing(db: Database, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    three(db)
    before = db.execute("SELECT * FROM horsies_schedule_state ORDER BY 1")
    assert horsies(capsys, verb, "nightly", "nigthly") == (
        1, "", "horsies: nothing done: there is no schedule 'nigthly', did you mean 'nightly'?\n",
    )  # fmt: skip
    assert horsies(capsys, verb, "zebra")[2] == (
        "horsies: nothing done: there is no schedule 'zebra', `horsies schedules list` names those there are\n"
    )
    assert db.execute("SELECT * FROM horsies_schedule_state ORDER BY 1") == before
    empty(db)
    assert "no scheduler has served any yet" in horsies(capsys, verb, "nightly")[2]


@pytest.mark.parametrize("arguments", [["pause", "--json"], ["run-now"], ["list", "--loud"], ["explode", "nightly"]])
def test_wrong_usage(db: Database, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        horsies(capsys, *arguments)
    assert ended.value.code == 2


async def test_the_broker(db: Database) -> None:
    task_id = three(db)
    async with async_app_on(db) as app:
        broker = app.get_broker()
        red, by_hand, nightly = await broker.get_schedules()
        assert isinstance(nightly, ScheduleInfo)
        assert nightly.last_task_status is TaskStatus.COMPLETED
        assert (nightly.schedule_name, nightly.last_task_id, nightly.run_count) == ("nightly", task_id, 4)
        assert (by_hand.last_task_status, by_hand.next_run_at) == (None, None)
        assert red.paused_at == red.run_requested_at == BEFORE
        assert await broker.resume_schedule("\x1b[31mred")
        assert not await broker.resume_schedule("missing")
        assert not await broker.run_schedule_now("\ud800")
    async with async_app_on(UNREACHABLE, resilience={"send_attempts": 1}) as app:
        with pytest.raises(BrokerError):
            await app.get_broker().get_schedules()
