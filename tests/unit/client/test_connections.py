"""The pool's bookkeeping, with connections that only remember what was done to them."""

import asyncio
from typing import Any

import pytest

from horsies._pg import connections
from horsies._pg.connections import ConnectionPool
from horsies.errors import UsageError
from tests.support.waiting import eventually_async


class Connection:
    def __init__(self) -> None:
        self.closed = False
        self.in_transaction = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self, *, timeout: float) -> None:
        self.closed = True


class Opener:
    """Counts; opens nothing while `gate` is shut, and fails while `broken`."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False

    async def __call__(self) -> Any:
        await self.gate.wait()
        if self.broken:
            raise OSError("no server")
        self.opened.append(Connection())
        return self.opened[-1]


@pytest.fixture
def opener() -> Opener:
    return Opener()


def pool_of(opener: Opener, size: int, min_size: int = 0) -> ConnectionPool:
    return ConnectionPool(opener, min_size=min_size, max_size=size)


async def turn() -> None:
    """Let everything that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_at_a_time_uses_one_connection(opener: Opener) -> None:
    pool = pool_of(opener, 10)
    for _ in range(5):
        pool.release(await pool.acquire(timeout_s=1))
    assert len(opener.opened) == 1
    await pool.close(grace_s=1)
    assert opener.opened[0].closed


async def test_the_newest_is_lent_first(opener: Opener) -> None:
    pool = pool_of(opener, 3)
    held = [await pool.acquire(timeout_s=1) for _ in range(3)]
    for connection in held:
        pool.release(connection)
    assert await pool.acquire(timeout_s=1) is held[2]
    await pool.close(grace_s=0)


async def test_never_more_than_the_bound_and_first_come_first_served(opener: Opener) -> None:
    pool = pool_of(opener, 2)
    order: list[int] = []

    async def use(number: int) -> None:
        connection = await pool.acquire(timeout_s=10)
        order.append(number)
        await asyncio.sleep(0)
        pool.release(connection)

    await asyncio.gather(*(use(n) for n in range(100)))
    assert order == list(range(100))
    assert len(opener.opened) == 2
    await pool.close(grace_s=1)


async def test_waiting_has_an_end(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    held = await pool.acquire(timeout_s=1)
    with pytest.raises(TimeoutError):
        await pool.acquire(timeout_s=0.01)
    pool.release(held)
    assert await pool.acquire(timeout_s=1) is held
    await pool.close(grace_s=0)


async def test_opening_has_the_same_end(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    opener.gate.clear()
    with pytest.raises(TimeoutError):
        await pool.acquire(timeout_s=0.01)
    opener.gate.set()
    pool.release(await pool.acquire(timeout_s=1))
    await pool.close(grace_s=1)


@pytest.mark.parametrize("spoil", ["closed", "in_transaction"])
async def test_a_spoiled_connection_is_replaced(opener: Opener, spoil: str) -> None:
    pool = pool_of(opener, 1)
    held: Any = await pool.acquire(timeout_s=1)
    waiting = asyncio.create_task(pool.acquire(timeout_s=10))
    await turn()
    setattr(held, spoil, True)
    pool.release(held)
    fresh = await waiting
    assert fresh is not held
    assert held.closed
    pool.release(fresh)
    await pool.close(grace_s=1)


async def test_one_that_broke_while_idle_is_not_lent(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    held: Any = await pool.acquire(timeout_s=1)
    pool.release(held)
    held.closed = True
    assert await pool.acquire(timeout_s=1) is not held
    await pool.close(grace_s=0)


async def test_a_failed_opening_leaves_its_place_to_the_next(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    opener.broken = True
    opener.gate.clear()
    tries = [asyncio.create_task(pool.acquire(timeout_s=10)) for _ in range(3)]
    await turn()
    opener.gate.set()
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError] * 3
    opener.broken = False
    pool.release(await pool.acquire(timeout_s=1))
    await pool.close(grace_s=1)


async def test_a_cancelled_opening_leaves_its_place(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    opener.gate.clear()
    first, second = (asyncio.create_task(pool.acquire(timeout_s=10)) for _ in range(2))
    await turn()
    first.cancel()
    opener.gate.set()
    pool.release(await second)
    assert first.cancelled()
    await pool.close(grace_s=1)


@pytest.mark.parametrize("broken", [False, True])
async def test_called_and_cancelled_at_once_passes_the_turn_on(opener: Opener, broken: bool) -> None:
    pool = pool_of(opener, 1)
    held: Any = await pool.acquire(timeout_s=1)
    first, second = (asyncio.create_task(pool.acquire(timeout_s=10)) for _ in range(2))
    await turn()
    held.closed = broken
    pool.release(held)  # calls the first
    first.cancel()  # before it has run
    got = await second
    assert (got is held) is not broken
    assert first.cancelled()
    pool.release(got)
    await pool.close(grace_s=1)


async def test_idle_ones_are_closed_after_a_while(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.02)
    pool = pool_of(opener, 5, min_size=1)
    held = [await pool.acquire(timeout_s=1) for _ in range(4)]
    for connection in held:
        pool.release(connection)
    async with asyncio.timeout(10):
        while sum(connection.closed for connection in opener.opened) < 3:
            await asyncio.sleep(0.01)
    assert not opener.opened[-1].closed
    again = [await pool.acquire(timeout_s=1) for _ in range(5)]
    assert len({id(connection) for connection in again}) == 5
    await pool.close(grace_s=0)


async def test_closing_waits_for_those_at_work_and_sends_the_waiting_away(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    held: Any = await pool.acquire(timeout_s=1)
    waiting = asyncio.create_task(pool.acquire(timeout_s=10))
    await turn()
    closing = asyncio.create_task(pool.close(grace_s=10))
    with pytest.raises(UsageError, match="closed while this was under way"):
        await waiting
    assert not closing.done()
    assert not held.closed
    pool.release(held)
    await closing
    assert held.closed
    with pytest.raises(UsageError):
        await pool.acquire(timeout_s=1)


async def test_closing_does_not_wait_for_ever(opener: Opener) -> None:
    pool = pool_of(opener, 1)
    held: Any = await pool.acquire(timeout_s=1)
    await pool.close(grace_s=0.01)
    assert held.closed
    pool.release(held)


async def test_what_is_not_back_in_time_is_terminated(opener: Opener) -> None:
    pool = ConnectionPool(opener, min_size=0, max_size=3, patience_s=0.05)
    back = await pool.acquire(timeout_s=1)
    pool.release(back)
    first = await pool.acquire(timeout_s=1)
    assert first is back  # its time begins anew with each loan
    kept = await pool.acquire(timeout_s=1)
    pool.release(kept)
    await eventually_async(lambda: pool.is_overdue(first))
    assert (first.is_closed(), kept.is_closed()) == (True, False)
    later = await pool.acquire(timeout_s=1)  # the watch goes on for those that were lent after it began
    await eventually_async(lambda: pool.is_overdue(later))
    for connection in (first, later):
        pool.release(connection)
        assert not pool.is_overdue(connection)
    await turn()
    assert pool.take() is None
    fresh = await pool.acquire(timeout_s=1)
    assert not fresh.is_closed()
    pool.release(fresh)
    await pool.close(grace_s=1)


async def test_nobody_is_watched_without_a_bound(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda delay, *_: asked.append(delay))
    pool = pool_of(opener, 1)
    lent = await pool.acquire(timeout_s=1)
    assert asked == []
    pool.release(lent)
    assert asked == [connections.IDLE_S]


async def test_what_is_opened_while_the_pool_closes_is_not_lent(opener: Opener) -> None:
    opener.gate.clear()
    pool = pool_of(opener, 1)
    late = asyncio.create_task(pool.acquire(timeout_s=5))
    await turn()
    await pool.close(grace_s=1)
    opener.gate.set()
    with pytest.raises(UsageError, match="closed"):
        await late
    assert [connection.closed for connection in opener.opened] == [True]
