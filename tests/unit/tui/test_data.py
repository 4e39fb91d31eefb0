"""Rates from counts, alerts from an overview, levels of a graph, and when to look again."""

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from horsies.operate.doctor import Finding, Severity
from horsies.operate.views import QueueStatus, WorkerLiveness
from horsies.status import NodeStatus
from horsies_tui.data.alerts import alerts
from horsies_tui.data.feed import Feed, Kinds
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Ends, WorkflowNode
from horsies_tui.data.series import Tally, id_at, moment_of
from horsies_tui.demo import DemoSource
from horsies_tui.demo_data import World
from horsies_tui.widgets.dag import draw, levels
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


def test_a_dead_worker_that_had_no_task_has_none_recovered() -> None:
    one = World().worker_statuses(datetime.now(UTC))[0]
    dead = replace(one, liveness=WorkerLiveness.DEAD, age=timedelta(minutes=1), holds_running=0, holds_claimed=0)
    (busy,) = alerts([], [replace(dead, tasks_running=1, tasks_claimed=0)])
    (idle,) = alerts([], [replace(dead, tasks_running=0, tasks_claimed=0)])
    assert busy.text.endswith("ago; tasks recovered")
    assert idle.text.endswith("ago")


def node(index: int, *waits: int) -> WorkflowNode:
    return WorkflowNode(index, f"n{index}", "t", list(waits), "all", False, None, None, NodeStatus.PENDING, None, None)


def test_a_graph_is_laid_out_by_levels() -> None:
    found = levels([node(0), node(1, 0), node(2, 0), node(3, 1, 2), node(4)])
    assert [[one.task_index for one in level] for level in found] == [[0, 4], [1, 2], [3]]


def test_a_graph_that_no_run_has_is_drawn_all_the_same() -> None:
    assert levels([node(0, 1), node(1, 0)])
    assert levels([node(0, 99)])
    wide = draw([node(0), *(node(index, 0) for index in range(1, 1_000))], 80)
    assert "more" in wide.plain
    assert max(len(line) for line in wide.plain.splitlines()) <= 90


PICTURES = {
    "a chain": (
        [node(0), node(1, 0), node(2, 1)],
        """
   ○ n0
   │
   ○ n1
   │
   ○ n2
""",
    ),
    "a fan": (
        [node(0), node(1, 0), node(2, 0), node(3, 0)],
        """
   ○ n0
   ├──────┬──────┐
   ○ n1   ○ n2   ○ n3
""",
    ),
    "a join": (
        [node(0), node(1), node(2), node(3, 0, 1, 2)],
        """
   ○ n0   ○ n1   ○ n2
   ├──────┴──────┘
   ○ n3
""",
    ),
    "a diamond": (
        [node(0), node(1, 0), node(2, 0), node(3, 1, 2)],
        """
   ○ n0
   ├──────┐
   ○ n1   ○ n2
   ├──────┘
   ○ n3
""",
    ),
    "two chains": (
        [node(0), node(1), node(2, 0), node(3, 1)],
        """
   ○ n0   ○ n1
   │      │
   ○ n2   ○ n3
""",
    ),
    "an edge past a level": (
        [node(0), node(1, 0), node(2, 1), node(3, 0, 2)],
        """
   ○ n0
   ├──────┐
   ○ n1   │
   │      │
   ○ n2   │
   ├──────┘
   ○ n3
""",
    ),
    "each two of three": (
        [node(0), node(1), node(2), node(3, 0, 1), node(4, 1, 2), node(5, 0, 2)],
        """
   ○ n0   ○ n1   ○ n2
   ├──────│┐┌────┤
   │┌─────┴││────│┐
   ○ n3   ○ n5   ○ n4
""",
    ),
    "more than there is room for": (
        [node(0), *(node(index, 0) for index in range(1, 40)), node(40, *range(1, 40))],
        """
   ○ n0
   ├──────┬──────┬──────┬──────┬──────┬──────┐
   ○ n1   ○ n2   ○ n3   ○ n4   ○ n5   ○ n6   … 33 more
   ├──────┴──────┴──────┴──────┴──────┴──────┘
   ○ n40
""",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_graph_is_drawn_with_its_edges(name: str) -> None:
    nodes, picture = PICTURES[name]
    assert draw(nodes, 60).plain.splitlines() == picture.strip("\n").splitlines()


def edges_of(picture: str) -> set[tuple[int, int]]:
    """Follows the lines of a drawing whose nodes are called n0, n1, … from each node down."""
    ways = {"│": "ud", "─": "lr", "┌": "dr", "┐": "dl", "└": "ur", "┘": "ul", "├": "udr", "┤": "udl", "┬": "lrd",
            "┴": "lru", "┼": "udlr"}  # fmt: skip
    step = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
    back = {"u": "d", "d": "u", "l": "r", "r": "l"}
    rows = picture.splitlines()
    labels = {
        (row, column): int(found[1])
        for row, line in enumerate(rows)
        for found in re.finditer(r"○ n(\d+)", line)
        for column in range(found.start(), found.end() + 1)
    }
    found: set[tuple[int, int]] = set()
    for (row, column), source in labels.items():
        if rows[row][column : column + 1] != "○":
            continue
        open_ends, seen = [(row + 1, column, "d")], set[tuple[int, int, str]]()
        while open_ends:
            end = open_ends.pop()
            if end in seen:
                continue
            seen.add(end)
            at, over, came = end
            if (at, over) in labels and came == "d":
                found.add((source, labels[at, over]))
                continue
            sign = rows[at][over] if at < len(rows) and over < len(rows[at]) else " "
            if sign == "│" and came in "lr":  # crossed: the line goes on behind it
                open_ends.append((at, over + step[came][1], came))
            elif back[came] in ways.get(sign, ""):
                open_ends += [(at + step[way][0], over + step[way][1], way) for way in ways[sign]
                              if way not in (back[came], "u")]  # fmt: skip
    return found


@given(st.lists(st.sets(st.integers(0, 8), max_size=3), min_size=1, max_size=9))
def test_the_lines_of_a_drawing_are_the_edges_of_the_graph(waits: list[set[int]]) -> None:
    nodes = [node(index, *sorted(one for one in of if one < index)) for index, of in enumerate(waits)]
    wanted = {(source, one.task_index) for one in nodes for source in one.dependencies}
    assert edges_of(draw(nodes, 400).plain) == wanted


def test_a_large_graph_is_drawn_within_its_width() -> None:
    nodes = [node(index, *{index // 2, index // 3} - {index}) for index in range(1_000)]
    assert max(len(line) for line in draw(nodes, 100).plain.splitlines()) <= 110


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
