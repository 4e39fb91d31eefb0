from flask import Flask
from reports.extensions import db
from reports.models import Report
from reports.tasks import make_report

from horsies.testing import Sends, TestDatabase, run


def test_the_command_line_knows_horsies(app: Flask) -> None:
    told = app.test_cli_runner().invoke(args=["horsies", "--help"])
    assert "worker" in told.output
    assert "migrate" in told.output


def test_the_doctor_finds_the_database(app: Flask) -> None:
    told = app.test_cli_runner().invoke(args=["horsies", "doctor"])
    assert "ok       schema" in told.output


def test_one_task(app: Flask) -> None:
    assert run(make_report, -1).err_value.error_code == "NO_REPORT"
    with app.app_context():
        report = Report(customer="ada")
        db.session.add(report)
        db.session.commit()
        report_id = report.id
    assert run(make_report, report_id).unwrap() == 6


def test_what_is_sent(app: Flask, horsies_recorded: Sends) -> None:
    client = app.test_client()
    assert client.post("/reports", json={"customer": ""}).status_code == 422
    horsies_recorded.refute_sent(make_report)  # the transaction was rolled back
    ordered = client.post("/reports", json={"customer": "acme"})
    horsies_recorded.assert_sent(make_report, ordered.get_json()["report_id"])


def test_a_report_at_once(app: Flask, horsies_inline: Sends) -> None:
    ordered = app.test_client().post("/reports", json={"customer": "acme"}).get_json()
    assert app.test_client().get(f"/reports/{ordered['task_id']}").get_json() == {"status": "done", "orders": 8}


def test_a_report_by_a_worker(app: Flask, horsies_db: TestDatabase) -> None:
    client = app.test_client()
    ordered = client.post("/reports", json={"customer": "acme"}).get_json()
    assert client.get(f"/reports/{ordered['task_id']}").status_code == 202
    assert horsies_db.drain().completed == 1
    assert client.get(f"/reports/{ordered['task_id']}").get_json() == {"status": "done", "orders": 8}
