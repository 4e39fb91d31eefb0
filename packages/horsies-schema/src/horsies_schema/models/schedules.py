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
    task_name: Mapped[base.Name | None]
    workflow: Mapped[base.Name | None]
    pattern: Mapped[Any] = mapped_column(JSONB, nullable=False)
    kwargs: Mapped[Any] = mapped_column(JSONB, nullable=False, server_default=text("'{}'"))
    queue_name: Mapped[base.QueueName | None]
    group_key: Mapped[base.Key | None]
    timezone: Mapped[base.Name] = mapped_column(server_default="UTC")
    skipped_times: Mapped[base.Word] = mapped_column(server_default="fire")
    overlap: Mapped[base.Word] = mapped_column(server_default="allow")
    catch_up_missed: Mapped[bool] = mapped_column(server_default=false())
    max_catch_up_runs: Mapped[int] = mapped_column(server_default="100")
    jitter_s: Mapped[float] = mapped_column(server_default=text("0"))
    enabled: Mapped[bool] = mapped_column(server_default=true())
    version: Mapped[int] = mapped_column(server_default="1")
    created_by: Mapped[base.Name | None]
    created_at: Mapped[datetime] = base.statement_time()
    updated_at: Mapped[datetime] = base.statement_time()
    timed_at: Mapped[datetime] = base.statement_time()

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
    last_run_at: Mapped[datetime | None]
    next_run_at: Mapped[datetime | None]
    last_task_id: Mapped[base.Id | None]
    run_count: Mapped[int] = mapped_column(server_default="0")
    config_hash: Mapped[base.Sha | None]
    paused_at: Mapped[datetime | None]
    run_requested_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = base.now()
    is_data: Mapped[bool] = mapped_column(server_default=false())
    entries: Mapped[int] = mapped_column(server_default="0")
    problem: Mapped[str | None]
    problem_at: Mapped[datetime | None]

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
    place: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    entry: Mapped[int]
    slot: Mapped[datetime]
    last_slot: Mapped[datetime]
    fired_at: Mapped[datetime]
    task_id: Mapped[base.Id | None]
    skipped: Mapped[str | None] = mapped_column(String(20))
    is_request: Mapped[bool] = mapped_column(server_default=false())

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
    hostname: Mapped[base.Name]
    pid: Mapped[int]
    tasks: Mapped[list[str]]
    workflows: Mapped[list[str]]
    schedules: Mapped[list[str]]
    started_at: Mapped[datetime] = base.statement_time()
    seen_at: Mapped[datetime] = base.statement_time()

    __table_args__ = (
        base.time_range("started_at", "seen_at"),
        {"postgresql_with": {"fillfactor": 50}},
    )
