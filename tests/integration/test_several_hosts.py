"""A URL with several hosts: those that say nothing, or no, do not hide the one that answers."""

import socket
from collections.abc import Iterator

import asyncpg
import pytest

from horsies import PostgresConfig
from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from tests.support.chaosproxy import ChaosProxy
from tests.support.postgres import Database


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that accepts connections and never answers, as the kernel does for a frozen server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def proxy(db: Database) -> Iterator[ChaosProxy]:
    with ChaosProxy(db.url) as made:
        yield made


def behind(proxy: ChaosProxy, *hosts: str, **more: int) -> dict[str, object]:
    """Arguments for a URL that has these hosts in front of the real one."""
    account, _, place = proxy.url.removeprefix("postgresql://").partition("@")
    return connect_arguments(PostgresConfig(f"postgresql://{account}@{','.join((*hosts, place))}", **more))


@pytest.mark.parametrize("count", [1, 2])
async def test_silent_hosts_come_first(proxy: ChaosProxy, silent: str, count: int) -> None:
    """asyncpg alone would spend the whole time on the first one, at every attempt, for as long as it is frozen."""
    connection = await connect(behind(proxy, *[silent] * count))
    try:
        assert await connection.fetchval("SELECT 1") == 1
    finally:
        await connection.close()


async def test_a_closed_host_comes_first(proxy: ChaosProxy, closed: str) -> None:
    connection = await connect(behind(proxy, closed))
    await connection.close()


async def test_only_silent_hosts(silent: str) -> None:
    url = f"postgresql://nobody@{silent},{silent}/db"
    with pytest.raises(TimeoutError, match=rf"{silent}, {silent} has not answered within 600 ms"):
        await connect(connect_arguments(PostgresConfig(url, connect_timeout_ms=600)))


async def test_a_silent_host_beside_closed_ones(silent: str, closed: str) -> None:
    """It gets its share of the time and not all of it: who leads is asked again soon."""
    url = f"postgresql://nobody@{closed},{silent},{closed}/db"
    with pytest.raises(TimeoutError, match=r"Connect call failed .*; 1 host has not answered within 500 ms"):
        await connect(connect_arguments(PostgresConfig(url, connect_timeout_ms=1_500)))


async def test_only_closed_hosts(closed: str) -> None:
    with pytest.raises(OSError, match="Connect call failed"):
        await connect(connect_arguments(PostgresConfig(f"postgresql://nobody@{closed},{closed}/db")))


async def test_a_refusal_is_final(proxy: ChaosProxy, silent: str) -> None:
    arguments = behind(proxy, silent)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await connect({**arguments, "database": "no_such_database"})
