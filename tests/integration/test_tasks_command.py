"""`horsies tasks`, as an operator uses it: what it lists, what it touches, what it leaves alone and says so."""

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies import TaskStatus
from horsies.ids import new_id
from tests.support import factories
from tests.support.apps import UNREACHABLE
from tests.support.factories import ago, ahead
from tests.support.hands import Hands
from tests.support.operator import Operator, Ran, as_process
from tests.support.postgres import Database
from tests.support.waiting import eventually

STATES = [status.value for status in TaskStatus]
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"]
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\u202egnp\u200b\x9b31m\x7f\nhorsies: all is well\t<b>[red]%s{}"
UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def operator(db: Database, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(db, capsys)


def status(db: Database, task_id: str) -> str | None:
    found = db.execute("SELECT status FROM horsies_tasks WHERE id = %s", task_id)
    return found[0][0] if found else None


# -- list ----------------------------------------------------------------------------------------


def test_live_tasks_come_first_then_the_last_ended(db: Database, operator: Operator) -> None:
    ran_then = {"enqueued_at": ago(hours=4), "claimed_at": ago(hours=4), "started_at": ago(hours=4)}
    old, new = (
        factories.task(db, "FAILED", **ran_then, terminal_at=ago(hours=hours), failed_at=ago(hours=hours))
        for hours in (3, 1)
    )
    waiting = [factories.task(db), factories.task(db, "RUNNING"), factories.task(db, "CLAIMED")]
    ran = operator("tasks", "list")
    assert (ran.code, ran.err) == (0, "")
    assert [line[0] for line in ran.lines] == [*sorted(waiting, reverse=True), new, old]
    assert ran.out.splitlines()[0].split() == [
        "ID", "TASK", "QUEUE", "PRI", "STATUS", "FOR", "TRIES", "WORKER", "ERROR",
    ]  # fmt: skip
    assert "1 h" in ran.out
    assert "SMTP_DOWN" in ran.out


def test_pages_meet_every_task_once(db: Database, operator: Operator) -> None:
    ids = [factories.task(db, STATES[number % 7]) for number in range(20)]
    same_end = [factories.task(db, "COMPLETED") for _ in range(5)]
    db.execute("UPDATE horsies_tasks SET terminal_at = now() - interval '1 hour' WHERE id = ANY (%s)", same_end)
    seen: list[str] = []
    after: list[str] = []
    for _ in range(20):
        page = operator.json("tasks", "list", "--limit", "4", *after)
        seen += [task["id"] for task in page["tasks"]]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]
    assert sorted(seen) == sorted([*ids, *same_end])
    ended = [task for task in seen if task in same_end]
    assert ended == sorted(same_end, reverse=True)


FILTERS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "queue": (["--queue", "mail"], {"queue_name": "mail"}, {"queue_name": "other"}),
    "either queue": (["--queue", "mail", "--queue", "x"], {"queue_name": "x"}, {"queue_name": "other"}),
    "name": (["--task", "send"], {"task_name": "send"}, {"task_name": "sender"}),
    "age": (["--older-than", "1h"], {"enqueued_at": ago(hours=2)}, {"enqueued_at": ago(minutes=50)}),
    "youth": (["--newer-than", "1h30m"], {"enqueued_at": ago(hours=1)}, {"enqueued_at": ago(hours=2)}),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(db: Database, operator: Operator, name: str) -> None:
    options, match, miss = FILTERS[name]
    wanted = factories.task(db, **match)
    factories.task(db, **miss)
    assert [task["id"] for task in operator.json("tasks", "list", *options)["tasks"]] == [wanted]
    assert operator("tasks", "cancel", *options, "--dry-run").out.startswith("would cancel 1 task\n")


def test_filters_of_state_code_and_worker(db: Database, operator: Operator) -> None:
    by_state = {word: factories.task(db, word) for word in STATES}
    for word, task_id in by_state.items():
        found = operator.json("tasks", "list", "--status", word.lower())["tasks"]
        assert [task["id"] for task in found] == [task_id]
    several = operator.json("tasks", "list", "--status", "pending", "--status", "FAILED")["tasks"]
    assert [task["id"] for task in several] == [by_state["PENDING"], by_state["FAILED"]]
    crashed = factories.task(db, "FAILED", error_code="WORKER_CRASHED", claimed_by_worker_id="worker-9")
    for option in (["--error-code", "WORKER_CRASHED"], ["--worker", "worker-9"]):
        assert [task["id"] for task in operator.json("tasks", "list", *option)["tasks"]] == [crashed]
    held = operator.json("tasks", "list", "--worker", "worker-1")["tasks"]
    assert {task["status"] for task in held} == {"CLAIMED", "RUNNING", "COMPLETED", "FAILED"}
    assert operator.json("tasks", "list", "--status", "PENDING", "--error-code", "X")["tasks"] == []


@pytest.mark.breaks("T8")
def test_an_ended_task_is_as_old_as_its_end(db: Database, operator: Operator) -> None:
    long_ago = {"enqueued_at": ago(days=9), "claimed_at": ago(days=9), "started_at": ago(days=9)}
    factories.task(db, "COMPLETED", **long_ago)
    old = factories.task(db, "COMPLETED", **long_ago, completed_at=ago(days=8), terminal_at=ago(days=8))
    running = factories.task(db, "RUNNING", **{**long_ago, "started_at": ago(days=8)})
    assert [task["id"] for task in operator.json("tasks", "list", "--older-than", "7d")["tasks"]] == [running, old]


def test_a_delayed_task_says_when(db: Database, operator: Operator) -> None:
    factories.task(db, enqueued_at=ahead(minutes=30))
    assert re.search(r"PENDING  in 29 m \d+ s ", operator("tasks", "list").out)


def test_an_empty_list(operator: Operator) -> None:
    assert operator("tasks", "list") == Ran(0, "no tasks\n", "")
    assert operator.json("tasks", "list") == {"tasks": [], "next": None}


# -- show ----------------------------------------------------------------------------------------


def test_show_tells_everything(db: Database, operator: Operator) -> None:
    task_id = factories.task(
        db, "FAILED", retry_count=2, unique_key="order-7", progress='{"done": 3}', task_options='{"timeout_ms":1}',
        manual_retries=1, good_until=ahead(days=1),
    )  # fmt: skip
    factories.heartbeat(db, task_id, hostname="host-7", pid=99)
    ran = operator("tasks", "show", task_id)
    assert (ran.code, ran.err) == (0, "")
    for text in (
        f"id          {task_id}", "status      FAILED", "2 of 2, 1 by hand", "order-7", "pid 4711 on host-1 (child-1)",
        "SMTP_DOWN", '{"a":1,"b":2}', '{"done": 3}', '{"timeout_ms":1}', "as the test wanted", "runner", "host-7",
        "good until", "attempts",
    ):  # fmt: skip
        assert text in ran.out, text
    found = operator.json("tasks", "show", task_id)["tasks"][0]
    assert found["payload"]["kwargs"] == '{"a":1,"b":2}'
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["FAILED"] * 3
    assert found["heartbeats"][0]["hostname"] == "host-7"
    assert found["retry_count"] == 2


def test_a_failed_task_says_first_what_was_raised(db: Database, operator: Operator) -> None:
    """Above the times: its message, and the last line of its traceback, however long that is."""
    trace = "Traceback (most recent call last):\n" + '  File "x.py", line 1\n' * 700 + "ValueError: no such order\n"
    error = {"error_code": "UNHANDLED_EXCEPTION", "message": "order 7 cannot be shipped", "data": {"traceback": trace}}
    shown = operator("tasks", "show", factories.task(db, "FAILED", result=json.dumps({"err": error}))).out
    first = shown.split("\ntimes")[0]
    assert "\nmessage  order 7 cannot be shipped\n" in first
    assert "\nraised  ValueError: no such order" in first
    assert len(shown) < 10_000


def test_a_stored_traceback_can_be_read(db: Database, operator: Operator) -> None:
    lines = 'Traceback (most recent call last):\n  File "x.py", line 1\x1b[2J\nValueError: boom'
    result = {"err": {"error_code": "X", "data": {"traceback": lines}}}
    shown = operator("tasks", "show", factories.task(db, "FAILED", result=json.dumps(result))).out
    assert '\ntraceback\n    Traceback (most recent call last):\n      File "x.py", line 1\\x1b[2J\n    Value' in shown
    for odd in ('{"err": 1}', "[]", "not json", '{"err": {"data": {"traceback": 7}}}', "[" * 100_000):
        assert "\ntraceback" not in operator("tasks", "show", factories.task(db, "FAILED", result=odd)).out


@pytest.mark.parametrize("word", STATES)
def test_show_of_every_state(db: Database, operator: Operator, word: str) -> None:
    task_id = factories.task(db, word)
    ran = operator("tasks", "show", task_id)
    assert ran.code == 0
    assert re.search(rf"^status +{word}$", ran.out, re.MULTILINE)


def test_long_texts_are_cut_unless_all_is_wanted(db: Database, operator: Operator) -> None:
    text = '{"ok":"' + "x" * 5_000_000 + '"}'
    task_id = factories.task(db, "COMPLETED", result=text, failed_reason="y" * 3_000)
    ran = operator("tasks", "show", task_id)
    assert len(ran.out) < 8_000
    assert f"[{len(text):,} characters, --full shows all]" in ran.out
    assert "[3,000 characters, --full shows all]" in ran.out
    assert text in operator("tasks", "show", "--full", task_id).out
    found = operator.json("tasks", "show", task_id)["tasks"][0]
    assert found["payload_cut"] == ["result"]
    assert len(found["payload"]["result"]) == 2_000


def test_show_of_several_and_of_one_that_is_not_there(db: Database, operator: Operator) -> None:
    ids, nobody = [factories.task(db), factories.task(db)], new_id()
    ran = operator("tasks", "show", ids[0], nobody, ids[1], ids[0])
    assert ran.code == 1
    assert re.findall(r"^id +(\S+)", ran.out, re.MULTILINE) == ids
    assert ran.err == f"horsies: there is no task {nobody}: never sent, or pruned since\n"
    assert operator.json("tasks", "show", nobody) == {"tasks": [], "not_found": [nobody]}


# -- retry ---------------------------------------------------------------------------------------


@pytest.mark.breaks("W4")
def test_retry_by_ids_says_what_it_left_alone(db: Database, operator: Operator) -> None:
    ids = {word: factories.task(db, word) for word in STATES}
    node = factories.task(db, "FAILED", is_workflow_task=True)
    nobody = new_id()
    dry = operator("tasks", "retry", *ids.values(), node, nobody, "--dry-run")
    assert dry.out.splitlines()[0] == "would retry 3 tasks"
    assert status(db, ids["FAILED"]) == "FAILED"
    ran = operator("tasks", "retry", *ids.values(), node, nobody)
    assert (ran.code, ran.out) == (1, "retried 3 tasks\n")
    assert f"task {ids['RUNNING']} was not retried: it has not ended" in ran.err
    assert f"task {ids['COMPLETED']} was not retried: it is COMPLETED; send a new one" in ran.err
    assert f"task {node} was not retried: it belongs to a workflow: retry that" in ran.err
    assert f"task {nobody} was not retried: there is no such task" in ran.err
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
    monkeypatch.setattr("horsies.commands._act.BATCH", 3)
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


def waits_for_a_lock(db: Database, query: str = "%") -> bool:
    waiting = db.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE %s",
        query,
    )
    return bool(waiting)


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


def workflow(db: Database, status: str, task_id: str, **columns: Any) -> str:
    workflow_id = new_id()
    done = {"completed_at": factories.NOW} if status in ("COMPLETED", "FAILED", "CANCELLED") else {}
    factories.insert(db, "horsies_workflows", id=workflow_id, name="w", status=status, **done, **columns)
    factories.insert(
        db, "horsies_workflow_tasks", id=new_id(), workflow_id=workflow_id, task_index=0, node_id="n", task_name="add",
        status="COMPLETED", task_id=task_id,
    )  # fmt: skip
    return workflow_id


def test_purge_never_touches_what_lives(db: Database, operator: Operator) -> None:
    ids = {word: factories.task(db, word) for word in STATES}
    ran = operator("tasks", "purge", *ids.values(), "nobody")
    assert (ran.code, ran.out) == (1, "purged 4 tasks\n")
    for word in ("PENDING", "CLAIMED", "RUNNING"):
        assert f"task {ids[word]} was not purged: it is {word}; only ended tasks are purged" in ran.err
    assert "task nobody was not purged: there is no such task" in ran.err
    assert {word for word in STATES if status(db, ids[word])} == {"PENDING", "CLAIMED", "RUNNING"}
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 0  # they went along


@pytest.mark.breaks("W8")
def test_purge_leaves_the_tasks_of_a_live_workflow(db: Database, operator: Operator) -> None:
    done, live, child = (factories.task(db, "COMPLETED", is_workflow_task=True) for _ in range(3))
    workflow(db, "COMPLETED", done)
    root = workflow(db, "PAUSED", live)
    workflow(db, "COMPLETED", child, parent_workflow_id=root, parent_task_index=1, root_workflow_id=root, depth=1)
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
    monkeypatch.setattr("horsies._operations.PURGE_BATCH", 3)
    old = [factories.task(db, "COMPLETED", terminal_at=ago(days=10 + number)) for number in range(10)]
    young = factories.task(db, "FAILED")
    dry = operator("tasks", "purge", "--older-than", "7d", "--dry-run", "--limit", "4")
    assert dry.out.split() == ["would", "purge", "4", "tasks", *old[:5:-1]]
    assert operator("tasks", "purge", "--older-than", "7d", "--limit", "4", "--yes").out == "purged 4 tasks\n"
    assert [status(db, task_id) is None for task_id in old] == [False] * 6 + [True] * 4
    assert operator("tasks", "purge", "--older-than", "7d", "--yes").out == "purged 6 tasks\n"
    assert status(db, young) == "FAILED"


def test_purge_waits_for_nobody(db: Database, operator: Operator) -> None:
    """A row that somebody holds is left for another day, and told."""
    held, free = factories.task(db, "FAILED"), factories.task(db, "FAILED")
    with psycopg.connect(db.url) as other:
        other.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", (held,))
        ran = operator("tasks", "purge", held, free)
        assert (ran.code, ran.out) == (1, "purged 1 task\n")
        assert f"task {held} was not purged: somebody else holds it just now: try again" in ran.err
    assert operator("tasks", "purge", held) == Ran(0, "purged 1 task\n", "")


# -- asking --------------------------------------------------------------------------------------


def test_a_question_that_takes_too_long(db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horsies._operations.READ_TIMEOUT_MS", 200)
    with psycopg.connect(db.url) as other:
        other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        for arguments in (["list"], ["purge", "--task", "add"], ["retry", "--task", "add", "--dry-run"]):
            ran = operator("tasks", *arguments)
            assert (ran.code, ran.out) == (1, "")
            assert ran.err.startswith("horsies: no answer within 0.2 s: somebody has locked the table, or the filter")
        assert operator("queues", "pause", "mail").out == "paused mail\n"  # the brake works all the same


def test_who_says_yes_needs_no_count(db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting is given up while somebody has the table for himself; the purge itself waits a little longer."""
    monkeypatch.setattr("horsies._operations.READ_TIMEOUT_MS", 500)
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


def at_a_terminal(
    db: Database, verb: str, answer: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[int, str]:
    """A person on three failed tasks; `meanwhile`, while the question stands. The exit code and the last words."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "horsies.cli", "tasks", verb, "--status", "failed", "--database-url", db.url]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    deadline = time.monotonic() + 30
    while b"[y/N] " not in said and time.monotonic() < deadline:
        said += os.read(ours, 1024)
    assert f"{verb} 3 tasks? [y/N] ".encode() in said
    meanwhile()
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


# -- bad input -----------------------------------------------------------------------------------

BAD = {
    "a state": (["tasks", "list", "--status", "DONE"], "'DONE' is not a state: choose from PENDING, CLAIMED"),
    "a span": (["tasks", "list", "--older-than", "5"], "'5' is not a duration: write 90s, 15m, 2h, 7d or 1h30m"),
    "a long span": (["tasks", "list", "--newer-than", "9999999w"], "longer than a hundred years"),
    "a limit": (["tasks", "list", "--limit", "0"], "'0' is not a whole number from 1"),
    "a cursor": (["tasks", "list", "--after", "x@yesterday"], "is not what a page of `tasks list` ended with"),
    "an id": (["tasks", "retry", "x" * 37], "cannot be the id of a task"),
    "nothing named": (["tasks", "purge"], "name the tasks to purge by id, or by a filter"),
    "a state that is not retried": (["tasks", "retry", "--status", "running"], "RUNNING tasks cannot be retried: only"),
    "a live one to purge": (["tasks", "purge", "--status", "pending"], "PENDING tasks cannot be purged"),
    "an ended one to cancel": (["tasks", "cancel", "--status", "failed"], "FAILED tasks cannot be cancelled"),
    "a verb": (["tasks", "drop"], "invalid choice: 'drop'"),
    "an escape": (["tasks", "list", "\x1b[2J"], r"unrecognized arguments: \x1b[2J"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_usage(operator: Operator, name: str) -> None:
    arguments, told = BAD[name]
    ran = operator(*arguments)
    assert ran.code == 2
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_ids_that_are_no_uuids_are_only_not_there(operator: Operator) -> None:
    for text in ("1", "'; DROP TABLE horsies_tasks; --", "é", "%"):
        assert "there is no such task" in operator("tasks", "retry", text).err
        assert operator("tasks", "show", text).code == 1


# -- finding the database ------------------------------------------------------------------------


def test_no_database_at_all() -> None:
    ran = as_process("tasks", "list", url=None)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "horsies: no database: give --database-url, set HORSIES_DATABASE_URL, or name an app with --app module:app\n"
    )


def test_by_the_environment_and_by_an_app(db: Database, tmp_path: Any) -> None:
    task_id = factories.task(db)
    assert task_id in as_process("tasks", "list", url=db.url).out
    (tmp_path / "shop.py").write_text(
        f"from horsies import *\napp = Horsies(AppConfig(PostgresConfig({db.url!r}, pool_min_size=1)))\n"
    )
    assert task_id in as_process("tasks", "list", "--app", "shop:app", url=UNREACHABLE, cwd=tmp_path).out
    broken = as_process("tasks", "list", "--app", "shop:nothing", url=db.url, cwd=tmp_path)
    assert (broken.code, broken.out) == (2, "")
    assert "module 'shop' has no 'nothing'" in broken.err
    both = as_process("tasks", "list", "--app", "shop:app", "--database-url", db.url, url=None, cwd=tmp_path)
    assert both.code == 2


def test_in_a_schema_of_its_own(empty_db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    import horsies_schema

    horsies_schema.upgrade(empty_db.url, schema="jobs")
    task_id = factories.task(empty_db, "FAILED", schema="jobs")
    operator = Operator(empty_db, capsys)
    assert operator.json("tasks", "list", "--schema", "jobs")["tasks"][0]["id"] == task_id
    assert operator("tasks", "purge", task_id, "--schema", "jobs").out == "purged 1 task\n"
    ran = operator("tasks", "list")
    assert ran.code == 1
    assert "there are no horsies tables in this database (by its search_path): run `horsies-migrate up`" in ran.err


@pytest.mark.parametrize("command", [["tasks", "list"], ["workers"], ["queues"], ["stale", "list"], ["doctor"]])
def test_unreachable_without_a_secret_or_a_traceback(operator: Operator, command: list[str]) -> None:
    ran = operator(*command, url=UNREACHABLE)
    assert ran.code == 1
    assert "ConnectionRefusedError" in ran.out + ran.err
    assert "hunter2" not in ran.out + ran.err
    assert "Traceback" not in ran.err


def test_a_url_in_the_wrong_place_does_not_leak(operator: Operator) -> None:
    for arguments in (["tasks"], ["tasks", "list", "--database", "--status"], ["stale"], ["queues", "drop"]):
        ran = operator(*arguments, url="postgresql://u:hunter2@h/x")
        assert ran.code == 2
        assert "hunter2" not in ran.out + ran.err


def test_a_bad_url_does_not_leak(operator: Operator) -> None:
    for url in ("mysql://root:hunter2@db/x", "postgresql://u:hunter2@h:port/x"):
        ran = operator("tasks", "list", url=url)
        assert ran.code == 2
        assert "hunter2" not in ran.out + ran.err
        assert ran.err.startswith("horsies: ")


# -- hostile rows --------------------------------------------------------------------------------


@pytest.mark.breaks("T8")
def test_rows_cannot_write_on_the_terminal(db: Database, operator: Operator) -> None:
    """F125: in every text column that is printed."""
    task_id = factories.task(
        db, "FAILED", task_name=HOSTILE, error_code=HOSTILE, failed_reason=HOSTILE, unique_key=HOSTILE, kwargs=HOSTILE,
        args=HOSTILE, result=HOSTILE, task_options=HOSTILE, claimed_by_worker_id=HOSTILE, worker_hostname=HOSTILE,
        worker_process_name=HOSTILE, retry_count=1,
    )  # fmt: skip
    db.execute(
        "UPDATE horsies_task_attempts SET error_message = %s, failed_reason = %s, error_code = %s, worker_id = %s",
        *[HOSTILE] * 4,
    )
    factories.heartbeat(db, task_id, sender_id=HOSTILE, hostname=HOSTILE)
    factories.worker_state(db, HOSTILE, hostname=HOSTILE, queues=[HOSTILE])
    factories.task(
        db, "RUNNING", task_name=HOSTILE, claimed_by_worker_id=HOSTILE, worker_hostname=HOSTILE,
        enqueued_at=ago(hours=3), claimed_at=ago(hours=2), started_at=ago(hours=1),
    )  # fmt: skip
    for arguments in (
        ["tasks", "list"], ["tasks", "show", task_id], ["tasks", "show", task_id, "--full"], ["workers"],
        ["stale", "list"], ["stale", "fail", "--dry-run"], ["doctor"], ["queues"],
    ):  # fmt: skip
        ran = operator(*arguments)
        assert not UNFIT.search(ran.out + ran.err), arguments
        assert not re.search(r"^horsies: all is well", ran.out + ran.err, re.MULTILINE), arguments
        told = operator(*arguments, "--json")
        assert not UNFIT.search(told.out), arguments
        assert told.out.isascii()
    shown = operator.json("tasks", "show", task_id)["tasks"][0]
    assert shown["task_name"] == HOSTILE  # nothing is lost on a script
    assert operator.json("tasks", "list", "--task", HOSTILE)["tasks"][0]["task_name"] == HOSTILE
