"""The dashboard and the alert rules of deploy/: they use metrics that exist, and Prometheus accepts them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from horsies_worker.metrics.cluster import METRICS
from horsies_worker.metrics.worker import METRICS as WORKER_METRICS
from tests.support.prometheus import DEPLOY, RULES, needs_prometheus, promtool, quick_rules

ROOT = DEPLOY.parent
DASHBOARD = DEPLOY / "grafana" / "horsies.json"
PAGE = ROOT / "docs" / "operations" / "monitoring.md"
EXPORTED = {metric.name for metric in METRICS}
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def used_metrics(text: str) -> set[str]:
    return set(re.findall(r"\bhorsies_[a-z_]*[a-z]\b", text))


@pytest.mark.parametrize("path", [DASHBOARD, RULES, RULES.with_name("alerts_test.yml")], ids=lambda path: path.name)
def test_every_metric_that_is_used_is_exported(path: Path) -> None:
    used = used_metrics(path.read_text())
    assert len(used & EXPORTED) > 10
    assert {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in used} <= (
        EXPORTED | {metric.name for metric in WORKER_METRICS}
    )


def test_the_dashboard_shows_every_metric_of_the_exporter() -> None:
    assert used_metrics(" ".join(expressions())) >= EXPORTED


def test_every_panel_is_described_and_has_a_place() -> None:
    found = panels()
    assert [panel["title"] for panel in found if len(panel["description"]) < 20] == []
    everything = json.loads(DASHBOARD.read_text())["panels"]
    ids = [panel["id"] for panel in everything]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in everything]
    assert not [
        (one, other)
        for at, one in enumerate(places)
        for other in places[at + 1 :]
        if one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
    ]  # fmt: skip


def test_the_data_source_and_the_queue_are_chosen_by_variables() -> None:
    variables = {one["name"]: one["type"] for one in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    assert variables == {"datasource": "datasource", "queue": "query"}
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}


def test_every_alert_names_its_section_of_the_page_and_has_tests() -> None:
    headings = {text.lower() for text in re.findall(r"^#+ (.+)$", PAGE.read_text(), re.MULTILINE)}
    tested = re.findall(r"alertname: (\w+)", RULES.with_name("alerts_test.yml").read_text())
    for name in ALERTS:
        assert name.lower() in headings
        assert f"runbook: docs/operations/monitoring.md#{name.lower()}\n" in RULES.read_text()
        assert tested.count(name) >= 2, f"{name}: one test that it fires, one that it does not"


@needs_prometheus
def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", RULES.with_name("prometheus.yml"))
    (tmp_path / "quick.yml").write_text(quick_rules())
    promtool("check", "rules", tmp_path / "quick.yml")


@needs_prometheus
def test_the_unit_tests_of_the_rules_pass() -> None:
    assert "SUCCESS" in promtool("test", "rules", RULES.with_name("alerts_test.yml"))


@needs_prometheus
def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """As recording rules, because promtool checks no other file with expressions."""
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$queue", ".*")}
        for number, text in enumerate(expressions())
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)
