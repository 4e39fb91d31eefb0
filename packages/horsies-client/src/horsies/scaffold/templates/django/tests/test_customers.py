"""The three modes of horsies.testing: nothing runs, everything runs at once, and what is in the database runs."""

from unittest.mock import patch

from django.core import mail
from django.db import connection
from django.test import TestCase
from horsies import testing
from horsies.contrib.django import app

from project_name import tasks
from project_name.models import Customer

ADA = {"address": "ada@example.org"}


class Customers(TestCase):
    def test_recorded_a_taken_address_sends_nothing(self) -> None:
        with testing.recorded(app) as sends:
            self.assertEqual(self.client.post("/customers", ADA).status_code, 202)
            self.assertEqual(self.client.post("/customers", ADA).status_code, 409)
        sends.assert_sent(tasks.send_welcome, Customer.objects.get().pk)
        self.assertEqual(len(sends.sent()), 1)  # the second one was rolled back

    def test_inline_a_mail_server_that_is_down_is_tried_again(self) -> None:
        answers = [ConnectionError("the mail server is down"), 1]
        with testing.inline(app) as sends, patch("project_name.tasks.send_mail", side_effect=answers):
            self.client.post("/customers", ADA)
        (sent,) = sends.sent(tasks.send_welcome)
        self.assertEqual(len(sent.attempts), 2)

    def test_real_the_welcome_goes_through_the_database(self) -> None:
        with testing.real(app, in_place=True) as database:
            self.client.post("/customers", ADA)
            report = database.drain(connection=connection)  # inside the transaction of this test
        self.assertEqual(report.completed, 1)
        self.assertEqual([message.to for message in mail.outbox], [["ada@example.org"]])
