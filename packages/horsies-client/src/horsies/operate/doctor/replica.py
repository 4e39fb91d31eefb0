"""The check of the replica that dashboards, the exporter and lists read from (`replica_url`)."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from horsies.operate.doctor.finding import Facts, Finding, Severity

LONG: Final = timedelta(seconds=30)
"""A lag that is worth a warning."""


def replica(facts: Facts) -> Iterator[Finding]:
    found = facts.replica
    if found is None:
        return
    effect = "dashboards, the exporter and lists ask the primary instead"
    if found.away is not None:
        yield Finding(
            "replica", Severity.WARN, f"the replica cannot be read: {found.away}", effect,
            "start it, correct replica_url, or leave replica_url out",
        )  # fmt: skip
    elif not found.is_standby:
        yield Finding(
            "replica", Severity.WARN, "the server of replica_url is no standby", effect,
            "after a failover, let replica_url lead to the new standby (or name several hosts)",
        )  # fmt: skip
    elif found.is_other:
        yield Finding(
            "replica", Severity.PROBLEM, "the server of replica_url is a copy of another server than database_url",
            "dashboards, the exporter and lists show the rows of another installation", "correct replica_url",
        )  # fmt: skip
    elif not found.is_connected:
        yield Finding(
            "replica", Severity.WARN, f"the replica receives nothing; its last commit is {_seconds(found.lag)} old",
            "dashboards, the exporter and lists show old rows",
            "look at its log: primary_conninfo, pg_hba.conf, a missing replication slot or removed WAL",
        )  # fmt: skip
    elif found.lag >= LONG:
        yield Finding(
            "replica", Severity.WARN, f"the replica is {_seconds(found.lag)} behind",
            "dashboards, the exporter and lists show old rows",
            "look for long queries on it (max_standby_streaming_delay), and at its disk and network",
        )  # fmt: skip


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():,.0f} s"
