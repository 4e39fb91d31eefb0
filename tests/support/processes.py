"""The children of a process. Where the kernel lists them, no other process is looked at: psutil would read the state of
every process of the machine, and the check for leaked processes asks twice for each of thousands of tests.
"""

import threading
from pathlib import Path
from typing import Final

import psutil

_IS_LISTED: Final = Path(f"/proc/self/task/{threading.get_native_id()}/children").exists()


def children(pid: int) -> list[int]:
    """The processes that this one started and that have not ended; empty when it has ended itself."""
    if not _IS_LISTED:
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.NoSuchProcess:
            return []
    folder = Path(f"/proc/{pid}/task")
    while folder.exists():
        try:
            threads = list(folder.iterdir())
            found = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
            if list(folder.iterdir()) == threads:
                return found
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread ended, and its children are those of another thread now
    return []


def descendants(pid: int) -> list[int]:
    """Its children, their children, and so on."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found
