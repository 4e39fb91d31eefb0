from typing import Any

import click
from flask import Blueprint, abort, request
from flask.cli import with_appcontext

from horsies import OperationalErrorCode, RetrievalCode
from reports.extensions import db, queue
from reports.models import Report
from reports.tasks import make_report

pages = Blueprint("pages", __name__)


@pages.post("/reports")
def order_report() -> tuple[dict[str, Any], int]:
    customer = str(request.get_json()["customer"])
    report = Report(customer=customer)
    db.session.add(report)
    db.session.flush()  # gives the report its id
    handle = make_report.with_options(connection=db.session).send(report.id)
    if not customer:
        abort(422)  # nothing is committed: neither the report nor its task exists
    db.session.commit()
    return {"report_id": report.id, "task_id": handle.task_id}, 202


@pages.get("/reports/<task_id>")
def read_report(task_id: str) -> tuple[dict[str, Any], int]:
    wait_ms = min(max(request.args.get("wait_ms", 0, type=int), 0), 25_000)
    result = queue.handle(task_id, make_report).get(timeout_ms=wait_ms)
    if result.is_ok():
        return {"status": "done", "orders": result.ok_value}, 200
    code = result.err_value.error_code
    if code == RetrievalCode.TASK_NOT_FOUND:
        abort(404)
    if code == RetrievalCode.WAIT_TIMEOUT:
        return {"status": "pending"}, 202
    if code == OperationalErrorCode.BROKER_ERROR:  # the database cannot be reached: the report may be well
        return {"status": "unknown"}, 503
    return {"status": "failed", "error": code}, 200


@click.command("create-tables")
@with_appcontext
def create_tables() -> None:
    """Create the tables of the reports."""
    db.create_all()
