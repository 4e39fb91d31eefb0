"""Run by Django's own test runner, on Python 3.12 or newer."""

import uuid
from datetime import timedelta
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.db import transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from horsies import testing
from horsies.contrib.django import app
from horsies.contrib.django.backend import horsies_priority
from horsies.contrib.django.models import Task
from jobs import tasks


def local() -> int:
    return 1


class Enqueueing(TestCase):
    def test_the_row(self) -> None:
        result = tasks.add.using(priority=100).enqueue(1, b=2)
        row = Task.objects.get()
        self.assertEqual(
            (row.id, row.task_name, row.queue_name, row.priority), (result.id, "jobs.tasks.add", "default", 1)
        )
        self.assertEqual(result.status, TaskResultStatus.READY)
        again = tasks.add.get_result(result.id)
        self.assertEqual((again.args, again.kwargs, again.status), ([1], {"b": 2}, TaskResultStatus.READY))
        self.assertFalse(again.is_finished)
        with self.assertRaises(TaskResultMismatch):
            tasks.fail.get_result(result.id)

    def test_a_rollback_leaves_nothing(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.add.enqueue(1)
            1 / 0
        self.assertEqual(Task.objects.count(), 0)

    def test_priorities(self) -> None:
        given = [horsies_priority(one) for one in range(100, -101, -1)]
        self.assertEqual((given[0], given[100], given[-1]), (1, 50, 100))
        self.assertEqual(given, sorted(given))

    def test_what_is_not_accepted(self) -> None:
        with self.assertRaises(InvalidTask):
            tasks.add.using(queue_name="other")
        with self.assertRaises(TypeError):
            tasks.add.enqueue(object())
        for unknown in (str(uuid.uuid4()), "x"):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.add.get_result(unknown)
        own = app.send("not.of.django").task_id
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.add.get_result(own)
        self.assertEqual(Task.objects.count(), 1)

    def test_capabilities(self) -> None:
        backend = task_backends["default"]
        self.assertTrue(backend.supports_defer and backend.supports_async_task)
        self.assertTrue(backend.supports_get_result and backend.supports_priority)
        call_command("check", stdout=StringIO())

    def test_recorded(self) -> None:
        with testing.recorded(app) as sends:
            tasks.add.enqueue(1, b=2)
        (sent,) = sends.sent()
        self.assertEqual(sent.arguments, {"args": [1], "kwargs": {"b": 2}})

    async def test_from_a_coroutine(self) -> None:
        result = await tasks.add.aenqueue(1)
        self.assertEqual((await tasks.add.aget_result(result.id)).args, [1])


class Running(TransactionTestCase):
    def test_results(self) -> None:
        told: list[tuple[str, Any]] = []

        def receiver(name: str) -> Any:
            return lambda sender, task_result, **_: told.append((name, task_result.status))

        receivers = {name: receiver(name) for name in ("enqueued", "started", "finished")}
        signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
        for name, signal in signals.items():
            signal.connect(receivers[name])
        self.addCleanup(lambda: [signal.disconnect(receivers[name]) for name, signal in signals.items()])
        with testing.real(app) as database:
            sums = tasks.add.enqueue(1, b=2)
            self.assertEqual(database.drain().completed, 1)
        self.assertEqual([name for name, _ in told], ["enqueued", "started", "finished"])
        self.assertEqual(told[-1][1], TaskResultStatus.SUCCESSFUL)
        with self.assertRaises(ValueError):
            _ = sums.return_value
        sums.refresh()
        self.assertEqual((sums.return_value, sums.attempts, sums.errors), (3, 1, []))
        self.assertTrue(sums.started_at <= sums.finished_at)

    def test_async_deferred_failed_and_retried(self) -> None:
        with testing.real(app) as database:
            loud = tasks.shout.enqueue("hey")
            later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
            failed, bad, flaky = tasks.fail.enqueue(), tasks.unreadable.enqueue(), tasks.flaky.enqueue(1)
            report = database.drain()
            self.assertEqual((report.completed, report.failed, report.retried), (1, 2, 1))
            for one in (loud, later, failed, bad, flaky):
                one.refresh()
            self.assertEqual(loud.return_value, "HEY")
            self.assertEqual((later.status, flaky.status), (TaskResultStatus.READY, TaskResultStatus.READY))
            self.assertEqual(flaky.errors[0].exception_class, ConnectionError)
            (error,) = failed.errors
            self.assertIs(error.exception_class, ValueError)
            self.assertIn("jobs/tasks.py", error.traceback)
            self.assertIs(bad.errors[0].exception_class, TypeError)
            database.advance(timedelta(hours=2))
            database.drain()
            later.refresh()
            flaky.refresh()
        self.assertEqual((later.return_value, flaky.return_value), (2, f"{flaky.id} 2"))
        self.assertEqual(flaky.attempts, 2)

    def test_a_cancelled_one(self) -> None:
        sent = tasks.add.enqueue(1)
        app.handle(sent.id).cancel()
        sent.refresh()
        self.assertEqual(sent.status, TaskResultStatus.FAILED)
        self.assertIn("CANCELLED", sent.errors[0].traceback)
        self.assertEqual(sent.errors[0].exception_class.__name__, "TaskNotCompleted")
