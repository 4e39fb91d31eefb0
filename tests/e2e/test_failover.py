"""A real cluster under Patroni and etcd fails over under load. `just failover` does it many times."""

import pytest

from tests.support import places
from tests.support.ha.cluster import missing
from tests.support.ha.run import run

pytestmark = [pytest.mark.long, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


@pytest.mark.timeout(600)
def test_a_switch_over_and_a_crash_lose_nothing() -> None:
    told: list[str] = []
    with places.temporary_directory() as folder:
        verdict = run(["switch-over", "crash"], "sync", folder, told.append)
    assert verdict.is_good, "\n".join([*told, *verdict.lines()])
    assert {kind: len(pauses) for kind, pauses in verdict.pauses.items()} == {"switch-over": 1, "crash": 1}
    assert verdict.acknowledged > 0


@pytest.mark.timeout(600)
def test_the_verdict_counts_what_is_lost() -> None:
    """An acknowledgement of a task that is not in the database is found: the run above could fail."""
    with places.temporary_directory() as folder:

        def plant(_: str) -> None:
            line = "acknowledged 1000000 00000000-0000-7000-8000-000000000000 1.0 0.1\n"
            (folder / "sends").write_text(line)

        verdict = run([], "sync", folder, plant)
    assert verdict.lost == ["1000000"]
    assert not verdict.is_good
