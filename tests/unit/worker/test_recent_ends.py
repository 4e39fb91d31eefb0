"""What a worker remembers of the tasks that ran in it."""

from horsies.options import TaskOptions
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.transition import Transition
from horsies_worker.finish.decide import decide
from horsies_worker.finish.recent_ends import KEPT_S, MAX_END_CHARS, MAX_ENDS, RecentEnds


def end(task_id: str, result: str = '{"ok":1}') -> Transition:
    return decide(
        task_id=task_id, generation=1, attempt=1, options=TaskOptions(), budget=0,
        outcome=Outcome(OutcomeKind.OK, result), started=1.0, finished=2.0, random=lambda: 0.5,
    )  # fmt: skip


def test_an_end_is_kept_for_a_while() -> None:
    now = [0.0]
    recent = RecentEnds(lambda: now[0])
    kept = end("a")
    recent.keep([kept])
    assert recent.known()["a", 1] is kept
    assert ("a", 2) not in recent
    now[0] = KEPT_S
    assert ("a", 1) not in recent


def test_of_a_large_result_only_the_run_is_kept() -> None:
    recent = RecentEnds()
    recent.keep([end("a", "x" * (MAX_END_CHARS + 1)), end("c")])
    recent.ran(("b", 1))
    for key in (("a", 1), ("b", 1)):
        assert key in recent
        assert recent.known()[key] is None
    assert recent.known()["c", 1] is not None


def test_the_oldest_are_dropped_first() -> None:
    recent = RecentEnds()
    for number in range(MAX_ENDS + 1):
        recent.ran((str(number), 1))
    assert ("0", 1) not in recent
    assert ("1", 1) in recent
    assert (str(MAX_ENDS), 1) in recent
