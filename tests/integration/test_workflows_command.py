"""`horsies workflows`: every verb on a real database."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from horsies import TerminalResults, WorkflowHandle, WorkflowStatus
from tests.support import workflow_app
from tests.support.apps import app_on
from tests.support.operator import Operator
from tests.support.postgres import Database


@pytest.fixture
def t(db: Database) -> Iterator[SimpleNamespace]:
    with app_on(db) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        yield tasks


def start(t: SimpleNamespace, name: str = "sums") -> WorkflowHandle[TerminalResults]:
    one = t.number.node(node_id="one")(1)
    return t.app.workflow(name, [one, t.number.node(node_id="two", waits_for=[one])(2)]).start()


def test_list(t: SimpleNamespace, operator: Operator) -> None:
    assert operator("workflows").out == "no workflow was ever started\n"
    runs = [start(t), start(t, "other")]
    runs[0].cancel()
    ran = operator("workflows", "list")
    assert ran.code == 0
    assert [line[:3] for line in ran.lines] == [
        [runs[1].workflow_id, "other", "RUNNING"], [runs[0].workflow_id, "sums", "CANCELLED"],
    ]  # fmt: skip
    found = operator.json("workflows", "list", "--status", "CANCELLED")["workflows"]
    assert [one["id"] for one in found] == [runs[0].workflow_id]
    assert operator("workflows", "--status", "FAILED").out == "no run matches\n"
    assert operator("workflows", "--status", "NONE").code == 2


def test_a_list_says_when_it_is_cut_and_takes_several_states(t: SimpleNamespace, operator: Operator) -> None:
    runs = [start(t) for _ in range(3)]
    runs[0].cancel()
    ran = operator("workflows", "list", "--limit", "2")
    assert len(ran.lines) == 3
    assert ran.out.endswith("\nthere are more: --limit shows more\n")
    assert operator.json("workflows", "list", "--limit", "2")["has_more"] is True
    assert operator.json("workflows", "list", "--limit", "3")["has_more"] is False
    both = operator.json("workflows", "list", "--status", "cancelled", "--status", "running")["workflows"]
    assert [one["id"] for one in both] == [run.workflow_id for run in (runs[2], runs[1], runs[0])]


def test_show(t: SimpleNamespace, operator: Operator, db: Database) -> None:
    run = start(t)
    ran = operator("workflows", "show", run.workflow_id)
    assert ran.out.splitlines()[0] == f"sums {run.workflow_id}: RUNNING, 0 of 2 nodes ended"
    assert ran.out.splitlines()[1:] == ["", "   ◔ one", "   │", "   · two", "", "· pending  ◔ enqueued"]
    assert "n0 --> n1" in operator("workflows", "show", run.workflow_id, "--mermaid").out
    assert [node["status"] for node in operator.json("workflows", "show", run.workflow_id)["nodes"]] == [
        "ENQUEUED", "PENDING",
    ]  # fmt: skip
    error = '{"err":{"error_code":"DOWN","message":"no \\u001b[31mline","data":null}}'
    db.execute("UPDATE horsies_workflow_tasks SET status = 'FAILED', error = %s WHERE node_id = 'one'", error)
    shown = operator("workflows", "show", run.workflow_id).out
    assert "one: DOWN: no " in shown
    assert "\x1b" not in shown
    db.execute("UPDATE horsies_workflow_tasks SET node_id = E'one\\nhorsies: all is well' WHERE node_id = 'one'")
    db.execute("UPDATE horsies_workflows SET name = E'sums\\nhorsies: all is well'")
    for more in ((), ("--mermaid",)):
        shown = operator("workflows", "show", run.workflow_id, *more).out
        assert r"one\nhorsies: all is well" in shown
        assert not any(line.startswith("horsies:") for line in shown.splitlines())
    missing = operator("workflows", "show", "nothing")
    assert (missing.code, missing.err) == (1, "horsies: there is no workflow nothing\n")
    db.execute("DELETE FROM horsies_workflows")
    db.execute("DELETE FROM horsies_tasks")


def test_show_has_the_metadata_of_the_run(t: SimpleNamespace, operator: Operator) -> None:
    meta = {"tenant": "acmé\x1b[31m", "n": 5}
    flow = t.app.workflow("sums", [t.number.node(node_id="one")(1)])
    run, bare = flow.start(metadata=meta), flow.start()
    shown = operator("workflows", "show", run.workflow_id).out
    assert "\nmetadata  {" in shown
    assert '"n": 5' in shown
    assert "\x1b" not in shown
    assert operator.json("workflows", "show", run.workflow_id)["workflow"]["metadata"] == meta
    info, none = run.info(), bare.info()
    assert info is not None
    assert none is not None
    assert (info.metadata, none.metadata) == (meta, {})
    for quiet in ([bare.workflow_id], [run.workflow_id, "--mermaid"]):
        assert "metadata" not in operator("workflows", "show", *quiet).out
    assert [one["metadata"] for one in operator.json("workflows", "list")["workflows"]] == [None, None]
    (node,) = run.tasks()
    assert operator.json("tasks", "list", "--meta", "n=5")["tasks"][0]["id"] == node.task_id  # which nodes inherit


def test_verbs(t: SimpleNamespace, operator: Operator) -> None:
    run = start(t)
    assert operator("workflows", "pause", run.workflow_id).out == f"paused {run.workflow_id}\n"
    again = operator("workflows", "pause", run.workflow_id, "nothing")
    assert again.code == 1
    assert f"workflow {run.workflow_id} was not paused: it is not running (PAUSED)" in again.err
    assert "workflow nothing was not paused: there is no such workflow" in again.err
    assert operator("workflows", "resume", run.workflow_id).code == 0
    assert operator("workflows", "retry", run.workflow_id).code == 1
    assert operator.json("workflows", "cancel", run.workflow_id) == {
        "verb": "cancel", "done": [run.workflow_id], "not_done": [],
    }  # fmt: skip
    assert operator("workflows", "retry", run.workflow_id).out == f"retried {run.workflow_id}\n"
    assert run.status() is WorkflowStatus.RUNNING


def test_retry_of_a_node_says_why_not(t: SimpleNamespace, operator: Operator, db: Database) -> None:
    first = t.number.node(node_id="first")(1)
    second = t.number.node(node_id="second", waits_for=[first])(2)
    third = t.number.node(node_id="third", waits_for=[second])(3)
    fine = t.number.node(node_id="fine")(4)
    run = t.app.workflow("sums", [first, second, third, fine]).start()

    def told(node: str) -> str:
        ran = operator("workflows", "retry", run.workflow_id, "--node", node)
        assert ran.code == 1
        return ran.err.removeprefix(f"horsies: workflow {run.workflow_id} was not retried: ").rstrip()

    assert told("firs") == f"workflow {run.workflow_id} has no node 'firs'; did you mean 'first'?"
    assert told("nothing").endswith("has no node 'nothing'; `horsies workflows show` lists its nodes")
    assert len(told("x" * 100_000)) < 300
    assert told("third") == "node 'third' has not failed, it is PENDING"
    ends = {"first": "FAILED", "second": "SKIPPED", "third": "SKIPPED", "fine": "COMPLETED"}
    for name, status in ends.items():
        db.execute("UPDATE horsies_workflow_tasks SET status = %s WHERE node_id = %s", status, name)
    db.execute("UPDATE horsies_workflows SET status = 'FAILED', completed_at = now()")
    for name in ("second", "third"):
        assert told(name) == f"node {name!r} was skipped because 'first' failed; retry 'first' instead"
    assert told("fine") == "node 'fine' has not failed, it is COMPLETED"
    db.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED' WHERE node_id = 'first'")
    assert told("second") == (
        "node 'second' was skipped because a value that it takes does not exist; retry the whole run instead"
    )
    db.execute("DELETE FROM horsies_workflows")
    db.execute("DELETE FROM horsies_tasks")
