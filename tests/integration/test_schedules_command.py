"""`horsies schedules` and the broker's methods behind it: on rows alone, without an app's code."""

import json
import sys
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
        0, "no schedule: those in code appear when `horsies scheduler` has served them for the first time, and "
        "`horsies schedules add` makes others\n", "",
    )  # fmt: skip
    assert json.loads(horsies(capsys, "--json")[1]) == {"schedules": [], "next": None}


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
    assert head.split() == [
        "SCHEDULE", "FROM", "STATE", "NEXT", "RUN", "LAST", "RUN", "RUNS", "LAST", "TASK", "ITS", "STATUS",
    ]  # fmt: skip
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
        "is_data": False, "is_enabled": None, "is_known": None, "problem_at": None,
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
    assert "and no other one either" in horsies(capsys, verb, "nightly")[2]


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


# -- schedules as data -------------------------------------------------------------------------------


def test_add_show_edit_history_remove(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = horsies(
        capsys, "add", "report:acme", "--task", "report", "--daily", "07:00", "--timezone", "Europe/Berlin",
        "--kwargs", '{"kind": "acme"}', "--jitter", "90s", "--overlap", "skip", "--catch-up",
    )  # fmt: skip
    assert (code, out) == (0, "report:acme: made; report, daily at 07:00:00 in Europe/Berlin\n")
    assert "no scheduler is running: there was never one" in err
    code, out, err = horsies(capsys, "add", "report:acme", "--task", "report", "--every", "1h30m")
    assert (code, out) == (1, "")
    assert "nothing done: schedule 'report:acme' exists already" in err
    assert horsies(capsys, "edit", "report:acme", "--weekly", "mon,Friday@08:00", "--no-catch-up")[0] == 0
    code, out, _ = horsies(capsys, "show", "report:acme")
    for text in (
        "data, made at run time", "weekly on monday, friday at 08:00:00", '{"kind": "acme"}', "90 s", "skip",
        "the latest slot", "Europe/Berlin", "active",
    ):  # fmt: skip
        assert text in out, out
    assert horsies(capsys, "history", "report:acme") == (0, "report:acme has not run yet\n", "")
    shown = json.loads(horsies(capsys, "show", "report:acme", "--json")[1])
    assert (shown["schedule"]["version"], shown["schedule"]["pattern"]["kind"]) == (2, "weekly")
    assert horsies(capsys, "edit", "report:acme", "--workflow", "reports")[0] == 2  # a workflow has no jitter
    weekly = ("--jitter", "0s", "--cron", "0 7 * * 1")
    assert horsies(capsys, "edit", "report:acme", "--workflow", "reports", *weekly)[0] == 0
    assert horsies(capsys, "list", "--kind", "code")[1].startswith("no schedule:")
    assert "  data  " in horsies(capsys, "list", "--kind", "data")[1]
    assert horsies(capsys, "remove", "report:acme") == (0, "report:acme: removed\n", "")
    assert horsies(capsys, "list")[1].startswith("no schedule:")


def test_an_edit_takes_queue_and_group_away(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    add = ("add", "s", "--task", "report", "--every", "1h", "--group", "acme")
    assert horsies(capsys, *add, "--queue", "")[0] == 2
    assert horsies(capsys, *add, "--queue", "mail")[0] == 0
    stored = "SELECT queue_name, group_key FROM horsies_schedules"
    assert db.execute(stored) == [("mail", "acme")]
    assert horsies(capsys, "edit", "s", "--queue", "")[0] == 0
    assert db.execute(stored) == [(None, "acme")]
    assert horsies(capsys, "edit", "s", "--group", "", "--queue", "")[0] == 0
    assert db.execute(stored) == [(None, None)]


def test_one_that_cannot_run_says_why_and_does_not_point_at_itself(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert horsies(capsys, "add", "s", "--task", "report", "--every", "1h")[0] == 0
    db.execute("UPDATE horsies_schedule_state SET problem = 'broken', problem_at = now()")
    code, out, _ = horsies(capsys, "show", "s")
    assert code == 0
    assert "problem        broken" in out
    assert "horsies schedules show" not in out
    assert "'s' cannot run: `horsies schedules show NAME` says why" in horsies(capsys, "list")[1]


def test_the_history_is_a_table(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    task_id = factories.task(db, "FAILED", error_code="BOOM")
    row(db, "s", entries=3)
    entries = ({"skipped": "missed"}, {"task_id": task_id}, {"task_id": "x", "is_request": True})
    for number, columns in enumerate(entries):
        factories.insert(
            db, "horsies_schedule_runs", schedule_name="s", place=number + 1, entry=number + 1, slot=BEFORE,
            last_slot=SOON if "skipped" in columns else BEFORE, fired_at=BEFORE, **columns,
        )  # fmt: skip
    head, request, run, missed = horsies(capsys, "history", "s")[1].splitlines()
    assert head.split() == ["SLOT", "LATE", "BY", "OUTCOME", "TASK", "ERROR"]
    assert "deleted, on request" in request
    assert "FAILED" in run
    assert "BOOM" in run
    assert "skipped: missed, to 2040-05-01" in missed
    assert len(json.loads(horsies(capsys, "history", "s", "--limit", "2", "--json")[1])["history"]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "s", "--task", "t"], "one of the arguments --cron --every"),
        (["add", "s", "--every", "1h"], "one of the arguments --task --workflow"),
        (["add", "s", "--task", "t", "--every", "1500ms"], "whole seconds"),
        (["add", "s", "--task", "t", "--every", "500d"], "366d"),
        (["add", "s", "--task", "t", "--daily", "25:00"], "not a time of day"),
        (["add", "s", "--task", "t", "--hourly", "61"], "out of range"),
        (["add", "s", "--task", "t", "--hourly", "x"], "not a minute"),
        (["add", "s", "--task", "t", "--weekly", "08:00"], "has no time"),
        (["add", "s", "--task", "t", "--weekly", "someday@08:00"], "unknown value"),
        (["add", "s", "--task", "t", "--monthly", "0@08:00"], "'0' is no day of a month"),
        (["add", "s", "--task", "t", "--monthly", "first@08:00"], "no day and time"),
        (["add", "s", "--task", "t", "--cron", "* * *"], "has 3 fields"),
        (["add", "s", "--task", "t", "--cron", "99 * * * *"], "bad minute"),
        (["add", "s", "--task", "t", "--cron", "61 * * * *"], "a minute is 0 to 59"),
        (["add", "s", "--task", "t", "--cron", "0 0 30 2 *"], "and one that a month of the fourth field has"),
        (["add", "s", "--task", "t", "--every", "1h", "--kwargs", "[1]"], "not a JSON object"),
        (["add", "s", "--task", "t", "--every", "1h", "--kwargs", "{"], "not JSON"),
        (["add", "s", "--task", "t", "--every", "1h", "--timezone", "Mars/Base"], "no time zone"),
        (["add", "s", "--task", "t", "--every", "1h", "--jitter", "3d"], "jitter"),
        (["add", "s", "--task", "t", "--every", "1h", "--queue", "a b"], "not a queue name"),
        (["add", "s", "--task", "t", "--every", "1h", "--max-catch-up-runs", "0"], "out of range"),
        (["add", "", "--task", "t", "--every", "1h"], "name"),
        (["edit", "s"], "nothing to change"),
    ],
)
def test_wrong_usage_writes_nothing(
    db: Database, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    try:
        code, _, err = horsies(capsys, *arguments)
    except SystemExit as ended:
        code, err = ended.code, capsys.readouterr().err
    assert code == 2
    assert told in err
    assert db.value("SELECT count(*) FROM horsies_schedules") == 0


def test_a_name_that_the_given_app_does_not_have_is_told(
    db: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "tests.support.rolling_app", raising=False)  # it reads its URL once
    add = ("--every", "1h", "--app", "tests.support.rolling_app:app")
    code, out, err = horsies(capsys, "add", "a", "--task", "stedy", *add)
    assert (code, "a: made" in out) == (0, True)  # the task may be of another app
    told = "the given app has no task 'stedy', so its arguments were not checked; did you mean 'steady'?"
    assert told in err
    code, out, _ = horsies(capsys, "add", "b", "--workflow", "reprots", *add, "--json")
    assert code == 0
    assert json.loads(out)["alarms"][0].startswith("the given app has no workflow 'reprots'")
    assert "the given app" not in horsies(capsys, "edit", "a", "--task", "steady", *add)[2]


def test_a_long_list_of_options_does_not_hide_the_error(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["schedules", "add", "s", "--task", "t"])
    first, hint, error = capsys.readouterr().err.splitlines()
    assert (first, hint) == (
        "usage: horsies schedules add NAME [options]", "`horsies schedules add --help` lists the options.",
    )  # fmt: skip
    assert error.startswith("horsies schedules add: error: one of the arguments --cron")


def test_remove_says_what_becomes_of_the_schedule_of_the_code(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    factories.insert(
        db, "horsies_schedulers", id="a", hostname="h", pid=1, tasks=["t"], workflows=[],
        schedules=["nightly", "hourly"],
    )  # fmt: skip
    row(db, "nightly", next_run_at=SOON, paused_at=BEFORE)
    row(db, "hourly", next_run_at=SOON)
    for name in ("nightly", "hourly"):
        assert horsies(capsys, "add", name, "--task", "t", "--every", "1h")[0] == 0
    assert horsies(capsys, "remove", "nightly", "hourly")[1].splitlines() == [
        "nightly: removed; that of the code stays paused",
        "hourly: removed; that of the code runs again from its next slot on",
    ]


def test_what_is_not_there_or_in_code_is_left_alone(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    row(db, "nightly", next_run_at=SOON)
    for verb in ("show", "history", "remove"):
        code, out, err = horsies(capsys, verb, "nightl")
        assert (code, out) == (1, "")
        assert "there is no schedule 'nightl', did you mean 'nightly'?" in err
    assert "is in an app's code" in horsies(capsys, "remove", "nightly")[2]
    assert "is in an app's code" in horsies(capsys, "edit", "nightly", "--daily", "03:00")[2]
    assert "code" in horsies(capsys, "show", "nightly")[1]
    # all or none
    assert horsies(capsys, "add", "mine", "--task", "t", "--every", "1h")[0] == 0
    assert horsies(capsys, "remove", "mine", "nightly")[0] == 1
    assert db.value("SELECT count(*) FROM horsies_schedules") == 1
