"""`horsies.contrib.starlette` without a server: lifespans, dependencies, the testing kit, and what is refused."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from horsies import Horsies, SchemaError, TaskError, TaskResult, UsageError, testing
from horsies.contrib.fastapi import HorsiesApp, event_stream, get_horsies, lifespan, result_response, wait_for
from tests.support.apps import UNREACHABLE, make_app

ID = "01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11"


def quick() -> Horsies:
    return make_app(UNREACHABLE, resilience={"send_attempts": 1})


def test_the_app_is_a_dependency() -> None:
    queue, steps = quick(), list[str]()

    @asynccontextmanager
    async def own(web: FastAPI) -> AsyncIterator[dict[str, Any]]:
        steps.append(f"open {web.title}")
        yield {"number": 7}
        steps.append("close")

    app = FastAPI(title="shop", lifespan=lifespan(queue, inside=own, check=False))
    inner = FastAPI()
    app.mount("/inner", inner)

    @inner.get("/")
    @app.get("/")
    async def read(found: HorsiesApp, request: Request) -> list[Any]:
        return [found is queue, request.state.number]

    with TestClient(app) as client:
        assert client.get("/").json() == [True, 7]
        assert client.get("/inner/").json() == [True, 7]
        assert steps == ["open shop"]
    assert steps == ["open shop", "close"]
    with pytest.raises(UsageError, match="with TestClient"):
        TestClient(app).get("/")


def test_several_apps() -> None:
    app = FastAPI(lifespan=lifespan(quick(), quick(), check=False))

    @app.get("/")
    async def read(found: HorsiesApp) -> None: ...

    with TestClient(app) as client, pytest.raises(UsageError, match="2 Horsies apps"):
        client.get("/")


def test_a_database_that_is_away_stops_the_start(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI(lifespan=lifespan(quick()))
    with pytest.raises(Exception, match="Connect call failed") as told, TestClient(app):
        pass
    assert not isinstance(told.value, SchemaError)
    assert "check=False" in caplog.text
    assert "hunter2" not in caplog.text
    with testing.recorded(quick()):
        pass


def test_wrong_lifespans() -> None:
    with pytest.raises(UsageError, match="lifespan=lifespan"):
        lifespan()
    with pytest.raises(UsageError, match="not 'queue'"):
        lifespan("queue")
    with pytest.raises(UsageError, match="your own is inside="):
        lifespan(lambda app: app)
    with pytest.raises(UsageError, match="asynccontextmanager"):
        lifespan(quick(), inside=7)


def served(queue: Horsies, task: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan(queue))

    @app.get("/{task_id}")
    async def read(request: Request, task_id: str, wait_s: float = 0) -> Response:
        return await result_response(request, queue.handle(task_id, task), wait_s=wait_s)

    @app.get("/{task_id}/events")
    async def follow(request: Request, task_id: str, max_s: float = 300) -> Response:
        return await event_stream(request, queue.handle(task_id, task), max_s=max_s)

    @app.get("/{task_id}/wait")
    async def wait(request: Request, task_id: str, timeout_s: float) -> str:
        return repr(await wait_for(request, queue.handle(task_id, task), timeout_s))

    return app


def test_inside_the_testing_kit() -> None:
    """The lifespan asks no database there."""
    queue = quick()

    @queue.task("add")
    def add(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a + 1)

    with testing.inline(queue), TestClient(served(queue, add)) as client:
        task_id = add.send(1).task_id
        assert client.get(f"/{task_id}?wait_s=5").json() == {"id": task_id, "status": "COMPLETED", "result": 2}
        assert "event: end" in client.get(f"/{task_id}/events").text
        assert client.get(f"/{task_id}/wait?timeout_s=1").json() == "TaskResult(ok=2)"
        assert client.get(f"/{ID}").status_code == 404
        for path, told in {
            f"/{task_id}?wait_s=-1": "wait_s is -1, and must be 0 to 3600 seconds",
            f"/{task_id}?wait_s=nan": "wait_s is a number of seconds, not nan",
            f"/{task_id}/events?max_s=0": "max_s is 0, and must be 1 to 86400 seconds",
            f"/{task_id}/wait?timeout_s=inf": "timeout_s is inf",
        }.items():
            with pytest.raises(UsageError, match=told):
                client.get(path)


def test_bytes_and_numbers_that_json_has_not() -> None:
    queue = quick()

    @queue.task("photo")
    def photo() -> TaskResult[bytes, TaskError]:
        return TaskResult(ok=b"\xff\xfe")

    app = served(queue, photo)

    @app.get("/{task_id}/all")
    async def follow_all(request: Request, task_id: str) -> Response:
        handle = queue.handle(task_id, photo)
        return await event_stream(request, handle, result=True, describe=lambda state: {"percent": float("nan")})

    with testing.inline(queue), TestClient(app) as client:
        task_id = photo.send().task_id
        assert client.get(f"/{task_id}").json()["result"] == "__4="
        told = client.get(f"/{task_id}/all").text.split("data: ")[1]
        assert json.loads(told) == {"percent": None, "id": task_id, "status": "COMPLETED", "result": "__4="}


def test_an_outage_is_a_503_without_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    queue = quick()

    @queue.task("add")
    def add(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a)

    app = served(queue, add)
    app.router.lifespan_context = lifespan(queue, check=False)
    with TestClient(app) as client:
        for path in (f"/{ID}", f"/{ID}?wait_s=1", f"/{ID}/events"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()) == (503, {"error": {"code": "UNAVAILABLE"}})
            assert answer.headers["retry-after"] == "5"
    assert "could not be read: ConnectionRefusedError" in caplog.text


@pytest.mark.parametrize("module", ["starlette", "fastapi", "flask"])
def test_a_missing_library_is_named(module: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None; import horsies.contrib.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"pip install 'horsies-client[{module}]'" in run.stderr


def test_starlette_is_enough() -> None:
    code = "import sys; sys.modules['fastapi'] = None; import horsies.contrib.starlette, tests.support.web_app"
    environment = {"HORSIES_DATABASE_URL": UNREACHABLE}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stderr == ""
    assert get_horsies is not None
