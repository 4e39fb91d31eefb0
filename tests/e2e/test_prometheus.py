"""A real Prometheus scrapes real processes, and the alerts of deploy/ fire when those processes die."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import factories
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.exporters import exporter
from tests.support.factories import ago
from tests.support.postgres import Database
from tests.support.prometheus import needs_prometheus, prometheus
from tests.support.scheduler_app import scheduler
from tests.support.workers import WorkerProcess, tasks_on, worker

pytestmark = needs_prometheus
FIRE = ("HorsiesNoScheduler", "HorsiesWorkerDead", "HorsiesQueueAge")


def metrics_port(one: WorkerProcess) -> int:
    return int(one.log.split("metrics: http://")[1].split("/metrics")[0].rpartition(":")[2])


@pytest.mark.long
def test_alerts_fire_when_scheduler_and_worker_are_killed(db: Database, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(exporter(db, tmp_path))
        planner = stack.enter_context(scheduler(db, {"hourly": 3_600}, tmp_path))
        killed = stack.enter_context(worker(db, "--metrics-port", "0"))
        living = stack.enter_context(worker(db, "--metrics-port", "0"))
        targets = {"horsies-exporter": [one.port], "horsies-workers": [metrics_port(killed), metrics_port(living)]}
        server = stack.enter_context(prometheus(tmp_path, targets))
        server.wait_for('up{job="horsies-exporter"}', 1)
        server.wait_for('horsies_workers{state="alive"}', 2)
        server.wait_for("horsies_scheduler_up and on (instance) horsies_schedules_active == 1", 1)
        with tasks_on(db) as tasks:
            for number in range(20):
                assert tasks.add.send(number, 1).get(timeout_ms=10_000).ok == number + 1
        server.wait_for('sum(horsies_worker_attempts_ended_total{task="add", queue="default", outcome="ok"})', 20)
        server.wait_for('sum(horsies_worker_queue_wait_seconds_count{queue="default"})', 20)
        server.wait_for('sum(horsies_worker_run_seconds_bucket{task="add", le="+Inf"})', 20)
        server.wait_for('sum(horsies_worker_children{state="ready"})', 4)
        server.wait_for("min(horsies_worker_database_connected)", 1)
        assert server.firing().keys().isdisjoint(FIRE)

        planner.kill()
        living.terminate()
        assert living.wait() == 0
        killed.kill_all()
        factories.task(db, enqueued_at=ago(minutes=10))
        fired = server.wait_until_firing(*FIRE, "HorsiesNoWorker")
        assert [labels["queue"] for labels in fired["HorsiesQueueAge"]] == ["default"]
        assert "HorsiesDatabaseUnreachable" not in fired
        with scheduler(db, {"hourly": 3_600}, tmp_path), worker(db):
            server.wait_for("horsies_scheduler_up", 1)
            server.wait_for('ALERTS{alertname="HorsiesNoScheduler", alertstate="firing"} or on () vector(0)', 0)
            server.wait_for('ALERTS{alertname="HorsiesQueueAge", alertstate="firing"} or on () vector(0)', 0)


def test_an_exporter_without_a_database_is_an_alert(db: Database, tmp_path: Path) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(ChaosProxy(db.url))
        one = stack.enter_context(exporter(proxy.url, tmp_path))
        server = stack.enter_context(prometheus(tmp_path, {"horsies-exporter": [one.port]}))
        server.wait_for("horsies_up", 1)
        assert server.value("horsies_workers{state='alive'}") == 0
        proxy.set(Mode.CUT)
        fired = server.wait_until_firing("HorsiesDatabaseUnreachable")
        assert "HorsiesExporterDown" not in fired
        assert server.value("horsies_workers{state='alive'}") is None  # not the last known value
        proxy.set(Mode.PASS)
        server.wait_for("horsies_up", 1)
