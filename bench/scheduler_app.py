"""The app that the scheduler's bench runs."""

from bench.scheduler import schedules
from horsies import AppConfig, Horsies, PostgresConfig, ScheduleConfig, TaskError, TaskResult

app = Horsies(AppConfig(PostgresConfig(), schedule=ScheduleConfig(schedules())))  # type: ignore[arg-type]


@app.task("noop")
def noop(value: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=value)
