"""`horsies tasks list` and `show`: what an operator sees."""

import json
import re
from typing import Any

import pytest

from horsies import TaskStatus
from horsies.ids import new_id
from tests.support import factories
from tests.support.factories import ago, ahead
from tests.support.operator import Operator, Ran
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

STATES = [status.value for status in TaskStatus]
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"]
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\u202egnp\u200b\x9b31m\x7f\nhorsies: all is well\t<b>[red]%s{}"
UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


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
    "metadata": (
        ["--meta", "tenant=acme"],
        {"metadata": '{"tenant": "acme", "n": 5}'},
        {"metadata": '{"tenant": "x"}'},
    ),
    "all metadata": (
        ["--meta", "n=5", "--meta", "is_test=true"],
        {"metadata": '{"n": 5, "is_test": true}'},
        {"metadata": '{"n": 5}'},
    ),
    "metadata of none": (["--meta", "tenant="], {"metadata": '{"tenant": ""}'}, {"metadata": None}),
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


def test_a_worker_is_named_as_lists_of_workers_show_it(db: Database, operator: Operator) -> None:
    factories.worker_state(db, "214a0000-aaaa", hostname="web-1", pid=4711)
    for worker_id in ("77770000-aaaa", "77770000-bbbb"):
        factories.worker_state(db, worker_id, hostname="web-2", pid=7)
    task = factories.task(db, "FAILED", claimed_by_worker_id="214a0000-aaaa")
    for word in ("214a0000-aaaa", "214a", "web-1:4711"):
        assert [one["id"] for one in operator.json("tasks", "list", "--worker", word)["tasks"]] == [task]
    assert operator("tasks", "retry", "--worker", "web-1:4711", "--dry-run").out.startswith("would retry 1 task\n")
    for word in ("7777", "web-2:7"):
        ran = operator("tasks", "list", "--worker", word)
        assert ran.code == 2
        assert "names 2 workers, one after the other: 77770000-" in ran.err
    assert "no worker 'web-9:1' is known" in operator("tasks", "list", "--worker", "web-9:1").err


def test_metadata_is_looked_for_among_live_tasks_and_those_of_a_day(db: Database, operator: Operator) -> None:
    def ended(hours: float, **columns: Any) -> str:
        then = {
            name: ago(hours=hours)
            for name in ("enqueued_at", "claimed_at", "started_at", "completed_at", "terminal_at")
        }
        return factories.task(db, "COMPLETED", **then, **columns)

    mine = {"metadata": '{"tenant": "acme"}'}
    old_live = factories.task(db, enqueued_at=ago(days=9), **mine)
    today, yesterday, other = ended(1, **mine), ended(30, **mine), ended(1, metadata='{"tenant": "other"}')
    ended(1)

    def found(*options: str) -> list[str]:
        return [task["id"] for task in operator.json("tasks", "list", "--meta", "tenant=acme", *options)["tasks"]]

    assert found() == [old_live, today]
    assert found("--newer-than", "240h") == [old_live, today, yesterday]
    assert found("--older-than", "12h", "--status", "completed") == [yesterday]
    assert operator.json("tasks", "list", "--meta", "tenant=other")["tasks"][0]["id"] == other
    ran = operator("tasks", "list", "--meta", "tenant=acme")
    told = "--meta looked only at ended tasks that ended in the last 24 h; --newer-than SPAN looks further back"
    assert ran.err == f"horsies: {told}\n"
    assert operator.json("tasks", "list", "--meta", "tenant=acme")["ended_within"] == 86_400
    assert operator("tasks", "list", "--meta", "tenant=no") == Ran(0, "no tasks\n", f"horsies: {told}\n")
    older = operator("tasks", "list", "--meta", "tenant=acme", "--older-than", "12h").err
    assert "that ended more than 12 h and less than 1 d 12 h ago" in older
    for options in (["--newer-than", "9d"], ["--status", "pending"]):
        assert "--meta looked" not in operator("tasks", "list", "--meta", "tenant=acme", *options).err
    assert operator("tasks", "count", "--meta", "tenant=acme") == Ran(0, "2 tasks\n", f"horsies: {told}\n")


def test_count(db: Database, operator: Operator) -> None:
    for word in STATES:
        factories.task(db, word)
    assert operator("tasks", "count") == Ran(0, "7 tasks\n", "")
    assert operator("tasks", "count", "--status", "failed").out == "1 task\n"
    assert operator("tasks", "count", "--limit", "3").out == "at least 3 tasks\n"
    assert operator.json("tasks", "count") == {"count": 7, "is_lower_bound": False, "ended_within": None}


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


def test_groups_have_a_column_where_a_task_has_one(db: Database, operator: Operator) -> None:
    factories.task(db)
    assert "GROUP" not in operator("tasks", "list").out
    factories.task(db, group_key="acme")
    listed = operator("tasks", "list")
    assert listed.out.split()[:4] == ["ID", "TASK", "QUEUE", "GROUP"]
    assert sorted(line[3] for line in listed.lines) == ["-", "acme"]


def test_an_empty_list(operator: Operator) -> None:
    assert operator("tasks", "list") == Ran(0, "no tasks\n", "")
    assert operator.json("tasks", "list") == {"tasks": [], "next": None, "ended_within": None}


# -- show ----------------------------------------------------------------------------------------


def test_show_tells_everything(db: Database, operator: Operator) -> None:
    task_id = factories.task(
        db, "FAILED", retry_count=2, unique_key="order-7", progress='{"done": 3}', task_options='{"timeout_ms":1}',
        manual_retries=1, good_until=ahead(days=1), metadata='{"tenant": "acmé", "n": 5}',
    )  # fmt: skip
    factories.heartbeat(db, task_id, hostname="host-7", pid=99)
    ran = operator("tasks", "show", task_id)
    assert (ran.code, ran.err) == (0, "")
    for text in (
        f"id          {task_id}", "status      FAILED", "2 of 2, 1 by hand", "order-7", "pid 4711 on host-1 (child-1)",
        "SMTP_DOWN", '{"a":1,"b":2}', '{"done": 3}', '{"timeout_ms":1}', "as the test wanted", "runner", "host-7",
        "good until", "attempts", 'metadata  {"n": 5, "tenant": "acmé"}',
    ):  # fmt: skip
        assert text in ran.out, text
    found = operator.json("tasks", "show", task_id)["tasks"][0]
    assert found["payload"]["kwargs"] == '{"a":1,"b":2}'
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["FAILED"] * 3
    assert found["heartbeats"][0]["hostname"] == "host-7"
    assert found["retry_count"] == 2
    assert found["metadata"] == {"tenant": "acmé", "n": 5}


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
    ids, missing = [factories.task(db), factories.task(db)], new_id()
    ran = operator("tasks", "show", ids[0], missing, ids[1], ids[0])
    assert ran.code == 1
    assert re.findall(r"^id +(\S+)", ran.out, re.MULTILINE) == ids
    assert ran.err == f"horsies: there is no task {missing}: never sent, not committed yet, or pruned since\n"
    assert operator.json("tasks", "show", missing) == {"tasks": [], "not_found": [missing]}


# -- bad input -----------------------------------------------------------------------------------


BAD = {
    "a state": (["tasks", "list", "--status", "DONE"], "'DONE' is not a state: choose from PENDING, CLAIMED"),
    "a span": (["tasks", "list", "--older-than", "5"], "'5' is not a duration: write 90s, 15m, 2h, 7d or 1h30m"),
    "a negative span": (
        ["tasks", "list", "--older-than", "-5s"],
        "argument --older-than: '-5s' is negative: a duration is zero or longer",
    ),
    "a long span": (["tasks", "list", "--newer-than", "9999999w"], "longer than a hundred years"),
    "a limit": (["tasks", "list", "--limit", "0"], "'0' is not a whole number from 1"),
    "metadata without a value": (
        ["tasks", "list", "--meta", "tenant"],
        "argument --meta: 'tenant' has no value: write KEY=VALUE, such as --meta tenant=acme",
    ),
    "metadata without a key": (["tasks", "cancel", "--meta", "=x"], "'=x' has no key: write KEY=VALUE, such as"),
    "metadata with two values": (["tasks", "count", "--meta", "a=1", "--meta", "a=2"], "--meta 'a' is given twice"),
    "metadata that cannot be": (["tasks", "list", "--meta", "a=\udcff"], "no task can have 'a'"),
    "a cursor": (["tasks", "list", "--after", "x@yesterday"], "is not what a page of `tasks list` ended with"),
    "another cursor": (["tasks", "list", "--after", "xx"], "'xx' is not what a page of `tasks list` ended with"),
    "an id": (["tasks", "retry", "x" * 37], "cannot be the id of a task"),
    "an id to show": (["tasks", "show", "x" * 37], "cannot be the id of a task"),
    "an id of a run": (["workflows", "show", "x" * 37], "cannot be the id of a task or a workflow"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks", "show"], ["tasks", "retry"], ["tasks", "list"], ["tasks"], ["tasks", "list", "--after"],
        ["tasks", "list", "--status"], ["tasks", "list", "--older-than"], ["tasks", "list", "--limit"],
        ["stale", "requeue"], ["workflows", "show"], ["workflows", "pause"],
        ["workflows", "list", "--status"], ["queues", "pause"], ["queues", "resume"], ["schedules", "pause"], [],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_message_repeats_only_the_beginning_of_a_long_argument(operator: Operator, arguments: list[str]) -> None:
    ran = operator(*arguments, "x" * 100_000)
    assert ran.code in (1, 2)
    assert "x" * 70 in ran.err
    assert len(ran.err) < 1_500


def test_ids_that_are_no_uuids_are_only_not_there(operator: Operator) -> None:
    for text in ("1", "'; DROP TABLE horsies_tasks; --", "é", "%"):
        assert "there is no such task" in operator("tasks", "retry", text).err
        assert operator("tasks", "show", text).code == 1


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
