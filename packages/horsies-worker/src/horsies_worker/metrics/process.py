"""`horsies exporter`: the figures of the whole installation, in a process of its own."""

import asyncio
import logging
import os
import socket
from dataclasses import replace
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

from horsies.app import Horsies
from horsies.config import ResilienceConfig
from horsies_worker import signals
from horsies_worker.exit_codes import ExitCode
from horsies_worker.metrics import MetricsUnavailable
from horsies_worker.metrics.collector import ClusterCollector, CollectionLoop
from horsies_worker.metrics.http import MetricsServer
from horsies_worker.options import ExporterOptions
from horsies_worker.output.log_context import configure_logging
from horsies_worker.output.stacks import log_own_stacks
from horsies_worker.process import complain, run_until_stopped
from horsies_worker.stop import Stop, Watchdog

_log = logging.getLogger("horsies.exporter")

_STOP_S: Final = 1.0
"""Nothing is lost when a stop is cut short."""


def run_exporter(app: Horsies, options: ExporterOptions) -> ExitCode:
    """Serve the figures of the app's database until a signal comes; blocks. The process ends with it."""
    configure_logging(options.log_level, options.log_format)
    # its single retries are no news: the collection loop tells of an outage once
    logging.getLogger("horsies").addFilter(lambda record: record.levelno >= logging.WARNING)
    # A second attempt at once: an idle connection that a pooler or a restart has cut is no outage.
    app = Horsies(replace(app.config, resilience=ResilienceConfig(send_attempts=2, reconnect_max_ms=1_000)))
    collector = ClusterCollector(options.interval_s, options.top_groups)
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    server = MetricsServer(
        registry, host=options.host, port=options.port, health=collector.unhealthy, readiness=collector.not_ready
    )
    try:
        server.start()
    except MetricsUnavailable as error:
        complain(str(error))
        return ExitCode.FAILED
    watchdog = Watchdog(lambda: (ExitCode.CLEAN, ""))
    serve = partial(_serve, app, options, collector, server, watchdog)
    try:
        return run_until_stopped(app, serve, "the exporter failed", watchdog, owns_process=True)
    finally:
        server.close()


async def _serve(
    app: Horsies, options: ExporterOptions, collector: ClusterCollector, server: MetricsServer, watchdog: Watchdog
) -> None:
    stop = Stop(_STOP_S, watchdog.arm)
    signals.handle(asyncio.get_running_loop(), stop=stop.begin_or_hurry, hurry=stop.hurry, log_stacks=log_own_stacks)
    _banner(app, options, server)
    async with app:
        loop = CollectionLoop(
            app.get_broker().for_reading(), collector, interval_s=options.interval_s, count_limit=options.count_limit,
            top_groups=options.top_groups,
            redact=app.config.broker.redact,
        )  # fmt: skip
        await stop.unless_begun(loop.run())
        _log.info("stopping")


def _banner(app: Horsies, options: ExporterOptions, server: MetricsServer) -> None:
    from horsies import __version__

    host = f"[{options.host}]" if ":" in options.host else options.host
    _log.info("horsies %s exporter, process %d on %s", __version__, os.getpid(), socket.gethostname())
    _log.info("  database  %r, asked every %g s", app.config.broker, options.interval_s)
    _log.info("  metrics   http://%s:%d/metrics", host, server.port)
    _log.info("exporter is up")
