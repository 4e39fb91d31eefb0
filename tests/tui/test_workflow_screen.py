"""The screen of one run against a real database: its graph, the card of a node, signals, and the retry of a node."""

from typing import Any

import pytest
from textual.widgets import Button, Input

from horsies_tui.screens.confirm import ConfirmScreen
from horsies_tui.screens.signal import SignalScreen
from horsies_tui.screens.task import TaskScreen
from horsies_tui.screens.workflow import WorkflowScreen
from horsies_tui.widgets.dag import Dag
from tests.support.dashboards import go, on_database, said, seen, settled, shows, table, text_of
from tests.support.factories import ago, ahead, graph, task
from tests.support.postgres import Database

APPROVAL: tuple[dict[str, Any], ...] = (
    {"node_id": "check", "status": "COMPLETED", "decides": [1, 2]},
    {"node_id": "approve", "kind": "signal", "signal_name": "approval", "status": "WAITING", "dependencies": [0],
     "wake_at": ahead(minutes=30), "when_index": 0, "when_value": True},
    {"node_id": "refuse", "status": "SKIPPED", "skip_reason": "not_taken", "dependencies": [0], "when_index": 0,
     "when_value": False},
    {"node_id": "rest", "kind": "sleep", "status": "WAITING", "dependencies": [0], "wake_at": ahead(hours=7)},
    {"node_id": "ship", "dependencies": [1, 3]},
)  # fmt: skip


def chosen(app: Any) -> int | None:
    return seen(app).query_one(Dag).chosen


def signals(db: Database) -> object:
    return db.value("SELECT json_agg(json_build_array(workflow_id, name, value)) FROM horsies_workflow_signals")


async def test_the_card_says_what_a_node_waits_for_until_when_and_why_it_was_skipped(db: Database) -> None:
    graph(db, "RUNNING", *APPROVAL, deadline=ahead(hours=3), continues=2)
    for size in ((80, 24), (130, 40)):
        async with on_database(db, size=size) as (app, pilot):
            await go(app, pilot, "5", "enter")
            await shows(app, pilot, "┆ if yes")
            await shows(app, pilot, "signal approval")  # the cursor begins where an operator is waited for
            await shows(app, pilot, "UTC (in 29m)")
            await shows(app, pilot, "deadline ")
            await shows(app, pilot, "UTC (in 2h59)")
            await shows(app, pilot, "continued 2 times")
            await pilot.press("right")
            await shows(app, pilot, "this branch was not taken")
            await pilot.press("right")
            await shows(app, pilot, "UTC (in 6h59)")
            await pilot.press("down")
            assert chosen(app) == 4
            await pilot.press("up", "up")
            assert chosen(app) == 0


async def test_a_run_that_undoes_says_how_it_will_end_and_one_that_has_not_begun_when_it_starts(db: Database) -> None:
    undone = db.value("SELECT gen_random_uuid()::text")
    graph(db, "RUNNING", {"status": "COMPLETED", "id": undone}, {"compensates": undone}, ends_as="FAILED")
    graph(db, "PENDING", {}, name="later", start_at=ahead(hours=5), started_at=None)
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "5")
        listed = table(app, "workflows")
        for name, told in (("w", ("undoing, will end FAILED", "↩ n1")), ("later", ("starts ", "UTC (in 4h59)"))):
            key = next(key for key, line in listed.lines.items() if any(cell.text == name for cell in line))
            listed.put_cursor(key)
            await go(app, pilot, "enter")
            for text in told:
                await shows(app, pilot, text)
            await go(app, pilot, "escape")


async def test_the_graph_and_the_list_have_one_cursor_and_enter_opens_the_task(db: Database) -> None:
    mine = task(db, "COMPLETED", is_workflow_task=True)
    outer, inner = "0193f0a0-outer", "0193f0a0-inner"
    graph(db, "RUNNING", {"node_id": "first", "status": "COMPLETED", "task_id": mine},
          {"node_id": "sub", "dependencies": [0], "kind": "workflow", "status": "RUNNING", "sub_workflow_id": inner},
          {"node_id": "last", "dependencies": [1]}, id=outer)  # fmt: skip
    graph(db, "RUNNING", {"node_id": "inside"}, id=inner, depth=1, name="inner", parent_workflow_id=outer,
          parent_task_index=1)  # fmt: skip
    async with on_database(db, size=(100, 40)) as (app, pilot):
        await go(app, pilot, "5", "enter")
        assert (chosen(app), table(app, "nodes").cursor_key) == (0, "0")
        await pilot.press("down", "down")
        assert (chosen(app), table(app, "nodes").cursor_key) == (2, "2")
        await pilot.press("enter")
        await said(app, pilot, "this node has no task yet")
        await pilot.press("tab", "up")
        await pilot.pause()
        assert (chosen(app), table(app, "nodes").cursor_key) == (1, "1")
        await go(app, pilot, "enter")
        await shows(app, pilot, "inside")
        await go(app, pilot, "escape")
        await pilot.press("up")
        assert chosen(app) == 0
        await go(app, pilot, "enter")
        assert isinstance(app.screen, TaskScreen)


async def test_a_large_graph_scrolls_in_both_directions_to_the_cursor(db: Database) -> None:
    fan = [{"dependencies": [0]} for _ in range(40)]
    chain = [{"dependencies": [index]} for index in range(40, 70)]
    graph(db, "RUNNING", {}, *fan, *chain)
    async with on_database(db, size=(80, 24)) as (app, pilot):
        await go(app, pilot, "5", "enter")
        dag = seen(app).query_one(Dag)
        assert dag.virtual_size.width > 200
        assert dag.virtual_size.height > 60
        await shows(app, pilot, "○ n0")
        await pilot.press("end")
        assert chosen(app) == 70
        await shows(app, pilot, "○ n70")
        assert dag.scroll_offset.y > 0
        await pilot.press("home")
        assert chosen(app) == 0
        await pilot.press("down", *["left"] * 40)
        assert chosen(app) == 1
        await shows(app, pilot, "○ n1 ")
        assert dag.scroll_offset.x == 0
        await pilot.press(*["right"] * 39)
        assert chosen(app) == 40
        await shows(app, pilot, "○ n40")
        assert dag.scroll_offset.x > 0
        await pilot.click(Dag, offset=(2, 2))  # on nothing
        assert chosen(app) == 40


async def test_the_cursor_begins_in_view_on_a_node_that_waits(db: Database) -> None:
    waits = {"kind": "signal", "signal_name": "go", "status": "WAITING", "dependencies": [59]}
    graph(db, "RUNNING", {}, *({"dependencies": [index]} for index in range(59)), waits)
    async with on_database(db, size=(80, 24)) as (app, pilot):
        await go(app, pilot, "5", "enter")
        await shows(app, pilot, "◷ n60")
        await pilot.resize_terminal(100, 40)
        await shows(app, pilot, "◷ n60")


# -- signals -------------------------------------------------------------------------------------


async def test_a_signal_is_typed_checked_and_sent(db: Database) -> None:
    run = graph(db, "RUNNING", *APPROVAL)
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "5", "enter")
        await pilot.press("s")
        assert isinstance(app.screen, SignalScreen)
        await shows(app, pilot, "waited for: approval")
        assert app.screen.query_one("#name", Input).value == "approval"
        assert app.screen.query_one("#yes", Button).disabled
        await pilot.press(*"yes")
        await shows(app, pilot, "not JSON: expecting value at character 1")
        await pilot.press("enter", "enter")
        assert isinstance(app.screen, SignalScreen), "what is not JSON is not sent"
        assert signals(db) is None
        app.screen.query_one("#typed", Input).value = '{"by": "ann"}'
        await pilot.pause()
        assert not app.screen.query_one("#yes", Button).disabled
        await pilot.press("enter", "enter")
        await said(app, pilot, "1 signal delivered")
        assert signals(db) == [[run, "approval", '{"by": "ann"}']]
        await pilot.press("s", "escape")
        assert isinstance(app.screen, WorkflowScreen)
    assert signals(db) == [[run, "approval", '{"by": "ann"}']]


async def test_a_signal_can_have_another_name_and_a_run_that_ended_gets_none(db: Database) -> None:
    run = graph(db, "RUNNING", {"node_id": "work"})
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "5", "enter")
        await pilot.press("s")
        await shows(app, pilot, "no node waits for a signal now")
        await pilot.press(*"early", "enter", *"null", "enter", "enter")
        await said(app, pilot, "1 signal delivered")
        assert signals(db) == [[run, "early", "null"]]
        await settled(app, pilot)
        await pilot.press("p", "s", *"late", "enter", *"1")
        db.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED'")
        db.execute("UPDATE horsies_workflows SET status = 'COMPLETED', completed_at = statement_timestamp()")
        await pilot.press("enter", "enter")
        await said(app, pilot, "the workflow has ended")
        await go(app, pilot, "p", "r")
        await pilot.press("s")
        await said(app, pilot, "nothing to send here: it takes paused, pending, running")
    assert signals(db) == [[run, "early", "null"]]


@pytest.mark.parametrize("read_only", [True, False])
async def test_read_only_hides_the_actions_of_the_screen(db: Database, read_only: bool) -> None:
    graph(db, "RUNNING", *APPROVAL)
    async with on_database(db, read_only=read_only, size=(120, 40)) as (app, pilot):
        await go(app, pilot, "5", "enter")
        keys = {one.binding.key for one in seen(app).active_bindings.values() if "act(" in one.binding.action}
        assert keys == (set() if read_only else {"P", "c", "R", "N", "s"})
        assert ("Signal" in text_of(app)) != read_only
        await pilot.press("s")
        assert isinstance(app.screen, SignalScreen) != read_only


# -- the retry of a node -------------------------------------------------------------------------

FAILED: tuple[dict[str, Any], ...] = (
    {"status": "COMPLETED", "completed_at": ago(minutes=3)},
    {"status": "FAILED", "dependencies": [0], "completed_at": ago(minutes=2),
     "error": '{"err":{"error_code":"DOWN","message":"no line","data":null}}'},
    {"status": "SKIPPED", "dependencies": [1], "completed_at": ago(minutes=2), "skip_reason": "upstream"},
)  # fmt: skip


def states(db: Database) -> object:
    return db.value("SELECT array_agg(status ORDER BY task_index) FROM horsies_workflow_tasks")


async def test_the_selected_node_is_retried_after_a_question(db: Database) -> None:
    graph(db, "FAILED", *FAILED)
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "5", "enter")
        await pilot.press("N")
        await said(app, pilot, "nothing to retry here: it takes failed, paused, skipped")
        await pilot.press("down", "down", "N", "right", "enter")
        await said(app, pilot, "node 'n2' was skipped because 'n1' failed; retry 'n1' instead")
        await settled(app, pilot)
        await pilot.press("up", "N")
        assert isinstance(app.screen, ConfirmScreen)
        await shows(app, pilot, "Retry 1 node?")
        await pilot.press("enter")  # on the focused button: back
        assert states(db) == ["COMPLETED", "FAILED", "SKIPPED"]
        await pilot.press("N", "right", "enter")
        await said(app, pilot, "1 node set going again")
        await shows(app, pilot, "▶ RUNNING")
    assert states(db) == ["COMPLETED", "PENDING", "PENDING"]


async def test_a_node_that_changed_meanwhile_is_left_alone(db: Database) -> None:
    graph(db, "PAUSED", *FAILED)
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "5", "enter", "down")
        await pilot.press("p", "N")
        db.execute("UPDATE horsies_workflow_tasks SET status = 'COMPLETED', error = NULL WHERE node_id = 'n1'")
        await pilot.press("right", "enter")
        await said(app, pilot, "changed meanwhile: it was FAILED, is COMPLETED")
    assert states(db) == ["COMPLETED", "COMPLETED", "SKIPPED"]
