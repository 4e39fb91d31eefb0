"""`AppConfig`: the configuration of an app. It is validated when it is made, and an error lists all problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from horsies._checks import MANY, Checks, shown
from horsies._hints import known_settings
from horsies.config.limits import Limit, queue_policy_json
from horsies.config.postgres import PostgresConfig
from horsies.config.queues import DEFAULT_PRIORITY, DEFAULT_QUEUE, CustomQueueConfig, QueueMode
from horsies.config.recovery import RecoveryConfig, check_two_beats
from horsies.config.resilience import ResilienceConfig
from horsies.errors import OperationalErrorCode
from horsies.exception_codes import ExceptionCodes, check_default_code, check_exception_mapper
from horsies.metadata import RESERVED
from horsies.middleware import Middleware, check_middleware
from horsies.options import check_name
from horsies.payload_codec import PayloadCodec, check_codec
from horsies.schedule import ScheduleConfig

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_PAYLOAD_LIMIT = 268_435_456
"""256 MiB: a text value may have 1 GB, but encoding, parameters and the reply each hold a copy."""


@known_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """The configuration of one `Horsies` app, the same for its producers, workers and schedulers."""

    broker: PostgresConfig = field(kw_only=False)
    """The database. May be given by position."""

    queue_mode: QueueMode = QueueMode.DEFAULT
    """DEFAULT: one queue, `default`. CUSTOM: the queues in `custom_queues`."""

    custom_queues: Sequence[CustomQueueConfig] = ()
    """The queues of CUSTOM mode, each with a name of its own; refused in DEFAULT mode."""

    cluster_wide_cap: int | None = None
    """How many tasks may be CLAIMED or RUNNING in the whole cluster; None: no limit."""

    limits: Sequence[Limit] = ()
    """Limits that several queues share: see `CustomQueueConfig.limits`."""

    prefetch_buffer: int = 0
    """How many tasks a worker may claim beyond its free slots. 0: none, and caps are hard. Above
    0 it needs `claim_lease_ms`, and excludes `cluster_wide_cap`."""

    claim_lease_ms: int | None = None
    """How long a claim is valid without renewal; silence beyond `recovery.claimed_stale_threshold_ms` ends it sooner.
    At least twice `recovery.claimer_heartbeat_interval_ms`. None: `recovery.claimed_stale_threshold_ms`."""

    max_claim_batch: int = 500
    """How many tasks a claim statement takes at most. Larger batches are hardly faster (100 and 500 differ by a fifth),
    and one worker would empty the queue before the others."""

    max_claim_per_worker: int | None = None
    """How many tasks a worker may own (CLAIMED + RUNNING); None: its slots plus `prefetch_buffer`."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The schedules: `ScheduleConfig([TaskSchedule(...), ...])`, run by `horsies scheduler`."""

    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    """When a silent task or worker counts as lost, and how long rows are kept."""

    resilience: ResilienceConfig = field(default_factory=ResilienceConfig)
    """What to do when notifications are lost, or the database is slow or gone."""

    exception_mapper: Mapping[type[BaseException], str] = field(
        default_factory=dict[type[BaseException], str], hash=False
    )
    """By class of exception: the error code of a task that it escapes, any but a built-in one; the most specific class
    wins. A task may have its own, which replace these for the same classes: `@app.task(..., exception_mapper=)`."""

    default_unhandled_error_code: str = OperationalErrorCode.UNHANDLED_EXCEPTION.value
    """Error code for an exception without a mapped class, of tasks that do not have their own:
    `@app.task(..., default_unhandled_error_code=)`. No other built-in code."""

    payload_warn_bytes: int = 1_048_576
    """Arguments or results above this size are logged. At most `payload_max_bytes`."""

    payload_max_bytes: int = 8_388_608
    """Arguments or results above this size are refused."""

    payload_codec: PayloadCodec | None = field(default=None, hash=False)
    """Encodes arguments, results and errors in the database, such as by encryption; None: they are stored as JSON."""

    middleware: Sequence[Middleware] = field(default=(), hash=False)
    """Code around every send and every attempt; the first is the outermost."""

    propagate_metadata: Sequence[str] = ()
    """The keys of metadata that a task sent from inside a task inherits, such as `tenant`; none that begins with
    `horsies.`."""

    release: str | None = None
    """The release of your code, such as a version or a commit: 1 to 255 printable characters. A run of a workflow keeps
    that of the process that started it; `horsies workflows show` and `check` name it."""

    auto_migrate: bool = True
    """Whether a worker or scheduler upgrades the schema to its release's newest revision when it starts. The client
    never runs DDL."""

    unknown_task_grace_ms: int = 300_000
    """How long a task waits whose name no worker of its queue ever registered, before it fails with
    WORKER_RESOLUTION_ERROR: a rolling deploy may be under way. Counted from when it is ready, while live workers serve
    its queue. For names that were known before, see `RecoveryConfig.retired_task_grace_ms`."""

    def __post_init__(self) -> None:
        checks = Checks("AppConfig")
        for name, kind in (
            ("broker", PostgresConfig), ("schedule", ScheduleConfig), ("recovery", RecoveryConfig),
            ("resilience", ResilienceConfig),
        ):  # fmt: skip
            value: object = getattr(self, name)
            if not isinstance(value, kind):
                # Only the type: a URL in place of a PostgresConfig would show its password.
                checks.add(name, f"must be a {kind.__name__}, got {type(value).__name__}", f"give {kind.__name__}(...)")
        self._check_queues(checks)
        self._check_claims(checks)
        self._check_exceptions(checks)

        max_ok = checks.integer("payload_max_bytes", self.payload_max_bytes, 1, _PAYLOAD_LIMIT, unit="bytes")
        warn_ok = checks.integer("payload_warn_bytes", self.payload_warn_bytes, 1, _PAYLOAD_LIMIT, unit="bytes")
        if max_ok and warn_ok and self.payload_warn_bytes > self.payload_max_bytes:
            checks.add(
                "payload_warn_bytes",
                f"{self.payload_warn_bytes:_} is above payload_max_bytes ({self.payload_max_bytes:_}):"
                " nothing could be large enough to warn about",
                f"lower it to {self.payload_max_bytes:_} or less, or raise payload_max_bytes to"
                f" {self.payload_warn_bytes:_}",
            )
        if cast("object", self.payload_codec) is not None:
            check_codec(checks, "payload_codec", self.payload_codec)
        object.__setattr__(self, "middleware", check_middleware(checks, self.middleware))
        keys = checks.listed("propagate_metadata", self.propagate_metadata, 'give a list of keys, such as ["tenant"]')
        for key in keys or ():
            if not isinstance(key, str) or not key or key.startswith(RESERVED):
                checks.add("propagate_metadata", f"{shown(key)} is not a key of your metadata", "name your own keys")
        object.__setattr__(self, "propagate_metadata", tuple(keys or ()))
        if cast("object", self.release) is not None:
            check_name(checks, "release", self.release)
        checks.boolean("auto_migrate", self.auto_migrate)
        checks.integer("unknown_task_grace_ms", self.unknown_task_grace_ms, 0, _DAY_MS, unit="ms")
        checks.finish()

    def _check_queues(self, checks: Checks) -> None:
        mode = cast("object", self.queue_mode)
        if checks.word("queue_mode", mode, tuple(QueueMode)) and not isinstance(mode, QueueMode):
            # a plain string, such as from an environment variable
            object.__setattr__(self, "queue_mode", QueueMode(str(mode)))
        queues = checks.listed("custom_queues", self.custom_queues, "give a list of CustomQueueConfig(...)")
        if queues is None:
            return
        object.__setattr__(self, "custom_queues", queues)
        checks.named("custom_queues", queues, CustomQueueConfig, "name=...", "give every queue its own name")
        if self.queue_mode is QueueMode.CUSTOM and not queues:
            checks.add("custom_queues", "QueueMode.CUSTOM without any queue", "list at least one CustomQueueConfig")
        if self.queue_mode is QueueMode.DEFAULT and queues:
            checks.add(
                "custom_queues",
                f"QueueMode.DEFAULT has the one queue {DEFAULT_QUEUE!r} and takes no others",
                "set queue_mode=QueueMode.CUSTOM, or remove custom_queues",
            )
        self._check_limits(checks)

    def _check_limits(self, checks: Checks) -> None:
        limits = checks.listed("limits", self.limits, "give a list of Limit(...)")
        if limits is None:
            return
        object.__setattr__(self, "limits", limits)
        checks.named("limits", limits, Limit, "name, ...", "give every limit its own name")
        known = {limit.name for limit in limits if isinstance(limit, Limit)}
        used: set[str] = set()
        for queue in self.custom_queues:
            if not isinstance(cast("object", queue), CustomQueueConfig):
                continue
            used.update(queue.limits)
            for name in queue.limits:
                if name not in known:
                    checks.add(
                        f"custom_queues[{queue.name!r}].limits",
                        f"names the limit {name!r}, which `limits` does not define",
                        f"add Limit({name!r}, ...) to AppConfig.limits, or remove the name",
                    )
        for name in sorted(known - used):
            checks.add(
                "limits",
                f"no queue uses the limit {name!r}: it would limit nothing",
                f"add it to the limits of a queue, as in CustomQueueConfig(..., limits=[{name!r}])",
            )

    def _check_claims(self, checks: Checks) -> None:
        cap_ok = checks.integer("cluster_wide_cap", self.cluster_wide_cap, 1, MANY, optional=True)
        buffer_ok = checks.integer("prefetch_buffer", self.prefetch_buffer, 0, 10_000)
        checks.integer("max_claim_batch", self.max_claim_batch, 1, 5_000)
        checks.integer("max_claim_per_worker", self.max_claim_per_worker, 1, MANY, optional=True)
        recovery = cast("object", self.recovery)
        beat = recovery.claimer_heartbeat_interval_ms if isinstance(recovery, RecoveryConfig) else 1_000
        check_two_beats(
            checks,
            "claim_lease_ms",
            self.claim_lease_ms,
            _HOUR_MS,
            "recovery.claimer_heartbeat_interval_ms",
            beat,
            "it renews the claim, and one late heartbeat would lose it",
            optional=True,
        )
        if buffer_ok and self.prefetch_buffer > 0:
            if self.claim_lease_ms is None:
                checks.add(
                    "claim_lease_ms",
                    "is required with prefetch_buffer > 0:"
                    " a task held ahead must come free soon after its worker is gone",
                    f"set it to a few heartbeats, such as {3 * beat:_}, or set prefetch_buffer=0",
                )
            if cap_ok and self.cluster_wide_cap is not None:
                checks.add(
                    "prefetch_buffer",
                    "cannot be combined with cluster_wide_cap: tasks held ahead would use up the cap without running",
                    "set prefetch_buffer=0, or remove cluster_wide_cap",
                )

    def _check_exceptions(self, checks: Checks) -> None:
        check_default_code(checks, self.default_unhandled_error_code)
        object.__setattr__(self, "exception_mapper", check_exception_mapper(checks, self.exception_mapper))

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queues of this app, in the order of the configuration."""
        if self.queue_mode is QueueMode.DEFAULT:
            return (DEFAULT_QUEUE,)
        return tuple(queue.name for queue in self.custom_queues)

    def has_queue(self, name: str) -> bool:
        return name in self.queue_names

    def queue_priority(self, name: str) -> int:
        """The priority of tasks in this queue without their own; KeyError for an unknown queue."""
        if self.queue_mode is QueueMode.DEFAULT and name == DEFAULT_QUEUE:
            return DEFAULT_PRIORITY
        for queue in self.custom_queues:
            if queue.name == name:
                return queue.priority
        raise KeyError(name)

    @property
    def exception_codes(self) -> ExceptionCodes:
        """The error codes of exceptions, for tasks that have none of their own."""
        return ExceptionCodes(self.exception_mapper, self.default_unhandled_error_code)

    @property
    def queue_policies(self) -> dict[str, dict[str, Any] | None]:
        """The declared policy of each queue, as its row in the database holds it."""
        if self.queue_mode is QueueMode.DEFAULT:
            return {DEFAULT_QUEUE: None}
        return {
            queue.name: queue_policy_json(queue.groups, queue.limits, queue.weight, queue.ageing_seconds)
            for queue in self.custom_queues
        }

    @property
    def effective_claim_lease_ms(self) -> int:
        """The lease of a claim: `claim_lease_ms`, or the threshold after which the reaper requeues the task."""
        return self.claim_lease_ms or self.recovery.claimed_stale_threshold_ms
