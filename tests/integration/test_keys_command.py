"""`horsies keys` and the broker's `unique_keys`."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from horsies import ConfigurationError, Horsies, TaskStatus
from tests.support import factories
from tests.support.apps import add_task, app_on, async_app_on
from tests.support.operator import Operator
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

HOUR = timedelta(hours=1)


@pytest.fixture
async def app(db: Database) -> AsyncIterator[Horsies]:
    async with async_app_on(db) as app:
        yield app


async def test_keys_that_are_taken_are_listed(db: Database, app: Horsies) -> None:
    keys, add, other = app.get_broker().unique_keys, add_task(app), add_task(app, "other")
    assert await keys.list() == []
    kept = await add.with_options(unique_key="kept", unique_for=HOUR).send_async(1)
    plain = await other.with_options(unique_key="plain").send_async(1)
    waits = await add.with_options(unique_key="waits", debounce=HOUR).send_async(1)
    await add.with_options(unique_key="waits", debounce=HOUR).send_async(2)
    gone = await add.with_options(unique_key="gone", unique_for=timedelta(seconds=60)).send_async(1)
    over = await add.with_options(unique_key="over", on_conflict="replace").send_async(1)
    factories.finish(db, over.task_id, 1)
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", gone.task_id)
    found = {one.key: one for one in await keys.list()}
    assert list(found) == ["kept", "gone", "waits", "plain"]
    assert [one.task_id for one in found.values()] == [
        kept.task_id, gone.task_id, waits.task_id, plain.task_id,
    ]  # fmt: skip
    assert [one.status for one in found.values()] == [
        TaskStatus.PENDING, None, TaskStatus.PENDING, TaskStatus.PENDING,
    ]  # fmt: skip
    assert [one.until is not None for one in found.values()] == [True, True, False, False]
    assert found["waits"].replaced == 1
    assert [one.key for one in await keys.list("other")] == ["plain"]
    assert [one.key for one in await keys.list("add", "kept")] == ["kept"]
    assert len(await keys.list(limit=2)) == 2
    with pytest.raises(ConfigurationError):
        await keys.list(limit=0)


async def test_a_released_key_is_free_unless_a_live_task_holds_it(db: Database, app: Horsies) -> None:
    keys, sender = app.get_broker().unique_keys, add_task(app).with_options(unique_key="k", unique_for=HOUR)
    first = await sender.send_async(1)
    released = await keys.release("add", "k")
    assert (released.was_kept, released.holders, released.is_free) == (True, (first.task_id,), False)
    assert (await sender.send_async(2)).is_duplicate
    factories.finish(db, first.task_id, 1)
    assert (await keys.release("add", "k")).is_free
    assert not (await sender.send_async(2)).is_duplicate


def test_the_command_lists_and_releases(db: Database, operator: Operator) -> None:
    with app_on(db) as app:
        sender = add_task(app).with_options(unique_key="k\x1b[31m", unique_for=HOUR)
        again = add_task(app, "again").with_options(unique_key="k", unique_for=HOUR)
        assert operator("keys").out == "no unique key is taken\n"
        handle = sender.send(1)
        listed = operator("keys", "list").out
        assert "TASK" in listed
        assert handle.task_id in listed
        assert "\x1b" not in listed
        (one,) = operator("keys", "--task", "add", "--json").json["keys"]
        assert (one["key"], one["status"], one["replaced"]) == ("k\x1b[31m", "PENDING", 0)
        shown = operator("tasks", "show", handle.task_id).out
        assert "taken until" in shown
        again.send(0)
        assert "there are more: --limit shows more" in operator("keys", "--limit", "1").out
        assert operator("keys", "--limit", "2").out.count("\n") == 3
        assert [operator.json("keys", "--limit", limit)["has_more"] for limit in "12"] == [True, False]
        db.execute("DELETE FROM horsies_tasks WHERE task_name = 'again'")
        assert operator("keys", "release", "again", "k").code == 0
        answer = operator("keys", "release", "add", "k\x1b[31m")
        assert (answer.code, "has not ended" in answer.err) == (1, True)
        factories.finish(db, handle.task_id, 1)
        answer = operator("keys", "release", "add", "k\x1b[31m")  # its time was ended before
        assert (answer.code, "is not taken" in answer.err) == (1, True)
        again.send(1)
        db.execute("DELETE FROM horsies_tasks")
        assert operator("keys", "release", "again", "k").out == "released key k of task again\n"
