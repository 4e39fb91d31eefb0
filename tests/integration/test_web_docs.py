"""The guides of FastAPI and Flask and the recipes run as written."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_docs import ROOT, blocks, run_as_written
from tests.support.postgres import Database
from tests.support.snippets import code_of
from tests.support.web_servers import free_port, uvicorn, web_server
from tests.support.workers import WorkerProcess, ended

GUIDES = ROOT / "docs" / "guides"
pytestmark = pytest.mark.breaks("A6")  # the hook of tests/conftest.py does not know which tasks here are async


def written(page: Path, folder: Path) -> None:
    for title, code in blocks(page):
        if title is not None:
            (folder / title).write_text(code)


def ran(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a snippet that is no program of its own in these names, to which its own are added."""
    exec(compile(code, "snippet", "exec"), names)
    return names


@contextmanager
def working(folder: Path, environment: dict[str, str], *command: str) -> Iterator[WorkerProcess]:
    whole = [sys.executable, "-m", *command, "--processes=1", f"--health-file={folder / 'health'}"]
    process = WorkerProcess(whole, {**os.environ, **environment}, folder, cwd=folder)
    with ended(process):
        yield process


@pytest.mark.runs("docs/guides/fastapi.md", "python titled")
def test_the_guide_of_fastapi_runs_as_written(db: Database, tmp_path: Path) -> None:
    page = GUIDES / "fastapi.md"
    written(page, tmp_path)
    environment = {"HORSIES_DATABASE_URL": db.url}
    with (
        working(tmp_path, environment, "horsies_worker", "shop:queue"),
        uvicorn("shop:app", tmp_path, environment, cwd=tmp_path) as web,
    ):
        location = web.call("POST", "/imports?pages=1").headers["location"]
        web.open(f"{location}/events").read_until('"status":"COMPLETED"')
        assert web.call("GET", f"{location}?wait_s=20").body["result"] == 10
        assert "database_time" in web.call("GET", "/health").body
        followed = subprocess.run(
            [sys.executable, "follow.py"], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
    *_, running, last = followed.stdout.splitlines()
    # on a busy machine the second page may come too late to be written
    assert re.fullmatch(r"RUNNING (None|\{'of': 2, 'page': [12]\})", running), followed.stderr
    assert re.fullmatch(r"COMPLETED (None|\{'of': 2, 'page': [12]\})", last)


@pytest.mark.runs("docs/guides/flask.md", "python titled")
def test_the_guide_of_flask_runs_as_written(db: Database, tmp_path: Path) -> None:
    written(GUIDES / "flask.md", tmp_path)
    environment = {"DATABASE_URL": db.url}
    port = free_port()
    served = ["gunicorn", "--workers=2", f"--bind=127.0.0.1:{port}", "shop:create_app()"]
    with (
        working(tmp_path, environment, "flask", "--app", "shop", "horsies", "worker"),
        web_server(served, port, tmp_path, environment, cwd=tmp_path) as web,
    ):
        task_id = web.call("POST", "/greetings?name=Ada").body["task_id"]
        assert web.call("GET", f"/greetings/{task_id}").body == {"result": "Welcome, Ada"}
        unknown = web.call("GET", "/greetings/01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11")
        assert (unknown.status, unknown.body) == (404, {"error": "TASK_NOT_FOUND"})


@pytest.mark.runs("docs/guides/recipes/sqlalchemy.md", "python titled", "output")
def test_the_recipe_of_sqlalchemy_runs_as_written(db: Database, tmp_path: Path) -> None:
    page = GUIDES / "recipes" / "sqlalchemy.md"
    told = run_as_written(page, "orders:app", "send.py", db, tmp_path)
    assert f"```\n{told}```" in page.read_text()
    assert db.execute("SELECT pieces, shipped FROM orders") == [(3, True)]


@pytest.mark.long
def test_an_engine_of_import_time(db: Database, tmp_path: Path) -> None:
    written(GUIDES / "recipes" / "sqlalchemy.md", tmp_path)
    (tmp_path / "ask.py").write_text(
        "from shared import backend, engine\n"
        "from sqlalchemy import text\n"
        "pids = {backend.send().get(timeout_ms=20_000).unwrap() for _ in range(6)}\n"
        "with engine.begin() as connection:\n"
        "    print(pids.isdisjoint({connection.execute(text('SELECT pg_backend_pid()')).scalar_one()}))\n"
    )
    environment = {"HORSIES_DATABASE_URL": db.url}
    with working(tmp_path, environment, "horsies_worker", "shared:app"):
        asked = subprocess.run(
            [sys.executable, "ask.py"], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
    assert asked.stdout == "True\n", asked.stderr


class Weather(BaseHTTPRequestHandler):
    has_refused = False

    def do_GET(self) -> None:
        if self.path == "/nowhere":
            self.answer(404, {})
        elif not Weather.has_refused:
            Weather.has_refused = True
            self.answer(503, {}, {"Retry-After": "0"})
        else:
            self.answer(200, {"celsius": 21.5})

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.runs("docs/guides/recipes/httpx.md", "python titled", "output")
def test_the_recipe_of_httpx_runs_as_written(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Weather)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("API_URL", f"http://127.0.0.1:{server.server_port}")
        page = GUIDES / "recipes" / "httpx.md"
        told = run_as_written(page, "api:app", "send.py", db, tmp_path)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert f"```\n{told}```" in page.read_text()


@pytest.mark.runs("docs/guides/recipes/structlog.md", "python titled", "output")
def test_the_recipe_of_structlog_runs_as_written(db: Database, tmp_path: Path) -> None:
    page = GUIDES / "recipes" / "structlog.md"
    told = run_as_written(page, "shop:app", "send.py", db, tmp_path).splitlines()
    sent = json.loads(told[0])
    assert (sent["event"], sent["task_name"], sent["request_id"]) == ("sent", "charge", "req-17")
    assert told[1] == "TaskResult(ok=7)"
    log = (tmp_path / "worker.log").read_text()
    (charging,) = [json.loads(line) for line in re.findall(r"\{.*\"charging\".*\}", log)]
    assert charging["task_id"] == sent["task_ids"][0]
    assert (charging["attempt"], charging["request_id"], charging["level"]) == (1, "req-17", "info")
    notifying = [json.loads(line) for line in re.findall(r"\{.*\"notifying\".*\}", log)]
    # the worker may stop before it: then it is left for the next one
    assert all(line["request_id"] == "req-17" for line in notifying)
    assert db.value("SELECT metadata ->> 'request_id' FROM horsies_tasks WHERE task_name = 'notify'") == "req-17"


WEB = """
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from horsies import *
from horsies.contrib.fastapi import lifespan

class Base(DeclarativeBase): ...
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
class NewOrder(BaseModel):
    email: str

queue = Horsies(AppConfig(PostgresConfig(url)))
@queue.task("send_receipt")
def send_receipt(order_id: int) -> TaskResult[None, TaskError]: ...

@asynccontextmanager
async def database(app):
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    yield {"sessions": async_sessionmaker(engine)}
    await engine.dispose()
app = FastAPI(lifespan=lifespan(queue, inside=database))
"""


@pytest.mark.runs("docs/guides/fastapi.md", "python untitled")
def test_a_transaction_of_fastapi(db: Database) -> None:
    from fastapi.testclient import TestClient

    db.execute("CREATE TABLE orders (id serial PRIMARY KEY, email text NOT NULL)")
    names = ran(WEB, {"url": db.url, "__name__": "web"})
    for code in code_of("docs/guides/fastapi.md", "python untitled"):
        ran(code, names)
    ran(
        "@app.get('/wrong')\nasync def wrong() -> None:\n    await queue.send_async('send_receipt', order_id=object())",
        names,
    )
    with TestClient(names["app"]) as client:
        answer = client.post("/orders", json={"email": "ada@example.org"})
        assert (answer.status_code, answer.json()["order_id"]) == (202, 1)
        refused = client.get("/wrong")
    assert db.execute("SELECT id, kwargs FROM horsies_tasks") == [(answer.json()["task_id"], '{"order_id":1}')]
    assert (refused.status_code, refused.json()) == (422, {"error": {"code": "VALIDATION_FAILED"}})


FLASK = """
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Mapped, mapped_column
from horsies import *

app = Flask("reports")
app.config["SQLALCHEMY_DATABASE_URI"] = url.replace("postgresql://", "postgresql+psycopg://")
db = SQLAlchemy(app)
class Report(db.Model):
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]

queue = Horsies(AppConfig(PostgresConfig(url)))
@queue.task("make_report")
def make_report(report_id: int) -> TaskResult[None, TaskError]: ...
@app.get("/wrong")
def wrong() -> str:
    queue.send("make_report", report_id=object())
    return ""
"""


@pytest.mark.runs("docs/guides/flask.md", "python untitled")
def test_a_transaction_of_flask(db: Database) -> None:
    names = ran(FLASK, {"url": db.url, "__name__": "web", "customer": "acme"})
    transaction, handler = code_of("docs/guides/flask.md", "python untitled")
    with names["app"].app_context(), names["queue"]:
        names["db"].create_all()
        ran(transaction, names)
        ran(handler, names)
        refused = names["app"].test_client().get("/wrong")
        names["db"].engine.dispose()
    assert db.execute("SELECT task_name, kwargs FROM horsies_tasks") == [("make_report", '{"report_id":1}')]
    assert (refused.status_code, refused.json) == (422, {"error": "VALIDATION_FAILED"})
