"""The examples of docs/examples that stand on middleware and lifespans, run by a worker as a user would run them."""

import gzip
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from horsies import Horsies
from tests.support.apps import app_on
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, ended

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LONG_MS = 20_000


class Web:
    """A server on this machine: answers 200 to all paths but /missing, and keeps what was posted."""

    def __init__(self) -> None:
        web = self
        self.posted: list[bytes] = []
        self.callers: set[tuple[str, int]] = set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                web.callers.add(self.client_address)
                self.answer(404 if self.path == "/missing" else 200)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                web.posted.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.answer(200)

            def answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    thread = threading.Thread(target=web.server.serve_forever)
    thread.start()
    yield web
    web.server.shutdown()
    thread.join()
    web.server.server_close()


@contextmanager
def working(db: Database, folder: Path, app: str, **environment: str) -> Iterator[tuple[WorkerProcess, Horsies]]:
    command = [sys.executable, "-m", "horsies_worker", app, "--processes=1", f"--health-file={folder / 'health'}"]
    variables = {**os.environ, "HORSIES_DATABASE_URL": db.url, "PYTHONUNBUFFERED": "1", **environment}
    process = WorkerProcess(command, variables, folder, cwd=EXAMPLES)
    with ended(process), app_on(db) as sender:
        process.wait_up()
        yield process, sender


def test_a_tenant_by_metadata(db: Database, tmp_path: Path) -> None:
    with working(db, tmp_path, "tenant_tasks:app") as (_, app):
        for_acme = app.with_options(metadata={"tenant": "acme"})
        assert for_acme.send("invoice", 7).get(LONG_MS).ok == "invoice 7 of acme"
        ids = for_acme.send("invoice_all", 2).get(LONG_MS).ok
        assert [app.handle(task_id).get(LONG_MS).ok for task_id in ids] == ["invoice 0 of acme", "invoice 1 of acme"]
        assert app.send("invoice", 7).get(LONG_MS).is_err()  # sent without one


def test_a_session_per_task(db: Database, tmp_path: Path) -> None:
    db.execute("CREATE TABLE orders (id serial PRIMARY KEY, pieces int CHECK (pieces > 0))")
    url = db.url.replace("postgresql://", "postgresql+psycopg://")
    with working(db, tmp_path, "sqlalchemy_tasks:app", DATABASE_URL=url) as (_, app):
        assert app.send("place_order", 3).get(LONG_MS).ok == 1
        assert str(app.send("place_order", 30).get(LONG_MS).err_value.error_code) == "OUT_OF_STOCK"
        assert "CheckViolation" in app.send("place_order", -1).get(LONG_MS).err_value.message
        assert app.send("place_order", 4).get(LONG_MS).is_ok()
    assert db.execute("SELECT pieces FROM orders ORDER BY id") == [(3,), (4,)]


def test_a_client_per_child(db: Database, tmp_path: Path, web: Web) -> None:
    with working(db, tmp_path, "httpx_tasks:app") as (process, app):
        url = f"http://{web.host}"
        for _ in range(5):
            assert app.send("fetch", f"{url}/").get(LONG_MS).ok == "ok"
        assert str(app.send("fetch", f"{url}/missing").get(LONG_MS).err_value.error_code) == "BAD_ANSWER"
        assert len(web.callers) == 1  # one connection, kept open
        (child,) = process.children()
        assert process.stop() == 0
        assert not psutil.pid_exists(child.pid)
        assert "failed while it was closed" not in process.log


def test_encrypted_payloads(db: Database, tmp_path: Path) -> None:
    old, new = f"a={'11' * 32}", f"b={'22' * 32}"

    @contextmanager
    def letters(keys: str) -> Iterator[Any]:
        """The example in a process of its own module, with these keys."""
        given = {"PAYLOAD_KEYS": keys, "HORSIES_DATABASE_URL": db.url, "PAYLOAD_FINGERPRINT_KEY": "33" * 32}
        os.environ.update(given)
        spec = importlib.util.spec_from_file_location("encrypted_payloads", EXAMPLES / "encrypted_payloads.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        finally:
            for name in given:
                del os.environ[name]
        with module.app:
            yield module

    once: dict[str, Any] = {"unique_by_args": True, "unique_for": timedelta(minutes=10)}
    with letters(old) as before:
        first = before.write_letter.with_options(**once).send("Eve", "all is well")
        kept, waiting = before.write_letter.send("Ada", "all is well"), before.write_letter.send("Ada", "")
        with (
            # the keys were rotated
            working(
                db, tmp_path, "encrypted_payloads:app", PAYLOAD_KEYS=f"{new},{old}", PAYLOAD_FINGERPRINT_KEY="33" * 32
            ),
            letters(f"{new},{old}") as after,
        ):
            again = after.write_letter.with_options(**once).send("Eve", "all is well")
            assert (again.task_id, again.is_duplicate) == (first.task_id, True)  # also across the rotation
            read = after.app.handle(kept.task_id, after.write_letter)
            assert read.get(LONG_MS).ok == "Dear Ada, your result: all is well."
            error = after.app.handle(waiting.task_id).get(LONG_MS).err_value
            assert (error.error_code, error.message) == ("NO_FINDING", "there is no finding for Ada")
            assert after.write_letter.send("Bob", "dull " * 1_000).get(LONG_MS).is_ok()
        error = kept.get(0).err_value
        assert error.error_code == "RESULT_DESERIALIZATION_ERROR"
        assert "there is no key 'b' in PAYLOAD_KEYS" in error.message
    sizes = db.execute("SELECT max(length(kwargs)) FROM horsies_tasks WHERE strpos(kwargs, 'Ada') = 0")
    assert sizes[0][0] < 1_000


def test_failures_in_sentry(db: Database, tmp_path: Path, web: Web) -> None:
    with working(db, tmp_path, "sentry_tasks:app", SENTRY_DSN=f"http://key@{web.host}/1") as (_, app):
        handle = app.send("charge", "4111 1111")
        assert handle.get(LONG_MS).is_err()
        eventually(lambda: any(handle.task_id.encode() in body for body in web.posted))
    (event,) = [body for body in web.posted if b"the bank does not answer" in body]
    assert b"4111 1111" not in event
