"""From bounded samples of the slots of a window to rates per second. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from horsies_tui.data.models import Series

_SHORTEST_S = 0.001


def series(slot_s: float, sample: int, ended: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]]) -> Series:
    """`ended` and `sent` are the rows of their statements, slot by slot.

    A slot with fewer rows than the sample was counted whole. A fuller one is measured by how far into it the sample
    reached: 200 ends within the first two seconds are 100 a second.
    """
    rates = [_rate(row, sample, row["covered"]) for row in ended]
    return Series(
        slot_s=slot_s,
        sent=tuple(_rate(row, sample, _reached(row)) for row in sent),
        done=tuple(rates),
        failed=tuple(
            rate * row["failed"] / row["seen"] if row["seen"] else 0.0 for rate, row in zip(rates, ended, strict=True)
        ),
        wait_p50=tuple(row["p50"] or 0.0 for row in ended),
        wait_p95=tuple(row["p95"] or 0.0 for row in ended),
    )


def _rate(row: Mapping[str, Any], sample: int, reached_s: float | None) -> float:
    lasted = max(_SHORTEST_S, row["lasted"])
    if row["seen"] < sample or reached_s is None:
        return row["seen"] / lasted
    return row["seen"] / min(lasted, max(_SHORTEST_S, reached_s))


def _reached(row: Mapping[str, Any]) -> float | None:
    """How far into its slot the last id of the sample was made; None when it is not an id of our making."""
    try:
        return int(str(row["last_id"])[:13].replace("-", ""), 16) / 1000 - row["starts"]
    except ValueError:
        return None
