"""Collects the figures of the installation at an interval, and gives the last ones to every scrape.

The database is asked by one task, however many Prometheus servers scrape. After a failed collection the figures are
gone from `/metrics` until one succeeds: an old depth must not look like the present one. `horsies_up` and the age of
the last success stay.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from horsies._pg.refusals import worded
from horsies.errors import HorsiesError, SchemaError
from horsies.operate.broker import PostgresBroker
from horsies_worker.metrics import cluster
from horsies_worker.metrics.cluster import Sample

if TYPE_CHECKING:
    from horsies.operate.cluster import ClusterFigures
    from horsies.operate.views import ReplicaState

_log = logging.getLogger("horsies.exporter")

COLLECTION_S: Final = 15.0
"""A collection that takes longer has failed."""


@dataclass(frozen=True, slots=True)
class _Last:
    """How the last collection ended. Times are those of `time.monotonic`."""

    ended_at: float
    duration_s: float
    figures: "ClusterFigures | None"
    reason: str | None
    """Why there are no figures."""
    revision: str | None
    succeeded_at: float | None
    """The end of the last successful collection."""
    ok: int
    errors: int
    replica: "ReplicaState | None" = None


class ClusterCollector(Collector):
    """The figures for a registry. One thread records collections, any thread reads the last one."""

    def __init__(self, interval_s: float, top_groups: int = 0) -> None:
        self._top_groups = top_groups
        self._last: _Last | None = None
        self._began = time.monotonic()
        self._max_age_s = 2 * interval_s + COLLECTION_S

    def succeeded(self, figures: "ClusterFigures", duration_s: float, replica: "ReplicaState | None" = None) -> None:
        """`replica`: where the figures came from, with a `replica_url`."""
        last, now = self._last, time.monotonic()
        self._last = _Last(
            ended_at=now, duration_s=duration_s, figures=figures, reason=None, revision=figures.revision,
            succeeded_at=now, ok=(last.ok if last else 0) + 1, errors=last.errors if last else 0, replica=replica,
        )  # fmt: skip

    def failed(self, reason: str, duration_s: float, revision: str | None = None) -> None:
        """`revision`: the one of a database that cannot be used because of it."""
        last = self._last
        self._last = _Last(
            ended_at=time.monotonic(), duration_s=duration_s, figures=None, reason=reason, revision=revision,
            succeeded_at=last.succeeded_at if last else None, ok=last.ok if last else 0,
            errors=(last.errors if last else 0) + 1,
        )  # fmt: skip

    def not_ready(self) -> str | None:
        """Why there are no present figures; None when there are."""
        last = self._last
        if last is None:
            return "no collection has ended yet"
        if last.reason is not None:
            return last.reason
        return self._told_silent(last)

    def unhealthy(self) -> str | None:
        """The process is healthy without a database, as long as it goes on asking."""
        return self._told_silent(self._last)

    def collect(self) -> Iterable[Family]:
        return cluster.families(self._samples())

    def _samples(self) -> Iterator[Sample]:
        last = self._last
        has_figures = last is not None and last.figures is not None and self._told_silent(last) is None
        yield cluster.UP, (), has_figures
        yield cluster.COLLECTIONS, ("ok",), last.ok if last else 0
        yield cluster.COLLECTIONS, ("error",), last.errors if last else 0
        if last is None:
            return
        yield cluster.COLLECTION_DURATION, (), last.duration_s
        if last.succeeded_at is not None:
            yield cluster.COLLECTION_AGE, (), time.monotonic() - last.succeeded_at
        if has_figures and last.figures is not None:
            yield from cluster.cluster_samples(last.figures, self._top_groups)
            if last.replica is not None:
                yield from cluster.replica_samples(last.replica)
        elif last.revision is not None:
            yield from cluster.schema_samples(last.revision)

    def _told_silent(self, last: _Last | None) -> str | None:
        age = time.monotonic() - (last.ended_at if last is not None else self._began)
        return f"no collection has ended for {age:.0f} s" if age > self._max_age_s else None


class CollectionLoop:
    """Asks the database at the interval, for ever; logs the beginning and the end of an outage."""

    def __init__(
        self, broker: PostgresBroker, collector: ClusterCollector, *, interval_s: float, count_limit: int,
        top_groups: int = 0, redact: Callable[[str], str],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._collector = collector
        self._interval_s = interval_s
        self._count_limit = count_limit
        self._top_groups = top_groups
        self._redact = redact
        self._failing_since: float | None = None
        self._replica_is_away = False

    async def run(self) -> None:
        while True:
            duration_s = await self.run_once()
            # a pause of at least the same length: a slow database is never asked without end
            await asyncio.sleep(max(self._interval_s - duration_s, duration_s))

    async def run_once(self) -> float:
        """Collect; returns how long it took."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(COLLECTION_S):
                figures = await self._broker.get_figures(self._count_limit, self._top_groups)
        except Exception as error:
            duration_s = time.monotonic() - began
            reason = self._told(error)
            revision = await self._revision() if isinstance(error, SchemaError) else None
            self._collector.failed(reason, duration_s, revision)
            self._note_failure(reason, began)
        else:
            duration_s = time.monotonic() - began
            self._collector.succeeded(figures, duration_s, self._broker.replica_state)
            self._note_success()
            self._note_replica(self._broker.replica_state)
        return duration_s

    def _note_replica(self, state: "ReplicaState | None") -> None:
        is_away = state is not None and state.away is not None
        if is_away != self._replica_is_away and state is not None:
            _log.warning("%s", state.told if is_away else "the replica answers again")
        self._replica_is_away = is_away

    async def _revision(self) -> str | None:
        try:
            async with asyncio.timeout(COLLECTION_S):
                return await self._broker.get_revision()
        except Exception:
            return None  # the reason of the failed collection says enough

    def _told(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"the database has not answered within {COLLECTION_S:g} s"
        return self._redact(str(error) if isinstance(error, HorsiesError) else worded(error))

    def _note_failure(self, reason: str, began: float) -> None:
        if self._failing_since is None:
            self._failing_since = began
            _log.warning("no figures: %s; trying again every %g s", reason, self._interval_s)
        else:
            _log.debug("still no figures: %s", reason)

    def _note_success(self) -> None:
        if self._failing_since is not None:
            _log.warning("figures again, after %.0f s", time.monotonic() - self._failing_since)
        self._failing_since = None
