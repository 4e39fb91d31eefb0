"""The life of a task as bars on one axis: how long it waited, was held, ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from textual.content import Content
from textual.widgets import Static

from horsies_tui.text import moment, span
from horsies_tui.themes import variable_of


@dataclass(frozen=True, slots=True)
class Stretch:
    """Something that lasted."""

    label: str
    state: str
    start: datetime
    end: datetime
    is_open: bool = False


def stretches(task: Mapping[str, Any], attempts: tuple[Any, ...] = ()) -> list[Stretch]:
    """Waiting, held, running; earlier attempts in front. Times that run backwards (skewed clocks) are left out."""
    now: datetime = task["seen_at"]
    enqueued, claimed, started, ended = (task[f"{name}_at"] for name in ("enqueued", "claimed", "started", "terminal"))
    current = int(started is not None and ended is not None)
    found = [
        Stretch(f"attempt {one.attempt}", str(one.outcome), one.started_at, one.finished_at)
        for one in attempts[: len(attempts) - current]
    ]
    until = claimed or started or ended
    found.append(Stretch("waited", "PENDING", enqueued, until or max(now, enqueued), until is None))
    if claimed is not None and (started is None or started > claimed):
        until = started or ended
        found.append(Stretch("held", "CLAIMED", claimed, until or now, until is None))
    if started is not None:
        state = "RUNNING" if ended is None else str(task["status"])
        found.append(Stretch("ran" if ended else "runs", state, started, ended or now, ended is None))
    return [one for one in found if one.end >= one.start]


class Timeline(Static):
    """Draws stretches over the width that it has."""

    _found: Sequence[Stretch] = ()

    def show(self, task: Mapping[str, Any], attempts: tuple[Any, ...] = ()) -> None:
        self._found = stretches(task, attempts)[-8:]
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        found = self._found
        if not found:
            self.update("")
            return
        first, last = min(one.start for one in found), max(one.end for one in found)
        whole = max((last - first) / timedelta(milliseconds=1), 1.0)
        width = max(10, (self.size.width or 60) - 21)
        lines = [Content(f"{moment(first)} UTC")]
        for one in found:
            start = round((one.start - first) / timedelta(milliseconds=1) / whole * width)
            length = max(1, round((one.end - one.start) / timedelta(milliseconds=1) / whole * width))
            start = min(start, width - 1)
            length = min(length, width - start)
            bar = "━" * (length - 1) + ("▶" if one.is_open else "━")
            lines.append(
                Content.assemble(
                    f"{one.label:<11}", (f"{span(one.end - one.start):>7}  ", "bold"), " " * start,
                    (bar, f"${variable_of(one.state)}"),
                )
            )  # fmt: skip
        self.update(Content("\n").join(lines))
