"""Operations on schedules: make, change, delete, pause, run, and their history. `app.get_broker().schedules`.

A schedule that is put here is a row: schedulers that know its task serve it, from its next slot on, without a restart.
Those in `AppConfig(schedule=...)` belong to the code. They can be listed, paused and run here, and a row of the same
name takes their place for as long as it exists.
"""

import builtins
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

from horsies._checks import Checks, shown
from horsies._text import short
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes, redacted_message
from horsies.errors import UsageError
from horsies.operate import reading
from horsies.operate.encoded import decoded_arguments, is_same_call
from horsies.operate.schedule_views import ScheduleRun, StoredSchedule
from horsies.operate.session import OperatorSession
from horsies.operate.views import ScheduleInfo
from horsies.schedule import TaskSchedule
from horsies.stored_schedule import columns_of

PAGE: Final = 100
MAX_PAGE: Final = 10_000
HISTORY: Final = 20
"""The entries that are kept for each schedule."""
_BATCH: Final = 1_000

Kind = Literal["code", "data"]


class ScheduleControl:
    """The operations on schedules, all coroutines; `app.schedules` has them without an event loop, too."""

    def __init__(
        self,
        session: OperatorSession,
        encode: Callable[[TaskSchedule], str],
        envelopes: Envelopes = PLAIN_ENVELOPES,
    ) -> None:
        self._session = session
        self._encode = encode
        self._envelopes = envelopes

    # -- making and changing ---------------------------------------------------------------------

    async def put(self, schedule: TaskSchedule, *, version: int | None = None) -> StoredSchedule:
        """Make a schedule, or replace the one of this name; one that is the same already stays as it is.

        Another timing counts from now on: its first run is the next slot. Anything else leaves the slots alone, and it
        stays paused if it was. `version` is the version that is replaced; 0: there must be none.
        """
        checks = Checks("put")
        checks.integer("version", version, 0, 2**31 - 1, optional=True)
        checks.finish()
        document = json.dumps(await self._unchanged([self._columns(schedule)], [schedule]))
        written = await self._session.rows("put_schedules", document, version)
        found = await self.get(schedule.name)
        if not written and version is not None and (found is None or found.version != version):
            now = "is gone" if found is None else f"has version {found.version}"
            told = (
                "exists already" if version == 0 else f"was changed meanwhile: version {version} was expected, it {now}"
            )
            raise UsageError(f"nothing done: schedule {short(schedule.name)!r} {told}")
        if found is None:
            raise UsageError(f"schedule {short(schedule.name)!r} was put, and deleted by another session meanwhile")
        return found

    async def put_many(self, schedules: Iterable[TaskSchedule]) -> int:
        """`put` for many, a thousand in a statement; returns how many were made or changed. All are checked first."""
        if not isinstance(cast("object", schedules), Iterable):
            raise UsageError(f"put_many takes several TaskSchedule, not {shown(schedules)}")
        given = list(schedules)
        rows = [self._columns(one) for one in given]
        names = [str(row["name"]) for row in rows]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"nothing done: schedule {short(twice)!r} is given twice")
        count = 0
        for at in range(0, len(rows), _BATCH):
            batch = await self._unchanged(rows[at : at + _BATCH], given[at : at + _BATCH])
            count += len(await self._session.rows("put_schedules", json.dumps(batch), None))
        return count

    async def delete(self, name: str) -> bool:
        """Delete a schedule with its state and its history; False when no schedule of this name was made at run time.

        It has no further run: a slot that a scheduler is firing at this moment is waited for. Tasks that it has sent
        stay. If the code has a schedule of this name, that one keeps state and history: it runs again from its next
        slot on, or stays paused.
        """
        return bool(await self._session.rows("delete_schedule", stored_name(name)))

    def checked_by(self, encode: Callable[[TaskSchedule], str]) -> "ScheduleControl":
        """The same operations, with the checks of another app (`app.encode_schedule`)."""
        return ScheduleControl(self._session, encode, self._envelopes)

    async def _unchanged(
        self, rows: builtins.list[dict[str, object]], schedules: Sequence[TaskSchedule]
    ) -> builtins.list[dict[str, object]]:
        """The rows, with the stored form of arguments that have not changed: an encryption gives the same value another
        text each time, and the schedule would seem to be changed."""
        if self._envelopes.codec is None:
            return rows
        found = await self._session.rows("schedule_arguments", [row["name"] for row in rows])
        stored: dict[str, Any] = {row["name"]: row["kwargs"] for row in found}
        for row, schedule in zip(rows, schedules, strict=True):
            old = stored.get(schedule.name)
            old = json.loads(old) if isinstance(old, str) else old
            new = cast("dict[str, Any]", row["kwargs"])
            if old is not None and is_same_call(old, new, schedule.target, self._envelopes):
                row["kwargs"] = old
        return rows

    def _columns(self, schedule: TaskSchedule) -> dict[str, object]:
        if not isinstance(cast("object", schedule), TaskSchedule):
            raise UsageError(f"put takes a TaskSchedule, not {shown(schedule)}")
        return columns_of(schedule, self._encode(schedule))

    # -- steering --------------------------------------------------------------------------------

    async def run_now(self, name: str) -> bool:
        """Request one run beside the slots from the schedulers; False when there is no such schedule.

        A request that is repeated before a scheduler fulfils it stays one. Paused and disabled schedules run too.
        """
        return bool(await self._session.rows("request_run", stored_name(name)))

    async def pause(self, name: str) -> bool:
        """Its slots pass without a run until it is resumed; False when there is no such schedule."""
        return bool(await self._session.rows("pause_schedule", stored_name(name)))

    async def resume(self, name: str) -> bool:
        """It runs again from its next slot on; False when there is no such schedule."""
        return bool(await self._session.rows("resume_schedule", stored_name(name)))

    # -- reading ---------------------------------------------------------------------------------

    async def get(self, name: str, *, decode: bool = True) -> StoredSchedule | None:
        """A schedule that was made at run time; None when there is none of this name. Without `decode`, arguments that
        the app's payload codec has encoded are as they are stored."""
        rows = await self._session.rows_shown("read_schedule", "show_schedule", stored_name(name))
        found = StoredSchedule.of(rows[0]) if rows else None
        if not decode or found is None or found.kwargs is None:
            return found
        return replace(found, kwargs=decoded_arguments(found.kwargs, found.target, self._envelopes))

    async def state(self, name: str) -> ScheduleInfo | None:
        """The state of one schedule, of code or made at run time."""
        return next(iter(await self._page(1, None, [stored_name(name)], None)), None)

    async def problem(self, name: str, *, decode: bool = True) -> str | None:
        """Why a scheduler could not run it, the last time that one tried; None when nothing is wrong. Without `decode`,
        a message that a payload codec has encoded reads `<encoded by ...>`."""
        rows = await self._session.rows("schedule_problem", stored_name(name))
        shown = self._envelopes.unwrap_message if decode else redacted_message
        return shown(rows[0]["problem"]) if rows else None

    async def history(self, name: str, limit: int = HISTORY) -> Sequence[ScheduleRun]:
        """The last runs and skipped slots, the newest first; 20 are kept."""
        checks = Checks("history")
        checks.integer("limit", limit, 1, HISTORY)
        checks.finish()
        rows = await self._session.rows("schedule_history", stored_name(name), limit)
        return [ScheduleRun.from_row(row) for row in rows]

    async def list(
        self, limit: int = PAGE, after: str | None = None, kind: Kind | None = None
    ) -> builtins.list[ScheduleInfo]:
        """A page of schedules by name; `after` is the last name of the page before. `kind`: only those of `code`, or
        only those that were made at run time (`data`)."""
        checks = Checks("list")
        checks.integer("limit", limit, 1, MAX_PAGE)
        checks.word("kind", kind, ("code", "data"), optional=True)
        checks.finish()
        return await self._page(limit, None if after is None else stored_name(after), None, kind)

    async def _page(
        self, limit: int, after: str | None, names: Sequence[str] | None, kind: str | None
    ) -> builtins.list[ScheduleInfo]:
        return await self._session.read(
            lambda fetch: reading.schedules(fetch, ScheduleInfo, limit, after=after, names=names, kind=kind)
        )


def stored_name(name: str) -> str:
    """The name with the characters replaced that the driver cannot encode, so that it matches no row."""
    if not isinstance(cast("object", name), str):
        raise UsageError(f"the name of a schedule is a str, not {shown(name)}")
    return name.replace("\0", "").encode(errors="replace").decode()
