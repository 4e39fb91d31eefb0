# pyright: strict
"""The helpers for web frameworks keep the type of the result, and an app of Flask is an app."""

from typing import assert_type

from fastapi import FastAPI, Request, Response
from flask import Flask

from horsies import TaskError, TaskHandle, TaskResult
from horsies.contrib.fastapi import HorsiesApp, event_stream, lifespan, result_response, wait_for
from horsies.contrib.flask import FlaskHorsies, current_horsies
from horsies.watching import Progress, look, watch
from tests.typing.tasks import app as queue

web = FastAPI(lifespan=lifespan(queue))
flask_queue = FlaskHorsies()


@flask_queue.task("add")
def add(a: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a)


def shown(value: int) -> str:
    return str(value)


@web.get("/{task_id}")
async def read(request: Request, task_id: str, found: HorsiesApp) -> Response:
    handle = flask_queue.handle(task_id, add)
    assert_type(await wait_for(request, handle, 5), TaskResult[int, TaskError])
    return await result_response(request, handle, show_result=shown)


@web.get("/{task_id}/events")
async def follow(request: Request, task_id: str) -> Response:
    handle = flask_queue.handle(task_id, add)
    assert_type(await look(handle), Progress | None)
    async with watch(handle) as states:
        async for state in states:
            assert_type(state, Progress)
    return await event_stream(request, handle, result=True, show_result=shown)


def create_app() -> Flask:
    made = Flask(__name__)
    flask_queue.init_app(made)
    assert_type(add.send(1), TaskHandle[int])
    assert_type(current_horsies, FlaskHorsies)
    return made
