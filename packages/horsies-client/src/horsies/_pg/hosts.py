"""Opens a connection to the one of several hosts that qualifies.

asyncpg asks the hosts one after another, within one time limit for all: a host that accepts connections and says
nothing (frozen, or cut off without a refusal) uses all of it, and the new leader behind it in the list is never asked.
Here a host that is silent gets company after a moment, and the first connection that qualifies wins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from asyncpg.exceptions import CannotConnectNowError, TargetServerAttributeNotMatched


class _Closable(Protocol):
    def terminate(self) -> None: ...


C = TypeVar("C", bound=_Closable)
H = TypeVar("H")

HEAD_START_S: Final = 1.0
"""The next host is asked when the one before has failed, or has said nothing for this long."""
_NEXT: Final = (OSError, CannotConnectNowError, TargetServerAttributeNotMatched)
"""Errors of one host: unreachable, starting or stopping, a standby. Others, such as a wrong password, are final."""


async def connect_to_one(hosts: Sequence[H], connect: Callable[[H], Awaitable[C]], timeout_s: float) -> C:
    """The first connection of `connect(host)`, asked in the order of the list; TimeoutError if none was made in time.

    When all others have failed, a silent host gets an equal share of the time more: it may be the leader of before, and
    the caller should ask again soon who leads now.
    """
    head_start_s, share_s = min(HEAD_START_S, timeout_s / len(hosts)), timeout_s / len(hosts)
    trying: dict[asyncio.Future[C], None] = {}
    failures: list[Exception] = []
    waiting = list(hosts)
    try:
        async with asyncio.timeout(timeout_s):
            while waiting or trying:
                if waiting:
                    trying[asyncio.ensure_future(_wrapped(connect(waiting.pop(0))))] = None
                done, _ = await asyncio.wait(
                    trying, timeout=head_start_s if waiting else share_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not (done or waiting):
                    break  # only silent hosts are left
                for attempt in list(trying):  # in the order of the list
                    if attempt not in done:
                        continue
                    error = attempt.exception()
                    if error is None:
                        del trying[attempt]
                        return attempt.result()
                    del trying[attempt]
                    if not isinstance(error, _NEXT):
                        raise error
                    failures.append(error)
    finally:
        await _give_up(trying)
    if trying:
        told = f"{failures[-1]}; " if failures else ""
        silent = "1 host has" if len(trying) == 1 else f"{len(trying)} hosts have"
        raise TimeoutError(f"{told}{silent} not answered within {share_s * 1000:.0f} ms")
    # an unreachable host says more about the trouble than a standby that answered
    telling = [error for error in failures if not isinstance(error, TargetServerAttributeNotMatched)]
    raise (telling or failures)[-1]


async def _wrapped(opening: Awaitable[C]) -> C:
    return await opening


async def _give_up(trying: dict[asyncio.Future[C], None]) -> None:
    """End the attempts that are not needed, and close a connection that one of them has made meanwhile."""
    for attempt in trying:
        attempt.cancel()
    for ended in await asyncio.gather(*trying, return_exceptions=True):
        if not isinstance(ended, BaseException):
            ended.terminate()
