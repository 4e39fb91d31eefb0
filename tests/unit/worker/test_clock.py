"""The database's clock as a worker places it: never behind, whatever the way to the server takes."""

import asyncio
import time

import pytest

from horsies_worker.database.clock import DatabaseClock


class Server:
    """Looks at its clock after the first of the two delays of a question, and answers after the second."""

    def __init__(self, *delays: tuple[float, float]) -> None:
        self._delays = iter(delays)
        self.ahead = 0.0
        self.quickest = 60.0

    async def fetchval(self, _sql: str) -> float:
        there, back = next(self._delays)
        began = time.monotonic()
        await asyncio.sleep(there)
        moment = time.time() + self.ahead
        await asyncio.sleep(back)
        self.quickest = min(self.quickest, time.monotonic() - began)
        return moment


@pytest.mark.parametrize("delays", [((0.0, 0.05),) * 5, ((0.05, 0.0),) * 5, ((0.1, 0.1), *(((0.0, 0.0),) * 4))])
async def test_it_is_never_behind_and_ahead_by_a_quick_answer_at_most(delays: tuple[tuple[float, float], ...]) -> None:
    server, clock = Server(*delays), DatabaseClock()
    await clock.read(server)
    before, told, after = time.time(), clock.at(time.monotonic()), time.time()
    # the middle of question and answer would be 0.025 behind, the slow look 0.1 ahead
    assert before - 0.001 <= told <= after + server.quickest + 0.02


async def test_it_is_kept_unless_it_is_another_clock() -> None:
    server, clock = Server(*((0.0, 0.0),) * 15), DatabaseClock()
    await clock.read(server)
    before = clock.at(1.0)
    server.ahead = 0.5
    await clock.read(server)
    assert clock.at(1.0) == before
    server.ahead = 30.0
    await clock.read(server)
    assert 29 < clock.at(1.0) - before < 31


def test_it_says_nothing_before_it_was_read() -> None:
    with pytest.raises(RuntimeError, match="not been read"):
        DatabaseClock().at(0.0)
