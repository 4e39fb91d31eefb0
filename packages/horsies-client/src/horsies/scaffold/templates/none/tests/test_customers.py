"""Recorded and real mode of horsies.testing: what was sent, and what became of it in a real database."""

from horsies import TaskResult
from horsies.testing import Sends, TestDatabase

from project_name.customers import sign_up
from project_name.tasks import send_welcome


def test_recorded_signing_up_sends_a_welcome(horsies_recorded: Sends) -> None:
    sign_up("ada@example.org")
    horsies_recorded.assert_sent(send_welcome, "ada@example.org")


def test_real_the_welcome_goes_through_the_database(horsies_db: TestDatabase) -> None:
    handle = sign_up("ada@example.org")
    horsies_db.drain()
    assert handle.get() == TaskResult(ok="welcomed ada@example.org")
