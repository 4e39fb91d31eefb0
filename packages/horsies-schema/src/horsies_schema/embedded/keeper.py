"""The keeper: one small process per running server, `python -m horsies_schema.embedded.keeper <directory>`.

It starts the server, then sleeps until users.lock can be had exclusively, which the kernel grants when the last user
has gone, however it went. It stops the server while holding that lock, so that a newcomer waits instead of connecting
to a dying server. It must not import anything outside the standard library: it lives as long as the server does.

The starter hands over keeper.lock, already locked, as an inherited descriptor that is never touched here and so lives
as long as this process; the plan on stdin; and stdout for one line of JSON, the outcome.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from horsies_schema.embedded import cluster, offspring, postmaster
from horsies_schema.embedded.errors import EmbeddedError
from horsies_schema.embedded.layout import Layout
from horsies_schema.embedded.locks import EXCLUSIVE, LockFile
from horsies_schema.embedded.plan import START_SECONDS, Plan

_WAKING: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Detach, keep one server, end."""
    # A grandchild of the starter: no zombie in its process table, no SIGCHLD, no place in its terminal's session.
    if os.fork() != 0:
        os._exit(0)
    plan = Plan.from_json(sys.stdin.read())
    offspring.adopt_orphans()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A handler, because some systems discard a signal whose default is to be ignored even while it is blocked.
    signal.signal(signal.SIGCHLD, _notice)
    # Blocked from here on and taken with sigwait, so that none can fall between a look and a sleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
    try:
        _keep(plan)
    except EmbeddedError as error:
        _report({"error": str(error)})
    except Exception:
        _report({"error": f"the keeper of {plan.directory} failed:\n{traceback.format_exc()}"})


def _keep(plan: Plan) -> None:
    layout = plan.layout
    deadline = time.monotonic() + START_SECONDS
    log = postmaster.open_log(layout)
    try:
        cluster.ensure(plan, deadline)
        socket_directory = cluster.make_socket_directory(layout, plan.account)
        process = postmaster.launch(plan, socket_directory, log, deadline)
        _report({"ready": process.pid})
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        threading.Thread(target=_call_when_unused, args=(layout,), daemon=True).start()
        while process.poll() is None and signal.sigwait(_WAKING) == signal.SIGCHLD:
            pass
        postmaster.stop(process, temporary=plan.temporary)
    finally:
        if layout.directory.exists():
            cluster.remove_socket_directory(layout)
        if plan.temporary:
            _delete(layout.directory)


def _delete(directory: Path) -> None:
    """Delete it in one step for those who wait for its locks: they find none of it, or all."""
    moved = directory.with_name(f"{directory.name}.deleted")
    with suppress(OSError):
        directory = directory.rename(moved)
    shutil.rmtree(directory, ignore_errors=True)


def _notice(signal_number: int, frame: FrameType | None) -> None:
    """Nothing to do: sigwait takes the signal."""


def _call_when_unused(layout: Layout) -> None:
    # The lock stays with this process until its end, which is after the server's.
    LockFile(layout.users_lock).wait_and_lock(EXCLUSIVE)
    os.kill(os.getpid(), signal.SIGTERM)


def _report(outcome: dict[str, object]) -> None:
    try:
        os.write(sys.stdout.fileno(), f"{json.dumps(outcome)}\n".encode())
    except BrokenPipeError:
        pass  # the starter was killed; the server ends as soon as it is found to have no user


if __name__ == "__main__":
    main()
