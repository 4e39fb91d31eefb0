"""Which processes there are, and what each asks of PostgreSQL."""

from tests.support.pictures.canvas import Canvas


def draw() -> str:
    canvas = Canvas(1040, 540, "Web apps, schedulers and operators reach workers only through PostgreSQL")
    canvas.named_box(30, 60, 220, 110, "web app", "horsies-client", "sends tasks, waits for results")
    canvas.named_box(30, 215, 220, 110, "scheduler", "horsies scheduler", "any number: each slot fires once")
    canvas.named_box(30, 370, 220, 110, "operators", "horsies tui, horsies doctor,", "horsies tasks, horsies exporter")

    canvas.box(410, 60, 200, 420, kind="busy", corner=14)
    canvas.text(510, 96, "PostgreSQL", kind="name")
    for number, table in enumerate((
        "tasks", "attempts", "workflows, signals", "schedules", "heartbeats", "worker instances",
    )):  # fmt: skip
        canvas.box(428, 118 + 56 * number, 164, 42, kind="inner")
        canvas.text(510, 144 + 56 * number, table, kind="small")

    _both(canvas, 115, "send: row and NOTIFY", "end of the task: NOTIFY")
    _both(canvas, 270, "one task per due time", "schedules, slots")
    _both(canvas, 425, "retry, cancel, pause", "figures, rows")

    for top, name in ((60, "worker"), (285, "another worker")):
        canvas.box(770, top, 252, 195)
        canvas.text(896, top + 28, name, kind="name")
        canvas.text(896, top + 48, "claims, watches, writes results", kind="small")
        canvas.named_box(782, top + 66, 228, 34, "template", kind="inner")
        for number in range(3):
            left = 782 + 78 * number
            canvas.line((left + 36, top + 100), (left + 36, top + 126), is_dashed=True)
            canvas.named_box(left, top + 126, 72, 52, "child", "your code", kind="good")
        canvas.line((610, top + 62), (770, top + 62))
        canvas.text(690, top + 54, "NOTIFY: tasks", kind="small")
        canvas.line((770, top + 112), (610, top + 112))
        canvas.text(690, top + 104, "claim, heartbeats,", kind="small")
        canvas.text(690, top + 130, "results", kind="small")
    canvas.text(
        520,
        516,
        "No process talks to another machine's process: everything goes through rows and notifications.",
        kind="small",
    )
    return canvas.svg()


def _both(canvas: Canvas, y: float, there: str, back: str) -> None:
    canvas.line((250, y - 12), (410, y - 12))
    canvas.text(330, y - 20, there, kind="small")
    canvas.line((410, y + 14), (250, y + 14))
    canvas.text(330, y + 31, back, kind="small")
