"""The values that cross the yard's borders: what goes into the pool, what comes out, how it is set up.

Arguments and results are JSON text on both sides; only the child decodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from horsies.codec import EncodedResult, PayloadLimits


@dataclass(slots=True)
class Job:
    """One attempt of one task, durably RUNNING, on its way into a child."""

    task_id: str
    generation: int
    attempt: int
    task_name: str
    args: str | None
    kwargs: str | None
    timeout_ms: int | None = None
    is_async: bool = False
    run_ahead: bool = True
    """May this job be handed to a busy child, behind another very short one? (task's and worker's switch)"""


class OutcomeKind(StrEnum):
    OK = "OK"
    """User code returned an ok result."""
    ERR = "ERR"
    """User code returned an err, raised, or could not be called."""
    CRASHED = "CRASHED"
    """The child died while this job ran. `failed_reason` has the forensics."""
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    """Stopped on request; without `started_mono` it never began."""
    INTERRUPTED = "INTERRUPTED"
    """Stopped because the worker leaves."""


@dataclass(slots=True)
class Outcome:
    """How an attempt ended. Times are `time.monotonic()`, which parent and child share."""

    kind: OutcomeKind
    result: str
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    retry_after_ms: int | None
    started_mono: float | None
    finished_mono: float
    pid: int | None
    process_name: str


@dataclass(frozen=True, slots=True)
class Room:
    """What the pool can take now."""

    sync: int
    """Children that are idle: one synchronous job each, of any length."""
    ahead: int
    """Very short jobs (`ChildPool.is_short`) that may be handed to children beyond `sync`."""
    asynchronous: int
    """Free places on the children's event loops."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Everything a child needs to know, and the limits it lives under."""

    app_locator: str
    """`module:attribute`, importable in the child."""
    processes: int = 2
    async_concurrency: int = 100
    """Places per child for `async def` tasks."""
    max_tasks_per_child: int | None = None
    max_age_s: float | None = None
    max_memory_mb: int | None = None
    run_ahead: bool = True
    kill_grace_s: float = 2.0
    """How long each rung of the stop ladder waits before the next: flag, exception, SIGTERM, SIGKILL."""
    start_timeout_s: float = 60.0
    """From the fork (or the start of the template) until the child is ready: import and hooks."""
    start_attempts: int = 6
    """Consecutive failed starts before the pool gives up; waits 0.1, 0.2, 0.4 ... s in between."""
    preload: bool = True
    """Import the app once, in the template that children are forked from. Falls back by itself to an
    import per child when the import leaves threads or sockets behind."""
    sys_path: Sequence[str] = ()
    """In front of this process's own `sys.path`."""
    cwd: str | None = None
    name: str = "horsies"
    """Prefix of process names: `horsies-child-7`."""
    log_level: str = "INFO"
    log_format: str = "text"
    """`text` or `json`; used when the app's import configured no logging of its own."""


@dataclass(frozen=True, slots=True)
class ChildStats:
    name: str
    pid: int
    state: str
    rss_kb: int
    tasks: int
    running: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    children: tuple[ChildStats, ...]
    starts: int
    """Children that became ready, ever."""
    deaths: int
    """Children that died without having been asked to."""
    recycled: int
    start_failures: int
    """Consecutive ones, now."""
    output_dropped_bytes: int
    """Written by children to stdout or stderr while this process's own output was blocked."""


# What a child needs of the app. The real ones are horsies.Horsies, its registry and horsies.codec.


class CodecLike(Protocol):
    def decode_call(
        self, args_json: str | None, kwargs_json: str | None, /
    ) -> tuple[Sequence[Any], Mapping[str, Any]]: ...

    def encode_outcome(self, returned: object, /, *, limits: PayloadLimits) -> EncodedResult: ...


class DefinitionLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def codec(self) -> CodecLike: ...


class RegistryLike(Protocol):
    def get(self, name: str, /) -> DefinitionLike | None: ...


class ConfigLike(Protocol):
    @property
    def exception_mapper(self) -> Mapping[type[BaseException], str]: ...
    @property
    def default_unhandled_error_code(self) -> str: ...
    @property
    def payload_warn_bytes(self) -> int: ...
    @property
    def payload_max_bytes(self) -> int: ...


class AppLike(Protocol):
    @property
    def registry(self) -> RegistryLike: ...
    @property
    def config(self) -> ConfigLike: ...
    @property
    def child_start_hooks(self) -> Sequence[Callable[[], None]]: ...
