"""What the doctor finds on a database of a test."""

import asyncio
from typing import Any

from horsies import AppConfig, PostgresConfig
from horsies.operate.doctor import Finding, Limits, Severity, examine
from tests.support.postgres import Database

RECOVERY = (
    '{"check_interval_ms": 1000, "claimed_stale_threshold_ms": 10000, "running_stale_threshold_ms": 10000,'
    ' "terminal_record_retention_hours": 1}'
)
ALWAYS = (
    "server", "schema", "objects", "rights", "pooler", "notify", "clock", "connections", "xmin",
    "own-transactions", "locks", "vacuum", "sizes", "restored", "workers", "dead-workers", "backlog", "groups",
    "limits", "policies", "unknown-names", "quarantine", "stale", "reaper", "workflow-clocks", "retention", "schedules",
    "times",
)  # fmt: skip
"""The checks that every examination reports."""


def look(
    where: Database | str, *, names: list[str] | None = None, broker: Any = None, app: Any = None, **limits: Any
) -> list[Finding]:
    url = where if isinstance(where, str) else where.url
    config = AppConfig(PostgresConfig(url, **(broker or {})), **(app or {}))
    return asyncio.run(examine(config, limits=Limits(**limits), names=names))


def trouble(findings: list[Finding]) -> dict[str, Finding]:
    """Everything that is not fine, by check."""
    return {one.check: one for one in findings if one.severity is not Severity.OK}


def only(findings: list[Finding], check: str, severity: Severity = Severity.PROBLEM) -> Finding:
    """The one thing that is not fine."""
    bad = trouble(findings)
    assert bad.keys() == {check}, bad
    assert bad[check].severity is severity
    assert bad[check].why
    assert bad[check].fix
    return bad[check]


def fine(findings: list[Finding], check: str) -> str:
    assert trouble(findings) == {}
    (found,) = [one.what for one in findings if one.check == check]
    return found
