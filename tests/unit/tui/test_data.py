"""Rates from counts, alerts from an overview, steps in a graph, cards and signals, and when to look again."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies.operate.doctor import Finding, Severity
from horsies.operate.views import QueueStatus, WorkerLiveness
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.info import WorkflowNodeInfo
from horsies_tui.data.alerts import alerts
from horsies_tui.data.feed import Feed, Kinds
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Ends, WorkflowNode
from horsies_tui.data.series import Tally, id_at, moment_of
from horsies_tui.data.signals import problem_of
from horsies_tui.demo import DemoSource
from horsies_tui.demo_data import World
from horsies_tui.widgets.dag import picture_of, step
from horsies_tui.widgets.node_card import node_fields, run_facts
from tests.support import graphs
from tests.support.waiting import eventually_async


def test_waits_are_told_to_within_a_tenth() -> None:
    tally = Tally()
    for waited, tasks in ((0.02, 90), (4.0, 10)):
        tally.add({"tasks": tasks, "failed": 0, "waited": math.floor(8 * math.log2(waited))})
    assert tally.wait(0.5) == pytest.approx(0.02, rel=0.1)
    assert tally.wait(0.95) == pytest.approx(4.0, rel=0.1)
    assert Tally().wait(0.95) == 0.0


def test_an_id_tells_its_time_and_another_text_none() -> None:
    now = datetime.now(UTC).replace(microsecond=123_000)
    assert moment_of(id_at(now) + "-7000-8000-000000000000") == now
    assert moment_of("order-17") is None
    assert moment_of(None) is None


def queue(**changes: Any) -> QueueStatus:
    plain: dict[str, Any] = {
        "name": "mail", "ready": 5, "delayed": 0, "claimed": 0, "running": 0, "is_bounded": False,
        "oldest_ready": timedelta(minutes=1), "paused_at": None, "paused_for": None, "served_by": 1,
    }  # fmt: skip
    return QueueStatus(**{**plain, **changes})


def test_alerts_name_what_deserves_a_look_the_worst_first() -> None:
    workers = World().worker_statuses(datetime.now(UTC))
    assert alerts([queue()], []) == ()
    found = alerts([queue(paused_at=datetime.now(UTC)), queue(name="other", served_by=0)], workers)
    assert [alert.level for alert in found] == [Severity.PROBLEM, Severity.PROBLEM, Severity.WARN]
    assert "still holds 3 tasks" in found[0].text
    assert "5 min" not in found[0].text
    assert "behind" in alerts([queue(oldest_ready=timedelta(hours=1))], workers)[-1].text


def test_a_queue_whose_workers_are_all_drained_is_an_alert() -> None:
    one = replace(World().worker_statuses(datetime.now(UTC))[0], liveness=WorkerLiveness.ALIVE, state="DRAINED")
    waiting = queue(name=one.queues[0], oldest_ready=timedelta(minutes=2))
    (found,) = alerts([waiting], [one])
    assert (found.level, found.screen) == (Severity.PROBLEM, "workers")
    assert found.text.endswith("its workers are drained")
    assert alerts([waiting], [one, replace(one, worker_id="another", state="RUNNING")]) == ()


def finding(severity: Severity) -> Finding:
    return Finding("schedules", severity, f"{severity} of schedules")


def test_many_failures_and_late_schedules_are_alerts() -> None:
    minutes = timedelta(minutes=5)
    assert alerts([], [], Ends(1_000, 99, minutes)) == ()
    assert alerts([], [], Ends(4, 4, minutes)) == (), "too few to say so"
    (some,) = alerts([], [], Ends(1_000, 120, minutes))
    assert (some.level, some.screen) == (Severity.WARN, "tasks")
    assert some.text == "12 % of tasks fail: 120 of 1,000 in the last 5 m"
    assert Query.parse(some.filter)[0].statuses == {"FAILED", "EXPIRED"}
    (most,) = alerts([], [], Ends(10, 9, minutes))
    assert most.level is Severity.PROBLEM
    found = alerts([], [], None, [finding(Severity.WARN), finding(Severity.OK), finding(Severity.PROBLEM)])
    assert [(one.level, one.screen) for one in found] == [
        (Severity.PROBLEM, "schedules"), (Severity.WARN, "schedules"),
    ]  # fmt: skip


def test_tasks_in_quarantine_are_an_alert_that_leads_to_them() -> None:
    (found,) = alerts([], [], quarantined=2)
    assert found.text.startswith("2 tasks in quarantine")
    query = Query.parse(found.filter)[0]
    assert (found.screen, query.statuses, query.error) == ("tasks", {"FAILED"}, "crash_limit")
    assert alerts([], [], quarantined=1_000)[0].text.startswith("1,000 tasks or more in quarantine")


def test_a_dead_worker_that_had_no_task_has_none_recovered() -> None:
    one = World().worker_statuses(datetime.now(UTC))[0]
    dead = replace(one, liveness=WorkerLiveness.DEAD, age=timedelta(minutes=1), holds_running=0, holds_claimed=0)
    (busy,) = alerts([], [replace(dead, tasks_running=1, tasks_claimed=0)])
    (idle,) = alerts([], [replace(dead, tasks_running=0, tasks_claimed=0)])
    assert busy.text.endswith("ago; tasks recovered")
    assert idle.text.endswith("ago")


def node(index: int, *waits: int, **columns: Any) -> WorkflowNode:
    plain = {field.name: getattr(graphs.node(index, *waits), field.name) for field in fields(WorkflowNodeInfo)}
    return WorkflowNode(**{**plain, **columns})


def test_an_arrow_key_moves_along_an_edge_or_to_the_nearest_node() -> None:
    picture = picture_of([node(0), node(1, 0), node(2, 0), node(3, 0), node(4, 1, 3), node(5), node(6, 0)])
    at = {one: picture.places[one].column for one in picture.places}
    assert at[1] < at[2] < at[3]

    def go(start: int, *ways: str) -> int | None:
        found: int | None = start
        for way in ways:
            assert found is not None
            found = step(picture, found, way)
        return found

    assert go(0, "left") is None
    assert go(0, "right") == 5
    assert go(1, "right", "right", "left") == 2
    assert go(1, "down") == 4
    assert go(4, "up") in (1, 3)
    assert go(2, "down") == 4, "no node waits for it: the nearest in the next layer"
    assert go(2, "up") == 0
    assert go(4, "down") is None
    assert go(5, "up") is None


def test_an_arrow_key_prefers_what_is_near_over_the_end_of_a_long_edge() -> None:
    picture = picture_of([node(0), node(1, 0), node(2, 1), node(3, 0, 2)])
    assert [step(picture, at, "down") for at in range(4)] == [1, 2, 3, None]
    assert [step(picture, at, "up") for at in range(4)] == [None, 0, 1, 2]


def test_the_label_of_a_node_cannot_break_the_picture() -> None:
    wide, evil = "注" * 40, "a\x1b[2J\n\u202eb"
    picture = picture_of([node(0, node_id=wide), node(1, node_id=evil), node(2, 0, 1, is_compensation=True)])
    text = "\n".join(picture.lines())
    assert "\x1b" not in text
    assert len(text.splitlines()) == picture.height
    assert "○ ↩ n2" in text
    assert picture.places[0].column + picture.places[0].width < picture.places[1].column


NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def card(one: WorkflowNode) -> dict[str, str]:
    return {
        name: str(value) for name, value in node_fields(one, {0: "check", 1: "mine"}, NOW) if value is not None
    }  # fmt: skip


def test_the_card_of_a_node_says_what_it_waits_for_and_until_when() -> None:
    waiting = node(1, 0, status=NodeStatus.WAITING, kind="signal", signal_name="go", wake_at=NOW + timedelta(minutes=9))
    found = card(replace(waiting, when_index=0, when_value=False))
    assert found["waits for"] == "signal go"
    assert found["until"] == "2026-03-04 12:09:00 UTC (in 9m00)"
    assert found["only if"] == "check is no"
    assert "WAITING" in found["status"]
    assert "without a time limit" in card(replace(waiting, wake_at=None))["until"]
    assert card(replace(waiting, wake_at=NOW - timedelta(minutes=2)))["until"].endswith("(2m00 ago)")
    asleep = node(1, status=NodeStatus.WAITING, kind="sleep", wake_at=NOW + timedelta(days=2))
    assert (card(asleep)["waits for"], card(asleep)["until"]) == ("sleep", "2026-03-06 12:00:00 UTC (in 2d00h)")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("upstream", "a node before it failed or was skipped"),
        ("not_taken", "this branch was not taken"),
        ("cancelled", "the run was cancelled"),
        ("deadline", "the run's deadline passed"),
    ],
)
def test_the_card_of_a_skipped_node_says_why(reason: str, said: str) -> None:
    assert card(node(1, 0, status=NodeStatus.SKIPPED, skip_reason=reason))["skipped"] == said


def test_a_run_tells_its_deadline_start_end_and_continuations() -> None:
    (first, *_) = World(began=NOW.timestamp()).flows.runs()
    plain = replace(first.run, deadline=None, continues=0)
    assert plain.now == NOW
    assert run_facts(plain) == []
    later = NOW + timedelta(hours=2)
    assert run_facts(replace(plain, deadline=later, continues=2)) == [
        "deadline 2026-03-04 14:00:00 UTC (in 2h00)", "continued 2 times",
    ]  # fmt: skip
    undoing = replace(plain, ends_as=WorkflowStatus.FAILED)
    assert run_facts(undoing) == ["undoing, will end FAILED"]
    assert run_facts(replace(undoing, status=WorkflowStatus.FAILED)) == []
    due = replace(plain, status=WorkflowStatus.PENDING, started_at=None, start_at=later)
    assert run_facts(due) == ["starts 2026-03-04 14:00:00 UTC (in 2h00)"]


@pytest.mark.parametrize("text", ["true", "null", '"yes"', '{"by": "ann", "n": [1, 2.5]}', ' "\\\\u0000"'])
def test_json_can_be_sent_as_a_signal(text: str) -> None:
    assert problem_of("approve", text) is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("", "true", "a signal needs a name"),
        ("n" * 256, "true", "a signal needs a name"),
        ("go", "  ", "a value is needed"),
        ("go", "yes", "not JSON: expecting value at character 1"),
        ("go", '{"a": }', "not JSON: expecting value at character 7"),
        ("go", "NaN", "NaN is no value of JSON"),
        ("go", "[" * 100_000, "not JSON"),
        ("go", '"\\u0000"', "does not store the character"),
        ("go", '"\\ud800"', "does not store half of a surrogate pair"),
    ],
)
def test_a_signal_that_cannot_be_sent_says_why(name: str, text: str, said: str) -> None:
    assert said in (problem_of(name, text) or "")


class Hints(DemoSource):
    async def watch(self, on_hint: Callable[[str], None], on_live: Callable[[bool], None]) -> None:
        self.hint, self.live = on_hint, on_live
        await asyncio.Event().wait()


async def test_hints_are_gathered_and_the_poll_goes_on_under_them() -> None:
    told: list[Kinds] = []
    states: list[bool] = []
    source = Hints()
    feed = Feed(source, told.append, states.append, slow_s=0.3, fast_s=0.3, debounce_s=0.02, gap_s=0.05)
    running = asyncio.ensure_future(feed.run())
    try:
        await eventually_async(lambda: told, describe="the first poll")
        source.live(True)
        source.live(True)
        assert states == [True]
        told.clear()
        for _ in range(50):
            source.hint("tasks")
        await eventually_async(lambda: told)
        assert told == [frozenset({"tasks", "all"})], "fifty hints, one look"
        told.clear()

        async def under_hints() -> bool:
            source.hint("tasks")
            return any("all" in kinds for kinds in told)

        await eventually_async(under_hints, describe="a poll although hints never stop")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
