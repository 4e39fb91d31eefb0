"""Live by notifications, steady while it refreshes, alive when the database is not, unmoved by hostile rows."""

import gc
import itertools
import re

import psycopg
import pytest
from textual.widgets import Input

from horsies_tui.app import Dashboard
from horsies_tui.data.filters import Query
from horsies_tui.data.lists import LOOK
from horsies_tui.data.postgres import MAX_CHARS
from horsies_tui.demo import DemoSource
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.dashboards import (
    FROZEN,
    dashboard,
    demo,
    go,
    notifications,
    on_database,
    seen,
    settled,
    shows,
    source_on,
    table,
    text_of,
)
from tests.support.factories import Sql, ago, finish, heartbeat, insert, task, worker_state
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

HOSTILE = (
    "[red]a[/red]", "[/]", "[b", "[link=http://x]y", "[@click=app.quit]z[/]", "\x1b[2J\x1b[H", "\x1b]0;t\x07",
    "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x07y", "\x9b31m", "\u202eevil\u202c", "a\u200bb", "\u2066x\u2069",
    "a\nb\r\nc", "\ttab", "x" * 5_000, "e" + "\u0301" * 300, "$text", "{0}", "%s",
)  # fmt: skip


ALL = "".join(HOSTILE)


@pytest.mark.parametrize("public", [True, False], ids=["public", "quiet"])
async def test_a_send_is_seen_at_once_and_an_end_too(db: Database, public: bool) -> None:
    """The poll is an hour away: what is seen was notified."""
    db.execute("SELECT horsies_set_public_done(%s)", public)
    async with on_database(db, refresh_s=3_600) as (app, pilot):
        await go(app, pilot, "2")
        await shows(app, pilot, "● live")
        task_id = task(db, task_name="just_sent")
        await shows(app, pilot, "just_sent")
        finish(db, task_id, 1)
        await shows(app, pilot, "✓ completed  just_sent")


async def test_cursor_marks_and_scroll_stay_while_rows_come_and_go(db: Database) -> None:
    ids = [task(db, "COMPLETED", terminal_at=ago(seconds=20 * n)) for n in range(1, 61)]
    async with on_database(db, size=(80, 24), refresh_s=3_600) as (app, pilot):
        await go(app, pilot, "2")
        rows = table(app, "tasks")
        rows.move_cursor(row=28)
        await pilot.press("down", "space")
        await settled(app, pilot)
        assert rows.cursor_key == ids[30]
        top = rows.scroll_y
        db.execute("DELETE FROM horsies_tasks WHERE id = ANY(%s)", [ids[2], ids[45]])
        ended = f"(SELECT terminal_at + interval '1 second' FROM horsies_tasks WHERE id = '{ids[30]}')"
        new = task(db, "COMPLETED", terminal_at=Sql(ended))
        await go(app, pilot, "r")
        shown = [row.id for row in seen(app).data.rows]
        assert shown == [*ids[:2], *ids[3:30], new, *ids[30:45], *ids[46:]]
        assert rows.order() == shown
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
    return re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)


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
    async with on_database(db, size=(130, 36)) as (app, pilot):
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


EVIL = "evil\x1b[2J\nname\u202e\x9b31m\u00ad"


async def test_a_hostile_name_is_inert_in_filters_notices_and_on_the_clipboard(db: Database) -> None:
    """Picked from a list, a name goes into the filter; copied, it may be pasted into a shell."""
    task(db, "FAILED", task_name=EVIL, error_code="E" + EVIL)
    db.execute("INSERT INTO horsies_schedule_state (schedule_name) VALUES (%s)", EVIL)
    async with on_database(db, size=(130, 40)) as (app, pilot):
        copied: list[str] = []
        app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        table(app, "failing").focus()
        await go(app, pilot, "enter")
        assert seen(app).NAME == "tasks"
        assert len(seen(app).data.rows) == 1, "the filter means the name as it is"
        assert not unfit(text_of(app))
        field = app.screen.query_one("#filter", Input)
        assert not unfit(field.value)
        assert "\n" not in field.value
        await pilot.press("slash", "enter")
        await settled(app, pilot)
        assert len(seen(app).data.rows) == 1, "and still does when it is applied again"
        for place in ("1", "2", "6", "7"):
            await go(app, pilot, place)
            await pilot.press("y")
        await go(app, pilot, "2", "enter")
        await pilot.press("y")
        await pilot.pause()
        assert len(copied) >= 3
        assert not any(unfit(text) for text in copied)
        assert any("evil\\x1b[2J⏎name" in text for text in copied), "the schedule's name, in one line"
        assert not any(unfit(text) for text in notifications(app))
        assert not unfit(text_of(app))


async def test_a_huge_argument_is_cut_by_the_database(db: Database) -> None:
    task_id = task(db, kwargs='{"x": "' + "y" * 5_000_000 + '"}')
    source = source_on(db.url)
    try:
        detail = await source.task(task_id)
    finally:
        await source.close()
    assert detail is not None
    assert detail.payload is not None
    assert len(detail.payload["kwargs"]) == MAX_CHARS
    assert detail.payload["kwargs_chars"] > 5_000_000


async def test_the_filter_is_kept_for_the_session_and_tells_what_it_does_not_understand(db: Database) -> None:
    task(db, queue_name="mail", task_name="one")
    task(db, queue_name="other", task_name="two")
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "2", "slash")
        app.screen.query_one("#filter", Input).value = "colour:red"
        await pilot.press("enter")
        await shows(app, pilot, "colour: is not one of")
        await pilot.press("escape", "slash")
        app.screen.query_one("#filter", Input).value = "queue:mail"
        await pilot.press("enter")
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
        await shows(app, pilot, "[ window 6 h ]")
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


# -- windows, numbers, facets --------------------------------------------------------------------


async def test_the_window_is_that_of_the_session_and_bounds_what_ended(db: Database) -> None:
    old = task(db, "FAILED", task_name="long_ago", terminal_at=ago(hours=3))
    waiting = task(db, task_name="waits_for_days", enqueued_at=ago(days=3))
    insert(db, "horsies_workflows", id="run-1", name="old_run", status="COMPLETED", completed_at=ago(hours=3))
    async with on_database(db) as (app, pilot):
        await shows(app, pilot, "[ window 1 h ]")
        await go(app, pilot, "2")
        assert [row.id for row in seen(app).data.rows] == [waiting], "the window does not hide waiting tasks"
        await go(app, pilot, "f")
        await shows(app, pilot, "Nothing that waits, runs or ended within 1 h matches the filter")
        await go(app, pilot, "right_square_bracket")
        assert [row.id for row in seen(app).data.rows] == [old]
        await shows(app, pilot, "✗ failed 1 ")
        await go(app, pilot, "5")
        await shows(app, pilot, "[ window 6 h ]")
        await shows(app, pilot, "old_run")
        await go(app, pilot, "left_square_bracket")
        await shows(app, pilot, "No workflow goes on, and none ended within 1 h")
        await go(app, pilot, "2")
        assert not seen(app).data.rows
        await pilot.click("#bar-window", offset=(14, 0))  # the right half: longer
        await settled(app, pilot)
        assert [row.id for row in seen(app).data.rows] == [old]
        await go(app, pilot, "3")
        assert "window" not in text_of(app), "it changes nothing there"
        await go(app, pilot, "2", "left_square_bracket", "0")
        app.queries["tasks"] = Query(id=old)
        await go(app, pilot, "3", "2")
        assert [row.id for row in seen(app).data.rows] == [old], "an id is looked up, whenever it ended"


async def test_facets_narrow_the_list_by_keyboard_and_by_mouse(db: Database) -> None:
    for queue, name, count in (("mail", "receipt", 3), ("mail", "newsletter", 2), ("media", "resize", 1)):
        for _ in range(count):
            task(db, "COMPLETED", queue_name=queue, task_name=name, worker_hostname="web-1")
    task(db, queue_name="media", task_name="resize")
    async with on_database(db, size=(120, 40)) as (app, pilot):
        await go(app, pilot, "2")

        def facets() -> dict[str, str]:
            return {key: line[-1].text for key, line in table(app, "facets").lines.items() if "worker" not in key}

        assert facets() == {
            "queue:mail": "5", "queue:media": "2", "name:receipt": "3", "name:newsletter": "2", "name:resize": "2",
        }  # fmt: skip
        await shows(app, pilot, "○ pending 1  ")
        await shows(app, pilot, "✓ completed 6  ")
        await go(app, pilot, "i", "enter")
        await shows(app, pilot, "/ queue:mail")
        assert {row.queue_name for row in seen(app).data.rows} == {"mail"}
        # the other queue is still offered, the names are those of this one
        assert facets() == {"queue:mail": "5", "queue:media": "2", "name:receipt": "3", "name:newsletter": "2"}
        await shows(app, pilot, "○ pending 0  ")
        await pilot.click("#facets", offset=(12, 3))
        await settled(app, pilot)
        if len(seen(app).data.rows) != 2:  # the first click may only move the cursor
            await pilot.click("#facets", offset=(12, 3))
            await settled(app, pilot)
        await shows(app, pilot, "/ queue:mail name:newsletter")
        assert len(seen(app).data.rows) == 2
        table(app, "facets").put_cursor("queue:mail")
        await go(app, pilot, "i", "enter", "escape")
        await shows(app, pilot, "/ name:newsletter")
        assert app.focused is table(app, "tasks")
    async with on_database(db, size=(80, 24)) as (app, pilot):
        await go(app, pilot, "2")
        assert not table(app, "facets").region
        assert "Narrow" not in text_of(app)


async def test_a_screen_full_of_running_tasks_does_not_hide_the_others(db: Database) -> None:
    with psycopg.connect(db.url) as connection:
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, claimed_at, started_at, claimed_by_worker_id,
                                          worker_pid)
               SELECT 'r' || to_char(n, 'FM0000000'), 'long', 'RUNNING', now(), now() - n * interval '1 second', 'w', 1
                 FROM generate_series(1, 230) AS n"""
        )
    waiting, done = task(db), task(db, "COMPLETED")
    async with on_database(db) as (app, pilot):
        await go(app, pilot, "2")
        assert [row.id for row in seen(app).data.rows][-2:] == [waiting, done]
        await shows(app, pilot, "more are held: x shows them")
        await go(app, pilot, "x")
        for wanted in (100, 200, 230):
            assert len(seen(app).data.rows) == wanted
            await go(app, pilot, "G")


async def test_what_fails_is_on_the_first_screen_and_leads_to_its_tasks(db: Database) -> None:
    lost = [task(db, "FAILED", task_name="receipt", error_code="SMTP_DOWN") for _ in range(3)]
    task(db, "FAILED", task_name="receipt", error_code="OTHER")
    task(db, "FAILED", task_name="receipt", error_code="SMTP_DOWN", terminal_at=ago(hours=2))
    async with on_database(db, size=(100, 40)) as (app, pilot):
        assert [(one.error_code, one.tasks) for one in seen(app).data.failing] == [("SMTP_DOWN", 3), ("OTHER", 1)]
        table(app, "failing").focus()
        await go(app, pilot, "enter")
        await shows(app, pilot, "name:receipt error:smtp_down")
        assert {row.id for row in seen(app).data.rows} == set(lost)


# -- memory: a dashboard is open for days --------------------------------------------------------


def alive(name: str) -> int:
    """How many objects of the class with this name, or of one derived from it, there are."""
    gc.collect()
    return sum(any(base.__name__ == name for base in type(one).__mro__) for one in gc.get_objects())


async def test_changes_of_the_screen_leave_no_widgets_behind() -> None:
    """What is on no screen any more must be freed. Textual keeps the StylesCache of the last thousand widgets that it
    has drawn, so the widgets of a screen must stay the same ones."""
    async with dashboard(demo()) as (app, pilot):
        counts: list[tuple[int, int]] = []
        for _ in range(4):
            for key in "1257":
                await go(app, pilot, key)
                text_of(app)  # a widget that is not drawn leaves nothing behind
            counts.append((alive("Widget"), alive("StylesCache")))
        # the first tour makes the screens
        for before, after in zip(counts[1], counts[-1], strict=True):
            assert after <= before + 5, counts


async def test_the_keys_are_made_anew_only_when_other_keys_are_to_be_shown() -> None:
    async with dashboard(demo()) as (app, pilot):

        def opens() -> bool:
            return "Open" in text_of(app).splitlines()[-1]

        await go(app, pilot, "2")
        keys = list(app.screen.query("FooterKey"))
        assert opens()
        await go(app, pilot, "3", "2", "r")
        assert list(app.screen.query("FooterKey")) == keys
        await pilot.press("slash")
        await eventually_async(lambda: not opens(), interval=0.08, describe="the keys of the filter")
        await pilot.press("escape")
        await eventually_async(opens, interval=0.08, describe="the keys of the table")


async def test_refreshes_leave_no_drawn_cells_behind() -> None:
    """Most dashboards stay on one screen, and the ages on it change at every refresh."""
    clock = itertools.count(FROZEN, 5.0)
    async with dashboard(DemoSource(clock=lambda: next(clock))) as (app, pilot):
        await go(app, pilot, "2")
        counts: list[int] = []
        for _ in range(4):
            for _ in range(5):
                await go(app, pilot, "r")
                text_of(app)
            counts.append(alive("Segment"))
        assert counts[-1] <= counts[0] * 1.2, counts
