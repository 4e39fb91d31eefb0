"""The app that the worker benches run: a no-op. HORSIES_DATABASE_URL says where."""

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(PostgresConfig()))


other = Horsies(AppConfig(PostgresConfig()))
"""Another app on the same database and queue, which does not know the tasks of the first."""


@other.task("other")
def elsewhere(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("noop")
def noop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("count")
def count(numbers: list[int]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(numbers))


@app.task("spread")
def spread(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(n)))
