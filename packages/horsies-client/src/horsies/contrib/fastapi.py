"""FastAPI: what `horsies.contrib.starlette` offers, and the app as a dependency. `docs/guides/fastapi.md` explains it.

    app = FastAPI(lifespan=lifespan(queue))

    @app.post("/orders")
    async def order(queue: HorsiesApp) -> ...:

It needs `horsies-client[fastapi]`.
"""

from typing import Annotated

try:
    from fastapi import Depends
except ImportError as error:
    raise ImportError("horsies.contrib.fastapi needs FastAPI: pip install 'horsies-client[fastapi]'") from error

from horsies.app import Horsies
from horsies.contrib.starlette import event_stream, get_horsies, lifespan, result_response, wait_for

__all__ = ["HorsiesApp", "event_stream", "get_horsies", "lifespan", "result_response", "wait_for"]

HorsiesApp = Annotated[Horsies, Depends(get_horsies)]
"""The type of a parameter that takes the app of the request, which `lifespan` has opened."""
