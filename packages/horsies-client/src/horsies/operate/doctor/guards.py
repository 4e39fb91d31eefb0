"""Checks of what other roles can do to horsies: rows that no program can read, and locks that are kept from workers."""

from collections.abc import Iterator
from datetime import timedelta

from horsies._pg.locks import CAPS_LOCK, MIGRATION_LOCK, PRUNE_LOCK, PURPOSES, REAPER_LOCK, holder
from horsies._pg.schema_guard import HEAD_REVISION, remedy
from horsies._text import span
from horsies.operate.doctor.finding import Facts, Finding, Severity

OK, WARN, PROBLEM = Severity.OK, Severity.WARN, Severity.PROBLEM


def times(facts: Facts) -> Iterator[Finding]:
    """Rows with times that no program can read. The schema refuses them unless its constraints were dropped."""
    rows = facts.rows("unreadable_times")
    revision = facts.rows("revisions")
    is_behind = not revision or str(revision[0]["version_num"]) < HEAD_REVISION
    for row in rows:
        name = row["name"]
        rule = f"ck_{name}_{'sound' if name in ('horsies_tasks', 'horsies_task_attempts') else 'time_range'}"
        if row["ids"]:
            yield Finding(
                "times", PROBLEM, f"{name} has rows with times before 1970 or after 9000, of {', '.join(row['ids'])}",
                "they are shown as other times than they are; older releases cannot read them, nor any batch that one "
                "of them is in",
                remedy(facts.schema) if is_behind
                else f"set them right or delete them, then ALTER TABLE {name} VALIDATE CONSTRAINT {rule}",
            )  # fmt: skip
        elif not is_behind:
            yield Finding(
                "times", WARN, f"the rule {rule} is missing or not validated",
                "a row with a time that no program can read would be accepted",
                f"take it from `horsies-migrate sql`, then ALTER TABLE {name} VALIDATE CONSTRAINT {rule}",
            )  # fmt: skip
    if not rows:
        yield Finding("times", OK, "the database refuses times before 1970 and after 9000")


def locks(facts: Facts) -> Iterator[Finding]:
    """Sessions that hold one of our advisory locks, which every role may take, and are no workers, or hold it long; and
    those that hold rows of tasks or runs for long."""
    good = True
    for row in facts.rows("lock_holders"):
        age: timedelta | None = row["age"]
        is_long = (
            age is not None and age > facts.limits.own_transaction and row["application_name"] != "horsies-migrate"
        )
        if row["is_foreign"] or is_long:
            good = False
            since = f" for {span(age)}" if age is not None else ""
            yield Finding(
                "locks", PROBLEM, f"{holder(row)} holds the advisory lock {PURPOSES[row['key']]}{since}",
                _STOPPED[row["key"]],
                f"find out what it is; to end it: SELECT pg_terminate_backend({row['pid']})",
            )  # fmt: skip
    for row in facts.rows("open_writers"):
        if row["age"] is not None and row["age"] > facts.limits.own_transaction:
            good = False
            yield Finding(
                "locks", WARN,
                f"{holder(row)} has had a transaction open for {span(row['age'])} that has written or locked rows of "
                f"{' and '.join(row['tables'])}",
                "runs and tasks whose rows it holds, and schedules whose slots it has inserted, wait until it ends",
                f"let it commit or roll back; to end it: SELECT pg_terminate_backend({row['pid']})",
            )  # fmt: skip
    if good:
        yield Finding("locks", OK, "no foreign session holds a lock of horsies")


_STOPPED = {
    CAPS_LOCK: "workers with max_concurrency or cluster_wide_cap claim nothing while it is held",
    REAPER_LOCK: "while it is held, tasks of dead workers are not recovered and overdue tasks do not expire",
    PRUNE_LOCK: "old records are not deleted while it is held",
    MIGRATION_LOCK: "`horsies-migrate up`, and workers that upgrade the schema, wait while it is held",
}
