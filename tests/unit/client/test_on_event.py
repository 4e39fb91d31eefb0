"""`app.on_event`: both forms, and what it refuses."""

from functools import partial
from typing import Any

import pytest

from horsies import AppConfig, Horsies, PostgresConfig, UsageError
from horsies.events import AttemptFailed, Event, WorkerStarted


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig(PostgresConfig("postgresql://u@h/d")))


def test_as_a_function_and_as_a_decorator(app: Horsies) -> None:
    def one(event: WorkerStarted) -> None: ...

    @app.on_event(AttemptFailed)
    def two(event: AttemptFailed) -> str:
        return event.task_id

    assert app.on_event(WorkerStarted, one) is one
    assert app.event_handlers == [(AttemptFailed, two), (WorkerStarted, one)]


def test_the_same_handler_is_registered_once_for_each_class(app: Horsies) -> None:
    def one(event: Event) -> None: ...

    for kind in (WorkerStarted, AttemptFailed, WorkerStarted, Event):
        app.on_event(kind, one)
    assert app.event_handlers == [(WorkerStarted, one), (AttemptFailed, one), (Event, one)]


@pytest.mark.parametrize("kind", [int, "AttemptFailed", None, WorkerStarted("w", "h", 1, (), 1), ValueError])
def test_another_kind(app: Horsies, kind: Any) -> None:
    with pytest.raises(UsageError, match=r"on_event takes a class of horsies\.events, such as AttemptFailed, not "):
        app.on_event(kind, print)
    with pytest.raises(UsageError):
        app.on_event(kind)


@pytest.mark.parametrize("handler", [1, "print", ()])
def test_no_function(app: Horsies, handler: Any) -> None:
    with pytest.raises(UsageError, match="on_event takes a function of one event, not "):
        app.on_event(AttemptFailed, handler)
    with pytest.raises(UsageError, match="on_event takes a function of one event, not "):
        app.on_event(AttemptFailed)(handler)
    assert app.event_handlers == []


async def later(event: AttemptFailed, note: str = "") -> None: ...


class Later:
    async def __call__(self, event: AttemptFailed) -> None: ...


@pytest.mark.parametrize("handler", [later, partial(later, note="x"), Later(), Later().__call__])
def test_an_async_function(app: Horsies, handler: Any) -> None:
    """It would be called, and never awaited."""
    with pytest.raises(UsageError, match="a plain function: handlers run on a thread"):
        app.on_event(AttemptFailed, handler)
