"""Inline mode of horsies.testing: what is sent runs at once, in this process, and retries do not wait."""

import pytest
from horsies import TaskResult
from horsies.testing import Sends

from project_name import mail
from project_name.tasks import send_welcome


def test_inline_a_mail_server_that_is_down_is_tried_again(
    horsies_inline: Sends, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([ConnectionError("the mail server is down"), None])

    def deliver(address: str, text: str) -> None:
        if error := next(answers):
            raise error

    monkeypatch.setattr(mail, "deliver", deliver)
    assert send_welcome.send("ada@example.org").get() == TaskResult(ok="welcomed ada@example.org")
    (sent,) = horsies_inline.sent(send_welcome)
    assert len(sent.attempts) == 2


def test_inline_a_wrong_address_is_an_error_that_the_caller_can_act_on(horsies_inline: Sends) -> None:
    assert send_welcome.send("ada").get().err_value.error_code == "NO_ADDRESS"
