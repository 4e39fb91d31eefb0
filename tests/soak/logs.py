"""What the logs of a run must not have."""

import re
from collections.abc import Mapping, Sequence

from tests.soak.nemesis import Struck
from tests.soak.rules import Finding
from tests.soak.settings import SECRET

EXPECTED_TRACEBACKS: Sequence[str] = ()
"""Texts of the last line of a traceback that a fault may cause in a worker, a scheduler or a producer."""
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) UTC", re.MULTILINE)


def of_server(log: str, struck: Sequence[Struck]) -> list[Finding]:
    found = [Finding("X2", "server", line) for line in log.splitlines() if "deadlock detected" in line]
    if SECRET in log:
        found.append(Finding("X5", "server", "the planted secret is in the server's log"))
    if "PANIC" in log and not any(fault.kind == "disk_full" for fault in struck):
        found.append(Finding("X3", "server", next(line for line in log.splitlines() if "PANIC" in line)))
    return found


def of_processes(logs: Mapping[str, str]) -> list[Finding]:
    found: list[Finding] = []
    for name, log in logs.items():
        if SECRET in log:
            found.append(Finding("X5", name, next(line for line in log.splitlines() if SECRET in line)[:300]))
        for text in tracebacks(log):
            if not any(expected in text for expected in EXPECTED_TRACEBACKS):
                found.append(Finding("X4", name, text[-1500:]))
    return found


def tracebacks(log: str) -> list[str]:
    """Each with the lines that belong to it: its frames and the line of the exception."""
    found: list[str] = []
    lines = log.splitlines()
    for at, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            end = at + 1
            while end < len(lines) and (lines[end].startswith((" ", "\t")) or not lines[end].strip()):
                end += 1
            found.append("\n".join(lines[max(0, at - 1) : end + 1]))
    return found
