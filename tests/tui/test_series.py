"""The rates of the overview against counts by SQL: steady, in bursts, with failures, over several looks."""

from datetime import timedelta

import psycopg
import pytest

from horsies_tui.data import series
from horsies_tui.data.models import Series
from tests.support.dashboards import on_database, shows, source_on
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

HOUR = timedelta(hours=1)
SLOT_S = HOUR.total_seconds() / series.SLOTS


def fill(db: Database, when: str, rows: int, *, failed: str = "false", waited: str = "0.1") -> None:
    """Ended tasks whose ends are the expression `when` of `n` = 1 … rows; ids tell the same time."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(
            f"""INSERT INTO horsies_tasks (id, task_name, status, enqueued_at, started_at, claimed_at, terminal_at,
                                           completed_at, failed_at, result, error_code, claimed_by_worker_id)
                SELECT left(h, 8) || '-' || right(h, 4) || '-7000-8000-' || lpad(n::text, 12, '0'), 'a',
                       CASE WHEN bad THEN 'FAILED' ELSE 'COMPLETED' END, t - make_interval(secs => {waited}), t, t, t,
                       CASE WHEN NOT bad THEN t END, CASE WHEN bad THEN t END, '{{}}',
                       CASE WHEN bad THEN 'SMTP_DOWN' END, 'w'
                  FROM (SELECT n, t, bad,
                               lpad(to_hex((extract(epoch FROM t) * 1000)::bigint), 12, '0') AS h
                          FROM (SELECT n, {when} AS t, {failed} AS bad
                                  FROM generate_series(1, {rows}) AS n) AS x) AS y"""  # type: ignore[arg-type]
        )


async def look(db: Database, window: timedelta = HOUR) -> Series:
    """As it is once the whole window is counted."""
    source = source_on(db.url)
    try:
        while True:
            found = (await source.overview(window)).series
            if counted_s(found) >= window.total_seconds() - 1:
                return found
    finally:
        await source.close()


def counted_s(found: Series) -> float:
    return min(found.sent.counted_s, found.done.counted_s, found.failed.counted_s)


async def test_a_steady_rate_is_shown_as_it_is(db: Database) -> None:
    """55 a second, each twentieth failed: the first forty ends of a slot would have told of its first second only."""
    # a minute ahead as well: the rate goes on while a slow machine comes to look
    fill(db, "now() + interval '60 s' - n * interval '1 s' / 55", 55 * 540, failed="n % 20 = 0", waited="0.25")
    found = await look(db)
    assert found.done.now == pytest.approx(55, rel=0.05)
    assert found.sent.now == pytest.approx(55, rel=0.1)
    assert found.failed.now == pytest.approx(55 / 20, rel=0.1)
    assert found.wait_p95_now == pytest.approx(0.25, rel=0.05)
    whole = slice(-4, -1)  # these slots are over, and within the eight minutes
    assert found.done.curve[whole] == pytest.approx([55] * 3, rel=0.02)
    assert found.sent.curve[whole] == pytest.approx([55] * 3, rel=0.02)
    assert found.failed.curve[whole] == pytest.approx([55 / 20] * 3, rel=0.05)
    assert found.wait_p95[whole] == pytest.approx([0.25] * 3, rel=0.1)


async def test_a_burst_at_the_beginning_of_each_slot_is_not_taken_for_the_rate(db: Database) -> None:
    """60 ends within 80 ms, then nothing for the rest of the slot: 0.67 a second."""
    at = f"to_timestamp((floor(extract(epoch FROM now()) / {SLOT_S}) - n / 60) * {SLOT_S})"
    fill(db, f"{at} + (n % 60) * interval '1 ms'", 60 * 20)
    found = await look(db)
    assert found.done.curve[-8:-1] == pytest.approx([60 / SLOT_S] * 7, rel=0.02)
    assert found.sent.curve[-8:-1] == pytest.approx([60 / SLOT_S] * 7, rel=0.02)
    assert max(found.done.curve) == pytest.approx(60 / SLOT_S, rel=0.02) or max(found.done.curve[:-1]) < 0.7
    assert found.done.now * found.done.span_s == pytest.approx(60, abs=60), "one burst, two or none"


async def test_failures_at_the_end_of_a_slot_are_counted(db: Database) -> None:
    """A hundred successes first and ten failures last, in every slot."""
    at = f"to_timestamp((floor(extract(epoch FROM now()) / {SLOT_S}) - 1 - n / 110) * {SLOT_S})"
    fill(db, f"{at} + (n % 110) * interval '0.7 s'", 110 * 10, failed="n % 110 >= 100")
    found = await look(db)
    assert found.failed.curve[-8:-2] == pytest.approx([10 / SLOT_S] * 6, rel=0.02)


@pytest.mark.parametrize("window", [timedelta(minutes=5), HOUR, timedelta(days=1)])
async def test_the_slots_add_up_to_what_ended(db: Database, window: timedelta) -> None:
    fill(db, "now() - (n % 977) * 3.1 * interval '1 s' - interval '1 min'", 5_000, failed="n % 3 = 0")
    newest = f"floor(extract(epoch FROM now()) / {window.total_seconds() / series.SLOTS})"
    while True:
        began = db.value(f"SELECT {newest}")
        found = await look(db, window)
        if db.value(f"SELECT {newest}") == began:
            break  # no slot began meanwhile: both count the same slots
    with psycopg.connect(db.url) as connection:
        counts = connection.execute(
            """SELECT count(*), count(*) FILTER (WHERE status = 'FAILED') FROM horsies_tasks
                WHERE terminal_at >= to_timestamp((%(newest)s - 39) * %(w)s)
                  AND terminal_at < to_timestamp(%(newest)s * %(w)s)""",
            {"newest": began, "w": found.slot_s},
        ).fetchone()
    assert counts is not None
    whole = slice(0, series.SLOTS - 1)  # the slot under way is left out in its beginning
    assert sum(found.done.curve[whole]) * found.slot_s == pytest.approx(counts[0])
    assert sum(found.failed.curve[whole]) * found.slot_s == pytest.approx(counts[1])


async def test_a_window_that_is_too_much_for_one_look_is_counted_by_several_and_says_how_far(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "SPENT_S", 0.0)
    fill(db, "now() + interval '60 s' - n * interval '1 s' / 10", 36_600)
    source = source_on(db.url)
    try:
        first = (await source.overview(HOUR)).series
        assert counted_s(first) < HOUR.total_seconds() / 2
        assert first.done.now == pytest.approx(10, rel=0.05), "the headline does not wait for the curve"
        looks, found = 1, first
        while counted_s(found) < HOUR.total_seconds() - 1:
            before = counted_s(found)
            found = (await source.overview(HOUR)).series
            assert counted_s(found) > before
            looks += 1
        assert looks > 2
        assert found.done.curve[5:-1] == pytest.approx([10] * len(found.done.curve[5:-1]), rel=0.03)
    finally:
        await source.close()


async def test_what_ends_between_two_looks_is_counted_once(db: Database) -> None:
    source = source_on(db.url)
    window = timedelta(minutes=5)
    fill(db, "now() - n * interval '0.1 s'", 500)
    totals: list[float] = []

    async def all_are_in_whole_slots() -> bool:
        found = (await source.overview(window)).series
        whole = found.done.curve if len(found.done.curve) < series.SLOTS else found.done.curve[:-1]
        totals.append(sum(whole) * found.slot_s)
        return totals[-1] == pytest.approx(800)

    try:
        await source.overview(window)
        db.execute("UPDATE horsies_tasks SET id = 'f' || substr(id, 2)")  # the next ones have the same ids
        fill(db, "now() - n * interval '1 ms'", 300)
        await eventually_async(all_are_in_whole_slots, timeout=60, interval=0.5)
    finally:
        await source.close()
    assert max(totals) == pytest.approx(800)


async def test_more_ends_than_the_headline_reads_shorten_the_time_that_it_covers(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "LOOK_NOW", 1_000)
    monkeypatch.setattr(series, "LOOK_ROWS_NOW", 500)
    fill(db, "now() + interval '40 s' - n * interval '1 s' / 100", 12_000, failed="n % 10 = 0")
    found = await look(db)
    assert found.failed.now == pytest.approx(50 / found.failed.span_s, rel=0.01)
    assert found.done.span_s < 40
    assert found.done.now == pytest.approx(1_000 / found.done.span_s, rel=0.01)
    assert found.sent.now == pytest.approx(1_000 / found.sent.span_s, rel=0.01)


async def test_the_cards_say_what_they_cover(db: Database) -> None:
    fill(db, "now() - n * interval '1 s' / 5", 1_500)
    async with on_database(db, size=(120, 40)) as (app, pilot):
        await shows(app, pilot, "last 90 s")
        await pilot.press("left_square_bracket", "left_square_bracket")
        await shows(app, pilot, "last 60 s")
