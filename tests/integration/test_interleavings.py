"""Every order in which the statements of the hot path can meet ends well: one owner, one end, no lost task.

`just interleavings` plays all pairs and threes; the suite plays those that have most to lose.
"""

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.interleaving.scenes import SUITE, Scene, Stage, everything
from tests.support.postgres import Database

PARTS = 8
ALL = list(everything()) if os.environ.get("HORSIES_TEST_INTERLEAVINGS") == "all" else []


@pytest.fixture
async def stage(db: Database) -> AsyncIterator[Stage]:
    async with Stage.on(db) as stage:
        yield stage


@pytest.mark.parametrize("part", range(2))
async def test_orders_of_the_hot_path(stage: Stage, part: int) -> None:
    for scene in SUITE[part::2]:
        assert await stage.play(scene) > 1, scene
    sys.stdout.write(f"{stage.played} orders\n")


@pytest.mark.skipif(not ALL, reason="`just interleavings` plays them: half an hour")
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
async def test_all_orders(stage: Stage, part: int) -> None:
    for scene in ALL[part::PARTS]:
        await stage.play(scene)
    sys.stdout.write(f"{stage.played} orders of {len(ALL[part::PARTS])} scenes\n")


Mutants = Mapping[str, Sequence[tuple[str, str]]]
MUTANTS: Sequence[tuple[str, Scene, Mutants]] = [
    ("an end without the generation of its claim",
     Scene("RUNNING_STALE", ("finish", "reap", "claim_again"), gated=False, preemptions=2),
     {"complete_task": [("r.claim_generation = $3::int", "r.claim_generation >= $3::int")]}),
    ("an end of what has ended",
     Scene("RUNNING_STALE", ("finish", "fail_stale")),
     {"complete_task": [("r.status || '' = 'RUNNING'", "r.status || '' <> ''")]}),
    ("a retry without the generation of its claim",
     Scene("RUNNING_STALE", ("finish_retry", "reap", "claim"), gated=False, preemptions=2),
     {"finalize_batch": [("t.claim_generation = x.generation AND t.claimed_by_worker_id = x.owner",
                          "t.claim_generation >= x.generation")]}),
    ("a start of what was cancelled",
     Scene("CLAIMED", ("start", "cancel")),
     {"start_batch": [("AND t.status || '' = 'CLAIMED' AND t.claim_expires_at > statement_timestamp()", "")]}),
    ("a claim from a paused queue",
     Scene("PENDING", ("claim_next", "pause")),
     {"claim_next_batch": [("s.paused_at IS NOT NULL", "s.paused_at IS NULL AND false")]}),
    ("a retry that counts the attempts before it waits",
     Scene("FAILED", ("hold", "retry", "retry_last", "claim_error"), tasks=2, gated=False, preemptions=2),
     {"retry_batch": [("AND t.ctid = h.tid", "")]}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "scene", "mutants"), MUTANTS, ids=[what for what, *_ in MUTANTS])
async def test_a_statement_without_its_fence_is_found(db: Database, what: str, scene: Scene, mutants: Mutants) -> None:
    try:
        async with Stage.on(db) as stage:
            with pytest.raises(AssertionError, match=str(scene.programs[0])):
                await stage.play(replace(scene, mutants=mutants))
    finally:
        db.execute("TRUNCATE horsies_tasks CASCADE")  # what it left breaks the rules
