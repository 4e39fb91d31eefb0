"""Tests of the shop in the ways that horsies.testing has. `manage.py test` runs them, and so does pytest-django."""

from django.db import connection
from django.test import TestCase, TransactionTestCase

from horsies import testing
from horsies.contrib.django import app
from shop import tasks
from shop.models import Order, Receipt


class PlacingOrders(TestCase):
    def test_an_order_is_followed_by_its_receipt(self) -> None:
        with testing.recorded(app) as sends:
            answer = self.client.post("/orders/", {"email": "ada@example.org", "pieces": 2})
        self.assertEqual(answer.status_code, 202)
        sends.assert_sent(tasks.write_receipt, Order.objects.get().pk)

    def test_an_order_that_is_rolled_back_sends_nothing(self) -> None:
        with testing.recorded(app) as sends:
            answer = self.client.post("/orders/", {"email": "eve@example.org", "pieces": 20})
        self.assertEqual(answer.status_code, 409)
        sends.refute_sent(tasks.write_receipt)

    def test_the_receipt_is_written(self) -> None:
        with testing.inline(app, raise_errors=True):
            self.client.post("/orders/", {"email": "ada@example.org", "pieces": 2})
        self.assertEqual(Receipt.objects.get().text, "2 pieces, ada@example.org")

    def test_one_task(self) -> None:
        order = Order.objects.create(email="ada@example.org", pieces=3)
        self.assertEqual(testing.run(tasks.write_receipt, order.pk).unwrap(), "3 pieces, ada@example.org")
        self.assertEqual(testing.run(tasks.count_orders).unwrap(), 1)

    def test_the_task_is_a_row_of_the_same_transaction(self) -> None:
        from horsies.contrib.django.models import Task

        self.client.post("/orders/", {"email": "ada@example.org", "pieces": 2})
        task = Task.objects.get()
        self.assertEqual((task.task_name, task.status), ("shop.write_receipt", "PENDING"))
        self.assertEqual(task.id, Order.objects.get().receipt_task)

    def test_a_worker_inside_the_transaction_of_the_test(self) -> None:
        with testing.real(app) as database:
            self.client.post("/orders/", {"email": "ada@example.org", "pieces": 2})
            self.assertEqual(database.drain(connection=connection).completed, 1)
        self.assertEqual(Receipt.objects.get().text, "2 pieces, ada@example.org")


class WithARealDatabase(TransactionTestCase):
    """The worker's code runs on the test's database, in this process."""

    def test_from_the_order_to_the_receipt(self) -> None:
        with testing.real(app) as database:
            order = self.client.post("/orders/", {"email": "ada@example.org", "pieces": 2}).json()["order"]
            self.assertEqual(database.drain().completed, 1)
            page = self.client.get(f"/orders/{order}/").json()
        self.assertEqual(page["receipt"], "2 pieces, ada@example.org")

    def test_nothing_is_left_of_the_test_before(self) -> None:
        with testing.real(app) as database:
            self.assertEqual(database.drain().completed, 0)

    async def test_an_async_view(self) -> None:
        order = await Order.objects.acreate(email="ada@example.org", pieces=2)
        async with testing.real(app) as database:
            answer = await self.async_client.post(f"/orders/{order.pk}/reminder/")
            report = await database.drain_async()
            result = await app.handle(answer.json()["task"], tasks.remind).get_async(timeout_ms=0)
        self.assertEqual(report.completed, 1)
        self.assertEqual(result.unwrap(), "reminded ada@example.org")
