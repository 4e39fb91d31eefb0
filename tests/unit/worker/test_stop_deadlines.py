"""The deadlines of a stop, without a clock."""

import threading
import time

import pytest

from horsies_worker.exit_codes import ExitCode
from horsies_worker.stop import HURRY_S, SHORTEST_S, Stop, StopDeadlines, Watchdog


@pytest.mark.parametrize(
    ("timeout", "drain"), [(30, 24), (10, 8), (5, 3), (4, 2), (100, 80), (2, 1), (1, 0.5), (0.2, 0.1), (0, 0)]
)
def test_draining_ends_two_seconds_or_a_fifth_before_the_end(timeout: float, drain: float) -> None:
    deadlines = StopDeadlines(timeout)
    assert not deadlines.has_begun
    deadlines.begin(1_000.0)
    assert deadlines.drain_until == pytest.approx(1_000 + drain)
    assert deadlines.end == pytest.approx(1_000 + max(timeout, SHORTEST_S))
    assert deadlines.drain_until < deadlines.write_until < deadlines.end


def test_a_second_signal_brings_the_end_nearer_and_never_further_away() -> None:
    deadlines = StopDeadlines(60)
    deadlines.begin(0.0)
    deadlines.begin(10.0)
    assert deadlines.end == 60.0
    deadlines.hurry(20.0)
    assert (deadlines.drain_until, deadlines.end) == (20.0, 20.0 + HURRY_S)
    assert 20.0 < deadlines.write_until < deadlines.end
    deadlines.hurry(21.0)
    assert deadlines.end == 20.0 + HURRY_S


def test_a_second_signal_near_the_end_changes_nothing() -> None:
    deadlines = StopDeadlines(10)
    deadlines.begin(0.0)
    deadlines.hurry(9.5)
    assert (deadlines.drain_until, deadlines.end) == (8.0, 10.0)
    assert deadlines.write_until < deadlines.end


async def test_a_stop_goes_on_without_a_watchdog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit of threads is reached."""

    def refuses(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    watchdog = Watchdog(lambda: (ExitCode.FAILED, ""))
    stop = Stop(10, watchdog.arm)
    stop.hurry()
    assert stop.has_begun
    assert stop.deadlines.end < time.monotonic() + 10
    assert watchdog.left_s > 0
    assert "cannot start its thread: can't start new thread" in caplog.text
