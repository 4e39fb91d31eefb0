"""`horsies worker` whose hours of retention, and between two runs of the pruner, are BENCH_HOUR_S seconds long."""

import os
import sys
from datetime import timedelta

from horsies_worker.cli import worker_main
from horsies_worker.retention import pruner

HOUR_S = float(os.environ["BENCH_HOUR_S"])


def compressed(*, hours: float) -> timedelta:
    return timedelta(seconds=hours * HOUR_S)


pruner.EVERY_S = HOUR_S  # type: ignore[misc]
pruner.FIRST_AFTER_S = HOUR_S  # type: ignore[misc]
pruner.timedelta = compressed  # type: ignore[assignment]
sys.exit(worker_main())
