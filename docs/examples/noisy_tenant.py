"""One noisy tenant does not hold up the others. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker noisy_tenant:app --processes 4
    HORSIES_DATABASE_URL=postgresql://... python noisy_tenant.py

The tenant of a report is its group. Groups take turns, and of each group at most two reports run at once, so that long
reports of one tenant leave places to the others.
"""

import os
import time
from pathlib import Path

from horsies import (
    AppConfig,
    CustomQueueConfig,
    GroupPolicy,
    Horsies,
    PostgresConfig,
    QueueMode,
    TaskError,
    TaskResult,
    gather,
)

reports = CustomQueueConfig("reports", groups=GroupPolicy(max_concurrency=2))
app = Horsies(AppConfig(PostgresConfig(), queue_mode=QueueMode.CUSTOM, custom_queues=[reports]))


def note(what: str, tenant: str, month: int) -> None:
    """One line for each start and end: this file shows what ran when."""
    with Path(os.environ.get("JOURNAL", "journal.txt")).open("a") as journal:
        journal.write(f"{time.monotonic()} {what} {tenant} {month}\n")


@app.task("report", queue_name="reports", group_by="tenant")
def report(tenant: str, month: int) -> TaskResult[float, TaskError]:
    note("start", tenant, month)
    time.sleep(0.02)  # the work
    note("end", tenant, month)
    return TaskResult(ok=time.monotonic())


def main() -> None:
    tenants = ["noisy"] * 300 + ["acme", "bolt", "core", "dyne", "echo"] * 3  # sent in this order
    handles = report.send_many([report.call(tenant, month) for month, tenant in enumerate(tenants)])
    ends = [result.unwrap() for result in gather(handles)]
    last = max(end for end, tenant in zip(ends, tenants, strict=True) if tenant != "noisy")
    before = sum(end < last for end, tenant in zip(ends, tenants, strict=True) if tenant == "noisy")
    print(f"all {len(tenants)} reports are done")
    print(f"the last one of the small tenants came after {before} of 300 of the noisy one")
    app.close()


if __name__ == "__main__":
    main()
