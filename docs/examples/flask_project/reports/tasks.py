from flask import current_app

from horsies import TaskError, TaskResult
from reports.extensions import db, queue
from reports.models import Report


@queue.task("make_report")
def make_report(report_id: int) -> TaskResult[int, TaskError]:
    """Each task has an application context of its own, and so a session of its own."""
    report = db.session.get(Report, report_id)
    if report is None:
        return TaskResult(err=TaskError("NO_REPORT", f"there is no report {report_id}"))
    report.orders = len(report.customer) * current_app.config.get("ORDERS_PER_LETTER", 1)
    db.session.commit()
    return TaskResult(ok=report.orders)
