"""The example projects of docs/examples: served over HTTP, with a worker, and their own tests run."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.web_servers import free_port, uvicorn, web_server
from tests.support.workers import WorkerProcess, ended

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FASTAPI = EXAMPLES / "fastapi_project"
FLASK = EXAMPLES / "flask_project"


def run(project: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=project, env={**os.environ, **environment}, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip


def own_tests(project: Path, passed: int, db: Database) -> None:
    done = run(project, "pytest", "-q", "-p", "no:cacheprovider", HORSIES_TEST_DATABASE_URL=db.url)
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr


def test_the_fastapi_project(db: Database, tmp_path: Path) -> None:
    environment = {"HORSIES_DATABASE_URL": db.url}
    own_tests(FASTAPI, 4, db)
    assert run(FASTAPI, "shop.models", **environment).returncode == 0
    command = [sys.executable, "-m", "horsies_worker", "shop.tasks:queue", "--processes=1"]
    health = f"--health-file={tmp_path / 'health'}"
    worker = WorkerProcess([*command, health], {**os.environ, **environment}, tmp_path, cwd=FASTAPI)
    with ended(worker), uvicorn("shop.web:app", tmp_path, environment, cwd=FASTAPI) as web:
        placed = web.call("POST", "/orders", {"email": "ada@example.org", "pieces": 4})
        refused = web.call("POST", "/orders", {"email": "eve@example.org", "pieces": 40})
        assert (placed.status, refused.status) == (202, 409)
        receipt = web.call("GET", f"{placed.headers['location']}?wait_s=20")
        assert receipt.body["result"] == {"number": f"R-{placed.body['order_id']}", "total": "14.00"}
        assert db.execute("SELECT email FROM orders") == [("ada@example.org",)]
        assert db.value("SELECT count(*) FROM horsies_tasks") == 1

        nowhere = web.call("POST", "/orders", {"email": "nowhere", "pieces": 1})
        failed = web.call("GET", f"{nowhere.headers['location']}?wait_s=20").body
        assert failed["error"] == {"code": "NO_ADDRESS", "message": "'nowhere' is not an address"}

        location = web.call("POST", "/imports?pages=3").headers["location"]
        stream = web.open(f"{location}/events")
        assert '"result":60' in stream.read_until('"result"')
        task_id = location.rsplit("/", 1)[1]
        assert web.call("GET", f"/receipts/{task_id}").status == 404  # the id of another task
        assert web.call("GET", f"{location}?wait_s=26").status == 422
        assert "database_time" in web.call("GET", "/health").body
        worker.wait_up()


def test_the_flask_project(db: Database, tmp_path: Path) -> None:
    environment = {"DATABASE_URL": db.url.replace("postgresql://", "postgresql+psycopg://")}
    flask = ("flask", "--app", "reports")
    migrated = run(FLASK, *flask, "horsies", "migrate", "up", **environment)
    assert "at revision" in migrated.stdout, migrated.stderr
    own_tests(FLASK, 6, db)
    assert run(FLASK, *flask, "create-tables", **environment).returncode == 0
    command = [sys.executable, "-m", *flask, "horsies", "worker", "--processes=1"]
    health = f"--health-file={tmp_path / 'health'}"
    worker = WorkerProcess([*command, health], {**os.environ, **environment}, tmp_path, cwd=FLASK)
    port = free_port()
    served = ["gunicorn", "--preload", "--workers=2", f"--bind=127.0.0.1:{port}", "reports:create_app()"]
    with ended(worker), web_server(served, port, tmp_path, environment, cwd=FLASK) as web:
        master = psutil.Process(web.process.pid)
        eventually(lambda: len(master.children()) == 2)
        assert web.call("POST", "/reports", {"customer": ""}).status == 422
        ordered = [web.call("POST", "/reports", {"customer": "acme"}).body["task_id"] for _ in range(10)]
        for task_id in ordered:
            assert web.call("GET", f"/reports/{task_id}?wait_ms=20000").body == {"status": "done", "orders": 4}
        assert db.execute("SELECT count(*), sum(orders) FROM reports") == [(10, 40)]
        assert db.value("SELECT count(*) FROM horsies_tasks") == 10


def test_an_outage_is_no_failure_of_a_report() -> None:
    code = (
        "from reports import create_app;"
        "client = create_app({'HORSIES_DATABASE_URL': 'postgresql://localhost:1/reports'}).test_client();"
        "answer = client.get('/reports/01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11'); print(answer.status_code, answer.json)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=FLASK, capture_output=True, text=True, timeout=60)
    assert told.stdout == "503 {'status': 'unknown'}\n", told.stderr
