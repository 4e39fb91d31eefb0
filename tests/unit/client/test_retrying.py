"""Which runs and which nodes a retry means, without a database."""

from typing import Any

from horsies.workflow.retrying import PAUSED_ALONG, Tree, with_skipped


def run(
    id: str, status: str, parent: str | None = None, *, inside: bool = False, along: bool = False
) -> dict[str, Any]:
    return {
        "id": id, "status": status, "parent_workflow_id": parent, "paused_inside": inside, "paused_along": along,
        "ends_as": None,
    }  # fmt: skip


def node(index: int, status: str, *waits: int, stopped: bool = False) -> dict[str, Any]:
    return {"task_index": index, "status": status, "dependencies": list(waits), "is_stopped": stopped}


def test_a_failed_node_and_what_was_skipped_behind_it() -> None:
    nodes = [
        node(0, "FAILED"), node(1, "SKIPPED", 0), node(2, "SKIPPED", 1), node(3, "READY", 2), node(4, "SKIPPED", 5),
        node(5, "FAILED"),
    ]  # fmt: skip
    assert with_skipped(nodes, nodes[0]) == [0, 1, 2]
    chain = [node(0, "FAILED"), *(node(n, "SKIPPED", n - 1) for n in range(1, 50_000))]
    assert len(with_skipped(chain, chain[0])) == 50_000  # at once: a look at all nodes per level would take minutes


def test_the_runs_that_a_retry_means() -> None:
    ended = Tree([run("a", "FAILED"), run("b", "FAILED", "a"), run("c", "COMPLETED", "a"), run("d", "CANCELLED", "b")])
    assert ended.failed_runs("a") == ["a", "b", "d"]
    going_on = Tree([run("a", "RUNNING"), run("b", "FAILED", "a"), run("c", "PAUSED", "a"), run("d", "FAILED", "c")])
    assert going_on.failed_runs("a") == ["c", "d"]
    around = Tree([run("a", "PAUSED", inside=True), run("b", "PAUSED", "a", inside=True), run("c", "PAUSED", "b")])
    assert around.failed_runs("a") == ["a", "b", "c"]
    assert around.to_resume("a", ["c"]) == ["a", "b", "c"]
    assert around.to_resume("c", ["c"]) == ["a", "b", "c"]
    by_hand = Tree([run("a", "PAUSED"), run("b", "PAUSED", "a", inside=True), run("c", "PAUSED", "b")])
    assert by_hand.to_resume("c", ["c"]) == ["b", "c"]
    assert by_hand.to_resume("a", ["c"]) == ["a", "b", "c"]
    beside = Tree([run("a", "PAUSED", inside=True), run("b", "PAUSED", "a"), run("c", "RUNNING", "a")])
    assert beside.to_resume("a", ["a"]) == ["a"]  # a node of its own is retried: b stays as it is
    assert beside.to_resume_all("a") == ["a", "b"]
    assert beside.to_resume_all("b") == ["a", "b"]
    assert beside.to_resume_all("c") == []


def test_what_a_stop_took_from_a_run_is_retried_with_any_node() -> None:
    nodes = [
        node(0, "FAILED"), node(1, "SKIPPED", 0), node(2, "COMPLETED"), node(3, "SKIPPED", 2, stopped=True),
        node(4, "ENQUEUED", stopped=True), node(5, "FAILED"), node(6, "SKIPPED", 5), node(7, "SKIPPED", 3),
    ]  # fmt: skip
    assert with_skipped(nodes, nodes[0]) == [0, 1, 3, 4, 7]
    assert with_skipped(nodes, nodes[3]) == [3, 4, 7]


def test_what_is_paused_along_with_a_run() -> None:
    running = Tree([
        run("a", "RUNNING"), run("b", "RUNNING", "a"), run("c", "PAUSED", "a"), run("d", "PAUSED", "b", inside=True),
    ])  # fmt: skip
    assert running.to_pause("a", "why") == [(["a"], "why"), (["b", "d"], PAUSED_ALONG)]
    assert running.to_pause("c", None) == []
    paused = Tree([
        run("a", "PAUSED"), run("b", "PAUSED", "a", along=True), run("c", "PAUSED", "a"),
        run("d", "PAUSED", "b", along=True), run("e", "PAUSED", "c", along=True),
    ])  # fmt: skip
    assert paused.to_pause("a", None) == []
    assert paused.to_pause("b", None) == [(["b"], None)]
    assert paused.to_resume("a", ["a"]) == ["a", "b", "d"]
    assert paused.to_resume("a", ["e"]) == ["a", "b", "d", "e"]  # c was paused for itself, and nothing of it is retried
    assert paused.to_resume("c", ["c"]) == ["c", "e"]
    assert paused.to_resume_all("a") == ["a", "b", "d"]
    assert paused.to_resume_all("b") == ["b", "d"]
    assert paused.to_resume_all("c") == ["c", "e"]
