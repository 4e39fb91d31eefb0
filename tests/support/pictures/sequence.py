"""One task from `send` to `get`: walk 1 of docs/internals/map.md as a sequence."""

from tests.support.pictures.canvas import Canvas

LANES = {"your process": 130, "PostgreSQL": 410, "worker": 690, "child process": 930}
STEPS = (
    ("your process", "PostgreSQL", "send(42)", "row PENDING, committed"),
    ("PostgreSQL", "worker", "NOTIFY: the queue has a task", ""),
    ("worker", "PostgreSQL", "claim", "PENDING → RUNNING, committed"),
    ("worker", "child process", "job, over a socket", ""),
    ("child process", "child process", "decode, call your function", ""),
    ("child process", "worker", "outcome", ""),
    ("worker", "PostgreSQL", "end, many in one statement", "COMPLETED, if the claim still holds"),
    ("PostgreSQL", "your process", "NOTIFY: this task has ended", ""),
    ("your process", "PostgreSQL", "read the row", "get() returns TaskResult(ok=...)"),
)
TOP, STEP = 120, 54


def draw() -> str:
    height = TOP + STEP * len(STEPS) + 20
    canvas = Canvas(
        1060, height, "One task: " + "; ".join(f"{start} to {end}: {what}" for start, end, what, _ in STEPS)
    )
    for name, x in LANES.items():
        canvas.line((x, 74), (x, height - 20), colour="grey", is_dashed=True, has_head=False)
        kind = {"PostgreSQL": "busy", "child process": "good"}.get(name, "box")
        canvas.named_box(x - 75, 30, 150, 44, name, kind=kind)
    for number, (start, end, what, then) in enumerate(STEPS):
        y = TOP + STEP * number
        left, right = LANES[start], LANES[end]
        canvas.text(18, y + 5, f"{number + 1}", kind="small", anchor="start")
        if start == end:
            canvas.box(left - 105, y - 18, 210, 36, kind="good")
            canvas.text(left, y + 5, what, kind="small")
            continue
        canvas.line((left, y), (right, y), colour="blue" if end == "PostgreSQL" else "")
        canvas.text((left + right) / 2, y - 8, what, kind="small")
        if then:
            canvas.text((left + right) / 2, y + 17, then, kind="small")
    return canvas.svg()
