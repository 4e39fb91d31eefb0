"""The metrics of the exporter: samples of figures, bounded labels, and what is served without figures."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from horsies import QueueStatus, TaskStatus, WorkflowStatus
from horsies._pg.schema_guard import HEAD_REVISION
from horsies.operate.cluster import ClusterFigures, EndedFigures, ScheduleFigures
from horsies.operate.stale import StaleKind
from horsies_worker.metrics import collector as collecting
from horsies_worker.metrics.cluster import MAX_QUEUES, METRICS, OTHER_QUEUES, shown_queues
from horsies_worker.metrics.collector import ClusterCollector
from tests.support.exporters import Scrape, parsed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def queue(name: str, **fields: Any) -> QueueStatus:
    given = {
        "ready": 1, "delayed": 2, "claimed": 3, "running": 4, "is_bounded": False, "paused_at": None,
        "oldest_ready": None, "paused_for": None, "served_by": 1, **fields,
    }  # fmt: skip
    return QueueStatus(name=name, **given)


def figures(*queues: QueueStatus) -> ClusterFigures:
    return ClusterFigures(
        revision=HEAD_REVISION, queues=queues, workers=(), stale=dict.fromkeys(StaleKind, 0), stale_is_bounded=False,
        schedules=ScheduleFigures(0, 0, 0, None, 0, None),
        workflows={WorkflowStatus.PENDING: 0, WorkflowStatus.RUNNING: 0, WorkflowStatus.PAUSED: 0},
        workflows_are_bounded=False,
        ended=EndedFigures({TaskStatus.FAILED: 0}, timedelta(minutes=1), is_bounded=False),
    )  # fmt: skip


def scrape(collector: ClusterCollector) -> Scrape:
    registry = CollectorRegistry()
    registry.register(collector)
    return parsed(generate_latest(registry).decode())


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"horsies_(?!worker_)[a-z_]+[a-z]", metric.name)
        assert metric.help.endswith((".", ","))
        assert set(metric.labels) <= {"queue", "group", "limit", "state", "figure", "outcome", "revision", "head"}


def test_queues_beyond_the_bound_are_added_up() -> None:
    queues = [queue(f"q{number:04}") for number in range(MAX_QUEUES)]
    assert shown_queues(queues) == queues
    rest = [
        queue("x1", ready=10, oldest_ready=timedelta(seconds=5), served_by=3),
        queue("x2", ready=20, oldest_ready=timedelta(seconds=9), paused_at=NOW, is_bounded=True, served_by=0),
    ]
    shown = shown_queues([*queues, *rest])
    assert len(shown) == MAX_QUEUES + 1
    other = shown[-1]
    assert (other.name, other.ready, other.delayed, other.served_by) == (OTHER_QUEUES, 30, 4, 0)
    assert (other.oldest_ready, other.paused_at, other.is_bounded) == (timedelta(seconds=9), NOW, True)


def test_a_hostile_name_of_a_queue_stays_one_label() -> None:
    collector = ClusterCollector(10)
    name = 'a"} 1\nhorsies_up 0\\'
    collector.succeeded(figures(queue(name, ready=7)), 0.1)
    found = scrape(collector)
    assert (found["horsies_queue_ready_tasks", name], found["horsies_up"]) == (7, 1)


def test_before_the_first_collection_nothing_is_known() -> None:
    collector = ClusterCollector(10)
    assert scrape(collector) == {
        "horsies_up": 0, ("horsies_collections_total", "ok"): 0, ("horsies_collections_total", "error"): 0,
    }  # fmt: skip
    assert (collector.not_ready(), collector.unhealthy()) == ("no collection has ended yet", None)


def test_a_failed_collection_takes_the_figures_away() -> None:
    collector = ClusterCollector(10)
    collector.succeeded(figures(queue("mail")), 0.1)
    assert (scrape(collector)["horsies_queue_ready_tasks", "mail"], collector.not_ready()) == (1, None)
    collector.failed("the server is away", 0.2)
    found = scrape(collector)
    assert (found["horsies_up"], found["horsies_collection_duration_seconds"]) == (0, 0.2)
    assert ("horsies_queue_ready_tasks", "mail") not in found
    assert "horsies_schema_behind" not in found
    assert found["horsies_collection_age_seconds"] >= 0
    assert (collector.not_ready(), collector.unhealthy()) == ("the server is away", None)
    collector.failed("too old", 0.2, revision="0001")
    assert scrape(collector)["horsies_schema_behind"] == 1
    collector.succeeded(figures(), 0.1)
    found = scrape(collector)
    assert (found["horsies_collections_total", "ok"], found["horsies_collections_total", "error"]) == (2, 2)


def test_figures_of_a_loop_that_hangs_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "COLLECTION_S", -1.0)
    collector = ClusterCollector(0)
    collector.succeeded(figures(queue("mail")), 0.1)
    assert scrape(collector)["horsies_up"] == 0
    assert str(collector.not_ready()).startswith("no collection has ended for")
    assert str(collector.unhealthy()).startswith("no collection has ended for")
