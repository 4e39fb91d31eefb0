"""Recorded and real mode of horsies.testing: what a request sent, and what became of it in a real database."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from horsies.testing import Sends, TestDatabase

from project_name.tasks import send_welcome
from project_name.web import create_api

ADA = {"address": "ada@example.org"}


@pytest.fixture
def client(horsies_db: TestDatabase) -> Iterator[TestClient]:
    """The web application, on a database of the test's own."""
    with TestClient(create_api(horsies_db.url)) as opened:
        yield opened


def test_recorded_a_taken_address_sends_nothing(client: TestClient, horsies_recorded: Sends) -> None:
    assert client.post("/customers", json=ADA).status_code == 202
    assert client.post("/customers", json=ADA).status_code == 409
    assert len(horsies_recorded.sent(send_welcome)) == 1  # the second one was rolled back


def test_real_the_welcome_goes_through_the_database(client: TestClient, horsies_db: TestDatabase) -> None:
    task_id = client.post("/customers", json=ADA).json()["task_id"]
    assert client.get(f"/welcomes/{task_id}").json()["status"] == "PENDING"
    horsies_db.drain()
    assert client.get(f"/welcomes/{task_id}").json()["result"] == "welcomed ada@example.org"
