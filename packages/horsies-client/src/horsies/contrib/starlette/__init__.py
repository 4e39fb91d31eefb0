"""Starlette, and FastAPI on top of it: open and close the app with the server, wait for results without keeping a
waiter for a client that hung up, and stream progress. `docs/guides/fastapi.md` explains it.

    queue = Horsies(AppConfig(PostgresConfig()))
    app = Starlette(routes=[...], lifespan=lifespan(queue))

It needs `horsies-client[starlette]`, or `horsies-client[fastapi]` for `horsies.contrib.fastapi`. It reads tasks and
runs, and writes nothing.
"""

try:
    import starlette as _starlette
except ImportError as error:
    raise ImportError("horsies.contrib.starlette needs Starlette: pip install 'horsies-client[starlette]'") from error

from horsies.contrib.starlette.events import event_stream
from horsies.contrib.starlette.lifespan import get_horsies, lifespan
from horsies.contrib.starlette.results import result_response
from horsies.contrib.starlette.waiting import wait_for

del _starlette

__all__ = ["event_stream", "get_horsies", "lifespan", "result_response", "wait_for"]
