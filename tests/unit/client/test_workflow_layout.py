"""The layout of a graph: edges go downwards, nodes do not overlap, few edges cross, and large graphs are bounded."""

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from horsies.workflow.info import WorkflowNodeInfo
from horsies.workflow.layout import Layout, lay_out
from horsies.workflow.picture import Picture, cells
from tests.support.graphs import edges_of, node


@st.composite
def graphs(draw: st.DrawFn, most: int = 14) -> list[WorkflowNodeInfo]:
    """Acyclic graphs, some of whose nodes are branches."""
    found: list[WorkflowNodeInfo] = []
    for index in range(draw(st.integers(1, most))):
        waits = sorted(draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else []
        branch = draw(st.none() | st.tuples(st.sampled_from(waits), st.booleans())) if waits else None
        when = {} if branch is None else {"when_index": branch[0], "when_value": branch[1]}
        found.append(node(index, *waits, **when))
    return found


hostile = st.lists(
    st.tuples(st.integers(-3, 9), st.lists(st.integers(-4, 12), max_size=4), st.none() | st.integers(-4, 12)),
    max_size=10,
)
"""Rows as no run has them: cycles, nodes that wait for themselves or for others that do not exist, an index twice."""


def picture(layout: Layout) -> Picture:
    return Picture(layout, {index: f"○ n{index}" for index in layout.depth})


def wanted(nodes: Sequence[WorkflowNodeInfo]) -> set[tuple[int, int]]:
    return {(source, one.task_index) for one in nodes for source in one.dependencies}


def check(layout: Layout) -> None:
    """What holds for every layout and its picture."""
    for source, target, _ in layout.edges():
        assert layout.depth[source] < layout.depth[target]
    assert sorted(index for layer in layout.nodes() for index in layer) == sorted(layout.depth)
    for layer in layout.layers:
        assert len(set(layer)) == len(layer)
    drawn = picture(layout)
    taken: set[tuple[int, int]] = set()
    for place in drawn.places.values():
        mine = {(place.row, column) for column in range(place.column, place.column + place.width)}
        assert not mine & taken, "two labels share a cell"
        taken |= mine
        assert place.column + place.width <= drawn.width
        assert 0 <= place.row < drawn.height


@given(graphs())
def test_the_lines_of_a_drawing_are_the_edges_of_the_graph(nodes: list[WorkflowNodeInfo]) -> None:
    layout = lay_out(nodes)
    check(layout)
    assert {(source, target) for source, target, _ in layout.edges()} == wanted(nodes)
    assert edges_of("\n".join(picture(layout).lines())) == wanted(nodes)
    assert not layout.left_out


@given(graphs(24))
def test_layers_are_longest_paths_and_crossings_are_not_more_than_by_index(nodes: list[WorkflowNodeInfo]) -> None:
    layout = lay_out(nodes)
    for one in nodes:
        depths = [layout.depth[source] for source in one.dependencies]
        assert layout.depth[one.task_index] == max(depths, default=-1) + 1
    assert layout.crossings() <= lay_out(nodes, sweeps=0).crossings()


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(nodes: list[WorkflowNodeInfo], shuffle: random.Random) -> None:
    shuffled = list(nodes)
    shuffle.shuffle(shuffled)
    assert lay_out(shuffled) == lay_out(nodes)


@given(hostile)
def test_rows_that_no_run_has_are_laid_out(rows: list[tuple[int, list[int], int | None]]) -> None:
    nodes = [node(index, *waits, when_index=when) for index, waits, when in rows]
    layout = lay_out(nodes)
    check(layout)
    assert set(layout.depth) == {one.task_index for one in nodes}


def test_a_cycle_is_entered_at_its_lowest_index_and_one_edge_of_it_is_left_out() -> None:
    layout = lay_out([node(0), node(1, 0, 3), node(2, 1), node(3, 2)])
    assert layout.nodes() == [[0], [1], [2], [3]]
    assert layout.left_out == ((3, 1),)


def test_sources_with_the_same_targets_share_a_wire() -> None:
    layout = lay_out([*map(node, range(5)), node(5, *range(5)), node(6, *range(5)), node(7, 0, 6)])
    (join,) = [wire for wire in layout.wires if len(wire.sources) > 1]
    assert (join.sources, join.targets) == ((1, 2, 3, 4), (5, 6))


def shapes(count: int) -> dict[str, list[WorkflowNodeInfo]]:
    """Graphs of so many nodes, at least about."""
    draw = random.Random(count)
    side = max(2, round(count**0.5))
    last = count - 1
    return {
        "a chain": [node(index, *range(max(0, index - 1), index)) for index in range(count)],
        "a fan and a join": [node(0), *(node(index, 0) for index in range(1, last)), node(last, *range(1, last))],
        "a tree": [node(index, *({(index - 1) // 2} if index else ())) for index in range(count)],
        "layers": [
            node(index, *(draw.sample(range(index // side * side - side, index // side * side), 2)
                          if index >= side else ()))
            for index in range(side * side)
        ],
        "long edges": [node(index, *draw.sample(range(index), min(index, 2))) for index in range(count)],
        "two thick layers": [
            node(index, *(draw.sample(range(count // 2), 3) if index >= count // 2 else ())) for index in range(count)
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name", shapes(9))
def test_two_thousand_nodes_are_laid_out_about_as_fast_as_ten_times_two_hundred(name: str) -> None:
    """A ratio, because machines differ: the work per node may grow with the graph, but not with its square."""

    def seconds(count: int) -> float:
        nodes = shapes(count)[name]
        best = float("inf")
        for _ in range(3):
            begin = time.thread_time()  # other processes of a busy machine do not count
            picture(lay_out(nodes))
            best = min(best, time.thread_time() - begin)
        return best

    assert seconds(2_000) < 60 * seconds(200)


@settings(max_examples=1)
@given(st.just(600))
def test_edges_that_pass_too_many_layers_are_left_out(count: int) -> None:
    """Each node waits for all before it: the slots that all these edges need would not be bounded."""
    layout = lay_out([node(index, *range(index)) for index in range(count)])
    assert layout.left_out
    assert sum(map(len, layout.layers)) < 25_000
    assert {(source, target) for source, target, _ in layout.edges()} >= {(at, at + 1) for at in range(count - 1)}


def test_a_part_of_a_row_is_that_part_of_the_whole_row() -> None:
    drawn = picture(lay_out(shapes(60)["layers"]))
    for number, line in enumerate(drawn.lines()):
        for left in range(0, drawn.width, 7):
            right = left + 12
            for part in drawn.row(number, left, right):
                assert line[part.column : part.column + len(part.text)] == part.text
                assert part.column < right
                assert part.column + len(part.text) > left


def test_wide_characters_take_two_columns() -> None:
    assert (cells("abc"), cells("○ é"), cells("注文"), cells("e\u0301")) == (3, 3, 4, 1)
    drawn = Picture(lay_out([node(0), node(1)]), {0: "○ 注文", 1: "○ b"})
    assert drawn.places[1].column == drawn.places[0].column + 6 + 3
    assert drawn.lines() == ["   ○ 注文   ○ b"]


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
   ┌──────┼──────┐
   ○ n1   ○ n2   ○ n3
""",
    ),
    "a join": (
        [node(0), node(1), node(2), node(3, 0, 1, 2)],
        """
   ○ n0   ○ n1   ○ n2
   └──────┼──────┘
          ○ n3
""",
    ),
    "two chains": (
        [node(0), node(1), node(2, 1), node(3, 0)],
        """
   ○ n0   ○ n1
   │      │
   ○ n3   ○ n2
""",
    ),
    "an edge past a level": (
        [node(0), node(1, 0), node(2, 1), node(3, 0, 2)],
        """
      ○ n0
   ┌──┴───┐
   ○ n1   │
   │      │
   ○ n2   │
   └──┐┌──┘
      ○ n3
""",
    ),
    "a decision": (
        [
            node(0), node(1, 0, when_index=0, when_value=True), node(2, 0, when_index=0, when_value=False),
            node(3, 1, 2),
        ],
        """
       ○ n0
   ┌┄┄┄┘ └┄┄┄┄┐
   ┆ if yes   ┆ if no
   ○ n1       ○ n2
   └────┬─────┘
        ○ n3
""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_a_graph_is_drawn_with_its_edges(name: str) -> None:
    nodes, expected = PICTURES[name]
    assert picture(lay_out(nodes)).lines() == expected.strip("\n").splitlines()
