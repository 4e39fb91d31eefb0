"""Every kind of connection that a caller may hand to `connection=`, each with its own way to begin and end a
transaction. A `Road` hides that difference, and whether the library is asynchronous, so that one test is
the same for all of them.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import asyncpg
import django
import django.conf
import psycopg
import psycopg.rows
import psycopg2
import psycopg2.extras
import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_async
from sqlalchemy.orm import Session, scoped_session, sessionmaker


@dataclass(frozen=True, slots=True)
class Road:
    """`connection` is what horsies is given; the rest is how its owner uses it."""

    connection: Any
    begin: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    execute: Callable[[str], Any]
    runner: asyncio.Runner | None = None

    def call(self, sender: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        """`sender.verb(...)` on this connection, or its `_async` twin where the library is asynchronous."""
        if self.runner is None:
            return getattr(sender, verb)(*args, **kwargs)
        return self.runner.run(getattr(sender, f"{verb}_async")(*args, **kwargs))


Opener = Callable[[str], AbstractContextManager[Road]]


def nothing() -> None:
    """For libraries that begin a transaction by themselves."""


# -- asyncpg -------------------------------------------------------------------------------------


def _asyncpg_road(runner: asyncio.Runner, connection: Any) -> Road:
    transaction: list[Any] = []

    async def begin() -> None:
        transaction.append(connection.transaction())
        await transaction[-1].start()

    async def commit() -> None:
        await transaction.pop().commit()

    async def rollback() -> None:
        await transaction.pop().rollback()

    return _on_loop(runner, connection, begin, commit, rollback, connection.execute)


def _on_loop(runner: asyncio.Runner, connection: Any, begin: Any, commit: Any, rollback: Any, execute: Any) -> Road:
    def blocking(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            outcome = function(*args)
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        return lambda *args: runner.run(call(*args))

    return Road(connection, blocking(begin), blocking(commit), blocking(rollback), blocking(execute), runner)


@contextmanager
def asyncpg_connection(url: str, **settings: Any) -> Iterator[Road]:
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url, **settings))
        try:
            yield _asyncpg_road(runner, connection)
        finally:
            runner.run(connection.close())


@contextmanager
def asyncpg_pooled(url: str) -> Iterator[Road]:
    with asyncio.Runner() as runner:

        async def open_pool() -> asyncpg.Pool:
            return await asyncpg.create_pool(url, min_size=1, max_size=1)

        async def acquire() -> Any:
            return await pool.acquire()

        pool = runner.run(open_pool())
        connection = runner.run(acquire())
        try:
            yield _asyncpg_road(runner, connection)
        finally:
            runner.run(pool.release(connection))
            runner.run(pool.close())


Codec = tuple[str, Callable[[Any], Any], Callable[[Any], Any]]
JSON_CODECS: Final[Sequence[Codec]] = (("json", json.dumps, json.loads), ("jsonb", json.dumps, json.loads))


class OwnTime:
    """A value of a library for times, whose codec takes no other."""

    def __init__(self, text: str) -> None:
        self.text = text


TIME_CODECS: Final[Sequence[Codec]] = tuple(
    (name, lambda own: own.text, OwnTime) for name in ("timestamptz", "timestamp", "interval")
)


async def _set_codecs(connection: Any, codecs: Iterable[Codec]) -> None:
    for name, encoder, decoder in codecs:
        await connection.set_type_codec(name, schema="pg_catalog", encoder=encoder, decoder=decoder)


@contextmanager
def asyncpg_codecs(url: str, codecs: Iterable[Codec]) -> Iterator[Road]:
    with asyncpg_connection(url) as road:
        assert road.runner is not None
        road.runner.run(_set_codecs(road.connection, codecs))
        yield road


class NamedRecord(asyncpg.Record):
    def __getattr__(self, name: str) -> Any:
        return self[name]


# -- psycopg and psycopg2 ------------------------------------------------------------------------


@contextmanager
def psycopg_sync(url: str, **settings: Any) -> Iterator[Road]:
    with psycopg.connect(url, **settings) as connection:
        yield Road(connection, nothing, connection.commit, connection.rollback, connection.execute)


@contextmanager
def psycopg_async(url: str, **settings: Any) -> Iterator[Road]:
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(url, **settings))
        try:
            yield _on_loop(runner, connection, nothing, connection.commit, connection.rollback, connection.execute)
        finally:
            runner.run(connection.close())


@contextmanager
def psycopg_pipeline(url: str) -> Iterator[Road]:
    """In pipeline mode a statement is sent, and its answer arrives when a later call needs it."""
    with psycopg_sync(url) as road, road.connection.pipeline():
        yield road


@contextmanager
def psycopg_async_pipeline(url: str) -> Iterator[Road]:
    with psycopg_async(url) as road:
        assert road.runner is not None
        pipeline = road.connection.pipeline()
        road.runner.run(pipeline.__aenter__())
        try:
            yield road
        finally:
            road.runner.run(pipeline.__aexit__(None, None, None))


@contextmanager
def psycopg_autocommit(url: str) -> Iterator[Road]:
    """Autocommit with explicit transactions: `with connection.transaction(): ...`."""
    with psycopg.connect(url, autocommit=True) as connection:
        block: list[Any] = []

        def begin() -> None:
            block.append(connection.transaction())
            block[-1].__enter__()

        def commit() -> None:
            block.pop().__exit__(None, None, None)

        def rollback() -> None:
            block.pop().__exit__(psycopg.Rollback, psycopg.Rollback(), None)

        yield Road(connection, begin, commit, rollback, connection.execute)


@contextmanager
def psycopg_async_autocommit(url: str) -> Iterator[Road]:
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(url, autocommit=True))
        block: list[Any] = []

        async def begin() -> None:
            block.append(connection.transaction())
            await block[-1].__aenter__()

        async def commit() -> None:
            await block.pop().__aexit__(None, None, None)

        async def rollback() -> None:
            await block.pop().__aexit__(psycopg.Rollback, psycopg.Rollback(), None)

        try:
            yield _on_loop(runner, connection, begin, commit, rollback, connection.execute)
        finally:
            runner.run(connection.close())


@contextmanager
def psycopg2_road(url: str, **settings: Any) -> Iterator[Road]:
    connection = psycopg2.connect(url, **settings)

    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    try:
        yield Road(connection, nothing, connection.commit, connection.rollback, execute)
    finally:
        connection.close()


# -- SQLAlchemy ----------------------------------------------------------------------------------


@contextmanager
def _engine(url: str, driver: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername=f"postgresql+{driver}"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _async_engine(url: str, driver: str) -> Iterator[tuple[asyncio.Runner, sqlalchemy_async.AsyncEngine]]:
    with asyncio.Runner() as runner:
        engine = sqlalchemy_async.create_async_engine(sqlalchemy.make_url(url).set(drivername=f"postgresql+{driver}"))
        try:
            yield runner, engine
        finally:
            runner.run(engine.dispose())


@contextmanager
def sqlalchemy_session(url: str, driver: str) -> Iterator[Road]:
    with _engine(url, driver) as engine, Session(engine) as session:
        yield Road(
            session, nothing, session.commit, session.rollback, lambda sql: session.execute(sqlalchemy.text(sql))
        )


@contextmanager
def sqlalchemy_scoped_session(url: str, driver: str) -> Iterator[Road]:
    with _engine(url, driver) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            yield Road(
                session, nothing, session.commit, session.rollback, lambda sql: session.execute(sqlalchemy.text(sql))
            )
        finally:
            session.remove()


@contextmanager
def sqlalchemy_connection(url: str, driver: str) -> Iterator[Road]:
    with _engine(url, driver) as engine, engine.connect() as connection:
        yield Road(connection, nothing, connection.commit, connection.rollback, connection.exec_driver_sql)


@contextmanager
def sqlalchemy_async_session(url: str, driver: str) -> Iterator[Road]:
    with _async_engine(url, driver) as (runner, engine):
        session = sqlalchemy_async.AsyncSession(engine)
        try:
            yield _on_loop(
                runner,
                session,
                nothing,
                session.commit,
                session.rollback,
                lambda sql: session.execute(sqlalchemy.text(sql)),
            )
        finally:
            runner.run(session.close())


@contextmanager
def sqlalchemy_async_scoped_session(url: str, driver: str) -> Iterator[Road]:
    with _async_engine(url, driver) as (runner, engine):
        session = sqlalchemy_async.async_scoped_session(
            sqlalchemy_async.async_sessionmaker(engine), scopefunc=lambda: "request"
        )
        try:
            yield _on_loop(
                runner,
                session,
                nothing,
                session.commit,
                session.rollback,
                lambda sql: session.execute(sqlalchemy.text(sql)),
            )
        finally:
            runner.run(session.remove())


@contextmanager
def sqlalchemy_codecs(url: str, codecs: Iterable[Codec]) -> Iterator[Road]:
    with sqlalchemy_async_connection(url, "asyncpg") as road:
        assert road.runner is not None

        async def set_codecs() -> None:
            fairy = await road.connection.get_raw_connection()
            await _set_codecs(fairy.driver_connection, codecs)

        road.runner.run(set_codecs())
        yield road


@contextmanager
def sqlalchemy_async_connection(url: str, driver: str) -> Iterator[Road]:
    with _async_engine(url, driver) as (runner, engine):
        connection = sqlalchemy_async.AsyncConnection(engine)
        runner.run(_started(connection))
        try:
            yield _on_loop(
                runner, connection, nothing, connection.commit, connection.rollback, connection.exec_driver_sql
            )
        finally:
            runner.run(connection.close())


async def _started(connection: sqlalchemy_async.AsyncConnection) -> None:
    await connection.start()


# -- Django --------------------------------------------------------------------------------------


def _django_settings(url: str) -> dict[str, Any]:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{key: str(parts[name]) for key, name in names.items() if parts.get(name)},
    }


@contextmanager
def django_road(url: str, *, by_alias: bool = False, options: Mapping[str, Any] | None = None) -> Iterator[Road]:
    """The real `django.db.connection`, pointed at this test's database."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={"default": _django_settings(url)}, USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    from django.db import connection, connections, transaction

    for former in connections.all(initialized_only=True):  # code that ran after an earlier test has opened it again
        former.close()
        del connections[former.alias]
    connections.settings["default"] = connections.configure_settings(
        {"default": {**_django_settings(url), "OPTIONS": dict(options or {})}}
    )["default"]
    block: list[Any] = []

    def begin() -> None:
        block.append(transaction.atomic())
        block[-1].__enter__()

    def commit() -> None:
        block.pop().__exit__(None, None, None)

    def rollback() -> None:
        transaction.set_rollback(True)
        block.pop().__exit__(None, None, None)

    def execute(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    try:
        yield Road(connections["default"] if by_alias else connection, begin, commit, rollback, execute)
    finally:
        connection.close()
        del connections["default"]


@contextmanager
def django_pipeline(url: str) -> Iterator[Road]:
    with django_road(url) as road:
        road.connection.ensure_connection()

        def begin() -> None:
            road.begin()  # Django leaves autocommit, which psycopg allows outside of a pipeline only
            pipelines.append(road.connection.connection.pipeline())
            pipelines[-1].__enter__()

        def ended(end: Callable[[], None]) -> Callable[[], None]:
            def leave() -> None:
                pipelines.pop().__exit__(None, None, None)
                end()

            return leave

        pipelines: list[Any] = []
        yield replace(road, begin=begin, commit=ended(road.commit), rollback=ended(road.rollback))


ROADS: Final[Mapping[str, Opener]] = {
    "asyncpg": asyncpg_connection,
    "asyncpg, pooled": asyncpg_pooled,
    "asyncpg, record_class": partial(asyncpg_connection, record_class=NamedRecord),
    "asyncpg, no statement cache": partial(asyncpg_connection, statement_cache_size=0),
    "asyncpg, codecs for JSON": partial(asyncpg_codecs, codecs=JSON_CODECS),
    "asyncpg, codecs for times": partial(asyncpg_codecs, codecs=TIME_CODECS),
    "psycopg": psycopg_sync,
    "psycopg, dict_row": partial(psycopg_sync, row_factory=psycopg.rows.dict_row),
    "psycopg, ClientCursor": partial(psycopg_sync, cursor_factory=psycopg.ClientCursor),
    "psycopg, RawCursor": partial(psycopg_sync, cursor_factory=psycopg.RawCursor),
    "psycopg, autocommit": psycopg_autocommit,
    "psycopg, pipeline": psycopg_pipeline,
    "psycopg async": psycopg_async,
    "psycopg async, dict_row": partial(psycopg_async, row_factory=psycopg.rows.dict_row),
    "psycopg async, AsyncRawCursor": partial(psycopg_async, cursor_factory=psycopg.AsyncRawCursor),
    "psycopg async, autocommit": psycopg_async_autocommit,
    "psycopg async, pipeline": psycopg_async_pipeline,
    "psycopg2": psycopg2_road,
    "psycopg2, RealDictCursor": partial(psycopg2_road, cursor_factory=psycopg2.extras.RealDictCursor),
    "psycopg2, RealDictConnection": partial(psycopg2_road, connection_factory=psycopg2.extras.RealDictConnection),
    "Session on psycopg": partial(sqlalchemy_session, driver="psycopg"),
    "Session on psycopg2": partial(sqlalchemy_session, driver="psycopg2"),
    "scoped_session on psycopg": partial(sqlalchemy_scoped_session, driver="psycopg"),
    "scoped_session on psycopg2": partial(sqlalchemy_scoped_session, driver="psycopg2"),
    "Connection on psycopg": partial(sqlalchemy_connection, driver="psycopg"),
    "Connection on psycopg2": partial(sqlalchemy_connection, driver="psycopg2"),
    "AsyncSession on asyncpg": partial(sqlalchemy_async_session, driver="asyncpg"),
    "AsyncSession on psycopg": partial(sqlalchemy_async_session, driver="psycopg"),
    "async_scoped_session on asyncpg": partial(sqlalchemy_async_scoped_session, driver="asyncpg"),
    "AsyncConnection on asyncpg": partial(sqlalchemy_async_connection, driver="asyncpg"),
    "AsyncConnection on asyncpg, codecs": partial(sqlalchemy_codecs, codecs=(*JSON_CODECS, *TIME_CODECS)),
    "AsyncConnection on psycopg": partial(sqlalchemy_async_connection, driver="psycopg"),
    "Django": django_road,
    "Django, by alias": partial(django_road, by_alias=True),
    "Django, pipeline": django_pipeline,
    "Django, server-side binding": partial(django_road, options={"server_side_binding": True}),
}
