"""The tasks of project_name. Workers run them: `make dev` here, `python manage.py horsies_worker` in production.

Modules of this name are found in all installed apps.
"""

from django.core.mail import send_mail
from horsies import RetryPolicy, TaskError, TaskResult
from horsies.contrib.django import app

from project_name.models import Customer

RETRY = RetryPolicy.exponential(30, max_retries=5, auto_retry_for=["MAIL_SERVER_DOWN"])


@app.task("project_name.send_welcome", retry_policy=RETRY, timeout_ms=60_000)
def send_welcome(customer_id: int) -> TaskResult[str, TaskError]:
    """A task may run more than once, for example after a crash: make it safe to repeat."""
    customer = Customer.objects.get(pk=customer_id)
    if "@" not in customer.address:
        return TaskResult(err=TaskError("NO_ADDRESS", f"{customer.address!r} is not an address"))
    send_mail("Welcome!", "It is good to have you here.", None, [customer.address])
    return TaskResult(ok=f"welcomed {customer.address}")
