"""`horsies doctor` on tables and work: every finding is provoked for real, on a real server, and nothing else
is said."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import horsies_schema
from horsies._pg.schema_guard import HEAD_REVISION
from horsies.operate.doctor import Severity, expected
from tests.support import catalog, factories
from tests.support.apps import make_app
from tests.support.factories import ago, ahead
from tests.support.findings import ALWAYS, fine, look, only, trouble
from tests.support.operator import Operator, as_process
from tests.support.postgres import Database
from tests.support.roles import accounts

# -- all is well ---------------------------------------------------------------------------------


def test_a_healthy_database(served: Database, operator: Operator) -> None:
    factories.task(served)
    ran = operator("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("\n0 problems, 0 warnings\n")
    assert [line.split()[1] for line in ran.out.splitlines()[: len(ALWAYS)]] == list(ALWAYS)
    assert "ok       pooler            none: the connection ends at the server" in ran.out
    told = operator("doctor", "--json").json
    assert (told["problem"], told["warn"], told["hidden"], told["ok"]) == (0, 0, 0, len(ALWAYS))
    assert told["findings"][0] == {
        "check": "server", "severity": "ok", "what": told["findings"][0]["what"], "why": "", "fix": "",
        "was_made": True,
    }  # fmt: skip
    assert operator("doctor", "--quiet").out == "\n0 problems, 0 warnings\n"


async def test_the_brokers_own_verb(db: Database) -> None:
    async with make_app(db) as app:
        findings = await app.get_broker().diagnose()
    assert {one.check for one in findings} >= set(ALWAYS)


def test_what_is_expected_is_what_the_migrations_make(db: Database) -> None:
    tables = {row[0] for row in catalog.snapshot(db.url)["columns"]}
    assert set(expected.TABLES) == tables
    indexes = db.execute("SELECT indexname FROM pg_indexes WHERE tablename LIKE 'horsies!_%%' ESCAPE '!'")
    assert set(expected.INDEXES) == {name for (name,) in indexes} - {"horsies_alembic_version_pkc"}
    triggers = db.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
    assert set(expected.TRIGGERS) == {name for (name,) in triggers}
    assert set(expected.HOT_TABLES) <= set(expected.TABLES)


def test_in_a_schema_of_its_own(empty_db: Database) -> None:
    schema = 'o\'brien "jobs"'
    horsies_schema.upgrade(empty_db.url, schema=schema)
    assert trouble(look(empty_db, broker={"schema": schema})).keys() == {"workers"}
    missing = look(empty_db)
    assert trouble(missing)["schema"].what.startswith(("there are no horsies tables", "nothing can be said"))


# -- the schema ----------------------------------------------------------------------------------


def test_an_old_revision(db: Database) -> None:
    horsies_schema.downgrade(db.url, "0007")
    found = [one for one in look(db) if one.severity is not Severity.OK]
    assert [one.severity for one in found] == [Severity.PROBLEM, Severity.WARN]
    assert found[0].what == f"the database is at revision 0007, this release needs {HEAD_REVISION}"
    assert found[0].fix == "run `horsies-migrate up`"
    assert "nothing can be said before that of: restored, workers" in found[1].what


def test_a_newer_revision_is_fine(served: Database) -> None:
    served.execute("UPDATE horsies_alembic_version SET version_num = '9999'")
    found = look(served)
    assert trouble(found) == {}
    assert next(one for one in found if one.check == "schema").what.startswith("revision 9999, newer than")


def test_no_tables(empty_db: Database) -> None:
    found = [one for one in look(empty_db) if one.severity is not Severity.OK]
    assert found[0].what == "there are no horsies tables in this database (by its search_path)"
    assert found[0].fix == "run `horsies-migrate up`"
    assert len(found) == 2
    assert (
        len([one for one in look(empty_db) if one.severity is Severity.OK]) >= 6
    )  # the server is looked at all the same


def test_a_missing_index(served: Database) -> None:
    served.execute("DROP INDEX ix_horsies_tasks_claim")
    found = only(look(served), "objects")
    assert found.what == "index ix_horsies_tasks_claim is missing"


def test_an_invalid_index(served: Database) -> None:
    for _ in range(2):
        factories.task(served)
    with pytest.raises(psycopg.errors.UniqueViolation):
        served.execute('CREATE UNIQUE INDEX CONCURRENTLY "half ""way" ON horsies_tasks (task_name)')
    found = only(look(served), "objects")
    assert found.what.startswith('index half "way is invalid')
    assert 'REINDEX INDEX CONCURRENTLY "half ""way"' in found.fix


def test_what_others_added_to_the_tables(served: Database) -> None:
    served.execute("CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
    served.execute('CREATE TRIGGER "my own" BEFORE INSERT ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION mine()')
    found = only(look(served), "objects", Severity.WARN)
    assert found.what == "trigger my own on horsies_tasks is not one of horsies"
    assert 'DROP TRIGGER "my own" ON horsies_tasks' in found.fix
    served.execute('DROP TRIGGER "my own" ON horsies_tasks')
    served.execute("CREATE RULE never AS ON UPDATE TO horsies_heartbeats DO INSTEAD NOTHING")
    found = only(look(served), "objects", Severity.WARN)
    assert found.what == "rule never on horsies_heartbeats is not one of horsies"
    served.execute("DROP RULE never ON horsies_heartbeats")
    assert trouble(look(served)) == {}


def test_row_level_security_that_hides_the_rows(served: Database) -> None:
    """It does not apply to a superuser, nor to the owner unless it is forced."""
    served.execute("ALTER TABLE horsies_tasks ENABLE ROW LEVEL SECURITY")
    assert trouble(look(served)) == {}
    with accounts(served) as by_role:
        found = trouble(look(by_role["worker"]))["objects"]
    assert (found.severity, found.what) == (Severity.WARN, "row-level security of horsies_tasks applies to this role")


def test_triggers(served: Database) -> None:
    served.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_task_notify_trigger")
    found = only(look(served), "objects")
    assert found.what == "trigger horsies_task_notify_trigger is switched off"
    served.execute("ALTER TABLE horsies_tasks ENABLE TRIGGER horsies_task_notify_trigger")
    served.execute("DROP TRIGGER horsies_workflow_notify_trigger ON horsies_workflows")
    assert only(look(served), "objects").what == "trigger horsies_workflow_notify_trigger is missing"


def test_a_missing_table(served: Database) -> None:
    served.execute("DROP TABLE horsies_heartbeats")
    found = [one for one in look(served) if one.severity is Severity.PROBLEM]
    assert "table horsies_heartbeats is missing" in [one.what for one in found]


# -- the work ------------------------------------------------------------------------------------


def test_no_live_worker(db: Database) -> None:
    assert only(look(db), "workers", Severity.WARN).what == "no live worker"
    factories.task(db, queue_name="mail")
    factories.task(db, queue_name="bills", enqueued_at=ago(hours=1))
    assert only(look(db), "workers").what == "no live worker, and 2 tasks ready to run in bills, mail"


def test_a_late_worker(db: Database) -> None:
    factories.worker_state(db, "slow", snapshot_at=ago(seconds=25))
    found = only(look(db), "workers", Severity.WARN)
    assert re.match(r"worker slow \(pid 4711 on host-1\) is late: seen 2\d s ago$", found.what)


def test_a_queue_without_a_worker(served: Database) -> None:
    factories.task(served, queue_name="mail")
    assert trouble(look(served)) == {}  # just sent: a worker may be starting
    factories.task(served, queue_name="mail", enqueued_at=ago(minutes=2))
    found = only(look(served), "unserved")
    assert found.what == "no live worker serves queue mail, with 2 tasks ready in it"
    assert "--queues mail" in found.fix
    factories.worker_state(served, "another", queues=["mail"])
    assert trouble(look(served)) == {}


def test_a_queue_whose_workers_are_drained(db: Database) -> None:
    factories.task(db, enqueued_at=ago(minutes=2))
    for worker_id in ("one", "two"):
        factories.worker_state(db, worker_id)
        factories.insert(db, "horsies_worker_instances", worker_id=worker_id, period_ms=5_000, state="DRAINED")
    found = only(look(db), "drained")
    assert found.what == "every live worker of queue default is drained (one, two), with 1 task ready in it"
    assert "horsies workers resume" in found.fix
    db.execute("UPDATE horsies_worker_instances SET state = 'RUNNING' WHERE worker_id = 'two'")
    assert trouble(look(db)) == {}
    (workers,) = [one.what for one in look(db) if one.check == "workers"]
    assert workers == "2 live workers, 1 of them drained, 2 process slots"


def test_a_paused_queue_with_work_in_it(served: Database) -> None:
    factories.insert(served, "horsies_queue_state", queue_name="default", paused_at=ago(minutes=7))
    assert trouble(look(served)) == {}
    factories.task(served)
    found = only(look(served), "paused", Severity.WARN)
    assert re.match(r"queue default has been paused for 7 m.*, with 1 task ready in it$", found.what)
    assert found.fix == "`horsies queues resume default`"


def test_a_backlog(served: Database) -> None:
    factories.task(served, priority=9, enqueued_at=ago(minutes=6))
    factories.task(served, priority=1)
    found = only(look(served), "backlog", Severity.WARN)
    assert found.what.startswith("queue default, priority 9: of 1 task that can run, the oldest has waited for 6 m")


def test_names_that_no_worker_knows(served: Database) -> None:
    factories.task(served, task_name="mispelled")
    factories.insert(served, "horsies_task_names", task_name="mispelled", missing_since=ago(hours=2))
    found = only(look(served), "unknown-names", Severity.WARN)
    assert (
        found.what == "1 task named 'mispelled' in queue default: no worker ever registered the name; missing for 2 h"
    )
    served.execute("DELETE FROM horsies_task_names")
    factories.task(served, claim_generation=9)
    assert trouble(look(served)) == {}
    factories.task(served, "FAILED", task_name="x; rm -rf /", error_code="WORKER_RESOLUTION_ERROR")
    found = only(look(served), "unknown-names", Severity.WARN)
    assert "--task 'x; rm -rf /'`" in found.fix


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        ("FAILED", "{root}"),
        ("CANCELLED", "{root}"),
        ("PAUSED", "{root} --node 'n 1'"),
        ("RUNNING", "{root} --node 'n 1'"),
    ],
)
def test_failed_tasks_of_workflows_are_retried_with_their_runs(served: Database, status: str, arguments: str) -> None:
    """`horsies tasks retry` leaves them alone."""
    task_id = factories.task(
        served, "FAILED", task_name="ghost", error_code="WORKER_RESOLUTION_ERROR", is_workflow_task=True
    )
    root = factories.workflow(served, status, node_status="FAILED", task_id=task_id, node_id="n 1")
    fix = only(look(served), "unknown-names", Severity.WARN).fix
    assert fix == f"deploy the code, then `horsies workflows retry {arguments.format(root=root)}`"
    factories.task(served, "FAILED", task_name="ghost", error_code="WORKER_RESOLUTION_ERROR")
    fix = only(look(served), "unknown-names", Severity.WARN).fix
    assert "`horsies tasks retry --error-code WORKER_RESOLUTION_ERROR --task ghost` and `horsies workflows retry" in fix


@pytest.mark.breaks("W4", "W8")
def test_a_failed_task_of_a_workflow_inside_another(served: Database) -> None:
    ended = {"task_name": "ghost", "error_code": "WORKER_RESOLUTION_ERROR", "is_workflow_task": True}
    root = factories.workflow(served, "RUNNING", node_status="RUNNING")
    factories.workflow(
        served, "FAILED", node_status="FAILED", task_id=factories.task(served, "FAILED", **ended),
        parent_workflow_id=root, parent_task_index=0, root_workflow_id=root, depth=1,
    )  # fmt: skip
    fix = only(look(served), "unknown-names", Severity.WARN).fix
    assert fix == f"deploy the code, then `horsies workflows retry {root}`"


def test_a_failed_task_of_a_completed_run_needs_a_new_run(served: Database) -> None:
    task_id = factories.task(
        served, "FAILED", task_name="ghost", error_code="WORKER_RESOLUTION_ERROR", is_workflow_task=True
    )
    factories.workflow(served, "COMPLETED", node_status="FAILED", task_id=task_id)
    assert "start new runs of their workflows" in only(look(served), "unknown-names", Severity.WARN).fix


def test_a_missing_name_without_a_waiting_task(served: Database) -> None:
    """The last task was cancelled or purged, and no sweep has cleared the name since."""
    factories.insert(served, "horsies_task_names", task_name="mispelled", missing_since=ago(hours=2))
    factories.task(served, "CANCELLED", task_name="mispelled")
    factories.task(served)
    assert trouble(look(served)) == {}


def test_names_that_no_worker_knows_any_more(served: Database) -> None:
    """An app that was scaled to zero, or a task that was removed: an alarm while its tasks wait."""
    factories.task(served, task_name="report; x")
    factories.insert(
        served, "horsies_task_names", task_name="report; x", first_known_at=ago(days=9), last_known_at=ago(hours=3),
        missing_since=ago(hours=2),
    )  # fmt: skip
    factories.insert(
        served, "horsies_task_names", task_name="removed", first_known_at=ago(days=9), last_known_at=ago(days=3)
    )
    found = only(look(served), "unknown-names", Severity.WARN)
    assert found.what == (
        "1 task named 'report; x' in queue default: no live worker knows the name, the last one did 3 h ago"
    )
    assert "retired_task_grace_ms (1 d)" in str(found.why)
    assert "--task 'report; x'`" in str(found.fix)


def test_names_that_only_workers_of_another_queue_know(served: Database) -> None:
    """As soon as a worker of the queue knows it, and before the workers notice, nothing is wrong."""
    factories.insert(served, "horsies_task_sets", sha="s", names=["report"])
    factories.insert(
        served, "horsies_worker_instances", worker_id="b", period_ms=60_000, names_sha="s", queues=["mail", "video"]
    )
    factories.insert(
        served, "horsies_task_names", task_name="report", first_known_at=ago(days=9), last_known_at=ago(seconds=3),
        missing_since=ago(hours=2),
    )  # fmt: skip
    factories.task(served, task_name="report", queue_name="mail")
    for _ in range(2):
        factories.task(served, task_name="report")
    found = only(look(served), "unknown-names", Severity.WARN)
    assert found.what == (
        "2 tasks named 'report' in queue default: no live worker of their queue knows the name, only those of mail, "
        "video"
    )
    assert found.fix.endswith("--queues default")
    factories.insert(
        served, "horsies_worker_instances", worker_id="a", period_ms=60_000, names_sha="s", queues=["default"]
    )
    assert trouble(look(served)) == {}


def test_an_unserved_queue_and_an_unknown_name_are_both_told(served: Database) -> None:
    factories.task(served, task_name="report", queue_name="mail", enqueued_at=ago(minutes=2))
    factories.task(served, task_name="ghost")
    factories.insert(served, "horsies_task_names", task_name="ghost", missing_since=ago(hours=2))
    assert trouble(look(served)).keys() == {"unserved", "unknown-names"}


def test_an_unknown_name_behind_many_waiting_tasks(served: Database) -> None:
    served.execute(
        "INSERT INTO horsies_tasks (id, task_name, enqueued_at)"
        " SELECT i, 'add', now() - interval '1 minute' FROM generate_series(1, 6000) AS i"
    )
    factories.task(served, task_name="ghost")
    factories.insert(served, "horsies_task_names", task_name="ghost", missing_since=ago(hours=2))
    found = only(look(served), "unknown-names", Severity.WARN)
    assert found.what.startswith("1 task named 'ghost' in queue default: ")
    assert "'ghost', which this app does not" in trouble(look(served, names=["add"]))["unknown-names"].what


def test_names_that_the_app_does_not_register(served: Database, tmp_path: Path) -> None:
    factories.task(served, task_name="known")
    assert trouble(look(served, names=["known"])) == {}
    factories.task(served, task_name="stranger")
    assert (
        "named 'stranger', which this app does not register"
        in trouble(look(served, names=["known"]))["unknown-names"].what
    )
    (tmp_path / "shop.py").write_text(
        "from horsies import *\n"
        f"app = Horsies(AppConfig(PostgresConfig({served.url!r})))\n"
        "@app.task('known')\ndef known() -> TaskResult[None, TaskError]: ...\n"
    )
    ran = as_process("doctor", "--app", "shop:app", url=None, cwd=tmp_path)
    assert ran.code == 0
    assert "named 'stranger'" in ran.out
    assert "named 'known'" not in ran.out


def test_stale_tasks_and_their_dead_worker(served: Database) -> None:
    long = {"enqueued_at": ago(minutes=5), "claimed_at": ago(minutes=5), "claimed_by_worker_id": "gone"}
    factories.task(served, "RUNNING", **long, started_at=ago(minutes=5))
    factories.task(served, "CLAIMED", **long)
    factories.worker_state(served, "gone", snapshot_at=ago(minutes=5))
    found = [one for one in look(served) if one.severity is Severity.PROBLEM]
    assert [one.check for one in found] == ["dead-workers", "stale", "stale"]
    assert found[0].what.startswith("2 tasks in the hands of worker gone, last seen 5 m")
    for one, status in zip(found[1:], ("RUNNING", "CLAIMED"), strict=True):
        assert one.what.startswith(f"1 {status} task without a sign of life, the longest for 5 m")
    assert "horsies stale fail" in found[1].fix
    assert "horsies stale requeue" in found[2].fix


def test_a_task_of_an_unknown_worker(served: Database) -> None:
    factories.task(served, "RUNNING", claimed_by_worker_id="unheard of")
    found = only(look(served), "dead-workers")
    assert found.what == "1 task in the hands of worker unheard of, which has left no trace"


def scheduled(db: Database, name: str, **columns: Any) -> None:
    factories.insert(db, "horsies_schedule_state", schedule_name=name, **columns)


def test_overdue_schedules_and_no_scheduler(served: Database) -> None:
    assert fine(look(served), "schedules") == "no schedule is known"
    for name in "abcd":
        scheduled(served, name, next_run_at=ago(hours=2), updated_at=ago(hours=2))
    scheduled(served, "silenced", next_run_at=ago(hours=3), updated_at=ago(hours=2), paused_at=ago(hours=4))
    found = only(look(served), "schedules", Severity.PROBLEM)
    assert "no scheduler is running (the last sign of one is 2 h" in found.what
    assert "4 schedules are overdue, the longest by 2 h" in found.what
    assert found.what.endswith("a, b, c and 1 more")
    assert "horsies scheduler" in found.fix
    served.execute("UPDATE horsies_schedule_state SET updated_at = now()")  # one is there, and does not fire
    assert only(look(served), "schedules", Severity.PROBLEM).what.startswith("4 schedules are overdue")
    served.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '20 s'")
    assert only(look(served), "schedules", Severity.WARN).what.startswith("4 schedules are overdue, the longest by 2")


def test_a_scheduler_is_missed_before_a_slot_is(served: Database) -> None:
    scheduled(served, "nightly", next_run_at=ahead(hours=5), updated_at=ago(minutes=10))
    found = only(look(served), "schedules", Severity.WARN)
    assert found.what.startswith("no scheduler is running: the last sign of one is 10 m")
    assert "due in 4 h 59 m" in found.what
    served.execute("UPDATE horsies_schedule_state SET updated_at = now()")
    assert fine(look(served), "schedules") == "1 schedule, none overdue"


def test_a_schedule_that_no_live_scheduler_lists_is_told_of_for_a_day(served: Database) -> None:
    scheduled(served, "kept", next_run_at=ahead(hours=5))
    scheduled(served, "gone", next_run_at=ago(minutes=5), updated_at=ago(minutes=6))
    found = only(look(served), "schedules", Severity.WARN)
    assert found.what.startswith("no live scheduler has listed 1 schedule for 6 m")
    assert found.what.endswith(": gone")
    served.execute(
        "UPDATE horsies_schedule_state SET updated_at = now() - interval '2 days' WHERE schedule_name = 'gone'"
    )
    assert fine(look(served), "schedules") == "1 schedule, none overdue"


def test_a_schedule_whose_last_run_is_in_the_future(served: Database) -> None:
    ran = {"last_task_id": "t", "run_count": 1}
    far = {"last_run_at": ahead(days=3_650), "next_run_at": ahead(days=3_651)}
    scheduled(served, "paused", **ran, **far, paused_at=ago(hours=1))
    scheduled(served, "sound", **ran, last_run_at=ago(hours=1), next_run_at=ahead(hours=5))
    assert fine(look(served), "schedules") == "1 schedule, none overdue"
    scheduled(served, "silent", **ran, **far)
    found = only(look(served), "schedules", Severity.WARN)
    assert found.what.startswith("the last run of 1 schedule is in the future, by up to 3649 d")
    assert re.search(r": silent \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)$", found.what)
    assert "horsies schedules run-now NAME" in found.fix


@pytest.mark.breaks("T7")
def test_overdue_tasks_that_no_reaper_has_met(served: Database) -> None:
    factories.task(served, good_until=ago(seconds=10))
    assert trouble(look(served)) == {}
    factories.task(served, good_until=ago(minutes=3))
    found = only(look(served), "reaper")
    assert re.match(r"2 tasks past good_until were not swept, the oldest 3 m.* late$", found.what)


def test_retention_that_does_not_keep_up(served: Database) -> None:
    factories.task(served, "COMPLETED", terminal_at=ago(hours=2))
    factories.task(served, "COMPLETED", terminal_at=ago(hours=9), keep_seconds=36_000)
    assert trouble(look(served)) == {}
    factories.task(served, "COMPLETED", terminal_at=ago(hours=5))
    found = only(look(served), "retention", Severity.WARN)
    assert found.what == "the oldest ended task is kept since 5 h, though the workers prune after 1 h"
    assert "horsies tasks purge --older-than" in found.fix


# -- times that no program can read --------------------------------------------------------------


@pytest.mark.breaks("T8", "A2")
def test_rows_with_unreadable_times_are_named(served: Database) -> None:
    served.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT ck_horsies_tasks_sound")
    found = only(look(served), "times", Severity.WARN)
    assert found.what == "the rule ck_horsies_tasks_sound is missing or not validated"
    served.execute("INSERT INTO horsies_tasks (id, task_name, good_until) VALUES ('bc', 'add', '294276-01-01')")
    served.execute("ALTER TABLE horsies_queue_state DROP CONSTRAINT ck_horsies_queue_state_time_range")
    served.execute("INSERT INTO horsies_queue_state (queue_name, updated_at) VALUES ('q', '4713-01-01 BC')")
    findings = [one for one in look(served) if one.check == "times"]
    assert {one.severity for one in findings} == {Severity.PROBLEM}
    assert [one.what for one in findings] == [
        "horsies_queue_state has rows with times before 1970 or after 9000, of q",
        "horsies_tasks has rows with times before 1970 or after 9000, of bc",
    ]
