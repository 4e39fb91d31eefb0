"""`horsies_send`: tasks from psql, triggers and other languages; what it checks, writes and tells."""

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, current_task, testing
from horsies.options import REGISTERED
from tests.support import factories
from tests.support.apps import add_task, app_on, make_app
from tests.support.postgres import Database
from tests.support.roles import accounts, may

pytestmark = pytest.mark.shared_database

LATER = "2100-01-01T00:00:00Z"


def send(db: Database, name: str | None = "add", kwargs: Any = None, **options: Any) -> str:
    given = json.dumps({} if kwargs is None else kwargs)
    return db.value("SELECT horsies_send(%s, %s::jsonb, %s::jsonb)", name, given, json.dumps(options))


def test_the_row_is_that_of_a_send_by_name(db: Database) -> None:
    task_id = send(db, kwargs={"a": 1, "b": "ü"})
    row = factories.read(db, task_id)
    with app_on(db) as app:
        other = factories.read(db, app.send("add", a=1, b="ü").task_id)
    own = {"id", "kwargs", "enqueue_sha", "sent_at", "enqueued_at", "created_at", "updated_at"}
    assert {name: value for name, value in row.items() if name not in own} == {
        name: value for name, value in other.items() if name not in own
    }
    assert json.loads(row["kwargs"]) == json.loads(other["kwargs"])
    assert uuid.UUID(task_id).version == 7
    assert factories.read(db, db.value("SELECT horsies_send('plain')"))["kwargs"] is None


def test_every_option(db: Database) -> None:
    own = str(uuid.uuid4())
    task_id = send(
        db, queue_name="mail", priority=7, delay_seconds=1.5, ttl_seconds=60, unique_key="k", task_id=own,
        metadata={"tenant": "a"}, group="g", store_result=False, keep_seconds=30,
    )  # fmt: skip
    row = factories.read(db, task_id)
    assert task_id == own
    assert (row["queue_name"], row["priority"], row["unique_key"], row["group_key"]) == ("mail", 7, "k", "g")
    assert (row["metadata"], row["keep_seconds"]) == ({"tenant": "a"}, 30)
    assert row["task_options"] == f'{REGISTERED},"store_result":false}}'
    assert row["enqueued_at"] - row["sent_at"] == timedelta(seconds=1.5)
    assert row["good_until"] - row["sent_at"] == timedelta(seconds=60)
    later = factories.read(db, send(db, eta="2100-01-01T00:00:00Z", good_until="2100-01-02 00:00+02"))
    assert later["enqueued_at"] == datetime(2100, 1, 1, tzinfo=UTC)
    assert later["good_until"] == datetime(2100, 1, 1, 22, tzinfo=UTC)
    # as other languages write options that were not given
    assert factories.read(db, send(db, priority=None, eta=None, unique_key=None))["priority"] == 100


def test_ids_of_one_statement_ascend(db: Database) -> None:
    found = [row[0] for row in db.execute("SELECT horsies_send('add') FROM generate_series(1, 200)")]
    assert found == sorted(set(found))


def test_the_same_call_again_is_success_and_another_one_is_refused(db: Database) -> None:
    own = str(uuid.uuid4())
    for tenant in "ab":  # metadata does not count, as in the client
        assert send(db, kwargs={"a": 1, "b": 2}, task_id=own, metadata={"tenant": tenant}) == own
    assert send(db, kwargs={"b": 2, "a": 1}, task_id=own) == own
    assert factories.count(db) == 1
    for kwargs, options in (({"a": 2}, {}), ({"a": 1, "b": 2}, {"priority": 3})):
        with pytest.raises(psycopg.Error, match=f"task id {own} is taken by a task with other arguments") as caught:
            send(db, kwargs=kwargs, task_id=own, **options)
        assert caught.value.sqlstate == "ZH001"
        assert "another task_id" in (caught.value.diag.message_hint or "")


def test_a_unique_key_returns_its_holder_also_across_the_client(db: Database) -> None:
    with app_on(db) as app:
        holder = add_task(app).with_options(unique_key="k").send(1)
        assert send(db, unique_key="k") == holder.task_id
        other = send(db, unique_key="other")
        assert add_task(app, "add").with_options(unique_key="other").send(1).task_id == other
    assert send(db, "another name", unique_key="k") not in (holder.task_id, other)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queue": "mail"}, "there is no option 'queue'"),
    ({"unique_for": 60}, "there is no option 'unique_for'"),
    ({"debounce": 60}, "there is no option 'debounce'"),
    ({"max_retries": 3}, "there is no option 'max_retries'"),
    ({"queue_name": "a b"}, "the option queue_name is"),
    ({"queue_name": 3}, "the option queue_name is 3"),
    *[({"priority": value}, "the option priority is") for value in (0, 101, 1.5, "5", True, 1e300)],
    *[({"delay_seconds": value}, "the option delay_seconds is") for value in (-1, "5", 1e12)],
    *[({"ttl_seconds": value}, "the option ttl_seconds is") for value in (0, -1, "x")],
    *[({"keep_seconds": value}, "the option keep_seconds is") for value in (-1, 0.5, 1e12)],
    *[
        ({"eta": value}, "the option eta is")
        for value in ("tomorrow", "2030-01-01", "2030-01-01T00:00:00", "2030-02-31T00:00:00Z", 17, "infinity",
                      "9999-01-01T00:00:00Z")
    ],
    ({"eta": LATER, "delay_seconds": 3}, "both say when the task may start"),
    ({"good_until": LATER, "ttl_seconds": 3}, "both say until when"),
    ({"good_until": "2001-01-01T00:00:00Z"}, "would expire before it may start"),
    ({"ttl_seconds": 3, "delay_seconds": 4}, "would expire before it may start"),
    *[({"unique_key": value}, "the option unique_key is") for value in ("", "x" * 256, 3)],
    *[({"group": value}, "the option group is") for value in ("", "x" * 256, 3)],
    *[({"task_id": value}, "the option task_id is") for value in ("x", "0F9B7C52-6C70-4D4B-9C9E-0A6D8A4A3E11", 3)],
    *[({"store_result": value}, "the option store_result is") for value in ("false", 0)],
    ({"metadata": [1]}, "it takes an object"),
    ({"metadata": {"horsies.trace": "x"}}, "which is reserved"),
    ({"metadata": {"": "x"}}, "keys are not empty"),
    ({"metadata": {"a": "x" * 17_000}}, "it takes at most 16,384 bytes"),
]  # fmt: skip


def test_an_option_that_is_wrong_is_named(db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as connection:
        for options, why in WRONG:
            with pytest.raises(psycopg.errors.InvalidParameterValue, match=why) as caught:
                connection.execute("SELECT horsies_send('add', '{}', %s::jsonb)", [json.dumps(options)])
            assert caught.value.diag.message_hint, options
    assert factories.count(db) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("NULL", "1 to 255 characters, not NULL"),
        ("''", "1 to 255 characters"),
        ("repeat('x', 256)", "1 to 255 characters"),
        ("'add', '[1]'", "are a JSON array, not an object"),
        ("'add', '{}', '[]'", "options are a JSON array"),
    ],
)
def test_a_call_that_is_wrong_is_named(db: Database, arguments: str, why: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=why):
        db.value(f"SELECT horsies_send({arguments})")
    assert db.value("SELECT horsies_send('add', NULL, NULL)")


def test_a_trigger_sends_if_and_only_if_its_transaction_commits(db: Database) -> None:
    with psycopg.connect(db.url) as connection, psycopg.connect(db.url, autocommit=True) as listening:
        listening.execute("LISTEN task_queue_default")
        connection.execute("CREATE TEMP TABLE orders (id int PRIMARY KEY)")
        connection.execute(
            """CREATE FUNCTION pg_temp.order_added() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   PERFORM horsies_send('ship', jsonb_build_object('order_id', NEW.id));
                   RETURN NULL;
               END $$"""
        )
        connection.execute(
            "CREATE TRIGGER added AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION pg_temp.order_added()"
        )
        connection.commit()
        connection.execute("INSERT INTO orders SELECT generate_series(1, 3)")
        connection.rollback()
        assert factories.count(db) == 0
        connection.execute("INSERT INTO orders SELECT generate_series(1, 3)")
        assert list(listening.notifies(timeout=0)) == []
        connection.commit()
        assert next(listening.notifies(timeout=10, stop_after=1)).channel == "task_queue_default"
    assert factories.count(db) == 3


def test_only_producers_and_workers_may_call_it(db: Database) -> None:
    call = 'SELECT horsies_send(\'add\', \'{"a": 1}\', \'{"keep_seconds": 5, "unique_key": "k"}\')'
    with accounts(db) as roles:
        assert {name for name, who in roles.items() if may(who, call)} == {"producer", "worker"}


def test_what_was_sent_from_sql_runs_with_the_workers_registration(db: Database) -> None:
    app = make_app(db)
    tasks = _tasks(app)
    with app:
        kept = send(db, "flaky", {"value": 5})
        dropped = send(db, "flaky", {"value": 5}, store_result=False)
        wrong = send(db, "flaky", {"value": "five"})
        with testing.real(app, in_place=True) as database:
            database.drain()
            database.advance(timedelta(seconds=1))
            database.drain()
        assert app.handle(kept, tasks).get(0) == TaskResult(ok=5)
        assert factories.read(db, dropped)["status"] == "COMPLETED"
        assert factories.read(db, dropped)["result"] is None
        assert factories.read(db, dropped)["retry_count"] == 1  # the retries of the registration
        found = app.handle(wrong).get(0)
        assert found.err is not None
        assert found.err.error_code == "WORKER_SERIALIZATION_ERROR"


def _tasks(app: Horsies) -> Any:
    @app.task("flaky", retry_policy=RetryPolicy.fixed(0.001, max_retries=2, auto_retry_for=["DOWN"]))
    def flaky(value: int) -> TaskResult[int, TaskError]:
        if current_task().attempt == 1:
            return TaskResult(err=TaskError("DOWN"))
        return TaskResult(ok=value)

    return flaky
