"""What `result_response` tells of a task that ends meanwhile, and where it sends a client that is to ask again."""

from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from horsies import TaskError, TaskHandle, TaskResult
from horsies.contrib.fastapi import lifespan, result_response
from tests.support.apps import app_on
from tests.support.postgres import Database


class Racing(TaskHandle[Any]):
    """Its task ends before or after each wait, at the worst moment."""

    is_early: bool

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[Any, TaskError]:
        if self.is_early:
            await self.cancel_async()
        result = await super().get_async(timeout_ms)
        await self.cancel_async()
        return result


@pytest.mark.parametrize("is_early", [True, False])
def test_status_and_result_belong_together(db: Database, is_early: bool) -> None:
    with app_on(db) as queue:
        web = FastAPI(lifespan=lifespan(queue))

        @web.get("/{task_id}")
        async def read(request: Request, task_id: str, wait_s: float = 0) -> Response:
            handle = Racing(queue, task_id)
            handle.is_early = is_early
            return await result_response(request, handle, wait_s=wait_s)

        with TestClient(web) as client:
            task_id = queue.send("count", 1).task_id
            at_once = client.get(f"/{task_id}")
            assert (at_once.status_code, at_once.json()) == (202, {"id": task_id, "status": "PENDING"})
            task_id = queue.send("count", 1).task_id
            waited = client.get(f"/{task_id}?wait_s=0.05")
            expected = {"id": task_id, "status": "CANCELLED", "error": {"code": "TASK_CANCELLED"}}
            assert (waited.status_code, waited.json()) == (200, expected)


def test_the_location_is_the_path_that_the_client_has_asked_for(db: Database) -> None:
    with app_on(db) as queue:
        for prefix in ("", "/api"):  # of a proxy that cuts it off
            web = FastAPI(lifespan=lifespan(queue))
            inner = FastAPI()
            web.mount("/inner", inner)

            @inner.get("/{shop}/{task_id}")
            @web.get("/{shop}/{task_id}")
            async def read(request: Request, shop: str, task_id: str) -> Response:
                return await result_response(request, queue.handle(task_id))

            with TestClient(web, root_path=prefix) as client:
                task_id = queue.send("count", 1).task_id
                shops = ("/shop", "/caf%C3%A9-%E9%A6%AC", "/50%25%3F")
                # some proxies pass the prefix on; Starlette finds a Mount only then
                for path in (*shops, *(prefix + shop for shop in shops), f"{prefix}/inner/shop"):
                    answer = client.get(f"{path}/{task_id}")
                    assert answer.status_code == 202, path
                    assert answer.headers["location"] == f"{prefix}{path.removeprefix(prefix)}/{task_id}"
