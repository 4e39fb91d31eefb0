"""The group of a task: how it comes into the row, on every road of a send, and what is refused."""

import enum
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import Middleware, Outgoing, SendErrorCode, TaskError, TaskResult, TaskSendError
from horsies.app import Horsies
from horsies.context import TaskContext
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

Number = TaskResult[int, TaskError]


def group(db: Database, task_id: str) -> Any:
    return db.value("SELECT group_key FROM horsies_tasks WHERE id = %s", task_id)


def sha(db: Database, task_id: str) -> Any:
    return db.value("SELECT enqueue_sha FROM horsies_tasks WHERE id = %s", task_id)


@contextmanager
def refused(code: SendErrorCode, text: str | None = None) -> Iterator[None]:
    with pytest.raises(TaskSendError, match=text) as raised:
        yield
    assert raised.value.code is code


# -- group= ---------------------------------------------------------------------------------------


def test_every_send_writes_its_group(db: Database) -> None:
    with app_on(db) as app:
        add = add_task(app)
        acme = add.with_options(group="acme")
        assert group(db, add.send(1).task_id) is None
        assert group(db, acme.send(1).task_id) == "acme"
        assert [group(db, handle.task_id) for handle in acme.send_many([(1,), (2,)])] == ["acme", "acme"]
        assert [group(db, handle.task_id) for handle in add.send_many([(1,), (2,)])] == [None, None]
        assert group(db, acme.schedule(60, 1).task_id) == "acme"
        assert group(db, acme.with_options(delay=60).send(1).task_id) == "acme"
        assert group(db, app.with_options(group="by name").send("add", 1).task_id) == "by name"
        assert group(db, app.with_options(group="elsewhere").send("unknown", 1).task_id) == "elsewhere"
        assert group(db, add.with_options(task_id=str(uuid.uuid4()), group="own id").send(1).task_id) == "own id"
        assert group(db, acme.with_options(group="other").send(1).task_id) == "other"
        full = "é" * 255
        assert group(db, add.with_options(group=full).send(1).task_id) == full


async def test_on_the_callers_connection_and_with_a_unique_key(db: Database, conn: asyncpg.Connection) -> None:
    async with async_app_on(db) as app:
        add = add_task(app)
        async with conn.transaction():
            mine = add.with_options(connection=conn, group="acme")
            one = await mine.send_async(1)
            both = await mine.send_many_async([(1,), (2,)])
            known = await mine.with_options(task_id=str(uuid.uuid4())).send_async(1)
            unique = await mine.with_options(unique_key="k").send_async(1)
        again = await add.with_options(unique_key="k", group="other").send_async(1)
        alone = await add.with_options(unique_key="l", group="other").send_async(1)
    assert [group(db, handle.task_id) for handle in (one, *both, known, unique)] == ["acme"] * 5
    assert (again.task_id, again.is_duplicate) == (unique.task_id, True)
    assert group(db, alone.task_id) == "other"


def test_on_a_synchronous_connection(db: Database) -> None:
    with app_on(db) as app, psycopg.connect(db.url) as connection:
        add = add_task(app, group_by="a").with_options(connection=connection)
        one, many = add.send(7), add.send_many([(1,), (2,)])
        connection.commit()
    assert [group(db, handle.task_id) for handle in (one, *many)] == ["7", "1", "2"]


class Tenant(str, enum.Enum):  # noqa: UP042  (the older form, whose str() is its name)
    ACME = "acme"


def test_the_member_of_an_enum_is_its_value(db: Database) -> None:
    task_id = str(uuid.uuid4())
    with app_on(db) as app, psycopg.connect(db.url) as connection:
        add = add_task(app)
        first = add.with_options(group=Tenant.ACME, connection=connection).send(1)
        connection.commit()
        for tenant in (Tenant.ACME, "acme"):
            add.with_options(group=tenant, task_id=task_id).send(1)
        run = app.workflow("w", [add.node()(1), add.node(group=Tenant.ACME)(2)]).start(group=Tenant.ACME)
    assert [group(db, sent) for sent in (first.task_id, task_id)] == ["acme", "acme"]
    assert db.value("SELECT group_key FROM horsies_workflows WHERE id = %s", run.workflow_id) == "acme"
    assert db.execute("SELECT DISTINCT group_key FROM horsies_tasks") == [("acme",)]


def test_it_is_part_of_a_sends_identity(db: Database) -> None:
    """A row without a group has the fingerprint that it had before there were groups."""
    task_id, other_id = str(uuid.uuid4()), str(uuid.uuid4())
    with app_on(db) as app:
        add = add_task(app)
        acme = add.with_options(task_id=task_id, group="acme")
        assert acme.send(1).task_id == acme.send(1).task_id == task_id
        for sender in (acme.with_options(group="other"), add.with_options(task_id=task_id)):
            with refused(SendErrorCode.PAYLOAD_MISMATCH):
                sender.send(1)
        add.with_options(task_id=other_id).send(1)
        with refused(SendErrorCode.PAYLOAD_MISMATCH):
            add.with_options(task_id=other_id, group="acme").send(1)
        older = add.send(1)
    assert group(db, task_id) == "acme"
    assert group(db, other_id) is None
    assert sha(db, older.task_id) == sha(db, other_id) != sha(db, task_id)


def test_a_repetition_after_a_deploy_that_adds_group_by_is_the_same_send(db: Database) -> None:
    task_id = str(uuid.uuid4())
    for options in ({}, {"group_by": "a"}, {"group_by": "b"}):
        with app_on(db) as app:
            assert add_task(app, **options).with_options(task_id=task_id).send(1).task_id == task_id
    assert group(db, task_id) is None


async def test_a_retried_task_keeps_its_group(db: Database) -> None:
    async with async_app_on(db) as app:
        handle = await add_task(app).with_options(group="acme").send_async(1)
        assert await handle.cancel_async()
        assert await app.get_broker().retry(handle.task_id)
    assert group(db, handle.task_id) == "acme"
    assert factories.read(db, handle.task_id)["status"] == "PENDING"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("", "'' is not a text of 1 to 255 characters"),
        ("x" * 256, "'x+ is not a text of 1 to 255 characters"),
        (7, "7 is not a text of 1 to 255 characters"),
        (b"acme", "b'acme' is not a text of 1 to 255 characters"),
        ("a\0b", "holds a character that PostgreSQL cannot store"),
        ("\ud800", "holds a character that PostgreSQL cannot store"),
    ],
)
def test_what_cannot_be_a_group_is_refused_everywhere(wrong: Any, why: str) -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    told = f"send of task 'add'(.|\n)*group: {why}(.|\n)*give a text such as"
    with refused(SendErrorCode.VALIDATION_FAILED, told):
        add.with_options(group=wrong).send(1)
    with refused(SendErrorCode.VALIDATION_FAILED, told):
        app.with_options(group=wrong).send("add", 1)
    with refused(SendErrorCode.VALIDATION_FAILED, f"start of workflow 'sums'(.|\n)*group: {why}"):
        app.workflow("sums", [add.node()(1)]).start(group=wrong)


# -- group_by= ------------------------------------------------------------------------------------


def grouped(app: Horsies) -> Any:
    """A task that is grouped by what its function says."""
    seen: list[tuple[Any, ...]] = []

    def key(account: int | str, page: int = 3, *, region: str = "eu") -> Any:
        seen.append((account, page, region))
        if account == "broken":
            raise LookupError("no such account")
        if account == "odd":
            return 1.5
        return None if account == "nobody" else f"{region}-{account}"

    @app.task("visit", group_by=key)
    def visit(account: int | str, page: int = 3, *, region: str = "eu") -> Number:
        return TaskResult(ok=page)

    visit.seen = seen  # type: ignore[attr-defined]
    return visit


def test_a_parameter_gives_the_group_of_each_call(db: Database) -> None:
    with app_on(db) as app:
        add = add_task(app, group_by="a")
        assert [group(db, add.send(*args).task_id) for args in ((1,), (2, 5))] == ["1", "2"]
        many = add.send_many([(1,), add.call(2), {"a": 3, "b": 1}])
        assert [group(db, handle.task_id) for handle in many] == ["1", "2", "3"]
        assert group(db, app.send("add", a=9).task_id) == "9"
        by_default = add_task(app, "defaulted", group_by="b")
        assert [group(db, by_default.send(*args).task_id) for args in ((1,), (1, 4))] == ["0", "4"]
        assert group(db, add.with_options(group="acme").send(1).task_id) == "acme"


def test_a_function_gives_the_group_of_each_call(db: Database) -> None:
    with app_on(db) as app:
        visit = grouped(app)
        one = visit.send(7)
        many = visit.send_many([(1,), {"account": "nobody"}, visit.call(2, region="us")])
        none = visit.send_many([("nobody",), ("nobody",)])
        visit.seen.clear()
        named = visit.with_options(group="acme").send("broken")
    assert [group(db, handle.task_id) for handle in (one, *many)] == ["eu-7", "eu-1", None, "us-2"]
    assert [group(db, handle.task_id) for handle in none] == [None, None]
    assert group(db, named.task_id) == "acme"
    assert visit.seen == []  # `group=` is enough


def test_a_function_that_fails_refuses_the_send(db: Database) -> None:
    with app_on(db) as app:
        visit = grouped(app)
        with refused(SendErrorCode.VALIDATION_FAILED, "task 'visit': its group_by raised LookupError: no such account"):
            visit.send("broken")
        with refused(
            SendErrorCode.VALIDATION_FAILED, "send_many item 1: task 'visit': its group_by raised LookupError"
        ):
            visit.send_many([(1,), ("broken",)])
        with refused(
            SendErrorCode.VALIDATION_FAILED, r"its group_by gives a float: return a str, an int, a UUID, or None"
        ):
            visit.schedule(5, "odd")
        with refused(SendErrorCode.VALIDATION_FAILED, "the key of its group_by: .* is not a text of 1 to 255"):
            visit.send("x" * 300)
        with refused(SendErrorCode.VALIDATION_FAILED, "its group_by raised LookupError"):
            app.send("visit", "broken")
    assert factories.count(db) == 0


def test_a_stub_groups_its_sends(db: Database) -> None:
    with app_on(db) as app:

        @app.declare("elsewhere", group_by="tenant")
        def elsewhere(tenant: uuid.UUID, n: int = 0) -> Number: ...

        tenant = uuid.uuid4()
        assert group(db, elsewhere.send(tenant).task_id) == str(tenant)


# -- middleware -----------------------------------------------------------------------------------


class Sees(Middleware):
    def __init__(self) -> None:
        self.seen: list[tuple[str | None, list[str | None]]] = []

    def on_send(self, task: Outgoing) -> None:
        self.seen.append((task.group, list(task.groups)))


def test_middleware_sees_the_group(db: Database) -> None:
    sees = Sees()
    with app_on(db, middleware=[sees]) as app:
        add = add_task(app, group_by="a")
        plain = add_task(app, "plain")
        plain.send_many([(1,), (2,)])
        plain.with_options(group="acme").send(1)
        add.send_many([(1,), (1,)])
        add.send_many([(1,), (2,)])
        app.workflow("sums", [plain.node()(1)]).start(group="run")
        with pytest.raises(AttributeError):
            Outgoing("a", ["id"], "default", {}).group = "x"  # type: ignore[misc]
    assert sees.seen == [
        (None, [None, None]), ("acme", ["acme"]), ("1", ["1", "1"]), (None, ["1", "2"]), ("run", ["run"]),
    ]  # fmt: skip


def test_the_context_of_a_task_has_its_group() -> None:
    made: dict[str, Any] = {
        "task_id": "t", "task_name": "t", "attempt": 1, "deadline": None, "fencing_token": 1,
    }  # fmt: skip
    assert TaskContext(**made).group is None
    assert TaskContext(**made, group="acme").group == "acme"
