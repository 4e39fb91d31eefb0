"""Every action from the key to the row, against a real database: asked, fenced, carried out, reported."""

import psycopg
import pytest
from textual.message import Message
from textual.widgets import Input

from horsies.operate.actions import Outcome
from horsies_tui.actions import ACTIONS, TYPE_ABOVE
from horsies_tui.data.filters import Query
from horsies_tui.messages import ActionDone, ActionRequested
from horsies_tui.screens.confirm import ConfirmScreen
from horsies_tui.screens.policy import PolicyScreen
from tests.support.apps import add_task, async_app_on
from tests.support.dashboards import dashboard, go, on_database, said, seen, settled, shows, source_on, table, text_of
from tests.support.factories import ago, insert, read, task, worker_state
from tests.support.postgres import Database

STALE = {"claimed_at": ago(minutes=30), "enqueued_at": ago(minutes=31)}


async def test_cancel_asks_first_with_the_focus_on_the_way_back(db: Database) -> None:
    running, waiting = task(db, "RUNNING"), task(db)
    told: list[object] = []

    def heard(message: Message) -> None:
        if isinstance(message, ActionRequested | ActionDone) and message not in told:  # it bubbles up
            told.append(message)

    async with on_database(db, on_message=heard) as (app, pilot):
        await go(app, pilot, "2")
        table(app, "tasks").put_cursor(waiting)
        await pilot.press("c")
        assert isinstance(app.screen, ConfirmScreen)
        await shows(app, pilot, "Cancel 1 task?")
        await shows(app, pilot, waiting)
        await pilot.press("enter")  # on the focused button: back
        assert not isinstance(app.screen, ConfirmScreen)
        assert read(db, waiting)["status"] == "PENDING"
        await pilot.press("c", "right", "enter")
        await said(app, pilot, "1 task cancelled")
        # a yes becomes a request, a request an outcome: nothing else passes between the key and the row
        assert [type(message).__name__ for message in told] == ["ActionRequested", "ActionDone"]
        assert isinstance(told[1], ActionDone)
        assert told[1].outcome == Outcome(done=1)
        table(app, "tasks").put_cursor(running)
        await pilot.press("c", "right", "enter")  # what runs is asked to stop
        await said(app, pilot, "1 asked to stop")
    assert read(db, waiting)["status"] == "CANCELLED"
    row = read(db, running)
    assert (row["status"], row["cancel_requested_at"] is not None) == ("RUNNING", True)


async def test_retry_takes_the_marked_rows_in_the_state_in_which_they_were_seen(db: Database) -> None:
    failed = [task(db, "FAILED", terminal_at=ago(seconds=n)) for n in range(4)]
    done = task(db, "COMPLETED", terminal_at=ago(seconds=9))
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "2")
        assert table(app, "tasks").cursor_key == failed[0]
        await pilot.press("space", "space", "down", "down", "space")  # two failed ones, and the completed one
        assert table(app, "tasks").marks == {failed[0], failed[1], done}
        await pilot.press("R")
        await shows(app, pilot, "Retry 2 tasks?")
        await pilot.press("right", "enter")
        await said(app, pilot, "2 tasks sent back to the queue")
        assert not table(app, "tasks").marks
        await settled(app, pilot)
        table(app, "tasks").put_cursor(failed[2])
        await pilot.press("p")  # paused: the screen keeps what the operator saw
        await pilot.press("R")
        await shows(app, pilot, "Retry 1 task?")
        db.execute(
            "UPDATE horsies_tasks SET status = 'PENDING', started_at = NULL, claimed_at = NULL, result = NULL,"
            " claimed_by_worker_id = NULL, failed_at = NULL, terminal_at = NULL, error_code = NULL WHERE id = %s",
            failed[2],
        )
        await pilot.press("right", "enter")
        await said(app, pilot, "changed meanwhile")
    assert read(db, failed[2])["manual_retries"] == 0
    states = [read(db, task_id)["status"] for task_id in [*failed, done]]
    assert states == ["PENDING", "PENDING", "PENDING", "FAILED", "COMPLETED"]


async def test_tasks_in_quarantine_are_released_and_purged(db: Database) -> None:
    first, second = (task(db, "FAILED", error_code="CRASH_LIMIT", crash_count=3) for _ in range(2))
    other = task(db, "FAILED", error_code="DOWN")
    async with on_database(db) as (app, pilot):
        await shows(app, pilot, "2 tasks in quarantine")
        app.queries["tasks"] = Query.parse("status:failed error:crash_limit")[0]
        await go(app, pilot, "2")
        table(app, "tasks").put_cursor(first)
        await pilot.press("R", "right", "enter")
        await said(app, pilot, "1 task sent back to the queue")
        await settled(app, pilot)
        table(app, "tasks").put_cursor(second)
        await pilot.press("X")
        await shows(app, pilot, "Purge 1 task?")
        await pilot.press("right", "enter")
        await said(app, pilot, "1 task deleted")
    assert (read(db, first)["status"], read(db, first)["crash_count"]) == ("PENDING", 0)
    assert db.execute("SELECT id FROM horsies_tasks WHERE id = %s", second) == []
    assert read(db, other)["status"] == "FAILED"


async def test_requeue_and_fail_of_stale_tasks_that_are_still_silent(db: Database) -> None:
    claimed = task(db, "CLAIMED", **STALE)
    running, vouched = (task(db, "RUNNING", **STALE, started_at=ago(minutes=29)) for _ in range(2))
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "4")
        table(app, "stale").put_cursor(claimed)
        await pilot.press("Q", "right", "enter")
        await said(app, pilot, "1 stale task sent back to the queue")
        await settled(app, pilot)
        table(app, "stale").put_cursor(running)
        await pilot.press("F", "right", "enter")
        await said(app, pilot, "1 stale task failed")
        await go(app, pilot, "p")
        await pilot.press("F")
        insert(db, "horsies_heartbeats", task_id=vouched, sender_id="worker-1", role="runner")
        await pilot.press("right", "enter")
        await said(app, pilot, "its worker gave a sign of life")
        await go(app, pilot, "p")
        await shows(app, pilot, "No task is stale")
    assert read(db, claimed)["status"] == "PENDING"
    assert read(db, vouched)["status"] == "RUNNING"
    row = read(db, running)
    assert (row["status"], row["error_code"]) == ("FAILED", "WORKER_CRASHED")


async def test_pause_and_resume_of_a_queue_and_of_a_schedule(db: Database) -> None:
    task(db, queue_name="mail")
    insert(db, "horsies_schedule_state", schedule_name="nightly", next_run_at=ago(hours=-1))
    async with on_database(db) as (app, pilot):
        await pilot.press("P", "right", "enter")
        await shows(app, pilot, "‖ mail")
        assert db.value("SELECT paused_at IS NOT NULL FROM horsies_queue_state WHERE queue_name = 'mail'")
        await pilot.press("P", "right", "enter")
        await shows(app, pilot, "  mail")
        await go(app, pilot, "6")
        await pilot.press("n", "right", "enter")
        await shows(app, pilot, "◔ asked")
        await pilot.press("P", "right", "enter")
        await said(app, pilot, "1 schedule switched")
    assert not db.value("SELECT paused_at IS NOT NULL FROM horsies_queue_state WHERE queue_name = 'mail'")
    row = db.execute("SELECT run_requested_at IS NOT NULL, paused_at IS NOT NULL FROM horsies_schedule_state")
    assert row == [(True, True)]


async def test_a_schedule_made_at_run_time_has_a_history_and_can_be_removed(db: Database) -> None:
    insert(
        db, "horsies_schedules", name="report:acme", task_name="report", pattern='{"kind": "daily", "at": "07:00"}',
        kwargs='{"kind": "acme"}', group_key="tenant 7", jitter_s=90, catch_up_missed=True, enabled=False,
    )  # fmt: skip
    insert(db, "horsies_schedule_state", schedule_name="nightly", next_run_at=ago(hours=-1))
    ran = task(db)
    for number, columns in enumerate(({"task_id": ran}, {"skipped": "overlap"}), 1):
        insert(
            db, "horsies_schedule_runs", schedule_name="report:acme", place=number, entry=number,
            **dict.fromkeys(("slot", "last_slot", "fired_at"), ago(minutes=9 - number)), **columns,
        )  # fmt: skip
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "6")
        await pilot.press("D")
        await said(app, pilot, "nothing to remove here: it takes schedules that were made at run time")
        await pilot.press("down", "enter")
        await shows(app, pilot, "daily at 07:00:00")
        for text in ("overlap", "tenant 7", "90 s", "up to 100 runs", "it runs by hand only"):
            await shows(app, pilot, text)
        await pilot.press("down", "enter")
        await shows(app, pilot, ran[:8])
        await pilot.press("escape")
        await shows(app, pilot, "daily at 07:00:00")
        await pilot.press("D", "right", "enter")
        await said(app, pilot, "1 schedule removed")
    assert db.execute("SELECT schedule_name FROM horsies_schedule_state") == [("nightly",)]
    assert db.execute("SELECT * FROM horsies_schedule_runs") == []


async def test_above_twenty_rows_the_number_has_to_be_typed(db: Database) -> None:
    count = TYPE_ABOVE + 5
    for _ in range(count):
        task(db, queue_name="mail")
    other = task(db, queue_name="other")
    async with on_database(db) as (app, pilot):
        app.queries["tasks"] = Query(queue="mail")
        await go(app, pilot, "2", "a")
        await pilot.press("c")
        await shows(app, pilot, f"Cancel {count} tasks?")
        await shows(app, pilot, f"type {count}")
        assert app.screen.query_one("#yes").disabled
        await pilot.press("tab", *"24", "enter")
        assert app.screen.query_one("#yes").disabled
        app.screen.query_one("#typed").focus()
        await pilot.press("backspace", "5", "enter", "enter")
        await said(app, pilot, f"{count} tasks cancelled")
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'CANCELLED'") == count
    assert read(db, other)["status"] == "PENDING"


@pytest.mark.parametrize("read_only", [True, False])
async def test_actions_exist_or_not_in_keys_footer_help_and_palette_alike(db: Database, read_only: bool) -> None:
    task_id = task(db)
    worker_state(db)
    async with on_database(db, read_only=read_only) as (app, pilot):
        for number, place in enumerate(("overview", "tasks", "workers", "stale"), 1):
            await go(app, pilot, str(number))
            wanted = {action.key for action in ACTIONS if place in action.screens} if not read_only else set()
            offered = {
                active.binding.key for active in seen(app).active_bindings.values() if "act(" in active.binding.action
            }
            assert offered == wanted
        await go(app, pilot, "2")
        await pilot.press("c")
        assert isinstance(app.screen, ConfirmScreen) != read_only
        if read_only:
            await pilot.press("question_mark")
            await shows(app, pilot, "tasks")
            assert "Cancel" not in text_of(app)
    assert read(db, task_id)["status"] == "PENDING"


async def test_a_role_that_may_only_look_is_offered_nothing(db: Database) -> None:
    """The right is asked of the server: a session that it made read-only by grants has no actions."""
    task(db)
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "v{db.name}"')  # type: ignore[call-overload]
        connection.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "v{db.name}"')  # type: ignore[call-overload]
    mark = "&" if "?" in db.url else "?"
    try:
        async with dashboard(source_on(f"{db.url}{mark}role=v{db.name}")) as (app, pilot):
            await go(app, pilot, "2")
            await shows(app, pilot, "read-only")
            await pilot.press("c")
            assert not isinstance(app.screen, ConfirmScreen)
    finally:
        with psycopg.connect(db.url, autocommit=True) as connection:
            connection.execute(f'DROP OWNED BY "v{db.name}"')  # type: ignore[call-overload]
            connection.execute(f'DROP ROLE "v{db.name}"')  # type: ignore[call-overload]


async def test_pause_resume_cancel_and_retry_of_a_workflow(db: Database) -> None:
    async with async_app_on(db) as app_of_the_shop:
        step = add_task(app_of_the_shop)
        first = step.node()(1, 2)
        run = await app_of_the_shop.workflow("orders", [first]).start_async()
    workflow_id = run.workflow_id

    def status() -> str:
        return db.value("SELECT status FROM horsies_workflows WHERE id = %s", workflow_id)

    async with on_database(db) as (app, pilot):
        await go(app, pilot, "5")
        await pilot.press("P")
        await shows(app, pilot, "Pause or resume 1 workflow?")
        await pilot.press("right", "enter")
        await shows(app, pilot, "‖ paused 1")
        assert status() == "PAUSED"
        await go(app, pilot, "2")
        await shows(app, pilot, "withdrawn")
        await go(app, pilot, "5", "enter")
        await pilot.press("P", "right", "enter")  # from the run's own screen
        await shows(app, pilot, "▶ RUNNING")
        await pilot.press("c", "right", "enter")
        await shows(app, pilot, "⊘ CANCELLED")
        assert status() == "CANCELLED"
        await pilot.press("R", "right", "enter")
        await shows(app, pilot, "▶ RUNNING")
    assert status() == "RUNNING"


# -- policies ------------------------------------------------------------------------------------


def policy_of(db: Database, table: str = "horsies_queue_state") -> object:
    return db.value(f"SELECT override FROM {table}")


async def test_a_policy_is_typed_overridden_and_taken_back(db: Database) -> None:
    insert(db, "horsies_limits", name="stripe", declared='{"max_concurrency": 3}')
    insert(db, "horsies_queue_state", queue_name="mail", declared='{"max_concurrency": 5, "limits": ["stripe"]}')
    for _ in range(3):
        task(db, queue_name="mail", group_key="acme")
    task(db, "RUNNING", queue_name="mail", group_key="acme")
    async with on_database(db, size=(120, 40)) as (app, pilot):
        await go(app, pilot, "l")
        await shows(app, pilot, "5 at a time")
        await shows(app, pilot, "acme")
        assert table(app, "groups").lines["acme"][2].text == "1/5"
        await pilot.press("S")
        assert isinstance(app.screen, PolicyScreen)
        await shows(app, pilot, "Override the policy of queue mail")
        typed = app.screen.query_one("#typed", Input)
        assert typed.value == "concurrency:5 rate:none fair:yes limits:stripe"
        typed.value = "concurrency:fast"
        await shows(app, pilot, "concurrency is a whole number from 1, or none")
        await pilot.press("enter", "enter")
        assert isinstance(app.screen, PolicyScreen), "what is not understood is not set"
        typed.value = "concurrency:1 rate:100/60"
        await shows(app, pilot, "changes max_concurrency:1 rate:100/60 burst:10")
        await pilot.press("enter", "enter")
        await said(app, pilot, "1 policy overridden")
        await shows(app, pilot, "1 at a time  (overridden; declared: 5 at a time)")
        await shows(app, pilot, "concurrency is full (1 of 1)")
        assert policy_of(db) == {
            "max_concurrency": 1, "rate": {"limit": 100, "per_seconds": 60.0, "burst": 10},
        }  # fmt: skip
        await pilot.press("U")
        await shows(app, pilot, "Take back 1 override?")
        await pilot.press("right", "enter")
        await said(app, pilot, "1 override taken back")
        assert policy_of(db) is None
        await settled(app, pilot)
        await pilot.press("U")
        await said(app, pilot, "nothing to take back here: it takes overridden")


async def test_a_shared_limit_is_overridden_where_its_table_has_the_focus(db: Database) -> None:
    insert(db, "horsies_limits", name="stripe", declared='{"max_concurrency": 3}')
    insert(db, "horsies_queue_state", queue_name="mail", declared='{"limits": ["stripe"]}')
    task(db, queue_name="mail", group_key="acme")
    async with on_database(db, size=(120, 40)) as (app, pilot):
        await go(app, pilot, "l", "tab")
        await pilot.press("S")
        await shows(app, pilot, "Override the policy of limit stripe")
        app.screen.query_one("#typed", Input).value = "concurrency:9"
        await shows(app, pilot, "changes max_concurrency:9")
        db.execute("UPDATE horsies_limits SET override = '{\"max_concurrency\": 4}'")  # another operator was faster
        await pilot.press("enter", "enter")
        await said(app, pilot, "changed meanwhile: it was declared, is overridden")
        assert policy_of(db, "horsies_limits") == {"max_concurrency": 4}


async def test_enter_on_a_group_lists_its_tasks(db: Database) -> None:
    mine = task(db, queue_name="mail", group_key="acme")
    task(db, queue_name="mail", group_key="globex")
    async with on_database(db, size=(120, 40)) as (app, pilot):
        await go(app, pilot, "l")
        table(app, "groups").put_cursor("acme")
        await go(app, pilot, "enter")
        assert app.queries["tasks"] == Query(queue="mail", group="acme")
        assert list(table(app, "tasks").lines) == [mine]


async def test_a_worker_is_drained_resumed_and_resized(db: Database) -> None:
    worker_state(db, worker_id="worker-1")
    db.execute(
        "INSERT INTO horsies_worker_instances (worker_id, period_ms, state) VALUES ('worker-1', 5000, 'RUNNING')"
    )
    wanted = "SELECT wanted_state, wanted_processes FROM horsies_worker_instances"
    async with on_database(db) as (app, pilot):
        await app.run_action("go('workers')")
        await settled(app, pilot)
        await pilot.press("D")
        await shows(app, pilot, "Drain or resume 1 worker?")
        await pilot.press("right", "enter")
        await said(app, pilot, "1 asked")
        assert db.execute(wanted) == [("DRAINED", None)]
        await pilot.press("plus", "right", "enter")
        await said(app, pilot, "asked to start one more child")
        assert db.execute(wanted) == [("DRAINED", 3)]
