"""Tells the log which slots passed without a run, and which come late because a clock was wrong."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from horsies._text import plural
from horsies.operate.schedule_state import OVERDUE_AFTER
from horsies_worker.scheduler.slots import KnownRow, Move, Why
from horsies_worker.scheduler.state import Served

_log = logging.getLogger("horsies.scheduler")

LOGGED: Final = 20
"""Schedules that the log names for one batch; it counts the others."""
_COUNTED: Final = 1_000


def log_ahead(rows: Iterable[KnownRow], now: datetime) -> None:
    """Schedules in code that wait for a time that a wrong clock has set, as the doctor finds them."""
    for row in rows:
        if row.is_data or row.next_run_at is None or row.last_run_at is None:
            continue
        if row.last_run_at > now + OVERDUE_AFTER:
            _log.warning(
                "schedule %r waits until %s: its last run was at %s, when the database's clock was wrong; "
                "`horsies doctor` says what to do", row.name, utc(row.next_run_at), utc(row.last_run_at),
            )  # fmt: skip


def log_passed(moves: Sequence[Move], served: Mapping[str, Served]) -> None:
    passed = [made for made in moves if made.passed is not None and made.passed.why is not Why.PAUSED]
    for made in passed[:LOGGED]:
        _log_one(made, served[made.name])
    if len(passed) > LOGGED:
        _log.warning("slots not run as well: %s", plural(len(passed) - LOGGED, "more schedule"))


def _log_one(made: Move, one: Served) -> None:
    if made.passed is None:
        return
    first, until = made.passed.first, made.passed.until
    if made.passed.why is Why.OVERLAP:
        _log.warning(
            "schedule %r: the run of %s is skipped, the run before has not ended (overlap=skip)",
            made.name, utc(first),
        )  # fmt: skip
        return
    count = 0
    for slot in islice(one.slots.until(until), _COUNTED + 1):
        if slot < first:
            break
        count += slot < until
    if not count:
        return  # the row was set by hand to a time between two slots
    number = f"at least {_COUNTED:,}" if count >= _COUNTED else str(count)
    ran = sum(fire.slot >= until for fire in made.fires)
    _log.warning(
        "schedule %r: %s missed slot%s not run (from %s on), the latest %s",
        made.name, number, " is" if count == 1 else "s are", utc(first), "one is" if ran == 1 else f"{ran} are",
    )  # fmt: skip


def utc(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")
