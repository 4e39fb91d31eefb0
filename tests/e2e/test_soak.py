"""A minute and a half of the soak; `just soak` runs it for ten minutes, and also judges how fast things were."""

import os
from pathlib import Path

import pytest

from tests.soak.run import soak

SEED = int(os.environ.get("HORSIES_SOAK_SEED", "4"))
BY_TIME = {"B1", "Z1"}
"""Bounds of recoveries, and workers that could not say in time that they live, are reported here and judged by `just
soak`: the suite shares its cores with this test."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_ninety_seconds(tmp_path: Path) -> None:
    verdict = soak(SEED, 1.5, tmp_path, tell=lambda text: None)
    report = "\n".join([*verdict.plan.lines(), *verdict.lines()])
    print(report)  # noqa: T201
    assert not [finding for finding in verdict.findings if finding.rule not in BY_TIME], report
    assert verdict.counts["attempts that crashed"] > 0, report
    assert sum(not fault.error for fault in verdict.struck) >= 10, report
