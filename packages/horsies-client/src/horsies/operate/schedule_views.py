"""What operators see of one schedule: its definition and its last runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from horsies._pg.rows import FromRow
from horsies.envelopes import redacted
from horsies.errors import ConfigurationError
from horsies.schedule import TaskSchedule
from horsies.stored_schedule import pattern_of, schedule_of


@dataclass(frozen=True, slots=True)
class StoredSchedule(FromRow):
    """A schedule that was made at run time, as its row has it."""

    name: str
    task_name: str | None
    workflow: str | None
    pattern: Mapping[str, Any]
    """As JSON: `{"kind": "daily", "at": "02:30:00"}`."""
    kwargs: Mapping[str, Any] | None
    """As JSON; None for a role that may not read arguments. What a payload codec has encoded is decoded where the app
    has the codec."""
    queue_name: str | None
    group_key: str | None
    timezone: str
    skipped_times: str
    overlap: str
    catch_up_missed: bool
    max_catch_up_runs: int
    jitter_s: float
    enabled: bool
    version: int
    """Counts the changes: `put(..., version=)` replaces no other version."""
    created_by: str | None
    """The database role that made it."""
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "StoredSchedule":
        """From a row, in which JSON is text."""
        found: dict[str, Any] = {"kwargs": None, **row}
        for name in ("pattern", "kwargs"):
            if isinstance(found[name], str):
                found[name] = json.loads(found[name])
        return cls.from_row(found)

    @property
    def target(self) -> str:
        return f"workflow {self.workflow}" if self.workflow is not None else str(self.task_name)

    @property
    def told_pattern(self) -> str:
        """The pattern in words, or the document if it is none."""
        try:
            return str(pattern_of(self.pattern))
        except ConfigurationError:
            return json.dumps(self.pattern)

    def without_envelopes(self) -> "StoredSchedule":
        """The same, with the name of the payload codec in place of what it has encoded."""
        if self.kwargs is None:
            return self
        return replace(self, kwargs=json.loads(redacted(json.dumps(self.kwargs)) or "{}"))

    def as_schedule(self) -> TaskSchedule:
        """The schedule, to change and put again; raises ConfigurationError if the row is not sound. The arguments are
        JSON: values of other types are what the codec made of them."""
        return schedule_of({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class ScheduleRun(FromRow):
    """One of the last entries in the history of a schedule."""

    slot: datetime
    """When it was due; of several skipped slots the first. For a run on request, when that was made."""
    last_slot: datetime
    """Of several skipped slots the last."""
    fired_at: datetime
    """When a scheduler decided it."""
    task_id: str | None
    """The id of the task or of the workflow that it started; None for skipped slots."""
    skipped: str | None
    """Why the slots passed without a run: `missed`, `overlap`, `paused`, or `refused` by middleware."""
    is_request: bool
    """It was asked for by an operator."""
    status: str | None
    """The present status of the task or workflow; None when it was skipped, or is deleted."""
    error_code: str | None
