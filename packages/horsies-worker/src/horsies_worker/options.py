"""What a worker is told on its command line, checked."""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from horsies._checks import Checks
from horsies.app import Horsies

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOG_FORMATS = ("text", "json")


def default_health_file() -> Path:
    """One worker per container is the rule; several on one machine name their own."""
    return Path(os.environ.get("HORSIES_HEALTH_FILE") or Path(tempfile.gettempdir()) / f"horsies-health-{os.getuid()}")


@dataclass(slots=True, kw_only=True)
class WorkerOptions:
    locator: str
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    async_concurrency: int = 100
    queues: Sequence[str] | None = None
    max_claim_batch: int | None = None
    max_claim_per_worker: int | None = None
    max_tasks_per_child: int | None = None
    max_memory_per_child_mb: int | None = None
    max_child_age_s: float | None = None
    run_ahead: bool = True
    shutdown_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    database_timeout_s: float | None = None
    log_level: str = "INFO"
    log_format: str = "text"
    health_file: Path | None = field(default_factory=default_health_file)
    _touched: float = 0.0

    def check(self, app: Horsies) -> None:
        """Raise ConfigurationError with everything that is wrong."""
        checks = Checks("worker")
        checks.integer("processes", self.processes, 1, 1_000)
        checks.integer("async_concurrency", self.async_concurrency, 1, 100_000)
        checks.integer("max_claim_batch", self.max_claim_batch, 1, 5_000, optional=True)
        checks.integer("max_claim_per_worker", self.max_claim_per_worker, 1, optional=True)
        checks.integer("max_tasks_per_child", self.max_tasks_per_child, 1, optional=True)
        checks.integer("max_memory_per_child_mb", self.max_memory_per_child_mb, 1, optional=True)
        checks.word("log_level", self.log_level, LOG_LEVELS)
        checks.word("log_format", self.log_format, LOG_FORMATS)
        for name, value in (("shutdown_timeout", self.shutdown_timeout_s), ("drain_timeout", self.drain_timeout_s)):
            if value < 0:
                checks.add(name, f"{value} is negative", "give a number of seconds")
        known = app.config.queue_names
        for name in self.queues or ():
            if name not in known:
                checks.add("queues", f"{name!r} is not a queue of this app", f"choose among: {', '.join(known)}")
        if not any(not task.is_stub for task in app.registry):
            checks.add("app", "no task with a body is registered", "import the modules with your @app.task functions")
        checks.finish()

    def touch_health_file(self) -> None:
        """The mark that `horsies health` reads: a claim query succeeded just now. At most once a second."""
        now = time.monotonic()
        if self.health_file is None or now - self._touched < 1.0:
            return
        self._touched = now
        try:
            self.health_file.write_text(f"{os.getpid()}\n")
        except OSError:
            self.health_file = None  # a read-only file system: there is nobody to tell
