"""Children die within a second of their parent, in user code, in C code and while idle."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pools import APP, is_running
from tests.support.waiting import eventually


def start_parent(app: str, task: str, **kwargs: object) -> tuple["subprocess.Popen[str]", list[int]]:
    command = [sys.executable, "-m", "tests.support.pool_parent", app, task, json.dumps(kwargs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    return process, [pids["template"], *pids["children"]]


def gone_within_a_second(process: "subprocess.Popen[str]", pids: list[int]) -> None:
    assert all(is_running(pid) for pid in pids)
    process.send_signal(signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    eventually(lambda: not any(is_running(pid) for pid in pids), timeout=1.0, interval=0.005)
    assert time.monotonic() - began < 1.0
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize(
    ("task", "kwargs"),
    [
        ("in_c", {"seconds": 60}),
        ("sleep", {"seconds": 60}),
        ("stubborn", {"seconds": 60}),
        ("async_sleep", {"seconds": 60}),
    ],
)
def test_children_die_with_a_killed_parent(tmp_path: Path, task: str, kwargs: dict[str, object]) -> None:
    trace = tmp_path / "trace"
    if task != "async_sleep":
        kwargs = {**kwargs, "path": str(trace)}
    process, pids = start_parent(APP, task, **kwargs)
    assert len(pids) == 3
    if task != "async_sleep":
        eventually(trace.exists)
    gone_within_a_second(process, pids)


def test_idle_children_die_with_a_killed_parent() -> None:
    process, pids = start_parent(APP, "noop")
    gone_within_a_second(process, pids)


def test_programs_started_by_user_code_die_too(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    process, pids = start_parent(APP, "with_subprocess", path=str(trace), seconds=60)
    eventually(lambda: trace.exists() and trace.read_text().endswith("\n"))
    child, inner = map(int, trace.read_text().split())
    assert child in pids
    gone_within_a_second(process, [*pids, inner])


def test_a_template_that_hangs_in_the_apps_import_dies_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv("HORSIES_TEST_TRACE", str(trace))
    process, pids = start_parent("tests.support.pool_stuck_app:app", "")
    assert len(pids) == 1
    eventually(trace.exists)
    gone_within_a_second(process, pids)


def test_a_frozen_parent_keeps_its_children() -> None:
    """A parent that is stopped is not dead: its children wait for it."""
    process, pids = start_parent(APP, "sleep", seconds=60)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert all(is_running(pid) for pid in pids)
    gone_within_a_second(process, pids)
