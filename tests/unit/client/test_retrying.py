"""Which runs and which nodes a retry means, without a database."""

from typing import Any

from horsies.workflow.retrying import Tree, with_skipped


def run(id: str, status: str, parent: str | None = None, *, inside: bool = False) -> dict[str, Any]:
    return {"id": id, "status": status, "parent_workflow_id": parent, "paused_inside": inside}


def node(index: int, status: str, *waits: int) -> dict[str, Any]:
    return {"task_index": index, "status": status, "dependencies": list(waits)}


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
    assert around.failed_runs("a") == ["c"]
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
