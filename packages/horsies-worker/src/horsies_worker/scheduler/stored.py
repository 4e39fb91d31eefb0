"""Schedules that were made at run time: which of them this scheduler serves, read from their rows when they are due.

Nothing is kept for a schedule that is not due, so ten thousand of them cost no memory; those that ran lately are kept
ready, by their version. One that cannot be served (an invalid pattern that was written by SQL, arguments that its task
does not take) is put aside for a minute by this scheduler, so that it never holds up the others; its state says why.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from horsies._text import Lines, one_line, short
from horsies.app import Horsies
from horsies.errors import ConfigurationError
from horsies.payload_codec import PayloadError
from horsies.scheduled import decoded, settle_schedule
from horsies.stored_schedule import schedule_of
from horsies_worker.database.queries import Queries
from horsies_worker.scheduler.blocked import BlockedSchedules
from horsies_worker.scheduler.local_times import cron_problem
from horsies_worker.scheduler.state import Batch, Serve, Served, due_row, live_runs, serve

_log = logging.getLogger("horsies.scheduler")

KEPT: Final = 5_000
"""Schedules that are kept ready: some 15 MB."""
ASIDE_S: Final = 60.0
"""A schedule that cannot be served is tried again after this time: by then another release may be running."""
_MESSAGE: Final = 2_000
_READABLE: Final = frozenset({"kind", "pattern", "timezone", "queue_name", "task_name"})
"""Parts of a schedule that a payload codec does not encode."""

Row = Mapping[str, Any]


def stored_hash(served: Served) -> str:
    """The hash of the timing; never that of a schedule in code."""
    return f"d{served.task.schedule.config_hash[:63]}"


class StoredSchedules:
    def __init__(self, app: Horsies, queries: Queries, serve: Serve = serve, *, blocked: BlockedSchedules) -> None:
        """`blocked`: schedules whose slots cannot be written now."""
        self._app = app
        self._blocked = blocked
        self._serve = serve
        self._sql = queries.sql
        self.tasks = sorted(task.name for task in app.registry)
        self.workflows = sorted({one.name for one in app.workflows} | {one.name for one in app.workflows.definitions()})
        self._ready: OrderedDict[str, Served] = OrderedDict()
        self._aside: dict[str, tuple[int, float]] = {}

    @property
    def wanted(self) -> tuple[list[str], list[str], list[str], list[int]]:
        """The parameters with which statements choose the rows that are served here."""
        now = time.monotonic()
        for name in [name for name, (_, until) in self._aside.items() if until <= now]:
            del self._aside[name]
        aside = [(name, version) for name, (version, _) in self._aside.items()]
        aside += [(name, version) for name, version in self._blocked.waiting(now).items() if version is not None]
        return self.tasks, self.workflows, [name for name, _ in aside], [version for _, version in aside]

    # -- due ones --------------------------------------------------------------------------------

    async def lock_due(self, connection: Any, limit: int, *, requested: bool = False) -> Batch:
        """Due rows, or those with a request to run. Problems are noted in their rows."""
        statement = "lock_requested_stored" if requested else "lock_due_stored"
        rows = await connection.fetch(self._sql(statement), *self.wanted, limit)
        served, problems = self._served(rows)
        await self.note(connection, problems)
        live = await live_runs(connection, self._sql("live_task_batch"), rows, served)
        is_ours = {
            row["name"]: row["config_hash"] == stored_hash(served[row["name"]]) for row in rows if row["name"] in served
        }
        if not requested and (other := [name for name, ours in is_ours.items() if not ours]):
            # The definition was changed between the snapshot of the statement and its lock, or without the triggers.
            await connection.execute(self._sql("unplan_stored_batch"), other)
        kept = [row for row in rows if (requested and row["name"] in is_ours) or is_ours.get(row["name"])]
        due = [due_row(row, live, is_ours=is_ours[row["name"]]) for row in kept]
        return Batch(rows[0]["now"] if rows else None, due, served, len(rows) == limit, problems)

    async def note(self, connection: Any, problems: Mapping[str, str]) -> None:
        """Write into the rows, which are locked, why they are not served."""
        if problems:
            await connection.execute(self._sql("note_schedule_problems"), list(problems), list(problems.values()))

    # -- planning --------------------------------------------------------------------------------

    async def plan(self, connection: Any, limit: int) -> tuple[list[tuple[str, datetime | None]], bool]:
        """Plan schedules that are new or have another timing; returns their names and next slots, and whether there may
        be more. The slots count from the change, so that none is lost while no scheduler is running."""
        rows = await connection.fetch(self._sql("lock_unplanned_stored"), *self.wanted, limit)
        served, problems = self._served(rows)
        planned: list[tuple[str, str, datetime | None]] = []
        for row in rows:
            if (one := served.get(row["name"])) is not None:
                since = row["timed_at"] if row["last_run_at"] is None else max(row["timed_at"], row["last_run_at"])
                self._plan(one, row, since, planned, problems)
        await self._write(connection, planned)
        await self.note(connection, problems)
        return [(name, slot) for name, _, slot in planned], len(rows) == limit

    async def check_rules(self, connection: Any, after: str, limit: int) -> tuple[list[str], str | None]:
        """Plan those again whose next slot is none by the present rules of their time zone. Returns their names, and
        the last name of the page; None when there are no more."""
        rows = await connection.fetch(self._sql("lock_stored_page"), *self.wanted, after, limit)
        served, problems = self._served(rows)
        planned: list[tuple[str, str, datetime | None]] = []
        for row in rows:
            one = served.get(row["name"])
            if one is None or row["config_hash"] != stored_hash(one):
                continue
            slot: datetime = row["next_run_at"]
            if next(one.slots.until(slot), None) != slot:
                now = await connection.fetchval("SELECT statement_timestamp()")
                self._plan(one, row, now, planned, problems)
        await self._write(connection, planned)
        await self.note(connection, problems)
        return [name for name, _, _ in planned], rows[-1]["name"] if len(rows) == limit else None

    def _plan(
        self, one: Served, row: Row, since: datetime, planned: list[tuple[str, str, datetime | None]],
        problems: dict[str, str],
    ) -> None:  # fmt: skip
        try:
            slot = one.slots.after(since) if one.task.schedule.enabled else None
        except Exception as error:  # a bug in one pattern must not stop the others
            problems[row["name"]] = self.put_aside(row["name"], row["version"], error)
        else:
            planned.append((row["name"], stored_hash(one), slot))

    async def _write(self, connection: Any, planned: Sequence[tuple[str, str, datetime | None]]) -> None:
        if planned:
            names, hashes, slots = zip(*planned, strict=True)
            await connection.execute(self._sql("plan_stored_batch"), names, hashes, slots)

    # -- definitions -----------------------------------------------------------------------------

    def _served(self, rows: Sequence[Row]) -> tuple[dict[str, Served], dict[str, str]]:
        """The schedules of these rows, and why some cannot be served."""
        served: dict[str, Served] = {}
        problems: dict[str, str] = {}
        for row in rows:
            name, version = row["name"], row["version"]
            known = self._ready.get(name)
            if known is not None and known.version == version:
                self._ready.move_to_end(name)
                served[name] = known
                continue
            try:
                schedule = decoded(self._app, schedule_of(row), row["kwargs"])
                task = settle_schedule(self._app, schedule, cron_problem)
                served[name] = self._serve(task, version)
            except Exception as error:  # also of the user's code: the build_with of a workflow, a group_by
                problems[name] = self.put_aside(name, version, error)
                continue
            self._ready[name] = served[name]
        while len(self._ready) > KEPT:
            self._ready.popitem(last=False)
        return served, problems

    def put_aside(self, name: str, version: int, error: Exception) -> str:
        """Do not serve this version for a while; returns why, as its state stores it."""
        self._aside[name] = (version, time.monotonic() + ASIDE_S)
        if isinstance(error, ConfigurationError):
            why = "; ".join(f"{one.where}: {one.why} ({one.fix})" for one in error.problems)
        else:
            why = f"{type(error).__name__}: {one_line(str(error))}"
        _log.error("schedule %r cannot run, and is tried again in %d s: %s", name, ASIDE_S, Lines(why))
        why = short(why, _MESSAGE)
        return why if _tells_no_payload(error) else self._encoded(why)

    def _encoded(self, why: str) -> str:
        """With a payload codec, a message of user code is encoded like those of tasks: it may repeat arguments."""
        try:
            return self._app.envelopes.wrap_message(why, "")
        except PayloadError as error:
            return f"the log of the scheduler says why; it cannot be stored: {error}"


def _tells_no_payload(error: Exception) -> bool:
    """Whether horsies alone has written the message: of a payload that cannot be decoded, or of a part of the schedule
    that is no argument."""
    if isinstance(error, PayloadError) or isinstance(error.__cause__, PayloadError):
        return True
    return isinstance(error, ConfigurationError) and all(
        one.where.rpartition(".")[2] in _READABLE for one in error.problems
    )
