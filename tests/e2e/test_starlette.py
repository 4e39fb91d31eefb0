"""`horsies.contrib.starlette` behind a real server, with clients that wait, follow and hang up."""

import http.client
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import postgres
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.web_servers import ROOT, Stream, WebServer, uvicorn

MANY = 30
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
START = (
    "UPDATE horsies_tasks SET status = 'RUNNING', claimed_by_worker_id = 'w', claimed_at = now(), started_at = now(),"
    " worker_pid = 1 WHERE id = %s"
)
COMPLETE = (
    "UPDATE horsies_tasks SET status = 'COMPLETED', completed_at = now(), terminal_at = now(), result = %s"
    " WHERE id = %s"
)
FAIL = (
    "UPDATE horsies_tasks SET status = 'FAILED', failed_at = now(), terminal_at = now(), result = %s,"
    " error_code = 'NO_DATA' WHERE id = %s"
)
DONE = json.dumps({"ok": {"orders": 3}})


SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    " AND pid <> pg_backend_pid()"
)
APP = "tests.support.web_app:app"


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    """One for all tests here, as the server."""
    with postgres.database() as database:
        yield database


@pytest.fixture(scope="module")
def web(db: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    folder = tmp_path_factory.mktemp("web")
    with uvicorn(APP, folder, {"HORSIES_DATABASE_URL": db.url}) as server:
        yield server


def tasks_of(web: WebServer) -> int:
    return web.call("GET", "/loop").body["tasks"]


def sent(web: WebServer) -> str:
    return web.call("POST", "/tasks").body


def events(text: str) -> list[tuple[str, Any]]:
    """Name and data of each event."""
    found: list[tuple[str, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_results(db: Database, web: WebServer) -> None:
    told = web.call("GET", "/loop").body
    assert (told["same_app"], told["own"]) == (True, "state")  # a lifespan of the user's own keeps its state
    task = sent(web)
    pending = web.call("GET", f"/tasks/{task}")
    assert (pending.status, pending.body) == (202, {"id": task, "status": "PENDING"})
    assert (pending.headers["location"], pending.headers["retry-after"]) == (f"/tasks/{task}", "1")
    assert pending.headers["cache-control"] == "no-store"
    db.execute(START, task)
    short = web.call("GET", f"/tasks/{task}?wait_s=0.1")
    assert (short.status, short.body["status"]) == (202, "RUNNING")

    # told at the end, not at the next poll; behind a middleware of Starlette too
    answers: list[Any] = []
    paths = [f"/tasks/{task}?wait_s=20", f"/inner/tasks/{task}?wait_s=20"]
    threads = [threading.Thread(target=lambda path=path: answers.append(web.call("GET", path))) for path in paths]
    for thread in threads:
        thread.start()
    eventually(lambda: db.value(LISTENING))
    began = time.monotonic()
    db.execute(COMPLETE, DONE, task)
    for thread in threads:
        thread.join(30)
    assert [(answer.status, answer.body) for answer in answers] == [
        (200, {"id": task, "status": "COMPLETED", "result": {"orders": 3}})
    ] * 2
    assert time.monotonic() - began < 4
    assert web.call("GET", f"/tasks/{task}/message").body["result"] == ["orders"]

    # of an error only what was chosen
    failing = sent(web)
    db.execute(START, failing)
    error = {"error_code": "NO_DATA", "message": "no table of may in host db7", "data": {"password": "x"}}
    db.execute(FAIL, json.dumps({"err": error}), failing)
    failed = web.call("GET", f"/tasks/{failing}").body
    assert failed == {"id": failing, "status": "FAILED", "error": {"code": "NO_DATA"}}
    assert web.call("GET", f"/tasks/{failing}/message").body["error"] == "no table of may in host db7"

    # an id of another task is no id of this one, and no id at all is none either
    other = str(uuid.uuid4())
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, sent_at, enqueued_at)"
        " VALUES (%s, 'secret', 'PENDING', now(), now())",
        other,
    )
    for unknown in (str(uuid.uuid4()), other, "1", "%00", "x" * 400, "%F0%9F%90%8E", "%ED%A0%80"):
        for tail in ("", "?wait_s=5", "/events"):
            answer = web.call("GET", f"/tasks/{unknown}{tail}")
            assert (answer.status, answer.body) == (404, {"error": {"code": "NOT_FOUND"}}), unknown


def test_clients_that_hang_up_leave_no_waiter(db: Database, web: WebServer) -> None:
    task = sent(web)
    before = tasks_of(web)
    waiting, following = f"/tasks/{task}?wait_s=30", f"/tasks/{task}/events"
    for path in (waiting, f"/inner{waiting}", f"/tasks/{task}/raw", following, f"/inner{following}"):
        streams = [web.open(path) for _ in range(MANY)]
        eventually(lambda: tasks_of(web) >= before + MANY)
        assert db.value(LISTENING) == 1
        for stream in streams:
            stream.hang_up()
        # the listener stays for a while, for the next request
        eventually(lambda: tasks_of(web) <= before + 3, timeout=5)
    assert db.value(LISTENING) == 1
    eventually(lambda: db.value(SESSIONS) <= 11)  # the pool and the listener; those of this test are closing


def test_events_of_a_task(db: Database, web: WebServer) -> None:
    task = sent(web)
    before = tasks_of(web)
    stream = web.open(f"/tasks/{task}/events?result")
    head = stream.read_until("event: progress").lower()
    assert "content-type: text/event-stream" in head
    assert "x-accel-buffering: no" in head
    assert "content-length" not in head
    assert "retry: 2000" in head
    stream.read_until(": keepalive")
    db.execute(START, task)
    stream.read_until('"status":"RUNNING"')
    db.execute("UPDATE horsies_tasks SET progress = %s WHERE id = %s", '{"page": 1}', task)
    followers = [web.open(f"/tasks/{task}/events") for _ in range(MANY)]
    for follower in (stream, *followers):
        follower.read_until('"page":1')
    assert db.value(LISTENING) == 1
    for follower in followers[:-1]:
        follower.hang_up()
    began = time.monotonic()
    db.execute(COMPLETE, DONE, task)
    text = stream.read_until("event: end")
    stream.read_until("0\r\n\r\n")  # the server ends the stream
    followers[-1].read_until("event: end")
    assert time.monotonic() - began < 4
    state = {"id": task, "attempt": 1}
    assert events(text) == [
        ("progress", {**state, "status": "PENDING", "progress": None}),
        ("progress", {**state, "status": "RUNNING", "progress": None}),
        ("progress", {**state, "status": "RUNNING", "progress": {"page": 1}}),
        ("end", {**state, "status": "COMPLETED", "progress": {"page": 1}, "result": {"orders": 3}}),
    ]
    assert "result" not in str(events(followers[-1].text))
    eventually(lambda: tasks_of(web) <= before + 3, timeout=5)

    # a browser comes back by itself: with the end it has seen it is sent away, else it gets the end
    last = text.rsplit("id: ", 1)[1].split("\n")[0]
    away = web.call("GET", f"/tasks/{task}/events?result", **{"Last-Event-ID": last})
    assert (away.status, away.body) == (204, "")
    again = web.call("GET", f"/tasks/{task}/events", **{"Last-Event-ID": "another"})
    assert [name for name, _ in events(again.body)] == ["end"]


def test_the_head_of_a_stream_keeps_nothing_open(db: Database, web: WebServer) -> None:
    task = sent(web)
    before = tasks_of(web)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    for _ in range(2):  # the second on the same connection, which the first one must have left
        connection.request("HEAD", f"/tasks/{task}/events")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert answer.read() == b""
    assert tasks_of(web) <= before + 1
    connection.close()


def test_an_event_that_the_client_has_is_not_repeated(db: Database, web: WebServer) -> None:
    task = sent(web)
    first = web.open(f"/tasks/{task}/events")
    text = first.read_until("data: ")
    first.hang_up()
    last = text.split("id: ", 1)[1].split("\n")[0]
    again: Stream = web.open(f"/tasks/{task}/events", **{"Last-Event-ID": last})
    again.read_until(": keepalive")
    assert events(again.text) == []
    db.execute(START, task)
    again.read_until('"status":"RUNNING"')
    again.hang_up()


def test_events_of_a_run(db: Database, web: WebServer) -> None:
    run = web.call("POST", "/runs").body
    stream = web.open(f"/runs/{run}/events")
    stream.read_until('"nodes":{"total":2,"ended":0}')
    command = [sys.executable, "-m", "horsies_worker", "tests.support.web_app:queue", "--processes=1"]
    worker = subprocess.Popen(
        command, cwd=ROOT, env={"HORSIES_DATABASE_URL": db.url, "PATH": ""}, stderr=subprocess.DEVNULL
    )
    try:
        stream.read_until("event: end", timeout=40)
    finally:
        worker.terminate()
        worker.wait(30)
    assert events(stream.text)[-1] == ("end", {"id": run, "status": "COMPLETED", "nodes": {"total": 2, "ended": 2}})
    assert web.call("GET", f"/runs/{uuid.uuid4()}/events").status == 404


def test_a_server_that_stops_does_not_wait_for_a_stream(db: Database, tmp_path: Path) -> None:
    before = db.value(SESSIONS)
    environment = {"HORSIES_DATABASE_URL": db.url}
    # uvicorn logs a traceback of the request that it cancels after its grace
    with uvicorn(APP, tmp_path, environment, "--timeout-graceful-shutdown=1", is_quiet=False) as web:
        stream = web.open(f"/tasks/{sent(web)}/events")
        stream.read_until("event: progress")
        web.process.terminate()
        assert web.process.wait(10) is not None
        assert "Application shutdown complete" in web.log.read_text()
    eventually(lambda: db.value(SESSIONS) <= before)


def test_a_wrong_url_stops_the_start() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "uvicorn", "tests.support.web_app:app", "--port=0"], cwd=ROOT, timeout=60,
        env={"HORSIES_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x"}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode != 0
    assert "check=False" in run.stderr
    assert "127.0.0.1" in run.stderr
    assert "hunter2" not in run.stderr
