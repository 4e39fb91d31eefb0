"""Recorded and real mode of horsies.testing: what a request sent, and what became of it in a real database."""

import pytest
from flask.testing import FlaskClient
from horsies.testing import Sends, TestDatabase

from project_name.tasks import send_welcome
from project_name.web import create_app

ADA = {"address": "ada@example.org"}


@pytest.fixture
def client(horsies_db: TestDatabase) -> FlaskClient:
    """The web application, on a database of the test's own."""
    return create_app(horsies_db.url).test_client()


def test_recorded_a_taken_address_sends_nothing(client: FlaskClient, horsies_recorded: Sends) -> None:
    assert client.post("/customers", json=ADA).status_code == 202
    assert client.post("/customers", json=ADA).status_code == 409
    assert len(horsies_recorded.sent(send_welcome)) == 1  # the second one was rolled back


def test_real_the_welcome_goes_through_the_database(client: FlaskClient, horsies_db: TestDatabase) -> None:
    task_id = client.post("/customers", json=ADA).get_json()["task_id"]
    assert client.get(f"/welcomes/{task_id}").get_json() == {"status": "pending"}
    horsies_db.drain()
    assert client.get(f"/welcomes/{task_id}").get_json() == {"status": "done", "result": "welcomed ada@example.org"}
