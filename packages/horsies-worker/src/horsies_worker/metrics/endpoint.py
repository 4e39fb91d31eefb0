"""The metrics endpoint of a worker: its own figures, and the probes of an orchestrator."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector

from horsies_worker.children.child_process import State
from horsies_worker.events.bus import EventBus
from horsies_worker.events.user_handlers import UserHandlers
from horsies_worker.metrics.http import MetricsServer
from horsies_worker.metrics.worker import Gauges, WorkerMetrics

if TYPE_CHECKING:
    from horsies_worker.worker import Worker

_ANSWER_S: Final = 2.0
"""A worker whose event loop does not answer for so long serves its counters without gauges, and is not healthy."""
_STATES: Final = (State.STARTING, State.READY, State.RETIRING)
_log = logging.getLogger("horsies.worker")


class WorkerEndpoint:
    """Serves from `start` to `close`. `worker` returns the present one: its process may continue as another."""

    def __init__(
        self, bus: EventBus, handlers: UserHandlers, worker: "Callable[[], Worker]", *, host: str, port: int
    ) -> None:
        self._worker = worker
        self._handlers = handlers
        self._loop: asyncio.AbstractEventLoop | None = None
        registry = CollectorRegistry()
        registry.register(WorkerMetrics(bus, self._ask))
        ProcessCollector(registry=registry)
        self._server = MetricsServer(
            registry, host=host, port=port, health=self._unhealthy, readiness=self._not_ready
        )  # fmt: skip
        self._host = host

    def start(self) -> None:
        """Raises MetricsUnavailable. Called on the event loop, after the template was forked."""
        self._loop = asyncio.get_running_loop()
        self._server.start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        _log.info("metrics: http://%s:%d/metrics", host, self._server.port)

    def close(self) -> None:
        self._server.close()

    def _ask(self) -> Gauges | None:
        """Read the worker on its own loop, from a thread of the server: its state may change at any await."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return None
        answer: Future[Gauges] = Future()
        try:
            loop.call_soon_threadsafe(self._answer, answer)
            return answer.result(_ANSWER_S)
        except Exception:  # the loop is stuck, or closed meanwhile
            answer.cancel()  # a loop that is stuck need not answer all who asked meanwhile
            return None

    def _answer(self, answer: "Future[Gauges]") -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(self._read())
            except Exception as error:
                _log.exception("the figures of this worker cannot be read")
                answer.set_exception(error)

    def _read(self) -> Gauges:
        worker = self._worker()
        stats = worker.pool.stats()
        states = Counter(child.state for child in stats.children)
        return Gauges(
            worker_id=worker.identity.worker_id,
            children={str(state): states[str(state)] for state in _STATES},
            memory_bytes=sum(child.rss_kb for child in stats.children) * 1024,
            running=sum(child.running for child in stats.children),
            unwritten=worker.unwritten,
            is_connected=worker.is_connected,
            is_claiming=worker.is_claiming,
            events_dropped=self._handlers.dropped,
        )

    def _unhealthy(self) -> str | None:
        return None if self._ask() is not None else f"the event loop has not answered within {_ANSWER_S:g} s"

    def _not_ready(self) -> str | None:
        gauges = self._ask()
        if gauges is None:
            return "the event loop does not answer"
        if not self._worker().is_up:
            return "the worker is starting or stopping"
        if not gauges.is_connected:
            return "the database does not answer"
        if not gauges.is_claiming:
            return "the worker is drained: it claims no tasks until `horsies workers resume`"
        return None if gauges.children[State.READY] else "no child process is ready"
