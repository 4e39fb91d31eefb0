"""Opens and closes apps together with the web application."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from starlette.requests import HTTPConnection

from horsies._checks import shown
from horsies.app import Horsies
from horsies.errors import UsageError

A = TypeVar("A")
State = Mapping[str, Any]
OwnLifespan = Callable[[A], AbstractAsyncContextManager[State | None]]

STATE_KEY: Final = "horsies"
_log = logging.getLogger("horsies")


def lifespan(
    *apps: Horsies, inside: OwnLifespan[Any] | None = None, check: bool = True
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """The `lifespan=` of a Starlette or FastAPI application: closes the connections of these apps when the server
    stops. `inside`: a lifespan of your own, which runs inside this one and keeps its state.

    `check`: ask each database when the server starts, so that a wrong URL, a missing schema or a missing right stops
    the start with its reason. With `check=False` nothing is opened before the first use.
    """
    if not apps:
        raise UsageError("lifespan() takes the app: write lifespan=lifespan(queue)")
    for app in apps:
        if not isinstance(app, Horsies):  # pyright: ignore[reportUnnecessaryIsInstance]
            fix = "a lifespan of your own is inside=..." if callable(app) else "give Horsies apps"
            raise UsageError(f"lifespan() takes Horsies apps, not {shown(app)}: {fix}")
    if inside is not None and not callable(inside):
        raise UsageError(f"lifespan(inside=) takes a function with @asynccontextmanager, not {shown(inside)}")

    @asynccontextmanager
    async def opened(web: Any) -> AsyncGenerator[State]:
        async with AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app)
            if check:
                for app in apps:
                    await _check(app)
            state: State | None = None
            if inside is not None:
                state = await stack.enter_async_context(inside(web))
            yield {**(state or {}), STATE_KEY: apps}

    return opened


async def _check(app: Horsies) -> None:
    if app.stand_in is not None:  # a test without a database
        return
    try:
        await app.get_broker().get_time()
    except Exception:
        # servers log only the traceback, or only "startup failed"
        _log.error("%r cannot be used; lifespan(..., check=False) starts without it", app)
        raise


def get_horsies(request: HTTPConnection) -> Horsies:
    """The app of the request, which `lifespan` has opened. In FastAPI a dependency: `HorsiesApp`."""
    apps: Sequence[Horsies] | None = getattr(request.state, STATE_KEY, None)
    if not apps:
        raise UsageError(
            "the application has no Horsies app: make it with lifespan=horsies.contrib.starlette.lifespan(queue), and "
            "in a test write `with TestClient(app)`, which runs lifespans"
        )
    if len(apps) > 1:
        raise UsageError(
            f"the application has {len(apps)} Horsies apps, and this dependency cannot choose: import the one you need"
        )
    return apps[0]
