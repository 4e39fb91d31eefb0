"""The tasks of project_name. Workers run them: `make dev` here, `horsies worker project_name.tasks:app` in production."""

from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult

from project_name import mail, settings

app = Horsies(AppConfig(PostgresConfig(settings.DATABASE_URL), exception_mapper={OSError: "MAIL_SERVER_DOWN"}))

RETRY = RetryPolicy.exponential(30, max_retries=5, auto_retry_for=["MAIL_SERVER_DOWN"])


@app.task("project_name.send_welcome", retry_policy=RETRY, timeout_ms=60_000)
def send_welcome(address: str) -> TaskResult[str, TaskError]:
    """A task may run more than once, for example after a crash: make it safe to repeat."""
    if "@" not in address:
        return TaskResult(err=TaskError("NO_ADDRESS", f"{address!r} is not an address"))
    mail.deliver(address, "Welcome!")
    return TaskResult(ok=f"welcomed {address}")
