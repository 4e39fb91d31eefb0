"""The health file on a real file system: whose it is, and what it never does."""

import os
from pathlib import Path

import pytest

from horsies_worker import health
from horsies_worker.health import HealthError, HealthFile, default_health_file, read_mark, write_mark


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files in which other users can make files as well."""
    monkeypatch.delenv(health.VARIABLE, raising=False)
    monkeypatch.setattr(health.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_the_default_lies_in_a_private_directory(shared: Path) -> None:
    worker, scheduler = default_health_file(), default_health_file("scheduler")
    assert worker != scheduler
    write_mark(worker)
    assert worker.parent.parent == shared
    assert worker.parent.stat().st_mode & 0o777 == 0o700
    pid, age = read_mark(worker)
    assert pid == os.getpid()
    assert age < 60
    with pytest.raises(FileNotFoundError):
        read_mark(scheduler)


def test_a_link_at_its_name_is_replaced_and_not_followed(shared: Path) -> None:
    victim, file = shared / "victim", shared / "mark"
    victim.write_text("precious")
    file.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        read_mark(file)
    write_mark(file)
    assert victim.read_text() == "precious"
    assert not file.is_symlink()
    assert read_mark(file)[0] == os.getpid()


@pytest.mark.parametrize("how", ["link", "writable", "file"])
def test_a_directory_that_is_not_ours_alone_is_refused(shared: Path, how: str) -> None:
    directory = default_health_file().parent
    elsewhere = shared / "elsewhere"
    elsewhere.mkdir()
    if how == "link":
        directory.symlink_to(elsewhere)
    elif how == "writable":
        directory.mkdir()
        directory.chmod(0o777)
    else:
        directory.write_text("")
    with pytest.raises((HealthError, OSError)):
        write_mark(default_health_file())
    with pytest.raises((HealthError, OSError)):
        read_mark(default_health_file())
    assert not list(elsewhere.iterdir())


def test_a_file_that_cannot_be_written_is_tried_again(
    shared: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once when that begins, and once when it is over; for each of two outages."""
    monkeypatch.setattr(health, "TOUCH_EVERY_S", 0.0)
    file = HealthFile(shared / "gone" / "mark")
    for outage in (1, 2):
        for _ in range(3):
            file.touch()
        assert caplog.text.count("cannot be written") == outage
        (shared / "gone").mkdir()
        for _ in range(3):
            file.touch()
        assert read_mark(shared / "gone" / "mark")[0] == os.getpid()
        assert caplog.text.count("is written again") == outage
        (shared / "gone" / "mark").unlink()
        (shared / "gone").rmdir()


def test_a_failed_write_leaves_nothing_behind(shared: Path) -> None:
    (shared / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_mark(shared / "directory")
    assert [path.name for path in shared.iterdir()] == ["directory"]


def test_the_variable_gives_each_process_its_own_file(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(health.VARIABLE, str(shared / "mark"))
    assert default_health_file() == shared / "mark"
    assert default_health_file("scheduler") == shared / "mark-scheduler"


def test_something_else_at_its_name_is_not_a_mark(shared: Path) -> None:
    for make in (lambda path: path.mkdir(), os.mkfifo, lambda path: path.write_text("hello")):
        path = shared / f"odd{len(list(shared.iterdir()))}"
        make(path)
        with pytest.raises((HealthError, OSError)):
            read_mark(path)


def test_the_file_is_touched_while_it_is_its_own_and_written_otherwise(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "TOUCH_EVERY_S", 0.0)
    path, elsewhere = shared / "mark", shared / "elsewhere"
    file = HealthFile(path)
    file.touch()
    first = path.lstat()
    while path.lstat().st_mtime_ns == first.st_mtime_ns:  # the clock of a file system is coarse
        file.touch()
    assert path.lstat().st_ino == first.st_ino
    elsewhere.write_text("another user's")
    path.unlink()
    path.symlink_to(elsewhere)
    file.touch()
    assert not path.is_symlink()
    assert read_mark(path)[0] == os.getpid()
    assert elsewhere.read_text() == "another user's"
