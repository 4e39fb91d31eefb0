"""Embedded servers whose processes are killed, one by one and together: no data is lost, nobody is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from horsies_schema import embedded
from horsies_schema.embedded import binaries, layout
from tests.support.embedding import (
    User,
    keeper_of,
    linux_only,
    postmaster_of,
    processes,
    query,
    server_identity,
)
from tests.support.waiting import eventually


def test_kill_9_of_the_postmaster_loses_no_data_and_leaves_no_backend(place: Path) -> None:
    url = f"embedded://{place}/db"
    real = embedded.resolve(url)
    query(real, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
    busy = subprocess.Popen(
        [binaries.locate(None) / "psql", real, "-c", "SELECT count(*) FROM generate_series(1, 1e12)"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    backends = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND pid <> pg_backend_pid()"
    backend = eventually(lambda: query(real, backends))
    postmaster_of(place / "db").kill()
    assert embedded.resolve(url) == real, "the same call brings the server back"
    assert query(real, "SELECT n FROM kept") == 42
    busy.wait(10)
    if sys.platform == "linux":
        assert not psutil.pid_exists(int(str(backend)))


@linux_only
def test_kill_9_of_the_keeper_takes_the_server_along_and_the_next_start_recovers(place: Path) -> None:
    with embedded.start(place / "db") as server:
        query(server.url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
        keeper_of(place / "db").kill()
        with embedded.start(place / "db") as again:
            assert query(again.url, "SELECT n FROM kept") == 42
    eventually(lambda: not processes(place / "db"))


def test_kill_9_of_keeper_and_postmaster_together(place: Path) -> None:
    with embedded.start(place / "db") as server:
        query(server.url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
        postmaster = postmaster_of(place / "db")
        keeper_of(place / "db").kill()
        postmaster.kill()
        with embedded.start(place / "db") as again:
            assert query(again.url, "SELECT n FROM kept") == 42


def test_a_postmaster_without_a_keeper_is_stopped_and_replaced(place: Path) -> None:
    with embedded.start(place / "db") as server:
        query(server.url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
        binary = server.bin_dir / "postgres"
    data = place / "db" / "data"
    orphan = subprocess.Popen(
        [binary, "-D", data, "-c", "listen_addresses=", "-c", f"unix_socket_directories={data}"],
        cwd="/",
        stderr=subprocess.DEVNULL,
        **server_identity(),  # type: ignore[arg-type]
    )
    eventually(lambda: layout.Layout(place / "db").running())
    with embedded.start(place / "db") as server:
        assert orphan.wait(10) == 0, "a clean shutdown"
        assert query(server.url, "SELECT n FROM kept") == 42


def test_a_stale_pid_file_that_names_a_living_stranger(place: Path) -> None:
    with embedded.start(place / "db") as server:
        postmaster = postmaster_of(place / "db")
        keeper = keeper_of(place / "db")
        lines = (place / "db" / "data" / "postmaster.pid").read_text().splitlines()
        keeper.kill()
        postmaster.kill()
    eventually(lambda: not processes(place / "db"))
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **server_identity())  # type: ignore[call-overload]
    try:
        lines[0] = str(stranger.pid)
        (place / "db" / "data" / "postmaster.pid").write_text("\n".join(lines) + "\n")
        with embedded.start(place / "db") as server:
            assert query(server.url, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@linux_only
def test_a_keeper_killed_during_initdb_leaves_a_draft_that_is_thrown_away(place: Path) -> None:
    user = User(place / "db")
    eventually(lambda: any((place / "db").glob("init-*/data/*")))
    keeper_of(place / "db").kill()
    user.process.communicate(timeout=60)
    assert user.process.returncode != 0
    eventually(lambda: not processes(place / "db"))
    assert not (place / "db" / "data").exists()
    assert list((place / "db").glob("init-*"))
    with embedded.start(place / "db") as server:
        assert query(server.url, "SELECT 1") == 1
    assert not list((place / "db").glob("init-*"))


TEMPORARY = """
import sys
from horsies_schema import embedded
server = embedded.start(sys.argv[1], temporary=True)
print(server.url, flush=True)
sys.stdin.read()
"""


def test_a_temporary_directory_ends_with_its_last_user_and_can_be_used_again(place: Path) -> None:
    first, second = User(place / "db", TEMPORARY), User(place / "db", TEMPORARY)
    url = first.says()
    assert second.says() == url
    query(url, "CREATE TABLE gone ()")
    second.end()
    assert query(url, "SELECT 1") == 1
    first.kill()
    with embedded.start(place / "db", temporary=True) as server:  # while the keeper stops the first one
        assert query(server.url, "SELECT count(*) FROM pg_tables WHERE tablename = 'gone'") == 0
    assert not list(place.glob("db*"))
