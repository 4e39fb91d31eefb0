"""Reports on demand. Needs `pip install horsies-client flask`; a worker of another code base makes them.

    DATABASE_URL=postgresql://... flask --app flask_app run

The synchronous verbs work in every thread of a threaded server and after the fork of a prefork one. Open
connections are closed by themselves when the process exits.
"""

import os
import uuid
from typing import Any

from flask import Flask, abort, request

from horsies import (
    AppConfig,
    CancelResult,
    Horsies,
    OperationalErrorCode,
    PostgresConfig,
    RetrievalCode,
    SendErrorCode,
    TaskError,
    TaskResult,
    TaskSendError,
)

queue = Horsies(AppConfig(PostgresConfig(os.environ["DATABASE_URL"])))
app = Flask(__name__)

REQUESTS = uuid.UUID("5c2a9dbe-8a55-4a0f-9d0e-0a6a2f6f5a11")
"""Turns a client's Idempotency-Key into a task id."""

Reply = tuple[dict[str, Any], int]


# only the signature: `make_report.send(...)` is typed by it, and so is the result
@queue.declare("make_report")
def make_report(customer: str, month: str) -> TaskResult[dict[str, int], TaskError]: ...


@app.post("/reports")
def order_report() -> Reply:
    """Pressing the button again while the report is being made gives the same report, not a second one."""
    wanted = request.get_json()
    customer, month = wanted.get("customer"), wanted.get("month")
    sender = make_report.with_options(unique_key=f"{customer} {month}")
    if key := request.headers.get("Idempotency-Key"):
        # the same request, sent twice by a nervous client, is one task for ever
        sender = make_report.with_options(task_id=str(uuid.uuid5(REQUESTS, key)))
    if delay_s := wanted.get("delay_s"):
        handle = sender.schedule(delay_s, customer, month)
    else:
        handle = sender.send(customer, month)
    return {"task_id": handle.task_id, "is_duplicate": handle.is_duplicate}, 202


@app.post("/reports/batch")
def order_reports() -> Reply:
    """All of them or none, in one statement."""
    wanted = request.get_json()
    handles = make_report.send_many(make_report.call(customer, wanted["month"]) for customer in wanted["customers"])
    return {"task_ids": [handle.task_id for handle in handles]}, 202


@app.errorhandler(TaskSendError)
def not_sent(error: TaskSendError) -> Reply:
    status = {SendErrorCode.VALIDATION_FAILED: 422, SendErrorCode.PAYLOAD_MISMATCH: 409}.get(error.code, 503)
    return {"error": error.code, "message": str(error)}, status


@app.get("/reports/<task_id>")
def read_report(task_id: str) -> Reply:
    """The result; `?wait_ms=` waits for it, on this thread."""
    wait_ms = min(request.args.get("wait_ms", 0, type=int), 25_000)
    result = queue.handle(task_id, make_report).get(timeout_ms=max(wait_ms, 0))
    if result.is_ok():
        return {"status": "done", "report": result.ok_value}, 200
    error = result.err_value
    if error.error_code == RetrievalCode.TASK_NOT_FOUND:
        abort(404)
    if error.error_code == RetrievalCode.WAIT_TIMEOUT:
        return {"status": "pending"}, 202
    if error.error_code == OperationalErrorCode.BROKER_ERROR:
        return {"status": "unknown", "message": "the database cannot be reached"}, 503
    return {"status": "failed", "error": error.error_code, "message": error.message}, 200


@app.delete("/reports/<task_id>")
def cancel_report(task_id: str) -> Reply:
    outcome = queue.handle(task_id).cancel()
    if outcome is CancelResult.NOT_FOUND:
        abort(404)
    return {"outcome": outcome}, 200
