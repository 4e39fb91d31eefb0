"""`snooze`: what it takes and refuses, and how a task's result carries it."""

from datetime import timedelta
from typing import Any

import pytest

from horsies import (
    ConfigurationError,
    Horsies,
    Middleware,
    OutcomeCode,
    TaskContext,
    TaskDefinitionError,
    TaskError,
    TaskResult,
    UsageError,
    current_task,
    snooze,
    testing,
)
from horsies.middleware import AttemptEnd
from horsies.retry import RetryPolicy
from tests.support.apps import UNREACHABLE, make_app

MINUTE = 60_000


@pytest.mark.parametrize(
    ("result", "delay_ms"),
    [
        (snooze(seconds=60), MINUTE),
        (snooze(minutes=1), MINUTE),
        (snooze(hours=1, minutes=1, seconds=1), 61 * MINUTE + 1_000),
        (snooze(timedelta(minutes=1)), MINUTE),
        (snooze(timedelta(minutes=1), seconds=0.5), MINUTE + 500),
        (snooze(seconds=1e-9), 1),
        (snooze(timedelta(days=30)), 30 * 24 * 60 * MINUTE),
    ],
)
def test_delays(result: TaskResult[Any, TaskError], delay_ms: int) -> None:
    assert result.err_value.error_code is OutcomeCode.TASK_SNOOZED
    assert result.err_value.retry_after_ms == delay_ms
    assert not result.is_ok()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "snooze.delay: no delay is given"),
        ({"seconds": 0}, "no delay is given"),
        ({"seconds": -1}, "-1.0 seconds is out of range"),
        ({"seconds": 30 * 86_400 + 1}, "2592001.0 seconds is out of range"),
        ({"seconds": float("nan")}, "snooze.seconds: must be a number, got nan"),
        ({"minutes": float("inf")}, "snooze.minutes: must be a number, got inf"),
        ({"seconds": 10**400}, "snooze.seconds: must be a number"),
        ({"seconds": True}, "snooze.seconds: must be a number, got True (bool)"),
        ({"hours": "2"}, "snooze.hours: must be a number, got '2' (str)"),
        ({"seconds": None}, "snooze.seconds: must be a number, got None"),
    ],
)
def test_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        snooze(**given)
    assert told in str(caught.value)
    assert "snooze(seconds=60)" in str(caught.value)


def test_a_bare_number_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a timedelta, got 60[\s\S]*snooze\(seconds=60\)"):
        snooze(60)  # type: ignore[arg-type]


# -- what a task does with it ----------------------------------------------------------------------


class Ends(Middleware):
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def on_attempt_end(self, end: AttemptEnd) -> None:
        self.seen.append((end.outcome, end.retry_expected))


def app_with(*middleware: Middleware) -> Horsies:
    return make_app(UNREACHABLE, middleware=list(middleware))


def test_run_shows_it_and_middleware_sees_no_failure() -> None:
    ends = Ends()
    app = app_with(ends)

    @app.task("poll")
    def poll(ready: bool) -> TaskResult[int, TaskError]:
        return TaskResult(ok=1) if ready else snooze(minutes=1)

    assert testing.run(poll, ready=False) == snooze(minutes=1)
    assert testing.run(poll, ready=True) == TaskResult(ok=1)
    assert ends.seen == [("snoozed", False), ("ok", False)]


def test_it_may_come_from_a_helper_in_every_way() -> None:
    app = app_with()

    def helper() -> TaskResult[str, TaskError]:
        return snooze(seconds=5)

    @app.task("passed_on")
    def passed_on() -> TaskResult[str, TaskError]:
        return helper()

    @app.task("rewrapped")
    def rewrapped() -> TaskResult[int, TaskError]:
        return TaskResult(err=helper().err_value)

    @app.task("unwrapped")
    async def unwrapped() -> TaskResult[int, TaskError]:
        return TaskResult(ok=len(helper().unwrap()))

    for task in (passed_on, rewrapped, unwrapped):
        assert testing.run(task) == snooze(seconds=5), task.name


def test_its_code_is_reserved_and_an_ok_value_it_is_not() -> None:
    app = app_with()

    @app.task("forged")
    def forged() -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError("TASK_SNOOZED", retry_after_ms=5))

    @app.task("inside")
    def inside() -> TaskResult[int, TaskError]:
        return TaskResult(ok=snooze(seconds=5))  # type: ignore[arg-type]

    assert testing.run(forged).err_value.error_code == "RESERVED_ERROR_CODE"
    assert testing.run(inside).err_value.error_code == "RETURN_TYPE_MISMATCH"
    with pytest.raises(TaskDefinitionError, match="runs again by itself"):
        app.task("listed", retry_policy=RetryPolicy.fixed(1, 1, auto_retry_for=["TASK_SNOOZED"]))(lambda: 1)


def test_a_bad_delay_fails_the_attempt_with_the_reason() -> None:
    app = app_with()

    @app.task("bad")
    def bad() -> TaskResult[int, TaskError]:
        return snooze(seconds=-1)

    error = testing.run(bad).err_value
    assert error.error_code == "UNHANDLED_EXCEPTION"
    assert "out of range" in error.message


def test_inline_runs_it_again_at_once_and_keeps_the_delays() -> None:
    app = app_with()
    seen: list[tuple[int, int]] = []

    @app.task("poll", retry_policy=RetryPolicy.fixed(1, 1, auto_retry_for=["DOWN"]))
    def poll(until: int) -> TaskResult[int, TaskError]:
        here: TaskContext = current_task()
        seen.append((here.attempt, here.snoozes))
        if here.snoozes < until:
            return snooze(seconds=10 * (here.snoozes + 1))
        return TaskResult(err=TaskError("DOWN")) if here.attempt == 1 else TaskResult(ok=here.snoozes)

    with testing.inline(app) as sends:
        assert poll.send(2).get() == TaskResult(ok=2)
        (sent,) = sends.sent(poll)
        assert sent.snoozes == [timedelta(seconds=10), timedelta(seconds=20)]
        assert [one.number for one in sent.attempts] == [1, 2]
        assert seen == [(1, 0), (1, 1), (1, 2), (2, 2)]
        with pytest.raises(UsageError, match=r"task 'poll' has snoozed 100 times[\s\S]*advance"):
            poll.send(1_000)
    assert testing.run_as(poll, snoozes=2, attempt=2)(2) == TaskResult(ok=2)
    with pytest.raises(ConfigurationError, match=r"run_as\.snoozes"):
        testing.run_as(poll, snoozes=-1)
