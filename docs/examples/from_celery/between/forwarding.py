"""Celery tasks of the old names that hand their calls over to horsies: for messages that are still in the old queues,
and for senders that are not moved yet. A Celery worker runs this module in place of `before/tasks.py`.

The id of the Celery task is the id of the horsies task. So a message that the broker delivers twice makes one task, and
the sender finds the result under the id that it has. No message is given up: what cannot be sent (the database
is away, arguments are too large, an id was used for other arguments) is logged and tried again.
"""

import os
import uuid

from celery import Celery, Task

from horsies import AppConfig, Horsies, PostgresConfig, TaskSendError

old = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_BACKEND"])
new = Horsies(AppConfig(PostgresConfig()))  # sends by name; the tasks' code is not needed here


def id_for(celery_id: str) -> str:
    """The same id, or for one that is no UUID always the same UUID."""
    try:
        return str(uuid.UUID(celery_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, celery_id))


def forward(name: str) -> None:
    # acks_late: the message stays in the broker until the row is committed
    @old.task(name=name, bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=None, ignore_result=True)
    def hand_over(self: Task, *args: object, **kwargs: object) -> None:
        try:
            new.with_options(task_id=id_for(self.request.id)).send(name, *args, **kwargs)
        except TaskSendError as error:
            raise self.retry(exc=error, countdown=5 if error.retryable else 300) from error


for name in ("shop.send_receipt", "shop.remind", "shop.count_carts", "shop.close_day"):
    forward(name)
