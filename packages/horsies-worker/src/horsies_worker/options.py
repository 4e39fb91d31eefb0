"""The options of workers, schedulers and the exporter, and their checks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from horsies._checks import MANY, Checks
from horsies._text import short
from horsies.app import Horsies
from horsies.errors import ConfigurationError
from horsies.middleware import check_batch_scopes, check_kinds
from horsies.operate.reading import QUEUE_BOUND
from horsies_worker.child.jobs import ChildSpec
from horsies_worker.health import HealthFile, default_health_file, is_other_than_file
from horsies_worker.metrics import DEFAULT_HOST

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOG_FORMATS = ("text", "json")
MAX_SHUTDOWN_S = 86_400
MAX_DATABASE_WAIT_S = 7 * 86_400
EXPORTER_PORT = 10_990
"""Prometheus' own range, 9100 to 9999, is full: every number of it is some other exporter's default."""


@dataclass(slots=True, kw_only=True)
class ProcessOptions:
    """Options of both workers and schedulers."""

    database_timeout_s: float | None = None
    """Give up when the database is away at start for so long; None: wait."""
    shutdown_timeout_s: float = 30.0
    """Bound on the whole stop, from the first signal on; a second one hurries."""
    log_level: str = "INFO"
    """The least severe messages that are logged."""
    log_format: str = "text"
    """`json`: one object per line."""
    health_file: Path | str | None = field(default_factory=default_health_file)
    """Written for `horsies health`; None: no file."""
    _health: HealthFile | None = None

    def check_process(self, checks: Checks) -> None:
        checks.word("log_level", self.log_level, LOG_LEVELS)
        checks.word("log_format", self.log_format, LOG_FORMATS)
        checks.seconds("shutdown_timeout", self.shutdown_timeout_s, 0, MAX_SHUTDOWN_S)
        checks.seconds("database_timeout", self.database_timeout_s, 0, MAX_DATABASE_WAIT_S, optional=True)
        if self.health_file is not None and is_other_than_file(Path(self.health_file)):
            checks.add("health_file", f"{str(self.health_file)!r} is not a file", "name a file that it may replace")

    def touch_health_file(self) -> None:
        """Record for `horsies health` that the database has just answered."""
        if self._health is None:
            self._health = HealthFile(None if self.health_file is None else Path(self.health_file))
        self._health.touch()


@dataclass(slots=True, kw_only=True)
class SchedulerOptions(ProcessOptions):
    locator: str = "app.run_scheduler()"
    """Where the app is, `module:attribute`; `app.run_scheduler` knows it."""
    health_file: Path | str | None = field(default_factory=lambda: default_health_file("scheduler"))
    """Written for `horsies health --scheduler`; None: no file."""

    def values(self) -> Checks:
        """Check all that does not depend on the app."""
        checks = Checks("scheduler")
        self.check_process(checks)
        return checks

    def check(self, app: Horsies) -> None:
        """Raise ConfigurationError with all problems, those of the schedules included."""
        checks = self.values()
        check_schedules(app, checks)
        checks.finish()


@dataclass(slots=True, kw_only=True)
class ExporterOptions:
    host: str = DEFAULT_HOST
    """The address to listen on; the default means all."""
    port: int = EXPORTER_PORT
    """The port; 0: any free one."""
    interval_s: float = 10.0
    """How often the database is asked, however many scrapes there are."""
    count_limit: int = QUEUE_BOUND
    """Waiting tasks are counted up to this number for each queue and priority."""
    top_groups: int = 0
    """The number of groups of each queue that get a label of their own."""
    log_level: str = "INFO"
    """The least severe messages that are logged."""
    log_format: str = "text"
    """`json`: one object per line."""

    def values(self) -> Checks:
        checks = Checks("exporter")
        checks.text("host", self.host)
        checks.integer("port", self.port, 0, 65_535)
        checks.seconds("interval", self.interval_s, 1, 3_600)
        checks.integer("count_limit", self.count_limit, 1, MANY)
        checks.integer("top_groups", self.top_groups, 0, 100)
        checks.word("log_level", self.log_level, LOG_LEVELS)
        checks.word("log_format", self.log_format, LOG_FORMATS)
        return checks


def check_schedules(app: Horsies, checks: Checks) -> None:
    """Add all problems of the app's schedules."""
    if not app.config.schedule.schedules:
        return
    from horsies_worker.scheduler.scheduler import settled_schedules

    try:
        settled_schedules(app)
    except ConfigurationError as error:
        checks.problems += error.problems


@dataclass(slots=True, kw_only=True)
class WorkerOptions(ProcessOptions):
    locator: str
    """Where the app is: `module:attribute`, such as `shop.tasks:app`."""
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Child processes, each of which runs one synchronous task at a time."""
    async_concurrency: int = 100
    """`async def` tasks at once in each child."""
    queues: Sequence[str] | None = None
    """Serve only these queues; None: all of the app."""
    max_claim_batch: int | None = None
    """Tasks per claim statement; None: that of the app."""
    max_claim_per_worker: int | None = None
    """Tasks owned by this worker at once; None: that of the app."""
    max_tasks_per_child: int | None = None
    """Replace a child after so many tasks; None: never."""
    max_memory_per_child_mb: int | None = None
    """Replace a child above this resident size; None: never."""
    max_child_age_s: float | None = None
    """Replace a child after so long; None: never."""
    run_ahead: bool = True
    """Whether very short tasks may be handed to a child ahead of time."""
    with_scheduler: bool = False
    """Serve the app's schedules too, in this process."""
    log_tasks: bool = False
    """Log every successful task at INFO; failures are always logged."""
    metrics_port: int | None = None
    """Serve the worker's metrics and probes on this port; 0: any free one."""
    metrics_host: str = DEFAULT_HOST
    """The address to listen on for that; the default means all."""

    def child_spec(self, worker_id: str = "") -> ChildSpec:
        return ChildSpec(
            worker_id=worker_id,
            app_locator=self.locator,
            processes=self.processes,
            async_concurrency=self.async_concurrency,
            max_tasks_per_child=self.max_tasks_per_child,
            max_memory_mb=self.max_memory_per_child_mb,
            max_age_s=self.max_child_age_s,
            run_ahead=self.run_ahead,
            log_level=self.log_level,
            log_format=self.log_format,
        )

    def values(self, app: Horsies | None = None) -> Checks:
        """Check all that does not depend on the app, and with an app the names of its queues."""
        checks = Checks("worker")
        checks.integer("processes", self.processes, 1, 1_000)
        checks.integer("async_concurrency", self.async_concurrency, 1, 100_000)
        checks.integer("max_claim_batch", self.max_claim_batch, 1, 5_000, optional=True)
        checks.integer("max_claim_per_worker", self.max_claim_per_worker, 1, MANY, optional=True)
        checks.integer("max_tasks_per_child", self.max_tasks_per_child, 1, 1_000_000_000, optional=True)
        checks.integer("max_memory_per_child_mb", self.max_memory_per_child_mb, 1, 16_777_216, optional=True)
        checks.boolean("log_tasks", self.log_tasks)
        checks.integer("metrics_port", self.metrics_port, 0, 65_535, optional=True)
        checks.text("metrics_host", self.metrics_host)
        checks.seconds("max_child_age", self.max_child_age_s, 0.1, 31_536_000, optional=True)
        self.check_process(checks)
        if self.queues is not None and not self.queues:
            checks.add("queues", "it names no queue", "name at least one, or leave it out to serve all")
        known = app.config.queue_names if app is not None else self.queues or ()
        for name in self.queues or ():
            if name not in known:
                checks.add("queues", f"{short(name)!r} is not a queue of this app", f"choose among: {', '.join(known)}")
        return checks

    def check(self, app: Horsies) -> None:
        """Raise ConfigurationError with all problems."""
        checks = self.values(app)
        if not any(not task.is_stub for task in app.registry):
            checks.add("app", "no task with a body is registered", "import the modules with your @app.task functions")
        kinds = {task.is_async for task in app.registry if not task.is_stub}
        check_kinds(checks, app.config.middleware, kinds)
        batch_tasks = [task.name for task in app.registry if task.batch is not None]
        check_batch_scopes(checks, app.config.middleware, batch_tasks)
        if self.with_scheduler:
            check_schedules(app, checks)
        checks.finish()
