import asyncio
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from shop.models import create_tables
from shop.tasks import import_catalogue, send_receipt
from shop.web import app

from horsies import testing
from horsies.testing import Sends, TestDatabase


@pytest.fixture
def client(horsies_db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The web application, with its tables and its tasks in a database of the test's own."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", horsies_db.url)
    asyncio.run(create_tables())
    with TestClient(app) as opened:
        yield opened


def test_one_task() -> None:
    assert testing.run(send_receipt, 7, "ada@example.org", 2).unwrap().number == "R-7"
    assert testing.run(send_receipt, 7, "nowhere", 2).err_value.error_code == "NO_ADDRESS"


def test_what_is_sent(horsies_recorded: Sends) -> None:
    with TestClient(app) as client:
        assert client.post("/imports?pages=3").status_code == 202
        assert client.post("/imports?pages=0").status_code == 422
    horsies_recorded.assert_sent(import_catalogue, pages=3)
    horsies_recorded.refute_sent(send_receipt)


def test_an_import_from_start_to_end(horsies_inline: Sends) -> None:
    with TestClient(app) as client:
        location = client.post("/imports?pages=3").headers["location"]
        assert client.get(location, params={"wait_s": 5}).json()["result"] == 60
        events = client.get(f"{location}/events").text
    assert "event: end" in events
    assert '"result":60' in events


def test_an_order_and_its_receipt(client: TestClient, horsies_db: TestDatabase) -> None:
    placed = client.post("/orders", json={"email": "ada@example.org", "pieces": 4})
    refused = client.post("/orders", json={"email": "eve@example.org", "pieces": 40})
    assert (placed.status_code, refused.status_code) == (202, 409)
    assert client.get(placed.headers["location"]).status_code == 202
    assert horsies_db.drain().completed == 1  # the refused order left no task
    receipt = client.get(placed.headers["location"]).json()
    assert receipt["result"] == {"number": f"R-{placed.json()['order_id']}", "total": "14.00"}
