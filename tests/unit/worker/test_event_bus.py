"""The event bus and the thread of the app's handlers."""

import logging
import threading

import pytest

from horsies.events import ChildStarted, Event, TasksClaimed, WorkerStopped
from horsies_worker.children.exit_reason import Exit, exit_reason
from horsies_worker.events.bus import KINDS, SILENT, EventBus
from horsies_worker.events.user_handlers import MAX_WAITING, UserHandlers
from tests.support.waiting import eventually

ONE = TasksClaimed(1)


def test_only_events_with_a_subscriber_are_wanted() -> None:
    bus = EventBus()
    assert not bus.wants(TasksClaimed)
    got: list[Event] = []
    bus.subscribe(TasksClaimed, got.append)
    assert bus.wants(TasksClaimed)
    assert not bus.wants(WorkerStopped)
    bus.emit(ONE)
    bus.emit(WorkerStopped("w"))
    assert got == [ONE]


def test_the_base_class_stands_for_all() -> None:
    bus = EventBus()
    got: list[Event] = []
    bus.subscribe(Event, got.append)
    assert all(bus.wants(kind) for kind in KINDS)
    bus.emit(ONE)
    bus.emit(WorkerStopped("w"))
    assert got == [ONE, WorkerStopped("w")]
    assert {kind.__name__ for kind in KINDS} >= {"WorkerStarted", "AttemptFailed", "WorkflowEnded"}
    assert not SILENT.wants(TasksClaimed)


def test_a_subscriber_that_fails_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    got: list[Event] = []
    bus.subscribe(TasksClaimed, lambda _: 1 / 0)
    bus.subscribe(TasksClaimed, got.append)
    bus.emit(ONE)
    assert got == [ONE]
    assert "a subscriber of TasksClaimed failed" in caplog.text


# -- the handlers of the app ---------------------------------------------------------------------


def test_handlers_run_in_order_on_one_other_thread() -> None:
    bus = EventBus()
    got: list[tuple[Event, int]] = []

    def handler(event: Event) -> None:
        got.append((event, threading.get_ident()))

    handlers = UserHandlers(bus, [(TasksClaimed, handler), (ChildStarted, handler)])
    sent = [ONE, ChildStarted("a", 1), TasksClaimed(2)]
    for event in sent:
        bus.emit(event)
    handlers.close()
    assert [event for event, _ in got] == sent
    assert len({thread for _, thread in got}) == 1
    assert threading.get_ident() not in {thread for _, thread in got}
    assert not [thread for thread in threading.enumerate() if thread.name == "horsies-events"]


def test_without_handlers_there_is_no_thread() -> None:
    handlers = UserHandlers(EventBus(), [])
    assert not [thread for thread in threading.enumerate() if thread.name == "horsies-events"]
    handlers.close()


def test_a_full_queue_drops_and_the_end_waits_for_no_handler(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    begun, release = threading.Event(), threading.Event()
    got: list[Event] = []

    def handler(event: Event) -> None:
        got.append(event)
        begun.set()
        release.wait(20)

    handlers = UserHandlers(bus, [(TasksClaimed, handler)])
    bus.emit(ONE)
    assert begun.wait(20)
    for _ in range(MAX_WAITING + 7):
        bus.emit(ONE)
    assert handlers.dropped == 7
    assert caplog.text.count("too slow") == 1  # once a minute, not for each
    handlers.close(0.2)
    assert got == [ONE]  # the handler still waits in its first call
    assert f"{MAX_WAITING:,} events dropped" in caplog.text
    assert handlers.dropped == MAX_WAITING + 7
    bus.emit(ONE)
    assert handlers.dropped == MAX_WAITING + 8
    release.set()
    # a program that goes on after its worker keeps no thread of it
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "horsies-events"])
    assert got == [ONE]


def test_a_handler_that_exits_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    got: list[Event] = []

    def exits(_event: Event) -> None:
        raise SystemExit(3)

    handlers = UserHandlers(bus, [(TasksClaimed, exits), (TasksClaimed, got.append)])
    bus.emit(ONE)
    bus.emit(ONE)
    handlers.close()
    assert got == [ONE, ONE]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "test_a_handler_that_exits_does_not_end_the_thread.<locals>.exits failed on TasksClaimed" in caplog.text


# -- why a child has ended -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "killed_by_us", "was_ready", "was_asked", "reason"),
    [
        (0, False, True, True, "requested"),
        (None, False, True, True, "requested"),
        (9, True, True, True, "killed"),
        (9, True, False, False, "killed"),
        (11, False, True, False, "crashed"),
        (11, False, True, True, "crashed"),
        (0, False, True, False, "crashed"),
        (3 << 8, False, False, False, "start_failed"),
        (3 << 8, False, False, True, "start_failed"),
    ],
)
def test_exit_reasons(status: int | None, killed_by_us: bool, was_ready: bool, was_asked: bool, reason: str) -> None:
    end = Exit(status, 0, killed_by_us=killed_by_us)
    assert exit_reason(end, was_ready=was_ready, was_asked=was_asked) == reason


def test_a_child_that_broke_its_connection_has_crashed() -> None:
    end = Exit(9, 0, killed_by_us=True, broke_off="it closed its connection to the worker")
    assert exit_reason(end, was_ready=True, was_asked=False) == "crashed"
