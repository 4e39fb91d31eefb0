"""`app.schedules`: the schedules that are made at run time, with and without an event loop."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.operate.schedule_control import Kind, ScheduleControl
    from horsies.operate.schedule_views import ScheduleRun, StoredSchedule
    from horsies.operate.views import ScheduleInfo
    from horsies.schedule import TaskSchedule


class AppSchedules:
    """See `horsies.operate.schedule_control.ScheduleControl`, which explains each verb."""

    def __init__(self, app: "AppRuntime") -> None:
        self._app = app

    @property
    def _control(self) -> "ScheduleControl":
        return self._app.get_broker().schedules

    def put(self, schedule: "TaskSchedule", *, version: int | None = None) -> "StoredSchedule":
        """Make a schedule, or replace the one of this name. A scheduler serves it from its next slot on."""
        return self._app.run_sync("schedules.put", lambda: self.put_async(schedule, version=version))

    async def put_async(self, schedule: "TaskSchedule", *, version: int | None = None) -> "StoredSchedule":
        """See `put`."""
        return await self._control.put(schedule, version=version)

    def put_many(self, schedules: "Iterable[TaskSchedule]") -> int:
        """`put` for many; returns how many were made or changed."""
        return self._app.run_sync("schedules.put_many", lambda: self.put_many_async(schedules))

    async def put_many_async(self, schedules: "Iterable[TaskSchedule]") -> int:
        """See `put_many`."""
        return await self._control.put_many(schedules)

    def delete(self, name: str) -> bool:
        """Delete it with its history; False when no schedule of this name was made at run time.

        A schedule of the code that it hid runs again, with the history, unless it is paused."""
        return self._app.run_sync("schedules.delete", lambda: self.delete_async(name))

    async def delete_async(self, name: str) -> bool:
        """See `delete`."""
        return await self._control.delete(name)

    def run_now(self, name: str) -> bool:
        """Request one run beside the slots; False when there is no such schedule."""
        return self._app.run_sync("schedules.run_now", lambda: self.run_now_async(name))

    async def run_now_async(self, name: str) -> bool:
        """See `run_now`."""
        return await self._control.run_now(name)

    def pause(self, name: str) -> bool:
        """Its slots pass without a run until it is resumed; False when there is no such schedule."""
        return self._app.run_sync("schedules.pause", lambda: self.pause_async(name))

    async def pause_async(self, name: str) -> bool:
        """See `pause`."""
        return await self._control.pause(name)

    def resume(self, name: str) -> bool:
        """It runs again from its next slot on; False when there is no such schedule."""
        return self._app.run_sync("schedules.resume", lambda: self.resume_async(name))

    async def resume_async(self, name: str) -> bool:
        """See `resume`."""
        return await self._control.resume(name)

    def get(self, name: str) -> "StoredSchedule | None":
        """A schedule that was made at run time; None when there is none of this name."""
        return self._app.run_sync("schedules.get", lambda: self.get_async(name))

    async def get_async(self, name: str) -> "StoredSchedule | None":
        """See `get`."""
        return await self._control.get(name)

    def history(self, name: str, limit: int = 20) -> "Sequence[ScheduleRun]":
        """The last runs and skipped slots, the newest first."""
        return self._app.run_sync("schedules.history", lambda: self.history_async(name, limit))

    async def history_async(self, name: str, limit: int = 20) -> "Sequence[ScheduleRun]":
        """See `history`."""
        return await self._control.history(name, limit)

    def list(self, limit: int = 100, after: str | None = None, kind: "Kind | None" = None) -> "Sequence[ScheduleInfo]":
        """A page of schedules by name, with those of the code; `after` is the last name of the page before."""
        return self._app.run_sync("schedules.list", lambda: self.list_async(limit, after, kind))

    async def list_async(
        self, limit: int = 100, after: str | None = None, kind: "Kind | None" = None
    ) -> "Sequence[ScheduleInfo]":
        """See `list`."""
        return await self._control.list(limit, after, kind)
