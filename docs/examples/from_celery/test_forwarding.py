"""The time between: messages in the old queues reach the new workers. Only with SHOP=after."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from models import calls, mails

pytestmark = pytest.mark.skipif(os.environ.get("SHOP") == "before", reason="there is no horsies yet")


@pytest.fixture
def forwarding() -> Iterator[ModuleType]:
    """The old broker with messages in it, and then a Celery worker that hands them over."""
    import forwarding

    forwarding.old.conf.broker_transport_options = {"polling_interval": 0.05}
    with forwarding.new:
        yield forwarding


def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_messages_of_the_old_queue_are_run_once(shop: ModuleType, forwarding: ModuleType) -> None:
    from celery.contrib.testing.worker import start_worker

    order_id = shop.place_order("ada@example.org", 1)
    eventually(lambda: mails(order_id) == ["receipt"])
    job_id = str(uuid.uuid4())
    for _ in range(2):  # a broker may deliver a message twice
        forwarding.old.send_task("shop.remind", [order_id], task_id=job_id)
    forwarding.old.send_task("shop.remind", [order_id], task_id="an id of our own")
    late = forwarding.old.send_task("shop.remind", kwargs={"order_id": order_id}, countdown=0.5)
    with start_worker(forwarding.old, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=20):
        eventually(lambda: len(mails(order_id)) == 4)
    for sent in (job_id, late.id, forwarding.id_for("an id of our own")):  # the ids stay
        assert forwarding.new.handle(sent).get(timeout_ms=5_000).ok == "ada@example.org"
    assert len(calls("reminder", order_id)) == 3


def test_tasks_go_back_to_the_old_queue(shop: ModuleType) -> None:
    import going_back

    from horsies import testing

    with testing.inline(going_back.new), going_back.old.connection_for_read() as connection:
        sent = going_back.new.send("shop.remind", order_id=7)
        assert sent.get().is_ok()
        message = connection.SimpleQueue("celery").get(timeout=5)
        message.ack()
    assert message.headers["id"] == sent.task_id
    assert message.payload[:2] == [[], {"order_id": 7}]
