"""The testing kit and the database give the same answers to sends with keys."""

import random
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from horsies import Horsies, TaskError, TaskHandle, TaskResult, testing
from tests.support.apps import UNREACHABLE, make_app
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

HOUR = timedelta(hours=1)
MODES: list[dict[str, Any]] = [
    {}, {"unique_for": HOUR}, {"on_conflict": "replace"}, {"on_conflict": "replace", "delay": 5}, {"debounce": HOUR},
]  # fmt: skip
ran: list[int] = []


def task_of(app: Horsies) -> Any:
    @app.task("note")
    def note(number: int, text: str = "") -> TaskResult[int, TaskError]:
        ran.append(number)
        return TaskResult(ok=number)

    return note


def numbered(handles: list[TaskHandle[Any]]) -> list[tuple[int, bool]]:
    """For each send, which task it went to, by the order of their first appearance."""
    seen: dict[str, int] = {}
    return [(seen.setdefault(handle.task_id, len(seen)), handle.is_duplicate) for handle in handles]


@pytest.mark.parametrize("seed", range(3))
def test_recorded_answers_as_the_database(db: Database, seed: int) -> None:
    chance = random.Random(seed)
    script = [(chance.choice("ab"), chance.choice(MODES), number) for number in range(25)]
    with make_app(UNREACHABLE) as app, testing.recorded(app) as sends:
        note = task_of(app)
        recorded = [note.with_options(unique_key=key, **mode).send(number) for key, mode, number in script]
    with make_app(db) as app:
        note = task_of(app)
        sent = [note.with_options(unique_key=key, **mode).send(number) for key, mode, number in script]
    assert numbered(recorded) == numbered(sent)
    stored = db.execute("SELECT (kwargs::jsonb ->> 'number')::int FROM horsies_tasks ORDER BY id")
    assert [(one.arguments["number"],) for one in sends.sent()] == stored


@pytest.mark.parametrize("mode", MODES[1:], ids=str)
def test_inline_answers_as_a_drained_database(db: Database, mode: dict[str, Any]) -> None:
    def script(note: Any, pass_time: Any) -> list[tuple[int, bool]]:
        handles = list[TaskHandle[int]]()
        for number in range(6):
            handles.append(note.with_options(unique_key="k", **mode).send(number))
            pass_time(timedelta(minutes=61) if number in (2, 4) else timedelta(seconds=5), mode.get("debounce"))
        return numbered(handles)

    ran.clear()
    with make_app(UNREACHABLE) as app, testing.inline(app) as sends:
        inline = script(task_of(app), lambda time, _debounce: sends.advance(time))
    of_inline = ran.copy()
    ran.clear()
    with make_app(db) as app, testing.real(app, in_place=True) as base:

        def pass_time(time: timedelta, debounce: timedelta | None) -> None:
            base.advance(debounce or time)  # inline runs a debounced send at once, as one with a delay
            base.drain()

        assert script(task_of(app), pass_time) == inline
    assert ran == of_inline
    assert of_inline == ([0, 3, 5] if "unique_for" in mode else [0, 1, 2, 3, 4, 5])


def test_debounce_in_a_drained_database(db: Database) -> None:
    ran.clear()
    with make_app(db) as app, testing.real(app, in_place=True) as base:
        sender = task_of(app).with_options(
            unique_key="k", debounce=timedelta(seconds=60), max_wait=timedelta(seconds=100)
        )
        for number in range(3):
            sender.send(number)
            base.advance(timedelta(seconds=45))  # due are 60 s after the last, and at most 100 s after the first
            base.drain()
    assert ran == [2]


def test_recorded_shows_the_last_call() -> None:
    with make_app(UNREACHABLE) as app, testing.recorded(app) as sends:
        note = task_of(app)
        sender = note.with_options(unique_key="k", debounce=timedelta(seconds=2))
        handles = [sender.send(1), sender.with_options(priority=7).send(2, "last")]
        assert [handle.is_duplicate for handle in handles] == [False, True]
        sends.assert_sent(note, 2, text="last")
    (sent,) = sends.sent(note)
    assert (sent.id, sent.priority, sent.delay) == (handles[0].task_id, 7, timedelta(seconds=2))


def test_a_transaction_that_rolls_back_takes_the_call_back() -> None:
    engine = create_engine("sqlite://")
    with make_app(UNREACHABLE) as app, testing.recorded(app) as sends:
        note = task_of(app)
        sender = note.with_options(unique_key="k", on_conflict="replace")
        sender.send(1)
        with Session(engine) as session:
            sender.with_options(connection=session).send(2)
            session.rollback()
            assert sends.assert_sent(note, 1)
            sender.with_options(connection=session).send(3)
            note.with_options(unique_key="mine", unique_for=HOUR, connection=session).send(4)
            session.rollback()
            assert not note.with_options(unique_key="mine", unique_for=HOUR).send(5).is_duplicate
            sender.with_options(connection=session).send(6)
            session.commit()
    assert [sent.arguments["number"] for sent in sends.sent()] == [6, 5]
