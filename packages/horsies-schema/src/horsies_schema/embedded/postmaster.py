"""Starting and stopping the server process. Runs in the keeper, on a cluster that `cluster.ensure` has checked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from horsies_schema.embedded.cluster import STOP_STEPS
from horsies_schema.embedded.errors import EmbeddedError
from horsies_schema.embedded.layout import SOCKET_PORT, Layout
from horsies_schema.embedded.offspring import end_orphans, spawn
from horsies_schema.embedded.plan import Plan

_LOG_LIMIT_BYTES: Final = 10 * 1024 * 1024
_TAIL_LINES: Final = 30

# A developer's machine: little memory, the production default of connections, and times that do not depend on it.
_SETTINGS: Final = {
    "cluster_name": "horsies",
    "log_timezone": "UTC",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "timezone": "UTC",
}
# A temporary cluster is not read again after the machine crashed. synchronous_commit stays on: without it a mere
# kill -9 of a backend would lose commits, and tests that kill things rely on those.
_SETTINGS_TEMPORARY: Final = {"fsync": "off", "full_page_writes": "off"}

# Backends of a killed postmaster may hold its shared memory for a moment longer.
_TRANSIENT: Final = "pre-existing shared memory block"
_PORT_TAKEN: Final = "could not bind IPv4 address"


def launch(plan: Plan, socket_directory: Path, log: int, deadline: float) -> subprocess.Popen[bytes]:
    """Start postgres and wait until it is ready; EmbeddedError with the end of its log when it is not."""
    while True:
        port = _free_port() if plan.port == 0 else plan.port
        began = os.fstat(log).st_size
        process = spawn(_command(plan, socket_directory, port), plan.account, output=log, death_signal=signal.SIGINT)
        if _becomes_ready(plan.layout, process, deadline):
            return process
        ended = process.poll()
        if ended is None:
            stop(process, temporary=True)
        said = _tail(plan.layout.log, began)
        again = _TRANSIENT in said or (plan.port == 0 and _PORT_TAKEN in said)
        if again and time.monotonic() < deadline:
            time.sleep(0.1)
            continue
        reason = "was not ready in time" if ended is None else f"ended with exit code {ended}"
        raise EmbeddedError(f"the embedded PostgreSQL server {reason}; the end of {plan.layout.log}:\n{said}")


def stop(process: subprocess.Popen[bytes], *, temporary: bool) -> None:
    """Stop the server, harder and harder, and everything it leaves behind."""
    steps = STOP_STEPS[1:] if temporary else STOP_STEPS
    for step, bound in steps:
        if process.poll() is not None:
            break
        process.send_signal(step)
        try:
            process.wait(bound)
        except subprocess.TimeoutExpired:
            continue
    end_orphans()


def open_log(layout: Layout) -> int:
    """The log, for appending; emptied first when it has grown large."""
    log = os.open(layout.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if os.fstat(log).st_size > _LOG_LIMIT_BYTES:
        os.ftruncate(log, 0)
    return log


def _command(plan: Plan, socket_directory: Path, port: int | None) -> list[str]:
    settings = {
        **_SETTINGS,
        **(_SETTINGS_TEMPORARY if plan.temporary else {}),
        **plan.settings,
        "listen_addresses": "" if port is None else "127.0.0.1",
        "port": str(SOCKET_PORT if port is None else port),
        # The whole value is a list; quoted, so that a comma or space in the path stays part of it.
        "unix_socket_directories": '"{}"'.format(str(socket_directory).replace('"', '""')),
        "unix_socket_permissions": "0700",
    }
    command = [f"{plan.bin_dir}/postgres", "-D", str(plan.layout.data)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    return command


def _becomes_ready(layout: Layout, process: subprocess.Popen[bytes], deadline: float) -> bool:
    while time.monotonic() < deadline:
        running = layout.running()
        if running is not None and running.pid == process.pid:
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return False


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return "\n".join(file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])
