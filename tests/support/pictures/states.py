"""The states of a task. Each edge of `horsies/status.py` has a way on this page; one without a way is an error."""

from typing import NamedTuple

from horsies.status import TASK_TERMINAL_STATES, TRANSITIONS, Edge, TaskStatus
from tests.support.pictures.canvas import Canvas, Point

S = TaskStatus
WIDTH, HEIGHT = 140, 52
PLACES: dict[TaskStatus, Point] = {
    S.PENDING: (110, 190), S.CLAIMED: (400, 190), S.RUNNING: (680, 190), S.COMPLETED: (890, 190),
    S.EXPIRED: (290, 400), S.CANCELLED: (560, 400), S.FAILED: (820, 400),
}  # fmt: skip
"""The upper left corner of each box."""
KINDS = {S.RUNNING: "busy", S.COMPLETED: "good", S.FAILED: "bad", S.EXPIRED: "late", S.CANCELLED: "quiet"}


class Way(NamedTuple):
    points: tuple[Point, ...]
    colour: str = ""
    is_dashed: bool = False
    label: str = ""
    at: Point = (0, 0)


# Lines to an end run between the two rows of boxes, one colour for each end.
WAYS: dict[Edge, Way] = {
    Edge(None, S.PENDING): Way(((45, 216), (110, 216)), label="send", at=(70, 206)),
    Edge(S.PENDING, S.CLAIMED): Way(((250, 206), (400, 206)), label="claim, ahead", at=(325, 198)),
    Edge(S.CLAIMED, S.PENDING): Way(((400, 228), (250, 228)), label="returned, stale", at=(325, 244)),
    Edge(S.CLAIMED, S.RUNNING): Way(((540, 216), (680, 216)), label="start", at=(610, 208)),
    Edge(S.PENDING, S.RUNNING): Way(
        ((200, 190), (200, 130), (720, 130), (720, 190)), "blue", label="claim and start, in one write", at=(460, 122)
    ),
    Edge(S.RUNNING, S.PENDING): Way(
        ((770, 190), (770, 80), (160, 80), (160, 190)), label="retry, snooze, or provably never started", at=(460, 72)
    ),
    Edge(S.RUNNING, S.COMPLETED): Way(((820, 216), (890, 216)), "green", label="ok", at=(850, 208)),
    Edge(S.PENDING, S.EXPIRED): Way(
        ((165, 242), (165, 285), (350, 285), (350, 400)), "amber", label="good_until passed", at=(285, 279)
    ),
    Edge(S.CLAIMED, S.EXPIRED): Way(((440, 242), (440, 285), (370, 285), (370, 400)), "amber"),
    Edge(S.PENDING, S.CANCELLED): Way(((190, 242), (190, 317), (610, 317), (610, 400)), "grey"),
    Edge(S.CLAIMED, S.CANCELLED): Way(
        ((500, 242), (500, 303), (630, 303), (630, 400)), "grey", label="cancel", at=(562, 297)
    ),
    Edge(S.RUNNING, S.CANCELLED): Way(((720, 242), (720, 303), (650, 303), (650, 400)), "grey"),
    Edge(S.PENDING, S.FAILED): Way(
        ((215, 242), (215, 349), (870, 349), (870, 400)), "red", label="no worker knows the name", at=(480, 343)
    ),
    Edge(S.RUNNING, S.FAILED): Way(
        ((780, 242), (780, 303), (910, 303), (910, 400)), "red", label="no retry left", at=(850, 297)
    ),
    Edge(S.EXPIRED, S.PENDING): Way(((360, 452), (360, 490), (135, 490), (135, 242)), is_dashed=True),
    Edge(S.CANCELLED, S.PENDING): Way(((630, 452), (630, 490), (135, 490), (135, 242)), is_dashed=True),
    Edge(S.FAILED, S.PENDING): Way(
        ((890, 452), (890, 490), (135, 490), (135, 242)), is_dashed=True, label="an operator's retry", at=(250, 482)
    ),
}  # fmt: skip


def draw() -> str:
    if WAYS.keys() != TRANSITIONS:
        differing = ", ".join(sorted(map(str, WAYS.keys() ^ TRANSITIONS)))
        raise ValueError(f"this picture and TRANSITIONS of horsies/status.py differ in: {differing}")
    canvas = Canvas(1060, 530, "The states of a task: " + "; ".join(sorted(map(str, TRANSITIONS))))
    canvas.dot(40, 216)
    for edge in sorted(TRANSITIONS, key=str):
        way = WAYS[edge]
        canvas.line(*way.points, colour=way.colour, is_dashed=way.is_dashed, edge=str(edge))
    for way in WAYS.values():
        if way.label:
            canvas.text(*way.at, way.label, kind="small")
    for status, (left, top) in PLACES.items():
        canvas.box(
            left, top, WIDTH, HEIGHT, kind=KINDS.get(status, "box"), corner=26 if status in TASK_TERMINAL_STATES else 8
        )
        canvas.text(left + WIDTH / 2, top + HEIGHT / 2 + 5, status, kind="name")
    return canvas.svg()
