"""Snippets that are no programs of their own run inside what their pages take for granted."""

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, testing
from tests.support.apps import app_on
from tests.support.postgres import Database
from tests.support.snippets import code_of

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
USUAL = "from datetime import timedelta\nfrom horsies import *\n"


def run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a snippet in these names, to which its own are added."""
    exec(compile(code, "snippet", "exec"), names)
    return names


async def run_async(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """The same with `await` at the top."""
    found = eval(compile(code, "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(found):
        await found
    return names


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the pages take for granted: an app, and the names of horsies."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", NOWHERE)
    return run(USUAL + "app = Horsies(AppConfig(PostgresConfig()))", {"__name__": "snippet"})


@pytest.mark.runs("docs/guides/changing-workflows.md", "python untitled")
@pytest.mark.runs("docs/guides/batch-tasks.md", "python untitled")
@pytest.mark.runs("docs/guides/limits.md", "python untitled")
@pytest.mark.runs("docs/moving/from-horsies-0.md", "python untitled")
@pytest.mark.runs("docs/reference/configuration.md", "python untitled")
@pytest.mark.parametrize(
    "page", ["guides/changing-workflows", "guides/batch-tasks", "guides/limits", "moving/from-horsies-0",
             "reference/configuration"],
)  # fmt: skip
def test_definitions(names: dict[str, Any], page: str) -> None:
    found = code_of(f"docs/{page}.md", "python untitled")
    assert found
    for code in found:
        # each block is of an app of its own, with the queues that it names
        queues = ", ".join(f"CustomQueueConfig('{name}')" for name in re.findall(r'queue_name="(\w+)"', code))
        config = f"queue_mode=QueueMode.CUSTOM, custom_queues=[{queues}]" if queues else ""
        run(f"app = Horsies(AppConfig(PostgresConfig(), {config}))\n{code}", names)


@pytest.mark.runs("docs/guides/workers.md", "python untitled")
def test_a_lifespan(names: dict[str, Any]) -> None:
    opened: list[str] = []

    class Pool:
        def __init__(self, url: str) -> None:
            opened.append(url)

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *exc: object) -> None:
            opened.append("closed")

    (code,) = code_of("docs/guides/workers.md", "python untitled")
    run("from collections.abc import Iterator", names)
    run(code, {**names, "Pool": Pool, "URL": "the url"})
    app = names["app"]

    @app.task("ask")
    def ask() -> TaskResult[bool, TaskError]:
        return TaskResult(ok=bool(opened))

    with testing.inline(app):
        assert ask.send().get().unwrap()
    assert opened[:1] == ["the url"]


def _orders(db: Database) -> Callable[[], list[tuple[Any, ...]]]:
    db.execute("CREATE TABLE orders (id int)")
    return lambda: db.execute(
        "SELECT task_name, kwargs, queue_name, unique_key FROM horsies_tasks ORDER BY sent_at, id"
    )


@pytest.mark.runs("docs/guides/sending.md", "python untitled")
def test_sending(db: Database) -> None:
    in_transaction, many, declared = code_of("docs/guides/sending.md", "python untitled")
    rows = _orders(db)
    engine = create_engine(db.url.replace("postgresql://", "postgresql+psycopg://"))
    with app_on(db) as app:
        names = run(USUAL, {"app": app, "engine": engine, "Session": Session})
        for name in ("send_receipt", "ship", "remind"):
            run(f"@app.task('{name}')\ndef {name}(order_id: int) -> TaskResult[None, TaskError]: ...", names)
        order = SimpleNamespace(id=7, tenant="acme")

        class Adding(Session):
            def add(self, instance: object, _warn: bool = True) -> None:
                self.execute(text("INSERT INTO orders VALUES (7)"))

        run(in_transaction, {**names, "order": order, "Session": Adding})
        assert db.value("SELECT count(*) FROM orders") == 1
        assert [row[0] for row in rows()] == ["send_receipt"]
        run(many, names | {"order": order})
        assert sorted((row[0], row[3]) for row in rows()[1:]) == [
            ("remind", None), ("send_receipt", None), ("ship", "order-7"),
        ]  # fmt: skip
    engine.dispose()
    queues = "AppConfig(PostgresConfig(url), queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig('mail')])"
    names = run(f"{USUAL}app = Horsies({queues})", {"url": db.url})
    with names["app"]:
        run(declared, names)
    assert ("send_receipt", '{"order_id":42}', "mail", None) in rows()


@pytest.mark.runs("docs/moving/from-celery.md", "python untitled")
def test_a_switch_between_two_queues(db: Database) -> None:
    (code,) = code_of("docs/moving/from-celery.md", "python untitled")
    delayed: list[int] = []
    with app_on(db) as app, Session(create_engine(db.url.replace("postgresql://", "postgresql+psycopg://"))) as session:

        @app.task("send_receipt")
        def send_receipt(order_id: int) -> TaskResult[None, TaskError]: ...

        settings = SimpleNamespace(RECEIPTS_BY_HORSIES=False)
        old = SimpleNamespace(send_receipt=SimpleNamespace(delay=delayed.append))
        new = SimpleNamespace(send_receipt=send_receipt)
        names = run(code, {"settings": settings, "celery_tasks": old, "tasks": new})
        names["send_the_receipt"](session, 1)
        settings.RECEIPTS_BY_HORSIES = True
        names["send_the_receipt"](session, 2)
        session.commit()
        session.get_bind().dispose()  # type: ignore[union-attr]
    assert delayed == [1]
    assert db.execute("SELECT kwargs FROM horsies_tasks") == [('{"order_id":2}',)]


@pytest.mark.runs("docs/moving/from-other-queues.md", "sql")
def test_jobs_of_procrastinate_become_tasks(db: Database) -> None:
    (code,) = code_of("docs/moving/from-other-queues.md", "sql")
    db.execute(
        "CREATE TABLE procrastinate_jobs (status text, task_name text, args jsonb, scheduled_at timestamptz, lock text)"
    )
    add = "INSERT INTO procrastinate_jobs VALUES (%s, 'accounts.sync_account', %s, NULL, %s)"
    db.execute(add, "todo", '{"account_id": 42}', "account-42")
    db.execute(add, "doing", "{}", None)
    db.execute(code)
    sent = db.execute("SELECT task_name, kwargs, queue_name, group_key FROM horsies_tasks")
    assert sent == [("sync_account", '{"account_id": 42}', "accounts", "account-42")]
    assert db.execute("SELECT status FROM procrastinate_jobs") == [("doing",)]


@pytest.mark.runs("docs/guides/retries.md", "python untitled")
@pytest.mark.runs("docs/reference/cli.md", "python untitled")
async def test_operators_in_code(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import factories

    monkeypatch.setenv("HORSIES_DATABASE_URL", db.url)
    factories.task(db, "FAILED", queue_name="mail")
    mapped, quarantine = code_of("docs/guides/retries.md", "python untitled")
    names = run(mapped, {"__name__": "snippet"})
    async with names["app"]:
        await run_async(quarantine, names)
    (tidy,) = code_of("docs/reference/cli.md", "python untitled")
    async with Horsies(AppConfig(PostgresConfig(db.url))) as app:
        await run(tidy, {"__name__": "snippet"})["tidy"](app)
    assert db.execute("SELECT status FROM horsies_tasks") == [("PENDING",)]


@pytest.mark.runs("docs/guides/scheduling.md", "python titled")
def test_schedules_as_data(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", db.url)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "schedules", raising=False)
    schedules, orders = code_of("docs/guides/scheduling.md", "python titled")
    (tmp_path / "schedules.py").write_text(schedules)
    names = run(orders, {})
    names["app"].close()
    assert capsys.readouterr().out.startswith("report:acme ")
    assert db.value("SELECT count(*) FROM horsies_schedule_state WHERE schedule_name = 'report:acme'") == 0


@pytest.mark.runs("packages/horsies-schema/README.md", "python untitled")
def test_an_embedded_server(tmp_path: Path) -> None:
    (code,) = code_of("packages/horsies-schema/README.md", "python untitled")
    environment = {**os.environ, "HORSIES_EMBEDDED_DIR": str(tmp_path / "postgres")}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout.startswith("postgresql://"), ran.stderr


BANK = """
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
import asyncpg
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from horsies import *
from horsies.context import TaskContext

class Base(DeclarativeBase): ...
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
"""
BY_THEMSELVES = """
app = Horsies(AppConfig(PostgresConfig(url)))

@app.task("by_session")
def by_session(order_id: int) -> TaskResult[int, TaskError]:
    engine, order = create_engine(sql_url), Order(id=order_id)
    try:
{by_session}
    finally:
        engine.dispose()

@app.task("by_asyncpg")
async def by_asyncpg(order_id: int) -> TaskResult[int, TaskError]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
{by_asyncpg}

@app.task("by_django")
def by_django(order_id: int) -> TaskResult[int, TaskError]:
    order = DjangoOrder(order_id)
    try:
{by_django}
    finally:
        connection.close()
"""
ALL_AT_ONCE = """
session: ContextVar[Session] = ContextVar("session")
engine = SimpleNamespace(value=create_engine(sql_url))
app = Horsies(AppConfig(PostgresConfig(url), middleware=[Transactional()]))

@app.task("by_middleware")
def by_middleware(order_id: int) -> TaskResult[int, TaskError]:
    session.get().add(Order(id=order_id))
    return TaskResult(ok=order_id)
"""


@pytest.mark.runs("docs/guides/exactly-once.md", "python untitled")
def test_ways_to_complete_a_task(db: Database) -> None:
    from tests.support.roads import django_road

    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    *by_themselves, middleware = code_of("docs/guides/exactly-once.md", "python untitled")
    by_session, by_asyncpg, by_django = (textwrap.indent(code, " " * 8) for code in by_themselves)
    urls = {"url": db.url, "sql_url": db.url.replace("postgresql://", "postgresql+psycopg://"), "__name__": "bank"}

    class DjangoOrder:
        def __init__(self, pk: int) -> None:
            self.pk = pk

        def save(self) -> None:
            from django.db import connection

            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES (%s)", [self.pk])

    with django_road(db.url):
        names = run(BANK, {**urls, "DjangoOrder": DjangoOrder})
        run(BY_THEMSELVES.format(by_session=by_session, by_asyncpg=by_asyncpg, by_django=by_django), names)
        with testing.real(names["app"], in_place=True) as opened:
            sent = [
                names[name].send(number) for number, name in enumerate(("by_session", "by_asyncpg", "by_django"), 1)
            ]
            opened.drain()
            assert [handle.get(1_000).unwrap() for handle in sent] == [1, 2, 3]
        names["app"].close()
    names = run(f"{BANK}{middleware}{ALL_AT_ONCE}", dict(urls))
    with testing.real(names["app"], in_place=True) as opened:
        handle = names["by_middleware"].send(4)
        opened.drain()
        assert handle.get(1_000).unwrap() == 4
    names["app"].close()
    names["engine"].value.dispose()
    assert db.execute("SELECT id FROM orders ORDER BY id") == [(1,), (2,), (3,), (4,)]


# What stands before the code of a program that uses the module of the worker.
USING = """import asyncio
from module import *
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

engine = create_engine(app.config.broker.database_url.replace("postgresql://", "postgresql+psycopg://"))
session = Session(engine)
"""


@pytest.mark.runs("README.md", "python untitled")
@pytest.mark.runs("packages/horsies-client/README.md", "python untitled")
@pytest.mark.runs("docs/guides/batches.md", "python untitled")
def test_the_readme_and_the_guide_to_batches(db: Database, tmp_path: Path) -> None:
    from tests.support.workers import WorkerProcess, ended

    definition, sends = code_of("README.md", "python untitled")
    (client,) = code_of("packages/horsies-client/README.md", "python untitled")
    batches, started = code_of("docs/guides/batches.md", "python untitled")[0].split("\n\n\nbatch = ")
    thumbnail = "return TaskResult(ok=f'thumbnail {picture}')"
    batches = batches.replace(
        "(picture: int) -> TaskResult[str, TaskError]: ...",
        f"(picture: int) -> TaskResult[str, TaskError]: {thumbnail}",
    )
    address = "postgresql://user@host/database"
    # the README shows verbs for both worlds in one block: those of the other one get a loop of their own
    sends = re.sub(r"^await (.*?)  #", r"asyncio.run(\1)  #", sends, flags=re.M)
    for name, code in {
        "module.py": f"{definition}\n{batches}".replace(address, db.url),
        "client.py": f"{client.replace(address, db.url)}\nprint(result)\n",
        "sends.py": f"{USING}{sends}\nsession.commit()\n",
        "batch.py": f"{USING}batch = {started}\nprint(batch.get(1_000).unwrap(), result.unwrap())\n",
    }.items():
        (tmp_path / name).write_text(code)
    command = [sys.executable, "-m", "horsies_worker", "module:app", "--processes=1", "--health-file=health"]
    with ended(WorkerProcess(command, dict(os.environ), tmp_path, cwd=tmp_path)) as worker:
        worker.wait_up()
        said = [
            subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            for script in ("client.py", "sends.py", "batch.py")
        ]
    assert [ran.stdout for ran in said] == [
        "TaskResult(ok='receipt of order 42')\n",
        "receipt of order 42\n",
        "album: 200 of 200 pictures, 0 failed thumbnail 199\n",
    ], said
