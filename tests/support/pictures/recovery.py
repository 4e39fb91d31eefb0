"""A worker is killed: when the others know it, and what becomes of its tasks. The times are the defaults."""

from horsies import RecoveryConfig
from horsies_worker.liveness.missed_beats import MISSED
from tests.support.pictures.canvas import Canvas

BEAT_S = RecoveryConfig().worker_state_interval_ms // 1000
KILLED_S = 0.4 * BEAT_S
LEFT, SECOND = 230, 780 / (4.2 * BEAT_S)
ROWS = {"worker A": 95, "its session lock": 160, "worker B": 225, "A's RUNNING task": 310, "A's CLAIMED task": 375}


def draw() -> str:
    canvas = Canvas(1060, 500, "Recovery of a killed worker after three missed beats and the loss of its session lock")
    end = _x(4.2 * BEAT_S)
    for name, y in ROWS.items():
        canvas.text(LEFT - 25, y + 5, name, kind="name", anchor="end")
    verdict, killed = _x(MISSED * BEAT_S), _x(KILLED_S)

    canvas.line((killed, 60), (killed, 425), colour="red", is_dashed=True, has_head=False)
    canvas.text(killed, 50, "kill -9", kind="small")
    canvas.line((verdict, 60), (verdict, 425), colour="blue", is_dashed=True, has_head=False)
    canvas.text(verdict, 50, "verdict: A is dead", kind="small")

    y = ROWS["worker A"]
    canvas.line((LEFT, y), (killed, y), colour="green", has_head=False)
    canvas.dot(_x(0), y, colour="green")
    canvas.text(_x(0), y - 14, "last beat", kind="small")
    canvas.cross(killed, y)
    for number in range(1, MISSED + 1):
        canvas.cross(_x(number * BEAT_S), y, radius=4)
        canvas.text(_x(number * BEAT_S) - 10, y - 12, f"missed {number}", kind="small", anchor="end")

    y = ROWS["its session lock"]
    canvas.box(LEFT, y - 14, killed - LEFT, 28, kind="good")
    canvas.text((LEFT + killed) / 2, y + 5, "held", kind="small")
    canvas.text(killed + 12, y + 5, "freed by the server when the process is gone", kind="small", anchor="start")

    y = ROWS["worker B"]
    canvas.line((LEFT, y), (end, y), colour="green", has_head=False)
    for number in range(5):
        canvas.dot(_x(number * BEAT_S), y, colour="green")
    canvas.text(killed + 12, y + 26, "looks at A's counter after each beat of its own", kind="small", anchor="start")

    _task(canvas, "A's RUNNING task", "RUNNING", "busy", "PENDING again, or FAILED")
    _task(canvas, "A's CLAIMED task", "CLAIMED", "box", "PENDING again")

    axis = 435
    canvas.line((LEFT, axis), (end, axis))
    for number in range(5):
        canvas.line((_x(number * BEAT_S), axis - 5), (_x(number * BEAT_S), axis + 5), has_head=False)
        canvas.text(_x(number * BEAT_S), axis + 23, f"{number * BEAT_S} s", kind="small")
    canvas.text((LEFT + end) / 2, axis + 43, "since A's last beat", kind="small")
    return canvas.svg()


def _task(canvas: Canvas, name: str, state: str, kind: str, then: str) -> None:
    y, verdict = ROWS[name], _x(MISSED * BEAT_S)
    canvas.box(LEFT, y - 18, verdict - LEFT, 36, kind=kind)
    canvas.text((LEFT + verdict) / 2, y + 5, state, kind="small")
    canvas.box(verdict + 6, y - 18, _x(4.2 * BEAT_S) - verdict - 6, 36, kind="late")
    canvas.text((verdict + 6 + _x(4.2 * BEAT_S)) / 2, y + 5, then, kind="small")


def _x(seconds: float) -> float:
    return round(LEFT + seconds * SECOND, 1)
