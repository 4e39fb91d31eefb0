"""How much one worker may claim, and from which queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horsies.config import AppConfig


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


def claim_settings(
    config: AppConfig,
    *,
    queues: Sequence[str],
    max_batch: int | None,
    max_per_worker: int | None,
    run_ahead: bool,
) -> ClaimSettings:
    """The app's limits, with what this worker was told on its command line."""
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
    )
