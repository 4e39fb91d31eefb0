"""Live by notifications, steady while it refreshes, alive when the database is not, unmoved by hostile rows."""

import re

import psycopg

from horsies_tui.app import Dashboard
from horsies_tui.data.filters import Query
from horsies_tui.data.reading import LOOK
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.dashboards import dashboard, demo, go, on_database, seen, settled, shows, source_on, table, text_of
from tests.support.factories import ago, finish, heartbeat, insert, task, worker_state
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

HOSTILE = (
    "[red]a[/red]", "[/]", "[b", "[link=http://x]y", "[@click=app.quit]z[/]", "\x1b[2J\x1b[H", "\x1b]0;t\x07",
    "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x07y", "\x9b31m", "\u202eevil\u202c", "a\u200bb", "\u2066x\u2069",
    "a\nb\r\nc", "\ttab", "x" * 5_000, "e" + "\u0301" * 300, "$text", "{0}", "%s",
)  # fmt: skip


ALL = "".join(HOSTILE)


async def test_a_send_is_seen_at_once_and_an_end_too(db: Database) -> None:
    """The poll is an hour away: what is seen was notified."""
    async with on_database(db, refresh_s=3_600) as (app, pilot):
        await go(app, pilot, "2")
        await shows(app, pilot, "● live")
        task_id = task(db, task_name="just_sent")
        await shows(app, pilot, "just_sent")
        finish(db, task_id, 1)
        await shows(app, pilot, "✓ completed  just_sent")


async def test_cursor_marks_and_scroll_stay_while_rows_come_and_go(db: Database) -> None:
    ids = [task(db, "COMPLETED", terminal_at=ago(minutes=n)) for n in range(1, 61)]
    async with on_database(db, size=(80, 24), refresh_s=3_600) as (app, pilot):
        await go(app, pilot, "2")
        rows = table(app, "tasks")
        await pilot.press(*["down"] * 29, "space")
        await settled(app, pilot)
        assert rows.cursor_key == ids[30]
        top = rows.scroll_y
        db.execute("DELETE FROM horsies_tasks WHERE id = ANY(%s)", [ids[2], ids[45]])
        new = task(db, "COMPLETED", terminal_at=ago(minutes=30.5))
        await go(app, pilot, "r")
        shown = [row.id for row in seen(app).data.rows]
        assert shown == [*ids[:2], *ids[3:30], new, *ids[30:45], *ids[46:]]
        assert rows._order() == shown
        assert rows.cursor_key == ids[30]
        assert rows.marks == {ids[29]}
        assert rows.scroll_y == top


async def test_the_list_grows_as_one_goes_down(db: Database) -> None:
    with psycopg.connect(db.url) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result)
               SELECT to_char(n, 'FM00000000'), 'a', 'COMPLETED', now(), now() - n * interval '1 second', '{}'
                 FROM generate_series(1, 250) AS n"""
        )
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "2")
        for wanted in (100, 200, 250):
            assert len(seen(app).data.rows) == wanted
            await go(app, pilot, "G")


async def test_the_banner_tells_of_an_outage_and_goes_when_it_is_over(db: Database) -> None:
    task(db, task_name="before")
    with ChaosProxy(db.url) as proxy:
        async with dashboard(source_on(proxy.url)) as (app, pilot):
            await go(app, pilot, "2")
            await shows(app, pilot, "before")
            proxy.set(Mode.CUT)
            await shows(app, pilot, "no answer for", timeout=20)
            await shows(app, pilot, "● down")
            assert "before" in text_of(app), "the last good data stays"
            proxy.set(Mode.PASS)
            task(db, task_name="afterwards")
            await shows(app, pilot, "afterwards", timeout=30)
            await shows(app, pilot, "● live", timeout=30)
            assert "no answer" not in text_of(app)


async def test_it_starts_while_the_database_is_away(db: Database) -> None:
    task(db, task_name="there")
    with ChaosProxy(db.url) as proxy:
        proxy.set(Mode.CUT)
        app = Dashboard(source_on(proxy.url))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            await shows(app, pilot, "nothing has arrived yet")
            await pilot.press("2")
            await shows(app, pilot, "no answer:")
            proxy.set(Mode.PASS)
            await shows(app, pilot, "there", timeout=30)
            await eventually_async(lambda: app.session.database == db.name, timeout=20)


def unfit(text: str) -> list[str]:
    return re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)


async def test_hostile_rows_are_shown_as_they_are_and_do_nothing(db: Database) -> None:
    for number, text in enumerate(HOSTILE):
        name = text[:250].replace("\x00", "")
        task(db, "FAILED", task_name=name, error_code=ALL, failed_reason=ALL, kwargs=ALL, claimed_by_worker_id=name,
             result=ALL, worker_hostname=name)  # fmt: skip
        running = task(db, "RUNNING", task_name=name, claimed_by_worker_id=name)
        heartbeat(db, running, sender_id=name)
        worker_state(db, f"{number}{name}"[:250], hostname=name, queues=[name])
        db.execute("INSERT INTO horsies_schedule_state (schedule_name) VALUES (%s)", f"{number}{name}"[:250])
        db.execute("INSERT INTO horsies_workflows (id, name) VALUES (%s, %s)", f"w{number}", name)
        insert(db, "horsies_workflow_tasks", id=f"n{number}", workflow_id=f"w{number}", task_index=0, node_id=name,
               task_name=name)  # fmt: skip
    async with on_database(db, size=(140, 50)) as (app, pilot):
        for number in "1234567":
            await go(app, pilot, number)
            assert not unfit(text_of(app)), number
        await go(app, pilot, "2")
        assert "[red]a[/red]" in text_of(app)
        assert "\\x1b[2J" in text_of(app)
        for place in "235":
            await go(app, pilot, place, "enter")
            assert not unfit(text_of(app))
            await go(app, pilot, "escape")
        await go(app, pilot, "2")
        await pilot.press("c")
        await pilot.pause()
        assert not unfit(text_of(app))
        assert app.is_running


async def test_a_huge_argument_is_cut_by_the_database(db: Database) -> None:
    task_id = task(db, kwargs='{"x": "' + "y" * 5_000_000 + '"}')
    source = source_on(db.url)
    try:
        detail = await source.task(task_id)
    finally:
        await source.close()
    assert detail is not None
    assert detail.payload is not None
    assert len(detail.payload["kwargs"]) == 20_000
    assert detail.payload["kwargs_chars"] > 5_000_000


async def test_the_filter_is_kept_for_the_session_and_tells_what_it_does_not_understand(db: Database) -> None:
    task(db, queue_name="mail", task_name="one")
    task(db, queue_name="other", task_name="two")
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "2", "slash")
        await pilot.press(*"colour:red", "enter")
        await shows(app, pilot, "colour: is not one of")
        await pilot.press("escape", "slash", *"queue:mail", "enter")
        await settled(app, pilot)
        assert "two" not in text_of(app)
        await go(app, pilot, "3", "2")
        assert "queue:mail" in text_of(app)
        assert "two" not in text_of(app)
        await go(app, pilot, "0")
        await shows(app, pilot, "two")


async def test_palette_help_theme_window_and_copy() -> None:
    async with dashboard(demo()) as (app, pilot):
        await pilot.press("right_square_bracket")
        await shows(app, pilot, "window 1 h")
        theme = app.theme
        await pilot.press("t")
        await settled(app, pilot)
        assert app.theme != theme
        await pilot.press("ctrl+p")
        await shows(app, pilot, "Search")
        await pilot.press(*"failed tasks", "down", "enter")
        await shows(app, pilot, "status:failed")
        await go(app, pilot, "y")
        assert app.clipboard
        await pilot.press("question_mark")
        await shows(app, pilot, "Space marks")


async def test_a_rare_search_says_how_far_it_looked_and_m_looks_further(db: Database) -> None:
    with psycopg.connect(db.url) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, completed_at, terminal_at, result)
               SELECT to_char(n, 'FM00000000'), CASE n WHEN 1 THEN 'needle' ELSE 'a' END, 'COMPLETED', now(),
                      now() - (%s::int - n) * interval '1 second', '{}' FROM generate_series(1, %s::int) AS n""",
            (LOOK + 100, LOOK + 100),
        )
    async with on_database(db) as (app, pilot):
        app.queries["tasks"] = Query(name="needle")
        await go(app, pilot, "2")
        await shows(app, pilot, f"Nothing among the newest {LOOK:,}")
        await go(app, pilot, "m")
        await shows(app, pilot, "✓ completed  needle")
