"""How much one worker may claim, from which queues, and which task names it knows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from horsies.config import AppConfig
from horsies.registry import TaskDefinition


@dataclass(frozen=True, slots=True)
class ClaimSettings:
    queues: Sequence[str]
    queue_caps: Mapping[str, int]
    cluster_cap: int | None
    max_batch: int
    max_per_worker: int | None
    prefetch: int
    lease_ms: int
    run_ahead: bool
    poll_s: float

    @property
    def has_caps(self) -> bool:
        return bool(self.queue_caps) or self.cluster_cap is not None


@dataclass(frozen=True, slots=True)
class TaskKinds:
    """The task names that this process knows. It claims no others: they wait for workers that know them."""

    sync: Sequence[str]
    asynchronous: Sequence[str]
    known: Sequence[str]
    async_set: frozenset[str]

    @classmethod
    def of(cls, sync: Sequence[str], asynchronous: Sequence[str] = ()) -> Self:
        return cls(sync, asynchronous, [*sync, *asynchronous], frozenset(asynchronous))


def task_kinds(registry: Iterable[TaskDefinition]) -> TaskKinds:
    tasks = [task for task in registry if not task.is_stub]
    return TaskKinds.of(
        [task.name for task in tasks if not task.is_async], [task.name for task in tasks if task.is_async]
    )


def claim_settings(
    config: AppConfig,
    *,
    queues: Sequence[str],
    max_batch: int | None,
    max_per_worker: int | None,
    run_ahead: bool,
) -> ClaimSettings:
    """The limits of the app, or those of this worker's command line."""
    return ClaimSettings(
        queues=tuple(queues),
        queue_caps={
            queue.name: queue.max_concurrency
            for queue in config.custom_queues
            if queue.max_concurrency is not None and queue.name in queues
        },
        cluster_cap=config.cluster_wide_cap,
        max_batch=max_batch or config.max_claim_batch,
        max_per_worker=max_per_worker or config.max_claim_per_worker,
        prefetch=config.prefetch_buffer,
        lease_ms=config.effective_claim_lease_ms,
        run_ahead=run_ahead,
        poll_s=config.resilience.notify_poll_interval_ms / 1000,
    )
