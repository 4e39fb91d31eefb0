"""Why something failed stands on the first screen that one opens: of a run, of a node, of a task."""

import json

from tests.support.dashboards import go, on_database, shows, text_of
from tests.support.factories import ago, insert, task
from tests.support.postgres import Database


def stored(code: str, message: str, **data: str) -> str:
    return json.dumps({"err": {"error_code": code, "message": message, "data": data or None}}, separators=(",", ":"))


async def test_a_failed_run_names_the_node_and_the_item(db: Database) -> None:
    told = "a node failed: squares/item[3]: ODD: cannot square 3"
    long = stored("SUBWORKFLOW_FAILED", "inside it, a node failed: item[3] \x1b[2J: ODD", note="n" * 99_000)
    insert(db, "horsies_workflows", id="run-1", name="mapping", status="FAILED", completed_at=ago(seconds=5),
           error=stored("WORKFLOW_FAILED", told))  # fmt: skip
    for at, (name, status, error) in enumerate([
        ("items", "COMPLETED", None),
        ("squares", "FAILED", long),
    ]):  # fmt: skip
        insert(db, "horsies_workflow_tasks", id=f"n{at}", workflow_id="run-1", task_index=at, node_id=name,
               task_name=name, status=status, error=error, kind="workflow" if at == 1 else "task")  # fmt: skip
    for size in ((80, 24), (140, 40)):
        async with on_database(db, size=size) as (app, pilot):
            await go(app, pilot, "5")
            await pilot.press("enter")
            await shows(app, pilot, "WORKFLOW_FAILED: a node failed: squares/item[3]: ODD: cannot square 3")
            await pilot.press("right")
            await shows(app, pilot, "squares: SUBWORKFLOW_FAILED: inside it, a node failed: item[3]")
            assert "\x1b" not in text_of(app)


async def test_a_failed_task_shows_its_message_and_what_was_raised(db: Database) -> None:
    trace = "Traceback (most recent call last):\n" + '  File "x.py", line 1\n' * 700 + "ValueError: no such order"
    task(db, "FAILED", task_name="ship", error_code="UNHANDLED_EXCEPTION",
         result=stored("UNHANDLED_EXCEPTION", "order 7 cannot be shipped", traceback=trace))  # fmt: skip
    async with on_database(db, size=(120, 40)) as (app, pilot):
        await go(app, pilot, "2")
        await pilot.press("enter")
        await shows(app, pilot, "order 7 cannot be shipped")
        await shows(app, pilot, "ValueError: no such order")
