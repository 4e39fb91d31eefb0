"""The loop that all services share: woken, failing, and above all: ended."""

import asyncio

import pytest

from horsies import PostgresConfig, ResilienceConfig
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.service import Service


class Counting(Service):
    name = "counting"

    def __init__(self, interval_s: float = 3_600.0) -> None:
        session = Session(PostgresConfig("postgresql://nowhere/none"), "test", Queries(None, Identity()))
        super().__init__(session, ResilienceConfig(reconnect_initial_ms=10), interval_s)
        self.runs = 0
        self.failures = 0
        self.error: type[Exception] = ConnectionError

    async def run_once(self) -> None:
        self.runs += 1
        if self.failures:
            self.failures -= 1
            raise self.error("as the test wanted")


async def turn(times: int = 1) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.mark.parametrize("between", range(8))
async def test_a_cancel_that_meets_a_wake_up_is_not_swallowed(between: int) -> None:
    """A worker that is stopped at that moment would never end."""
    service = Counting()
    running = asyncio.create_task(service.run())
    await turn(10)
    service.wake()
    await turn(between)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=5)
    assert done
    assert running.cancelled()


async def test_a_wake_up_does_it_now_and_an_error_does_it_again() -> None:
    service = Counting()
    service.failures = 2
    running = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(30):
            while service.runs < 3:  # two that failed, and the one after them
                await asyncio.sleep(0.005)
            service.wake()
            while service.runs < 4:
                await asyncio.sleep(0.005)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_same_unexpected_error_has_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A table that is missing for an hour must not fill the log with tracebacks."""
    service = Counting(interval_s=0.001)
    service.error, service.failures = KeyError, 4
    running = asyncio.create_task(service.run())
    async with asyncio.timeout(30):
        while service.failures:
            await asyncio.sleep(0.005)
        service.error, service.failures = ValueError, 1
        while service.failures:
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.wait({running})
    told = [(record.getMessage().partition(";")[0], record.exc_info is not None) for record in caplog.records]
    again = ("counting failed unexpectedly once more: KeyError: 'as the test wanted'", False)
    first = ("counting failed unexpectedly", True)
    assert told == [first, again, again, again, first]
