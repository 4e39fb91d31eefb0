# pyright: strict
"""Handlers of events: the class that is named decides which event the handler gets."""

from typing import assert_type

from horsies.events import AttemptFailed, Event, WorkerStarted
from tests.typing.tasks import app


def on_failure(event: AttemptFailed) -> None:
    assert_type(event.will_retry, bool)
    assert_type(event.duration_s, float | None)


def on_any(event: Event) -> None: ...


app.on_event(AttemptFailed, on_failure)
app.on_event(AttemptFailed, on_any)
app.on_event(Event, on_any)
app.on_event(WorkerStarted, lambda event: print(event.worker_id))  # noqa: T201


@app.on_event(WorkerStarted)
def started(event: WorkerStarted) -> int:
    return event.pid


assert_type(started(WorkerStarted("w", "h", 1, ["default"], 2)), int)


@app.on_event(AttemptFailed)
def anything(event: Event) -> None: ...


# -- what both checkers refuse --------------------------------------------------------------------

app.on_event(WorkerStarted, on_failure)  # type: ignore[arg-type]
app.on_event(Event, on_failure)  # type: ignore[arg-type]
app.on_event(int)  # type: ignore[type-var]


@app.on_event(WorkerStarted)  # type: ignore[arg-type]
def another_event(event: AttemptFailed) -> None: ...


@app.on_event(WorkerStarted)  # type: ignore[arg-type]
def no_event() -> None: ...
