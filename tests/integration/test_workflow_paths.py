"""Signals from the command line, what waits for them, and nodes by their path: show, results, retry."""

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import (
    SignalError,
    TaskError,
    UsageError,
    WorkflowHandle,
    WorkflowStatus,
    from_node,
    map_workflow,
    wait_for_signal,
)
from tests.support import workflow_app
from tests.support.apps import app_on, make_app
from tests.support.engine import Engine
from tests.support.operator import Operator
from tests.support.postgres import Database

NAMES = ["number", "plus", "spread", "square", "fail"]


@pytest.fixture
def t(db: Database) -> Iterator[SimpleNamespace]:
    with app_on(db) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        yield tasks


def make_wait(db: Database) -> None:
    """The step of a worker, which is not what these tests are about."""
    db.execute("UPDATE horsies_workflow_tasks SET status = 'WAITING', started_at = now() WHERE kind = 'signal'")


def test_what_waits_is_listed_and_signalled(t: SimpleNamespace, operator: Operator, db: Database) -> None:
    assert operator("workflows", "waiting").out == "no node waits for a signal\n"
    wait = wait_for_signal("approve", bool, node_id="asked")
    run = t.app.workflow("order", [wait]).start()
    make_wait(db)
    ran = operator("workflows", "waiting")
    assert [line[:4] for line in ran.lines] == [[run.workflow_id, "order", "asked", "approve"]]
    assert operator.json("workflows", "waiting", "--signal", "other")["waiting"] == []
    assert operator.json("workflows", "waiting", "--signal", "approve")["waiting"][0]["node_id"] == "asked"

    t.app.workflow("refund", [wait_for_signal("approve", bool)]).start()
    make_wait(db)
    assert operator("workflows", "waiting", "--limit", "1").out.endswith("\nthere are more: --limit shows more\n")
    assert operator.json("workflows", "waiting", "--limit", "1")["has_more"] is True
    assert operator.json("workflows", "waiting", "--limit", "2")["has_more"] is False

    ran = operator("workflows", "signal", run.workflow_id, "approve", "yes")
    assert ran.code == 2
    assert "'yes' is not JSON" in ran.err
    assert db.value("SELECT count(*) FROM horsies_workflow_signals") == 0
    ran = operator("workflows", "signal", run.workflow_id, "approve", "true", "--signal-id", "hook-1")
    assert (ran.code, ran.out) == (0, f"sent 'approve' to workflow {run.workflow_id}\n")
    ran = operator("workflows", "signal", run.workflow_id, "approve", "false", "--signal-id", "hook-1")
    assert (ran.code, "was sent before" in ran.out) == (0, True)
    told = operator("workflows", "signal", run.workflow_id, "aprove").out
    assert "no node of it waits for 'aprove', it is kept until one does" in told
    assert db.execute("SELECT name, value FROM horsies_workflow_signals ORDER BY created_at") == [
        ("approve", "true"), ("aprove", "null"),
    ]  # fmt: skip
    ran = operator("workflows", "signal", run.workflow_id, "approve", "--path", "asked/deeper")
    assert (ran.code, "there is no such path; nothing was sent" in ran.err) == (1, True)
    run.cancel()
    ran = operator("workflows", "signal", run.workflow_id, "approve")
    assert (ran.code, "the run has ended; nothing was sent" in ran.err) == (1, True)
    assert operator.json("workflows", "signal", run.workflow_id, "approve")["outcome"] == "WORKFLOW_ENDED"
    with pytest.raises(SignalError) as caught:
        run.signal(wait, True)
    assert caught.value.code == "WORKFLOW_ENDED"


@pytest.fixture
async def nested(db: Database) -> AsyncIterator[tuple[WorkflowHandle[Any], Engine, list[bool]]]:
    """outer -> squares/item[n] -> inner; the inner node of item 1 fails until it is healed."""
    heals: list[bool] = []

    def answer(name: str, given: Any) -> Any:
        match name:
            case "spread":
                return list(range(given["n"]))
            case "square":
                return TaskError("BROKEN", "as wanted") if given["x"] == 1 and not heals else given["x"] ** 2
            case _:
                return given.get("n", 0)

    async with make_app(db) as app, Engine.on(db, NAMES) as engine:
        t = workflow_app.register(app)
        items = t.spread.node(node_id="items")(3)

        def build(item: int) -> Any:
            first = t.square.node(node_id="inner")(item)
            return app.workflow("each", [first, t.number.node(node_id="after")(from_node(first))], output=first)

        mapped = map_workflow(items, build, node_id="squares")
        inside = app.workflow("middle", [items, mapped], output=mapped).node(node_id="outer")
        handle = await app.workflow("top", [inside, t.number.node(node_id="last")(1)], output=inside).start_async()
        await engine.drain(answer)
        engine.answer = answer  # type: ignore[attr-defined]
        yield handle, engine, heals


async def test_nodes_inside_are_found_by_their_path(nested: Any) -> None:
    handle, _, _ = nested
    assert await handle.status_async() is WorkflowStatus.FAILED
    error = (await handle.get_async()).err_value
    assert error.data["cause"]["path"] == "outer/squares/item[1]/inner", error
    assert [node.node_id for node in await handle.tasks_async("outer")] == ["items", "squares"]
    assert [node.node_id for node in await handle.tasks_async("/outer/squares/item[2]/")] == ["inner", "after"]
    assert (await handle.result_for_async("outer/squares/item[2]/inner")).ok_value == 4
    assert (await handle.result_for_async("outer/squares/item[1]/inner")).err_value.error_code == "BROKEN"
    for path, told in (
        ("outer/none", "has no node 'none'"),
        ("outer/items/deeper", "nothing has started inside 'outer/items'"),
    ):
        with pytest.raises(UsageError, match=told):
            await handle.result_for_async(path)
    with pytest.raises(UsageError, match="no workflow in node 'last'"):
        await handle.tasks_async("last")


async def test_a_node_inside_is_retried_by_its_path(nested: Any, db: Database) -> None:
    handle, engine, heals = nested
    assert not await handle.retry_async("outer/squares/item[2]/inner"), "it completed"
    heals.append(True)
    assert await handle.retry_async("outer/squares/item[1]/inner")
    await engine.drain(engine.answer)
    assert (await handle.get_async(timeout_ms=0)).ok_value == [0, 1, 4]
    ran = "SELECT count(*) FROM horsies_tasks WHERE task_name = %s"
    assert db.value(ran, "square") == 4, "only the failed item ran again"
    assert db.value(ran, "spread") == 1
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE task_name = 'number' AND kwargs = '{\"n\":1}'") == 2
