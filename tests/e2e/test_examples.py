"""The example web apps, served over HTTP by a process that cannot import anything but the client."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import Database
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ABSENT = (
    "horsies_worker", "horsies_schema", "horsies_tui", "sqlalchemy", "alembic", "textual", "psutil", "psycopg",
    "psycopg2", "django",
)  # fmt: skip
"""What a web app that depends on horsies-client alone does not have: here an import of it raises."""

PREAMBLE = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
sys.path.insert(0, {str(EXAMPLES)!r})
"""
SERVE_FASTAPI = """
import socket, uvicorn
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config("fastapi_app:app")).run(sockets=[listening])
"""
SERVE_FLASK = """
import signal
from werkzeug.serving import make_server
from flask_app import app
server = make_server("127.0.0.1", 0, app, threaded=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(server.port, flush=True)
server.serve_forever()
"""
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
    " error_code = 'SMTP_DOWN' WHERE id = %s"
)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    process: subprocess.Popen[str]

    def call(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
                return error.code, json.loads(text) if text.startswith("{") else text


@contextmanager
def served(code: str, db: Database, tmp_path: Path) -> Iterator[Server]:
    log = tmp_path / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code],
            env={"DATABASE_URL": db.url},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, log.read_text()
        yield Server(f"http://127.0.0.1:{port}", process)
        # while it serves it may keep connections open; when it has ended there are none
        process.terminate()
        process.wait(20)
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


@pytest.fixture
def shop(db: Database, tmp_path: Path) -> Iterator[Server]:
    with served(SERVE_FASTAPI, db, tmp_path) as server:
        yield server
    assert "Application shutdown complete" in (tmp_path / "server.log").read_text()


@pytest.fixture
def reports(db: Database, tmp_path: Path) -> Iterator[Server]:
    with served(SERVE_FLASK, db, tmp_path) as server:
        yield server
    assert server.process.returncode == 0


def finish(db: Database, task_id: str, **result: object) -> None:
    """End the task as a worker would."""
    db.execute(START, task_id)
    db.execute(COMPLETE if "ok" in result else FAIL, json.dumps(result), task_id)


def test_fastapi(db: Database, shop: Server) -> None:
    status, order = shop.call("POST", "/orders", {"email": "ada@example.org", "pieces": 4})
    assert (status, order["order_id"]) == (202, 1)
    receipt = f"/receipts/{order['task_id']}"
    row = db.execute("SELECT id, task_name, kwargs, task_options FROM horsies_tasks")
    assert row == [(order["task_id"], "send_receipt", '{"order_id":1,"email":"ada@example.org"}', None)]

    # refused late in the transaction: neither the order nor its task exists
    assert shop.call("POST", "/orders", {"email": "eve@example.org", "pieces": 40}) == (409, {"detail": "out of stock"})
    assert db.execute("SELECT email, pieces FROM shop_orders") == [("ada@example.org", 4)]
    assert db.value("SELECT count(*) FROM horsies_tasks") == 1

    assert shop.call("GET", receipt) == (202, {"status": "pending"})
    assert shop.call("GET", f"{receipt}?wait_ms=50") == (202, {"status": "pending"})
    waited: list[Any] = []
    waiting = threading.Thread(target=lambda: waited.append(shop.call("GET", f"{receipt}?wait_ms=20000")))
    waiting.start()
    listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
    eventually(lambda: db.value(listening))
    started = time.monotonic()
    finish(db, order["task_id"], ok={"number": "R-1", "total": "12.50"})
    waiting.join(30)
    assert waited == [(200, {"status": "done", "receipt": {"number": "R-1", "total": "12.50"}})]
    assert time.monotonic() - started < 4  # it was told; the poll would come after 5 s
    assert shop.call("DELETE", receipt) == (200, {"outcome": "ALREADY_ENDED"})

    _, failing = shop.call("POST", "/orders", {"email": "bob@example.org", "pieces": 1})
    finish(db, failing["task_id"], err={"error_code": "SMTP_DOWN", "message": "no answer", "data": None})
    assert shop.call("GET", f"/receipts/{failing['task_id']}") == (
        200, {"status": "failed", "error": "SMTP_DOWN", "message": "no answer"},
    )  # fmt: skip

    _, unwanted = shop.call("POST", "/orders", {"email": "cy@example.org", "pieces": 1})
    assert shop.call("DELETE", f"/receipts/{unwanted['task_id']}") == (200, {"outcome": "CANCELLED"})
    status, cancelled = shop.call("GET", f"/receipts/{unwanted['task_id']}")
    assert (status, cancelled["error"]) == (200, "TASK_CANCELLED")

    nobody = uuid.uuid4()
    assert shop.call("GET", f"/receipts/{nobody}")[0] == 404
    assert shop.call("DELETE", f"/receipts/{nobody}")[0] == 404
    assert shop.call("POST", "/orders", {"email": "x", "pieces": 0})[0] == 422


def test_flask(db: Database, reports: Server) -> None:
    wanted = {"customer": "acme", "month": "2026-01"}
    status, first = reports.call("POST", "/reports", wanted)
    assert (status, first["is_duplicate"]) == (202, False)
    again = reports.call("POST", "/reports", wanted)
    assert again == (202, {"task_id": first["task_id"], "is_duplicate": True})
    report = f"/reports/{first['task_id']}"
    assert reports.call("GET", report) == (202, {"status": "pending"})
    finish(db, first["task_id"], ok={"orders": 3})
    assert reports.call("GET", f"{report}?wait_ms=1000") == (200, {"status": "done", "report": {"orders": 3}})

    # ended, so the button makes a new one; a repeated request is one task for ever
    assert reports.call("POST", "/reports", wanted)[1]["is_duplicate"] is False
    key = {"Idempotency-Key": "request-17"}
    ids = {reports.call("POST", "/reports", {"customer": "umbrella", "month": "m"}, **key)[1]["task_id"] for _ in "ab"}
    assert len(ids) == 1
    status, clash = reports.call("POST", "/reports", {"customer": "umbrella", "month": "n"}, **key)
    assert (status, clash["error"]) == (409, "PAYLOAD_MISMATCH")
    status, refused = reports.call("POST", "/reports", {"customer": 7, "month": "m"})
    assert (status, refused["error"]) == (422, "VALIDATION_FAILED")
    assert "customer" in refused["message"]

    _, later = reports.call("POST", "/reports", {"customer": "later", "month": "m", "delay_s": 3600})
    assert db.value("SELECT enqueued_at > now() + '59 min' FROM horsies_tasks WHERE id = %s", later["task_id"])
    assert reports.call("DELETE", f"/reports/{later['task_id']}") == (200, {"outcome": "CANCELLED"})

    before = db.value("SELECT count(*) FROM horsies_tasks")
    status, batch = reports.call("POST", "/reports/batch", {"month": "m", "customers": ["a", "b", "c"]})
    assert (status, len(set(batch["task_ids"]))) == (202, 3)
    assert reports.call("POST", "/reports/batch", {"month": "m", "customers": ["d", 5]})[0] == 422
    assert db.value("SELECT count(*) FROM horsies_tasks") == before + 3

    # threads share what there is
    answers: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda n=n: answers.append(reports.call("POST", "/reports", {**wanted, "month": str(n)}))
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [status for status, _ in answers] == [202] * 20
    assert reports.call("GET", f"/reports/{uuid.uuid4()}")[0] == 404
    assert reports.call("DELETE", f"/reports/{uuid.uuid4()}")[0] == 404


def test_the_servers_above_could_not_have_imported_more(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", f"{PREAMBLE}import sqlalchemy"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in run.stderr or "ImportError" in run.stderr
