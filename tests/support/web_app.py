"""A Starlette application for the tests of `horsies.contrib.starlette`. FastAPI is not imported here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.contrib.starlette import event_stream, get_horsies, lifespan, result_response, wait_for

queue = Horsies(AppConfig(PostgresConfig()))


@queue.declare("report")
def report(month: str) -> TaskResult[dict[str, int], TaskError]: ...


@queue.declare("secret")
def secret() -> TaskResult[str, TaskError]: ...


@queue.task("half")
def half(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number // 2)


first = half.node(node_id="first")(8)
second = half.node(node_id="second", waits_for=[first])(4)
halves = queue.workflow("halves", [first, second], output=second)


async def read(request: Request) -> Response:
    wait_s = float(request.query_params.get("wait_s", 0))
    return await result_response(request, queue.handle(request.path_params["id"], report), wait_s=wait_s)


async def read_message(request: Request) -> Response:
    handle = queue.handle(request.path_params["id"], report)
    return await result_response(request, handle, show_result=sorted, show_error=lambda error: error.message)


async def raw(request: Request) -> Response:
    result = await wait_for(request, queue.handle(request.path_params["id"], report), 30)
    return JSONResponse(repr(result))


async def follow(request: Request) -> Response:
    handle = queue.handle(request.path_params["id"], report)
    return await event_stream(request, handle, keepalive_s=0.3, interval_s=0.1, result="result" in request.query_params)


async def follow_run(request: Request) -> Response:
    return await event_stream(request, queue.workflow_handle(request.path_params["id"], halves), interval_s=0.1)


async def start(request: Request) -> Response:
    return JSONResponse((await halves.start_async()).workflow_id)


async def send(request: Request) -> Response:
    return JSONResponse((await report.send_async("may")).task_id)


async def loop(request: Request) -> Response:
    """The asyncio tasks of the server, by name, without those of this request."""
    names = [task.get_name().split("-")[0] for task in asyncio.all_tasks()]
    same_app = get_horsies(request) is queue
    return JSONResponse({"tasks": len(names), "same_app": same_app, "own": request.state.own})


class Around(BaseHTTPMiddleware):
    """It gives endpoints a `receive` of its own."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


@asynccontextmanager
async def own(_: Starlette) -> AsyncIterator[dict[str, Any]]:
    yield {"own": "state"}


routes = [
    Route("/tasks", send, methods=["POST"]),
    Route("/tasks/{id}", read),
    Route("/tasks/{id}/message", read_message),
    Route("/tasks/{id}/raw", raw),
    Route("/tasks/{id}/events", follow),
    Route("/runs", start, methods=["POST"]),
    Route("/runs/{id}/events", follow_run),
    Route("/loop", loop),
]
inner = Starlette(routes=routes, middleware=[Middleware(Around)])
app = Starlette(routes=[*routes, Mount("/inner", inner)], lifespan=lifespan(queue, inside=own))
