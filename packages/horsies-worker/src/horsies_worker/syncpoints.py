"""Named points at which a test may stop, freeze or kill this process. In production, a point costs one lookup in an
empty dict.

HORSIES_SYNC_POINTS="after_claim=/path" makes the process create /path when it first reaches `after_claim` and wait
until the file /path.go exists.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

NAMES: Final = (
    "before_duty", "on_duty", "caps_locked",
    "before_claim", "after_claim", "before_start", "before_finalize", "after_finalize", "before_stage", "after_stage",
    "before_hand_back", "before_completing", "completing", "before_explain", "completed_found",
    "in_sweep", "before_declared_dead", "after_declared_dead", "before_fire", "after_enqueue",
    "before_fire_commit", "after_fire", "before_plan_commit", "before_workflow_phase", "workflow_locked",
    "workflow_settled", "workflow_enqueued", "before_workflow_commit", "after_workflow_commit",
)  # fmt: skip


def _from_environment() -> dict[str, Path]:
    pairs = (item.partition("=") for item in os.environ.get("HORSIES_SYNC_POINTS", "").split(",") if item)
    return {name: Path(path) for name, _, path in pairs if name in NAMES}


_points = _from_environment()


def reached_in_child(name: str) -> None:
    """The same in a child, where user code runs on both threads."""
    path = _points.pop(name, None) if _points else None
    if path is not None:
        path.touch()
        while not path.with_name(path.name + ".go").exists():
            time.sleep(0.01)


async def reached(name: str) -> None:
    """The process has come to this point."""
    path = _points.get(name)
    if path is None:
        return
    del _points[name]
    path.touch()
    while not path.with_name(path.name + ".go").exists():
        await asyncio.sleep(0.01)  # the other side is another process: there is no event to wait for
