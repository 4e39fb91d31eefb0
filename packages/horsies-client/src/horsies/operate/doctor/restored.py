"""The check for a database that was set back: restored from a backup or to a point in time.

The rows of a restored queue are consistent: nothing in them says that a task which they call waiting has run since.
What tells is that no worker has written since a moment that is before the server started or the rows were copied, and,
where the role may read it, the reason that the server noted when it began its timeline.

A live worker may be silent for some seconds, so that a silence counts after a while. Rows that are as they were copied
need none, where the role may see that.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta
from typing import Final, NamedTuple

from horsies._text import plural, span
from horsies.operate.doctor.finding import Facts, Finding, Row, Severity, Unavailable

_PROMOTED: Final = "no recovery target specified"
_BOUND: Final = 100_000
"""The statement counts no further."""


def restored(facts: Facts) -> Iterator[Finding]:
    row = facts.row("restore_facts")
    began = _timeline(facts)
    if row["newest"] is None:
        yield Finding("restored", Severity.OK, "no worker has worked in this database yet")
    elif (row["is_copied"] and _as_copied(facts)) or (
        row["silence"] >= facts.limits.silence and (row["is_copied"] or row["up_for"] < row["silence"])
    ):
        yield _silent(facts, row, began)
    elif began is not None and began.target is not None and began.age < facts.limits.restored:
        yield Finding(
            "restored", Severity.WARN,
            f"the server was restored to a point in time ({began.target}) {span(began.age)} ago",
            "what was sent between that moment and the restore is gone, and tasks that ended in between have run again "
            "or will",
            "compare with your own records, and with the logs of the workers from that time; workers have started "
            "since, so that the rows no longer tell",
        )  # fmt: skip
    else:
        yield Finding("restored", Severity.OK, "no sign that the database was set back")


def _as_copied(facts: Facts) -> bool:
    """No worker or scheduler has written since the rows were copied. False if this role may not see that."""
    try:
        return bool(facts.row("as_copied")["is_so"])
    except Unavailable:
        return False


def _silent(facts: Facts, row: Row, began: "_Timeline | None") -> Finding:
    """No worker has written since the server started, or since the rows were copied."""
    flight = facts.rows("in_flight_counts")
    in_flight = sum(one["claimed"] + one["running"] for one in flight)
    held = _held(row, in_flight)
    is_new = began is not None and began.age < row["silence"]  # the timeline began after the last sign
    target = began.target if began is not None and is_new else None
    may_be_new = is_new or (began is None and (row["timeline"] or 1) > 1)
    is_sure = target is not None or row["is_copied"]
    if not is_sure and not in_flight and not (may_be_new and held):
        return Finding("restored", Severity.OK, "no sign that the database was set back; no worker runs")
    start = f"the server started {span(row['up_for'])} ago"
    if target is not None:
        how = f"the server was restored to a point in time ({target})"
    elif row["is_copied"]:
        how = "the rows were copied into this database, by pg_restore or logical replication"
    elif is_new:
        how = f"{start}, on timeline {row['timeline']}, which a promotion or a recovery without a target began since"
    elif may_be_new:
        how = f"{start}, on timeline {row['timeline']}: it was once restored or promoted; a superuser can see when"
    else:
        how = f"{start}: after a restored snapshot, or after an outage of everything"
    when = f"{row['newest'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    queues = sorted({one["queue_name"] for one in (*flight, *facts.rows("waiting_pairs"))})
    return Finding(
        "restored", Severity.PROBLEM if is_sure and held else Severity.WARN,
        f"{how}; the last sign of a worker is {span(row['silence'])} old ({when})"
        + (f". The rows as they were then: {', '.join(held)}" if held else ""),
        f"{'' if is_sure else 'if the rows are from a backup: '}what was sent after that moment is gone, and what "
        "ended after it is not known here: the first worker ends tasks in flight as WORKER_CRASHED or runs them again "
        "by their policy, runs what waits, sends slots of schedules again, and waits for signals that came",
        "before a worker or scheduler starts: " + _paused(queues) + "`horsies tasks list --status running --status "
        "claimed --status pending`, `horsies tasks cancel ID` for what has run since and must not run again, "
        "`horsies schedules pause NAME`; then start workers, and `horsies queues resume NAME`",
    )  # fmt: skip


def _held(row: Row, in_flight: int) -> list[str]:
    """What the rows hold that may have gone on since."""
    counted = [
        (in_flight, "{} in flight", "task"),
        (row["waiting"], "{} waiting", "task"),
        (row["slots"], "{} with slots since", "schedule"),
        (row["keys"], "{} in time", "unique key"),
        (row["runs"], "{}", "unfinished workflow"),
        (row["waits"], "{} for signals", "wait"),
    ]
    return [
        ("at least " if count >= _BOUND else "") + words.format(plural(count, noun))
        for count, words, noun in counted
        if count
    ]


def _paused(queues: Sequence[str]) -> str:
    return f"`horsies queues pause {' '.join(queues)}`, " if queues else ""


class _Timeline(NamedTuple):
    """How the server's timeline began."""

    age: timedelta
    target: str | None
    """Of the point in time recovery that began it; None for a promotion, and for a recovery without a target."""


def _timeline(facts: Facts) -> _Timeline | None:
    """None if it is the first one, or if this role may not read it."""
    try:
        row = facts.row("timeline_history")
    except Unavailable:
        return None
    lines = [line for line in (row["history"] or "").splitlines() if line.strip()]
    if not lines or row["age"] is None:
        return None
    reason = lines[-1].split("\t")[-1].strip()
    return _Timeline(row["age"], None if reason == _PROMOTED else reason)
