"""Schedules: their definitions, their state, their last runs, and the schedulers that serve them."""

from datetime import datetime
from typing import Any

from sqlalchemy import SmallInteger, String, false, text, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class Schedule(base.Base):
    """A schedule that was made at run time. A trigger counts `version` up and keeps its state; see migration 0025."""

    __tablename__ = "horsies_schedules"

    name: Mapped[base.Name] = mapped_column(primary_key=True)
    """Unique and permanent; its state is stored under it."""
    task_name: Mapped[base.Name | None]
    """The task to enqueue, or NULL with a workflow."""
    workflow: Mapped[base.Name | None]
    """The workflow to start, or NULL with a task."""
    pattern: Mapped[Any] = mapped_column(JSONB, nullable=False)
    """When, as a JSON object: its kind and its fields."""
    kwargs: Mapped[Any] = mapped_column(JSONB, nullable=False, server_default=text("'{}'"))
    """The arguments of each run, by name."""
    queue_name: Mapped[base.QueueName | None]
    """NULL: the task's own queue."""
    group_key: Mapped[base.Key | None]
    """The group of each task or run."""
    timezone: Mapped[base.Name] = mapped_column(server_default="UTC")
    """IANA name of the zone that the pattern is read in."""
    skipped_times: Mapped[base.Word] = mapped_column(server_default="fire")
    """`fire` or `skip`: local times that the clock jumps over."""
    overlap: Mapped[base.Word] = mapped_column(server_default="allow")
    """`allow` or `skip` a run while the one before has not ended."""
    catch_up_missed: Mapped[bool] = mapped_column(server_default=false())
    """Whether slots that were missed run, up to `max_catch_up_runs`; otherwise the latest alone."""
    max_catch_up_runs: Mapped[int] = mapped_column(server_default="100")
    """How many of them at most."""
    jitter_s: Mapped[float] = mapped_column(server_default=text("0"))
    """Each run's task is late by up to so many seconds."""
    enabled: Mapped[bool] = mapped_column(server_default=true())
    """False: it runs by hand only."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Raised by each change, so that two editors do not overwrite each other."""
    created_by: Mapped[base.Name | None]
    """What made it, as that said."""
    created_at: Mapped[datetime] = base.statement_time()
    """When."""
    updated_at: Mapped[datetime] = base.statement_time()
    """When it was last changed."""
    timed_at: Mapped[datetime] = base.statement_time()
    """Since when its timing holds; slots before that do not count as missed."""

    __table_args__ = (
        base.check("name", "name <> ''"),
        base.check("target", "(task_name IS NULL) <> (workflow IS NULL)"),
        base.check("json", "jsonb_typeof(pattern) = 'object' AND jsonb_typeof(kwargs) = 'object'"),
        base.check("words", "skipped_times IN ('fire', 'skip') AND overlap IN ('allow', 'skip')"),
        base.check("numbers", "max_catch_up_runs BETWEEN 1 AND 1000 AND jitter_s BETWEEN 0 AND 86400"),
        base.time_range("created_at", "updated_at", "timed_at"),
    )


class ScheduleState(base.Base):
    """What schedulers remember of one schedule, in code or made at run time (`is_data`)."""

    __tablename__ = "horsies_schedule_state"

    schedule_name: Mapped[base.Name] = mapped_column(primary_key=True)
    """The schedule."""
    last_run_at: Mapped[datetime | None]
    """The slot, or the request, of its last run."""
    next_run_at: Mapped[datetime | None]
    """Its next slot."""
    last_task_id: Mapped[base.Id | None]
    """The task, or the run of a workflow, of its last run."""
    run_count: Mapped[int] = mapped_column(server_default="0")
    """Runs so far."""
    config_hash: Mapped[base.Sha | None]
    """The hash of what decides when it runs; NULL: a scheduler is to plan it."""
    paused_at: Mapped[datetime | None]
    """Since when its slots pass without a run; NULL: it is not paused."""
    run_requested_at: Mapped[datetime | None]
    """When an operator asked for one run; NULL: no open request."""
    updated_at: Mapped[datetime] = base.now()
    """When the row was last written. A running scheduler confirms schedules in its code every 10 s."""
    is_data: Mapped[bool] = mapped_column(server_default=false())
    """Whether it has a row in `horsies_schedules`, and is not in code."""
    entries: Mapped[int] = mapped_column(server_default="0")
    """How many entries its history has had; the last 20 are in `horsies_schedule_runs`."""
    problem: Mapped[str | None]
    """Why a scheduler cannot run it."""
    problem_at: Mapped[datetime | None]
    """When that was found."""

    __table_args__ = (
        base.check("runs", "run_count = 0 OR (run_count > 0 AND last_run_at IS NOT NULL AND last_task_id IS NOT NULL)"),
        base.time_range("last_run_at", "next_run_at", "paused_at", "run_requested_at", "updated_at", "problem_at"),
        base.partial("ix_horsies_schedule_state_due", "next_run_at", "schedule_name", where="is_data"),
        base.partial(
            "ix_horsies_schedule_state_unplanned", "schedule_name", where="is_data AND config_hash IS NULL"
        ),
        base.partial(
            "ix_horsies_schedule_state_requested", "run_requested_at",
            where="is_data AND run_requested_at IS NOT NULL",
        ),
    )  # fmt: skip


class ScheduleRun(base.Base):
    """One of the last 20 entries in the history of a schedule: a run, or slots that passed without one."""

    __tablename__ = "horsies_schedule_runs"

    schedule_name: Mapped[base.Name] = mapped_column(primary_key=True)
    """The schedule."""
    place: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    """0 to 19: the rest of `entry` divided by 20. A new entry overwrites the oldest."""
    entry: Mapped[int]
    """The number of the entry, from 1."""
    slot: Mapped[datetime]
    """The due time, or the first of several that passed."""
    last_slot: Mapped[datetime]
    """The last of several that passed, else the same as `slot`."""
    fired_at: Mapped[datetime]
    """When a scheduler dealt with it."""
    task_id: Mapped[base.Id | None]
    """The task or the run that was made; NULL when it was skipped."""
    skipped: Mapped[str | None] = mapped_column(String(20))
    """Why there is none: `missed`, `overlap`, `paused` or `refused`."""
    is_request: Mapped[bool] = mapped_column(server_default=false())
    """Whether an operator asked for it (`run-now`)."""

    __table_args__ = (
        base.check("place", "place BETWEEN 0 AND 19"),
        base.check(
            "outcome",
            "(task_id IS NULL) <> (skipped IS NULL)"
            " AND (skipped IS NULL OR skipped IN ('missed', 'overlap', 'paused', 'refused'))",
        ),
        base.time_range("slot", "last_slot", "fired_at"),
        {"postgresql_with": {"fillfactor": 70}},
    )


class SchedulerInstance(base.Base):
    """One scheduler, with the names that it knows. It is running if `seen_at` is fresh."""

    __tablename__ = "horsies_schedulers"

    id: Mapped[base.Id] = mapped_column(primary_key=True)
    """The scheduler."""
    hostname: Mapped[base.Name]
    """Its machine."""
    pid: Mapped[int]
    """Its process."""
    tasks: Mapped[list[str]]
    """The tasks that it knows, and can enqueue."""
    workflows: Mapped[list[str]]
    """The workflows that it knows."""
    schedules: Mapped[list[str]]
    """The schedules in its code."""
    started_at: Mapped[datetime] = base.statement_time()
    """When it started."""
    seen_at: Mapped[datetime] = base.statement_time()
    """Its last sign of life."""

    __table_args__ = (
        base.time_range("started_at", "seen_at"),
        {"postgresql_with": {"fillfactor": 50}},
    )
