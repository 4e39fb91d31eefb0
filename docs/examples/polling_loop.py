"""Polls a job of another system until it is done. Needs `pip install horsies-client horsies-worker`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker polling_loop:app
    HORSIES_DATABASE_URL=postgresql://... python polling_loop.py

A task that polls in a `while` loop holds a process for hours and loses its place when that dies. Here each look is a
task of a few milliseconds. If the job is not done, the task returns `Continue`: the run goes on with a sleep and
another look. It keeps its id, and nothing but its row in the database exists between two looks.
"""

import os
from datetime import timedelta
from pathlib import Path

from horsies import AppConfig, Continue, Horsies, PostgresConfig, TaskError, TaskResult, WorkflowSpec, from_node, sleep

JOBS = Path(os.environ.get("JOBS", "."))
"""Stands for the other system: the file of a job says how often it still has to be looked at."""
FIRST_WAIT_S = float(os.environ.get("FIRST_WAIT_S", "5"))
app = Horsies(AppConfig(PostgresConfig()))


@app.task("begin")
def begin(name: str) -> TaskResult[str, TaskError]:
    (JOBS / name).write_text("4")
    return TaskResult(ok=name)


@app.task("look")
def look(job: str, looks: int) -> TaskResult[str, TaskError]:
    left = int((JOBS / job).read_text())
    if not left:
        return TaskResult(ok=f"{job} is done after {looks} looks")
    (JOBS / job).write_text(str(left - 1))
    return Continue(look_later(job, looks))


def look_later(job: str, looks: int) -> WorkflowSpec[str]:
    """The next round: an ordinary workflow, made by the task that asks for it."""
    pause = sleep(min(timedelta(seconds=FIRST_WAIT_S * 2**looks), timedelta(minutes=5)))
    again = look.node(waits_for=[pause])(job, looks + 1)
    return app.workflow("look_later", [pause, again], output=again)


begun = begin.node()("render-17")
first = look.node()(from_node(begun), 1)
rendering = app.workflow("rendering", [begun, first], output=first)


def main() -> None:
    run = rendering.start(deadline=timedelta(hours=12))
    print(run.get(timeout_ms=60_000).unwrap())
    info = run.info()
    print(f"the run went on {info.continues if info else 0} times, under one id")
    app.close()


if __name__ == "__main__":
    main()
