"""Run by Django's own test runner."""

import asyncio
import json
import re
import tempfile
from html import unescape
from io import StringIO
from typing import Any
from unittest import mock

from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import IntegrityError, connection, transaction
from django.db.models import Model
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from cases.models import Note
from cases.tasks import leave_open, note, note_async
from horsies import Horsies, Middleware, TaskFailed, TaskSendError, UsageError, testing
from horsies.contrib.django import app, outside_transaction
from horsies.contrib.django.conf import app_config, read_conf
from horsies.contrib.django.models import Schedule, Task
from horsies.contrib.django.paging import BoundedPaginator
from horsies.contrib.django.system_checks import check_settings


def names() -> list[str]:
    return sorted(Task.objects.values_list("task_name", flat=True))


def seen_elsewhere() -> int:
    """How many tasks another connection sees."""
    return app.run_sync("look", lambda: app.get_broker().count_tasks())


class Transactions(TransactionTestCase):
    def test_commit_and_rollback(self) -> None:
        with transaction.atomic():
            note.send("a")
            self.assertEqual((Task.objects.count(), seen_elsewhere()), (1, 0))
        self.assertEqual(seen_elsewhere(), 1)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            note.send("b")
            1 / 0
        self.assertEqual(seen_elsewhere(), 1)

    def test_outside_of_a_transaction(self) -> None:
        note.send("a")
        self.assertEqual(seen_elsewhere(), 1)

    def test_savepoints(self) -> None:
        with transaction.atomic():
            note.send("kept")
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                note_async.send("dropped")
                1 / 0
            with transaction.atomic():
                note.send_many([("x",), ("y",)])
        self.assertEqual(names(), ["note"] * 3)

    def test_the_other_verbs_join(self) -> None:
        node = note.node(node_id="n")("x")
        flow = app.workflow("flow of cases", [node], output=node)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            app.send("by.name")
            note.schedule(60, "later")
            app.send_many([note.call("a"), note_async.call("b")])
            flow.start()
            app.batch([note.call("c")])
            self.assertEqual(Task.objects.count(), 6)
            1 / 0
        self.assertEqual((Task.objects.count(), seen_elsewhere()), (0, 0))

    def test_without_autocommit(self) -> None:
        transaction.set_autocommit(False)
        try:
            note.send("a")
            self.assertEqual(seen_elsewhere(), 0)
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        self.assertEqual(seen_elsewhere(), 0)

    def test_outside_transaction(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            with outside_transaction():
                note.send("kept")
            note.send("dropped")
            1 / 0
        self.assertEqual(seen_elsewhere(), 1)

    def test_a_broken_transaction(self) -> None:
        Note.objects.create(text="a")
        with transaction.atomic():
            try:
                Note.objects.create(text="a")
            except IntegrityError:
                with self.assertRaisesRegex(TaskSendError, "it is not enqueued|your connection"):
                    note.send("b")
            transaction.set_rollback(True)
        self.assertEqual(seen_elsewhere(), 0)

    def test_coroutines(self) -> None:
        async def send(text: str) -> None:
            await note.send_async(text)

        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            async_to_sync(send)("dropped")
            self.assertEqual(Task.objects.count(), 1)
            1 / 0
        async_to_sync(send)("kept")
        asyncio.run(send("kept too"))
        self.assertEqual(seen_elsewhere(), 2)

    async def test_inside_a_coroutine(self) -> None:
        def work() -> None:
            with transaction.atomic():
                note.send("a")

        await sync_to_async(work)()
        await asyncio.gather(*(note.send_async(str(one)) for one in range(10)))
        with self.assertRaisesRegex(UsageError, "await send_async"):
            note.send("b")
        self.assertEqual(await Task.objects.acount(), 11)

    def test_an_explicit_connection_wins(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            note.with_options(connection=connection).send("a")
            1 / 0
        self.assertEqual(seen_elsewhere(), 0)


class TwoDatabases(TransactionTestCase):
    databases = {"default", "other"}

    def test_a_transaction_of_another_database(self) -> None:
        with transaction.atomic(using="other"):
            with self.assertRaisesRegex(UsageError, r"using='other'.*on_commit"):
                note.send("a")
            with self.assertRaisesRegex(UsageError, "outside_transaction"):
                async_to_sync(note.send_async)("a")
            with outside_transaction():
                note.send("b")
            with transaction.atomic():
                note.send("c")
        self.assertEqual(seen_elsewhere(), 2)
        with transaction.atomic(using="other"):
            transaction.on_commit(lambda: note.send("d"), using="other")
        self.assertEqual(seen_elsewhere(), 3)


class InTheKit(TestCase):
    databases = {"default", "other"}

    def test_recorded(self) -> None:
        with testing.recorded(app) as sends:
            note.send("at once")
            sends.assert_sent(note, "at once")
            with transaction.atomic():
                note.send("outer")
                with self.assertRaises(ZeroDivisionError), transaction.atomic():
                    note.send("dropped")
                    1 / 0
                with transaction.atomic():
                    note.send("inner")
                self.assertEqual(len(sends.sent(note)), 1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                note.send("dropped too")
                1 / 0
        self.assertEqual([one.arguments["text"] for one in sends.sent(note)], ["at once", "outer", "inner"])
        self.assertEqual(Task.objects.count(), 0)

    def test_callbacks_run_once(self) -> None:
        told: list[str] = []
        with testing.inline(app, raise_errors=True) as sends:
            with self.captureOnCommitCallbacks(execute=True):
                with transaction.atomic():
                    note.send("a")
                    transaction.on_commit(lambda: told.append("committed"))
                with transaction.atomic(savepoint=False):
                    note.send("b")
        self.assertEqual(told, ["committed"])
        self.assertEqual(sorted(Note.objects.values_list("text", flat=True)), ["a", "b"])
        self.assertEqual(len(sends.sent(note)), 2)

    async def test_from_a_coroutine(self) -> None:
        with testing.recorded(app) as sends:
            await note.send_async("a")
        sends.assert_sent(note, "a")
        await note.send_async("real")
        self.assertEqual(await Task.objects.acount(), 1)

    def test_the_connection_survives_a_task(self) -> None:
        first, second = testing.run(note, "a").unwrap(), testing.run(note, "b").unwrap()
        self.assertEqual((first, Note.objects.count()), (second, 2))


class RealMode(TransactionTestCase):
    def test_it_is_the_database_of_this_process(self) -> None:
        """`manage.py test --parallel` gives each process a clone, under another name."""
        clone = mock.patch.dict(connection.settings_dict, NAME="test_clone_1")
        with clone, testing.real(app, in_place=True) as database:
            self.assertIn("test_clone_1", database.url)
        with testing.real(app) as database:
            self.assertNotIn("test_clone_1", database.url)

    def test_outside_of_a_test_run(self) -> None:
        outbox = mail.outbox
        del mail.outbox
        try:
            with self.assertRaisesMessage(UsageError, "the database of Django's test run, and there is none"):
                testing.real(app)
            testing.real(app, in_place=True)
        finally:
            mail.outbox = outbox


class LeftOpen(TransactionTestCase):
    """A task that ends inside a transaction does not take the next ones into it."""

    def test_it_is_rolled_back_and_told(self) -> None:
        with testing.real(app) as database:
            for how in ("block", "autocommit", "statement"):
                left = leave_open.send(how)
                after = note.send(f"after {how}")
                database.drain()
                with self.assertRaisesMessage(TaskFailed, "the task ended inside a transaction of 'default'"):
                    left.get().unwrap()
                after.get().unwrap()
            failed = leave_open.send("exception")
            note.send("after exception")
            database.drain()
            with self.assertRaisesMessage(TaskFailed, "LookupError"):
                failed.get().unwrap()
        kept = Note.objects.order_by("text").values_list("text", flat=True)
        self.assertEqual(list(kept), ["after autocommit", "after block", "after exception", "after statement"])


class NoDatabase(SimpleTestCase):
    def test_a_send_is_refused(self) -> None:
        with self.assertRaisesRegex(Exception, "Database connections to 'default' are not allowed"):
            note.send("a")
        with testing.recorded(app) as sends, outside_transaction():
            note.send("a")
        sends.assert_sent(note, "a")

    def test_real_mode_is_refused(self) -> None:
        with self.assertRaisesMessage(AssertionError, "Database connections to 'default' are not allowed"):
            testing.real(app)


class Settings(SimpleTestCase):
    def refused(self, **horsies: Any) -> str:
        with override_settings(HORSIES=horsies):
            with self.assertRaises(ImproperlyConfigured) as caught:
                app_config(read_conf(), [])
            (found,) = check_settings()
            self.assertEqual((found.id, found.msg), ("horsies.E001", str(caught.exception)))
            return str(caught.exception)

    def test_bad_ones(self) -> None:
        self.assertIn("did you mean 'DATABASE'?", self.refused(DATABSE="x"))
        self.assertIn("'nowhere' (str), which is not in DATABASES (default, other)", self.refused(DATABASE="nowhere"))
        self.assertIn("['tasks', 'jobs']", self.refused(TASK_MODULES="tasks"))
        self.assertIn("True or False", self.refused(MIGRATE="yes"))
        self.assertIn("'refuse' or 'send'", self.refused(OTHER_TRANSACTIONS="join"))
        self.assertIn("did you mean 'pool_max_size'?", self.refused(BROKER={"pool_max_sise": 1}))
        self.assertIn("comes from DATABASES", self.refused(BROKER={"database_url": "x"}))
        self.assertIn("pool_max_size", self.refused(BROKER={"pool_max_size": 0}))
        self.assertIn("cannot be imported", self.refused(MIDDLEWARE=["cases.nothing.Here"]))
        self.assertIn("payload_max_bytes", self.refused(PAYLOAD_MAX_BYTES=-1))
        told = self.refused(UNKNOWN=1, DATABASE="nowhere")
        self.assertTrue("UNKNOWN" in told and "nowhere" in told)
        with override_settings(HORSIES=["x"]), self.assertRaisesRegex(ImproperlyConfigured, "must be a dict"):
            read_conf()

    def test_good_ones(self) -> None:
        with override_settings(HORSIES={"MIDDLEWARE": ["cases.tests.Quiet"], "PAYLOAD_WARN_BYTES": 1000}):
            config = app_config(read_conf(), [])
        self.assertIsInstance(config.middleware[0], Quiet)
        self.assertEqual(config.payload_warn_bytes, 1000)
        self.assertIsInstance(app, Horsies)

    def test_a_pool_without_health_checks_is_named(self) -> None:
        from django.db import connections

        found = {"default": {**connections.settings["default"], "OPTIONS": {"pool": True}, "CONN_HEALTH_CHECKS": False}}
        with mock.patch.dict(connections.settings, found):
            self.assertEqual([one.id for one in check_settings()], ["horsies.W002"])


class Quiet(Middleware):
    """Named by the settings of a test."""


class Commands(TransactionTestCase):
    databases = {"default", "other"}

    def test_called_from_code(self) -> None:
        call_command("horsies_migrate", "check")
        with self.assertRaises(CommandError) as caught:
            call_command("horsies", "tasks", "show", "nothing")
        self.assertEqual(caught.exception.returncode, 1)

    def test_migrate_leaves_no_other_change(self) -> None:
        told = StringIO()
        call_command("makemigrations", "--check", "--dry-run", stdout=told)
        emit_post_migrate_signal(verbosity=1, interactive=False, db="default", stdout=told, plan=[])
        self.assertIn("Horsies: its tables are at revision", told.getvalue())

    def test_dumps_have_no_tasks(self) -> None:
        sent = note.send("a")
        Note.objects.create(text="kept")
        dumps = {}
        for database in ("default", "other"):
            told = StringIO()
            call_command("dumpdata", "cases", "horsies", database=database, stdout=told)
            dumps[database] = [row["model"] for row in json.loads(told.getvalue())]
        self.assertEqual(dumps, {"default": ["cases.note"], "other": []})
        row = {"model": "horsies.task", "pk": sent.task_id, "fields": {"task_name": "other"}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([row], file)
            file.flush()
            call_command("loaddata", file.name, stdout=StringIO())
        self.assertEqual(names(), ["note"])

    def test_flush_empties_the_tables(self) -> None:
        note.send("a")
        outbox = mail.outbox
        del mail.outbox  # as outside of a test run, where projects send the signal themselves
        emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
        mail.outbox = outbox
        self.assertEqual(Task.objects.count(), 1)
        call_command("flush", "--noinput", stdout=StringIO())
        self.assertEqual(Task.objects.count(), 0)
        call_command("horsies_migrate", "check")


class Admin(TransactionTestCase):
    def setUp(self) -> None:
        self.user = User.objects.create_user("ada", password="x", is_staff=True)
        self.allow("view_task", "view_schedule")
        self.client.force_login(self.user)

    def allow(self, *codes: str) -> None:
        self.user.user_permissions.add(
            *Permission.objects.filter(codename__in=codes, content_type__app_label="horsies")
        )
        self.user = User.objects.get(pk=self.user.pk)

    def act(self, model: str, action: str, *rows: Model, **more: str) -> Any:
        return self.client.post(
            f"/admin/horsies/{model}/",
            {"action": action, "_selected_action": [row.pk for row in rows], **more},
            follow=True,
        )

    def test_the_list(self) -> None:
        sent = [note.send(str(one)) for one in range(3)]
        sent[0].cancel()
        page = self.client.get("/admin/horsies/task/")
        self.assertContains(page, sent[0].task_id)
        self.assertNotContains(page, "Add task")
        page = self.client.get("/admin/horsies/task/?state=CANCELLED")
        self.assertContains(page, sent[0].task_id)
        self.assertNotContains(page, sent[1].task_id)
        for query, found in ((f"q={sent[2].task_id}", 1), ("q=TASK_CANCELLED", 1), ("q=x", 0), ("queue=default", 3),
                             ("task=note_async", 0), ("task=note&state=PENDING", 2), ("state=odd", 3)):  # fmt: skip
            page = self.client.get(f"/admin/horsies/task/?{query}")
            self.assertEqual(len(page.context["cl"].result_list), found, query)

    def test_one_task(self) -> None:
        with testing.real(app) as database:
            sent = note.send("x" * 101)
            database.drain()
        page = self.client.get(f"/admin/horsies/task/{sent.task_id}/change/")
        for text in ("FAILED", "UNHANDLED_EXCEPTION", "DataError", "x" * 101):
            self.assertContains(page, text)
        self.assertNotContains(page, "Save")
        self.assertEqual(self.client.post(f"/admin/horsies/task/{sent.task_id}/change/").status_code, 403)
        self.assertEqual(self.client.post(f"/admin/horsies/task/{sent.task_id}/delete/").status_code, 403)

    def test_actions_need_their_permission(self) -> None:
        sent = note.send("a")
        row = Task.objects.get()
        self.assertNotContains(self.client.get("/admin/horsies/task/"), "Cancel the selected")
        self.act("task", "cancel", row, confirmed="yes")
        self.assertEqual(sent.info().status, "PENDING")
        self.user.user_permissions.clear()
        self.assertEqual(self.client.get("/admin/horsies/task/").status_code, 403)

    def test_cancel_and_retry(self) -> None:
        self.allow("cancel_task", "retry_task")
        sent, other = note.send("a"), note.send("b")
        rows = list(Task.objects.all())
        asked = self.act("task", "cancel", *rows)
        self.assertContains(asked, "Waiting tasks end for good")
        self.assertContains(asked, sent.task_id)
        self.assertEqual(sent.info().status, "PENDING")
        done = self.act("task", "cancel", *rows, confirmed="yes")
        self.assertContains(done, "Cancel tasks: done for 2.")
        self.assertEqual((sent.info().status, other.info().status), ("CANCELLED", "CANCELLED"))
        self.assertContains(self.act("task", "cancel", *rows, confirmed="yes"), "it has ended already")
        self.assertContains(self.act("task", "retry", rows[0], confirmed="yes"), "Retry tasks: done for 1.")
        self.assertContains(self.act("task", "retry", rows[0], confirmed="yes"), "it has not ended")
        self.assertEqual(names(), ["note", "note"])

    def test_an_action_on_more_rows_than_a_form_has_fields(self) -> None:
        self.allow("cancel_task", "retry_task")
        sent = note.send_many([(str(one),) for one in range(2_005)])
        asked = self.act("task", "cancel", Task(pk="any"), select_across="1")
        self.assertContains(asked, "2000 are selected")
        self.assertContains(asked, "one action takes the first 2000")
        self.assertLess(len(asked.content), 200_000)
        sent[-1].cancel()  # meanwhile
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.content.decode()))
        path = "/admin/horsies/task/?state=PENDING"
        done = self.client.post(path, {key: unescape(value) for key, value in form.items()}, follow=True)
        self.assertContains(done, "Cancel tasks: done for 1999.")
        self.assertContains(done, f"{sent[-1].task_id}: it is not in this list any more")
        self.assertEqual(Task.objects.filter(status="PENDING").count(), 5)
        self.assertEqual(LogEntry.objects.filter(user=self.user, object_repr__startswith="note ").count(), 1_999)
        again = self.act("task", "retry", *Task.objects.filter(status="PENDING"), confirmed="yes")
        self.assertContains(again, "it has not ended", count=1)
        self.assertContains(again, "and 2 others")

    def test_schedules(self) -> None:
        from horsies import Interval, TaskSchedule

        app.schedules.put(TaskSchedule("often", "note", Interval(seconds=60), kwargs={"text": "x"}))
        self.assertContains(self.client.get("/admin/horsies/schedule/"), "often")
        row = Schedule.objects.get(pk="often")
        self.assertContains(self.client.get("/admin/horsies/schedule/often/change/"), "often")
        self.act("schedule", "pause", row, confirmed="yes")
        self.assertIsNone(Schedule.objects.get().paused_at)
        self.allow("control_schedule")
        self.assertContains(self.act("schedule", "pause", row, confirmed="yes"), "Pause schedules: done for 1.")
        self.assertIsNotNone(Schedule.objects.get().paused_at)
        self.act("schedule", "resume", row, confirmed="yes")
        self.assertIsNone(Schedule.objects.get().paused_at)
        self.assertContains(self.act("schedule", "run_now", row, confirmed="yes"), "asked for 1")
        self.assertIsNotNone(Schedule.objects.get().run_requested_at)

    def test_counting_is_bounded(self) -> None:
        note.send_many([(str(one),) for one in range(30)])
        with mock.patch("horsies.contrib.django.paging.BOUND", 20), self.assertNumQueries(1) as asked:
            self.assertEqual(BoundedPaginator(Task.objects.order_by("pk"), 10).num_pages, 2)
        self.assertIn("LIMIT 20", asked[0]["sql"])

    def test_a_list_that_takes_too_long(self) -> None:
        with (
            mock.patch("horsies.contrib.django.admin.TIMEOUT_MS", 50),
            mock.patch(
                "horsies.contrib.django.admin.QueueFilter.queryset",
                lambda _self, _request, found: found.extra(where=["pg_sleep(1) IS NULL"]),
            ),
        ):
            note.send("a")
            page = self.client.get("/admin/horsies/task/?queue=default", follow=False)
        self.assertEqual((page.status_code, page["Location"]), (302, "/admin/horsies/task/"))
