"""`app.schedules` without a database: each verb is refused at once, with and without an event loop."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from horsies import ConfigurationError, Daily, Horsies, TaskSchedule, UsageError, testing
from horsies.app_schedules import AppSchedules
from horsies.contrib.flask import FlaskHorsies
from tests.support.apps import UNREACHABLE, make_app

REPORT = TaskSchedule("report", "report", Daily("07:00"))
CALLS: dict[str, tuple[Any, ...]] = {
    "put": (REPORT,),
    "put_many": ([REPORT],),
    "delete": ("report",),
    "run_now": ("report",),
    "pause": ("report",),
    "resume": ("report",),
    "get": ("report",),
    "history": ("report",),
    "list": (),
}


def test_every_verb_is_tried_here() -> None:
    assert set(CALLS) == {name for name in vars(AppSchedules) if not name.startswith("_") and "_async" not in name}


@pytest.mark.parametrize("stand_in", [testing.recorded, testing.inline])
@pytest.mark.parametrize("verb", CALLS)
async def test_under_a_stand_in(verb: str, stand_in: Callable[[Horsies], AbstractContextManager[Any]]) -> None:
    app = make_app(UNREACHABLE)
    with stand_in(app), pytest.raises(UsageError, match="the broker"):
        await getattr(app.schedules, f"{verb}_async")(*CALLS[verb])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stand_in", [testing.recorded, testing.inline])
@pytest.mark.parametrize("verb", CALLS)
def test_under_a_stand_in_without_a_loop(verb: str, stand_in: Callable[[Horsies], AbstractContextManager[Any]]) -> None:
    with make_app(UNREACHABLE) as app, stand_in(app), pytest.raises(UsageError, match="the broker"):
        getattr(app.schedules, verb)(*CALLS[verb])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("verb", CALLS)
def test_before_init_app(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)
    with FlaskHorsies() as queue, pytest.raises(ConfigurationError, match="init_app"):
        getattr(queue.schedules, verb)(*CALLS[verb])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [ValueError("wrong"), GeneratorExit("gone")])
def test_a_call_that_fails_before_its_coroutine_is_made(error: BaseException) -> None:
    """As `get_broker()` in the function that an integration gives to `run_sync`."""

    def work() -> Any:
        raise error

    with make_app(UNREACHABLE) as app:
        with pytest.raises(type(error), match=str(error)):
            app.run_sync("work", work)
        assert app.run_sync("work", answer) == 42  # the thread goes on


async def answer() -> int:
    return 42
