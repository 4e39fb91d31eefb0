"""`horsies tasks retry`, `cancel` and `purge`: what they touch, what they leave alone, and what they ask first."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from horsies import CancelResult, TaskStatus
from horsies.ids import new_id
from tests.support import factories
from tests.support.apps import async_app_on
from tests.support.factories import ago
from tests.support.hands import Hands
from tests.support.operator import Operator, Ran
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.waiting import eventually

pytestmark = pytest.mark.shared_database

STATES = [status.value for status in TaskStatus]


def status(db: Database, task_id: str) -> str | None:
    found = db.execute("SELECT status FROM horsies_tasks WHERE id = %s", task_id)
    return found[0][0] if found else None


# -- retry ---------------------------------------------------------------------------------------


@pytest.mark.breaks("W4")
def test_retry_by_ids_says_what_it_left_alone(db: Database, operator: Operator) -> None:
    ids = {word: factories.task(db, word) for word in STATES}
    node = factories.task(db, "FAILED", is_workflow_task=True)
    missing = new_id()
    dry = operator("tasks", "retry", *ids.values(), node, missing, "--dry-run")
    assert dry.out.splitlines()[0] == "would retry 3 tasks"
    assert status(db, ids["FAILED"]) == "FAILED"
    ran = operator("tasks", "retry", *ids.values(), node, missing)
    assert (ran.code, ran.out) == (1, "retried 3 tasks\n")
    assert f"task {ids['RUNNING']} was not retried: it has not ended" in ran.err
    assert f"task {ids['COMPLETED']} was not retried: it is COMPLETED; send a new one" in ran.err
    assert f"task {node} was not retried: it belongs to a workflow: retry that" in ran.err
    assert f"task {missing} was not retried: there is no such task" in ran.err
    assert {word: status(db, ids[word]) for word in ("FAILED", "CANCELLED", "EXPIRED", "RUNNING")} == {
        "FAILED": "PENDING", "CANCELLED": "PENDING", "EXPIRED": "PENDING", "RUNNING": "RUNNING",
    }  # fmt: skip
    assert operator("tasks", "retry", ids["FAILED"]).code == 1  # it is live again


def test_a_taken_key_stops_only_its_own_task(db: Database, operator: Operator) -> None:
    taken, free = factories.task(db, "FAILED", unique_key="k"), factories.task(db, "FAILED")
    factories.task(db, unique_key="k")
    ran = operator("tasks", "retry", "--status", "FAILED", "--yes", "--json")
    assert ran.code == 0
    assert ran.json["done"] == 1
    assert ran.json["not_done"] == [
        {"id": taken, "why": "a live task holds its unique key: cancel or await that one first"}
    ]
    assert (status(db, taken), status(db, free)) == ("FAILED", "PENDING")


def test_retry_by_filter_in_several_pages(db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horsies.operate.commands._task_actions.BATCH", 3)
    ids = [factories.task(db, "FAILED", error_code="DOWN") for _ in range(10)]
    other = factories.task(db, "FAILED")
    dry = operator("tasks", "retry", "--error-code", "DOWN", "--dry-run", "--limit", "8")
    assert dry.out.startswith("would retry 8 tasks\n")
    assert len(dry.out.splitlines()) == 1 + 8
    assert operator("tasks", "retry", "--error-code", "DOWN", "--limit", "8", "--yes").out == "retried 8 tasks\n"
    assert sum(status(db, task_id) == "PENDING" for task_id in ids) == 8
    assert operator("tasks", "retry", "--error-code", "DOWN", "--yes").out == "retried 2 tasks\n"
    assert operator("tasks", "retry", "--error-code", "DOWN", "--yes") == Ran(1, "no task matches\n", "")
    assert status(db, other) == "FAILED"


def test_ids_and_a_filter_must_both_hold(db: Database, operator: Operator) -> None:
    mail, other = factories.task(db, "FAILED", queue_name="mail"), factories.task(db, "FAILED")
    assert operator("tasks", "retry", mail, other, "--queue", "mail").out == "retried 1 task\n"
    assert status(db, other) == "FAILED"


LIVE_AGAIN = (
    "status = 'PENDING', result = NULL, error_code = NULL, failed_at = NULL, terminal_at = NULL, claimed_at = NULL,"
    " claimed_by_worker_id = NULL, started_at = NULL, retry_count = 1, max_retries = 1, manual_retries = 1"
)
FAILED_AGAIN = (
    "failed_at = clock_timestamp(), terminal_at = clock_timestamp(), updated_at = clock_timestamp(),"
    " claim_generation = claim_generation + 1, manual_retries = 1"
)


@pytest.mark.parametrize(
    ("became", "why"), [(LIVE_AGAIN, "it has not ended"), (FAILED_AGAIN, "it changed meanwhile: look again")]
)
def test_a_task_that_another_operator_retries_at_this_moment(
    db: Database, operator: Operator, became: str, why: str
) -> None:
    """It is listed as FAILED; before our statement gets its lock, it is live again, or has even failed again."""
    task_id = factories.task(db, "FAILED")
    ran: list[Ran] = []
    with psycopg.connect(db.url) as other:
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", (task_id,))
        thread = threading.Thread(target=lambda: ran.append(operator("tasks", "retry", "--status", "FAILED", "--json")))
        thread.start()
        eventually(lambda: waits_for_a_lock(db))
        other.execute(f"UPDATE horsies_tasks SET {became} WHERE id = %s", (task_id,))
        other.commit()
        thread.join(20)
    assert ran[0].code == 1
    assert ran[0].json["done"] == 0
    assert ran[0].json["not_done"] == [{"id": task_id, "why": why}]
    assert factories.read(db, task_id)["manual_retries"] == 1


# -- cancel --------------------------------------------------------------------------------------


def test_cancel(db: Database, operator: Operator) -> None:
    ids = {word: factories.task(db, word) for word in STATES}
    ran = operator("tasks", "cancel", *ids.values())
    assert ran.code == 1
    assert ran.out == "cancelled 3 tasks, 1 of them by asking the worker that runs it\n"
    assert ran.err.count("it has ended already") == 4
    assert (status(db, ids["PENDING"]), status(db, ids["CLAIMED"])) == ("CANCELLED", "CANCELLED")
    assert factories.read(db, ids["RUNNING"])["cancel_requested_at"] is not None


HELD = "UPDATE horsies_tasks SET updated_at = now() WHERE id = %s"  # as a task does that completes itself


async def test_a_cancel_waits_only_so_long_for_a_task_that_another_transaction_holds(db: Database) -> None:
    held, other = factories.task(db, "RUNNING"), factories.task(db)
    async with async_app_on(db) as app:
        with psycopg.connect(db.url, application_name="shop") as holder:
            holder.execute(HELD, (held,))
            pid, told = holder.info.backend_pid, list[str]()
            results, left = await app.get_broker().cancel_within([held, other], 0.1, told.append)
        assert (results, list(left)) == ({other: CancelResult.CANCELLED}, [held])
        assert f"session {pid} " in left[held]
        assert "application 'shop') holds it in a transaction, open for" in left[held]
        assert len(told) <= 1
        results, left = await app.get_broker().cancel_within([held], 0.1)
    assert (results, left) == ({held: CancelResult.REQUESTED}, {})


def test_a_cancel_says_what_it_waits_for(db: Database) -> None:
    held, other = factories.task(db, "RUNNING"), factories.task(db)
    with psycopg.connect(db.url) as holder:
        holder.execute(HELD, (held,))
        command = [sys.executable, "-m", "horsies.cli", "tasks", "cancel", held, other, "--database-url", db.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as cancel:
            assert cancel.stderr is not None
            assert cancel.stderr.readline().startswith("horsies: waiting up to 10 s for 1 task: session ")
            assert status(db, other) == "CANCELLED"
            holder.commit()
            assert cancel.communicate() == ("cancelled 2 tasks, 1 of them by asking the worker that runs it\n", "")
            assert cancel.returncode == 0


def test_verbs_by_metadata(db: Database, operator: Operator) -> None:
    """Every verb has the condition; a retry and a purge say how far back they looked."""
    mine = {"metadata": '{"tenant": "acme"}'}
    old = {name: ago(days=3) for name in ("enqueued_at", "claimed_at", "started_at", "failed_at", "terminal_at")}
    waiting, failed, ancient = (
        factories.task(db, **mine), factories.task(db, "FAILED", **mine), factories.task(db, "FAILED", **mine, **old),
    )  # fmt: skip
    others = [factories.task(db), factories.task(db, "FAILED", metadata='{"tenant": "x"}')]
    assert operator("tasks", "cancel", "--meta", "tenant=acme").out == "cancelled 1 task\n"
    assert status(db, waiting) == "CANCELLED"
    ran = operator("tasks", "retry", "--meta", "tenant=acme", "--status", "failed")
    assert ran.out.startswith("retried 1 task\n--meta looked only at ended tasks that ended in the last 24 h")
    assert [status(db, one) for one in (failed, ancient)] == ["PENDING", "FAILED"]
    purged = operator.json("tasks", "purge", "--meta", "tenant=acme", "--newer-than", "9d", "--yes")
    assert (purged["done"], purged["ended_within"]) == (2, None)
    assert [status(db, one) for one in (waiting, ancient)] == [None, None]
    assert [status(db, one) for one in others] == ["PENDING", "FAILED"]


def test_cancel_by_filter(db: Database, operator: Operator) -> None:
    wanted = [factories.task(db, queue_name="mail") for _ in range(3)]
    other = factories.task(db)
    dry = operator("tasks", "cancel", "--queue", "mail", "--dry-run")
    assert dry.code == 0
    assert dry.out.split() == ["would", "cancel", "3", "tasks", *sorted(wanted, reverse=True)]
    assert operator("tasks", "cancel", "--queue", "mail", "--yes") == Ran(0, "cancelled 3 tasks\n", "")
    assert [status(db, task_id) for task_id in wanted] == ["CANCELLED"] * 3
    assert status(db, other) == "PENDING"


# -- purge ---------------------------------------------------------------------------------------


def test_purge_never_touches_what_lives(db: Database, operator: Operator) -> None:
    ids = {word: factories.task(db, word) for word in STATES}
    ran = operator("tasks", "purge", *ids.values(), "missing")
    assert (ran.code, ran.out) == (1, "purged 4 tasks\n")
    for word in ("PENDING", "CLAIMED", "RUNNING"):
        assert f"task {ids[word]} was not purged: it is {word}; only ended tasks are purged" in ran.err
    assert "task missing was not purged: there is no such task" in ran.err
    assert {word for word in STATES if status(db, ids[word])} == {"PENDING", "CLAIMED", "RUNNING"}
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 0  # they went along


@pytest.mark.breaks("W8")
def test_purge_leaves_the_tasks_of_a_live_workflow(db: Database, operator: Operator) -> None:
    done, live, child = (factories.task(db, "COMPLETED", is_workflow_task=True) for _ in range(3))
    factories.workflow(db, "COMPLETED", task_id=done)
    root = factories.workflow(db, "PAUSED", task_id=live)
    factories.workflow(
        db, "COMPLETED", task_id=child, parent_workflow_id=root, parent_task_index=1, root_workflow_id=root, depth=1
    )
    plain = factories.task(db, "COMPLETED")
    dry = operator("tasks", "purge", "--status", "COMPLETED", "--dry-run")
    assert dry.out.splitlines()[0] == "would purge 2 tasks"
    assert set(dry.out.split()[4:]) == {done, plain}
    by_id = operator("tasks", "purge", live, child, "--dry-run")
    assert (by_id.code, by_id.out) == (1, "would purge 0 tasks\n")
    assert f"task {live} would not be purged: its workflow {root} has not ended" in by_id.err
    assert f"task {child} was not purged: its workflow" in operator("tasks", "purge", live, child).err
    assert operator("tasks", "purge", "--status", "COMPLETED", "--yes").out == "purged 2 tasks\n"
    assert (status(db, live), status(db, child)) == ("COMPLETED", "COMPLETED")


def test_purge_by_age_in_batches_the_oldest_first(
    db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.operate.broker.PURGE_BATCH", 3)
    old = [factories.task(db, "COMPLETED", terminal_at=ago(days=10 + number)) for number in range(10)]
    young = factories.task(db, "FAILED")
    dry = operator("tasks", "purge", "--older-than", "7d", "--dry-run", "--limit", "4")
    assert dry.out.split() == ["would", "purge", "4", "tasks", *old[:5:-1]]
    assert operator("tasks", "purge", "--older-than", "7d", "--limit", "4", "--yes").out == "purged 4 tasks\n"
    assert [status(db, task_id) is None for task_id in old] == [False] * 6 + [True] * 4
    assert operator("tasks", "purge", "--older-than", "7d", "--yes").out == "purged 6 tasks\n"
    assert status(db, young) == "FAILED"


def test_purge_skips_locked_rows(db: Database, operator: Operator) -> None:
    """A row that another session has locked is skipped and reported."""
    held, free = factories.task(db, "FAILED"), factories.task(db, "FAILED")
    with psycopg.connect(db.url) as other:
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", (held,))
        ran = operator("tasks", "purge", held, free)
        assert (ran.code, ran.out) == (1, "purged 1 task\n")
        assert f"task {held} was not purged: another session has locked it: try again" in ran.err
    assert operator("tasks", "purge", held) == Ran(0, "purged 1 task\n", "")


# -- asking --------------------------------------------------------------------------------------


def test_a_question_that_takes_too_long(db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horsies.operate.session.READ_TIMEOUT_MS", 200)
    with psycopg.connect(db.url) as other:
        other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        for arguments in (["list"], ["purge", "--task", "add"], ["retry", "--task", "add", "--dry-run"]):
            ran = operator("tasks", *arguments)
            assert (ran.code, ran.out) == (1, "")
            assert ran.err.startswith(
                "horsies: no answer within 0.2 s: another session has locked the table, or the filter"
            )
        assert operator("queues", "pause", "mail").out == "paused mail\n"  # the brake works all the same


def test_who_says_yes_needs_no_count(db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting gives up while another session has locked the table; the purge itself waits a little longer."""
    monkeypatch.setattr("horsies.operate.session.READ_TIMEOUT_MS", 500)
    factories.task(db, "FAILED")
    ran: list[Ran] = []
    with psycopg.connect(db.url) as other:
        other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=lambda: ran.append(operator("tasks", "purge", "--task", "add", "--yes")))
        thread.start()
        eventually(lambda: waits_for_a_lock(db, "WITH target AS MATERIALIZED%"))
        other.rollback()
        thread.join(20)
    assert ran == [Ran(0, "purged 1 task\n", "")]


def test_a_script_has_to_say_yes(db: Database, operator: Operator) -> None:
    ids = [factories.task(db, "FAILED") for _ in range(2)]
    for verb, option in (("retry", "--status=FAILED"), ("purge", "--task=add")):
        ran = operator("tasks", verb, option)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"horsies: this would {verb} 2 tasks: repeat with --yes, or look first with --dry-run\n"
    assert [status(db, task_id) for task_id in ids] == ["FAILED"] * 2
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", ids[0])
    assert operator("tasks", "purge", "--status", "FAILED").out == "purged 1 task\n"  # one needs no question


CTRL_C = "\x03"


def at_a_terminal(
    db: Database, verb: str, answer: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[int, str]:
    """A person on three failed tasks; `meanwhile`, while the question stands. The exit code and the last words."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "horsies.cli", "tasks", verb, "--status", "failed", "--database-url", db.url]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    if answer == CTRL_C:
        meanwhile = lambda: process.send_signal(signal.SIGINT)  # noqa: E731
    said = b""
    deadline = time.monotonic() + 30
    while b"[y/N] " not in said and time.monotonic() < deadline:
        said += os.read(ours, 1024)
    assert f"{verb} 3 tasks? [y/N] ".encode() in said
    meanwhile()
    if answer != CTRL_C:
        os.write(ours, answer.encode() + b"\n")
    rest = b""
    try:
        while chunk := os.read(ours, 1024):
            rest += chunk
    except OSError:  # Linux's way to say that the other side has closed
        pass
    os.close(ours)
    return process.wait(20), rest.decode()


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 3), ("", 3)])
def test_a_person_is_asked(db: Database, answer: str, left: int) -> None:
    for _ in range(3):
        factories.task(db, "FAILED")
    code, said = at_a_terminal(db, "purge", answer)
    assert code == (1 if left else 0)
    assert ("nothing done" if left else "purged 3 tasks") in said
    assert db.value("SELECT count(*) FROM horsies_tasks") == left


def test_ctrl_c_at_the_question_ends_the_command(db: Database) -> None:
    for _ in range(3):
        factories.task(db, "FAILED")
    code, said = at_a_terminal(db, "purge", CTRL_C)
    assert (code, "nothing done" in said) == (130, True)
    assert db.value("SELECT count(*) FROM horsies_tasks") == 3


def test_what_fails_while_the_question_stands_was_not_asked_about(db: Database, operator: Operator) -> None:
    one, two, again = (factories.task(db, "FAILED") for _ in range(3))
    new: list[str] = []

    async def work() -> None:
        async with Hands.on(db) as hands:
            await hands.end(await hands.claim(), status=TaskStatus.FAILED)

    def meanwhile() -> None:
        assert operator("tasks", "retry", again).code == 0
        asyncio.run(work())
        assert status(db, again) == "FAILED"
        new.append(factories.task(db, "FAILED"))

    code, said = at_a_terminal(db, "retry", "y", meanwhile)
    assert (code, "retried 2 tasks" in said) == (0, True)
    assert [status(db, task) for task in (one, two, again, *new)] == ["PENDING", "PENDING", "FAILED", "FAILED"]
    assert factories.read(db, again)["manual_retries"] == 1
