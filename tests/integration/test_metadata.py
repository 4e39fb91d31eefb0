"""Metadata: what a row has of the registration, of the send and of the task around it, and what is refused."""

import uuid
from typing import Any

import asyncpg
import pytest

from horsies import ConfigurationError, SendErrorCode, TaskDefinitionError, TaskSendError
from horsies.context import TaskContext, enter_task, leave_task
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database


def row(db: Database, task_id: str) -> Any:
    return db.value("SELECT metadata FROM horsies_tasks WHERE id = %s", task_id)


def test_what_a_send_says_wins_over_the_registration(db: Database) -> None:
    with app_on(db) as app:
        plain = add_task(app)
        add = add_task(app, "known", metadata={"team": "billing", "level": 1})
        assert row(db, plain.send(1).task_id) is None
        assert row(db, add.send(1).task_id) == {"team": "billing", "level": 1}
        changed = add.with_options(metadata={"level": 2, "tenant": {"id": 7, "tags": ["a", None, 1.5]}})
        expected = {"team": "billing", "level": 2, "tenant": {"id": 7, "tags": ["a", None, 1.5]}}
        assert row(db, changed.send(1).task_id) == expected
        for handle in changed.send_many([(1,), (2,)]):
            assert row(db, handle.task_id) == expected
        assert row(db, changed.schedule(60, 1).task_id) == expected
        assert row(db, app.with_options(metadata={"x": 1}).send("known", 1).task_id)["x"] == 1
        assert row(db, changed.with_options(metadata={}).send(1).task_id) == {"team": "billing", "level": 1}


async def test_on_the_callers_connection_and_with_a_unique_key(db: Database, conn: asyncpg.Connection) -> None:
    async with async_app_on(db) as app:
        add = add_task(app)
        async with conn.transaction():
            mine = await add.with_options(connection=conn, metadata={"a": 1}).send_async(1)
            both = await add.with_options(connection=conn, metadata={"a": 2}).send_many_async([(1,), (2,)])
        first = await add.with_options(unique_key="k", metadata={"a": 3}).send_async(1)
        again = await add.with_options(unique_key="k", metadata={"a": 4}).send_async(1)
    assert [row(db, handle.task_id) for handle in (mine, *both, first)] == [{"a": 1}, {"a": 2}, {"a": 2}, {"a": 3}]
    assert (again.task_id, again.is_duplicate) == (first.task_id, True)


def test_it_is_no_part_of_a_sends_identity(db: Database) -> None:
    """A repeated request has another trace, and is the same request."""
    task_id, workflow_id = str(uuid.uuid4()), str(uuid.uuid4())
    with app_on(db) as app:
        add = add_task(app)
        for metadata in ({"trace": 1}, {"trace": 2}, None):
            assert add.with_options(task_id=task_id, metadata=metadata).send(1).task_id == task_id
        with pytest.raises(TaskSendError) as raised:
            add.with_options(task_id=task_id, metadata={"trace": 1}).send(2)
        assert raised.value.code is SendErrorCode.PAYLOAD_MISMATCH
        spec = app.workflow("sums", [add.node()(1)])
        for metadata in ({"trace": 1}, {"trace": 2}, None):
            assert spec.start(workflow_id=workflow_id, metadata=metadata).workflow_id == workflow_id
    assert row(db, task_id) == {"trace": 1}
    assert db.execute("SELECT metadata FROM horsies_workflows") == [({"trace": 1},)]


# -- inheritance ----------------------------------------------------------------------------------------


def around(metadata: str | None) -> TaskContext:
    return TaskContext(
        task_id="t", task_name="t", attempt=1, deadline=None, fencing_token=1, metadata_json=metadata,
    )  # fmt: skip


def test_a_task_inherits_what_the_app_propagates(db: Database) -> None:
    with app_on(db, propagate_metadata=["tenant", "user"]) as app:
        add = add_task(app, metadata={"tenant": "nobody", "level": 1})
        entered = enter_task(
            around('{"tenant": "acme", "secret": 1, "horsies.trace": {"a": "b"}, "horsies.node": "n"}')
        )
        try:
            inherits, says = add.send(1), add.with_options(metadata={"tenant": "other"}).send(1)
            run = app.workflow("sums", [add.node()(1)]).start()
        finally:
            leave_task(entered)
        outside = add.send(1)
    trace = {"horsies.trace": {"a": "b"}}
    assert row(db, inherits.task_id) == {"tenant": "acme", "level": 1, **trace}
    assert row(db, says.task_id) == {"tenant": "other", "level": 1, **trace}
    assert row(db, outside.task_id) == {"tenant": "nobody", "level": 1}
    found = db.value("SELECT metadata FROM horsies_workflows WHERE id = %s", run.workflow_id)
    assert found == {"tenant": "acme", **trace}
    # the node of a traced run knows its place
    node = {"horsies.workflow": run.workflow_id, "horsies.node": db.value("SELECT node_id FROM horsies_workflow_tasks")}
    assert db.value("SELECT metadata FROM horsies_tasks WHERE is_workflow_task") == {
        "tenant": "acme", "level": 1, **trace, **node,
    }  # fmt: skip


@pytest.mark.parametrize("text", [None, "[1]", "null", '"text"', "{not json"])
def test_metadata_of_other_programs_never_breaks_a_task(text: str | None) -> None:
    assert dict(around(text).metadata) == {}


def test_metadata_is_read_only() -> None:
    with pytest.raises(TypeError):
        around('{"a": 1}').metadata["a"] = 2  # type: ignore[index]


# -- refusals ---------------------------------------------------------------------------------------------

DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("tenant", "must be a mapping"),
        ({1: "a"}, "the key 1 .*is not a text"),
        ({"": "a"}, "a key is empty"),
        ({"horsies.trace": {}}, "the key 'horsies.trace' is reserved for horsies itself"),
        ({"horsies.mine": 1}, "the key 'horsies.mine' is reserved"),
        ({"a": object()}, "is not JSON: Object of type object"),
        ({"a": float("nan")}, "is not JSON"),
        ({"a": DEEP}, "is not JSON"),
        ({"a": "\ud800"}, "is not JSON"),
        ({"a": "x\0y"}, "holds a NUL character"),
        ({"a\0": 1}, "holds a NUL character"),
        ({"a": "é" * 8_190}, r"is 16,38\d bytes of JSON, the limit is 16,384"),
    ],
)
def test_what_cannot_be_metadata_is_refused_everywhere(metadata: Any, why: str) -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    with pytest.raises(TaskSendError, match=why) as sent:
        add.with_options(metadata=metadata).send(1)
    with pytest.raises(TaskSendError, match=why) as started:
        app.workflow("sums", [add.node()(1)]).start(metadata=metadata)
    assert sent.value.code is started.value.code is SendErrorCode.VALIDATION_FAILED
    with pytest.raises(TaskDefinitionError, match=why):
        add_task(app, "other", metadata=metadata)


def test_what_just_fits(db: Database) -> None:
    """The limit counts bytes of compact JSON; a backslash before u0000 is no NUL."""
    with app_on(db) as app:
        add = add_task(app)
        full = {"a": "é" * 8_188}
        assert row(db, add.with_options(metadata=full).send(1).task_id) == full
        text = {"a": "\\u0000", "b\\\\u0000": "\\"}
        assert row(db, add.with_options(metadata=text).send(1).task_id) == text
    assert factories.count(db) == 2


def test_propagated_keys_are_checked() -> None:
    for keys in (["horsies.trace"], [""], [1]):
        with pytest.raises(ConfigurationError, match="is not a key of your metadata"):
            make_app(UNREACHABLE, propagate_metadata=keys)
    with pytest.raises(ConfigurationError, match="propagate_metadata"):
        make_app(UNREACHABLE, propagate_metadata="tenant")
