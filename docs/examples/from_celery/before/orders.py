"""What the web application of the shop calls, with Celery."""

from models import Order, transaction
from tasks import album, app, remind, send_receipt


def place_order(email, photos):
    with transaction() as session:
        order = Order(email=email, photos=photos)
        session.add(order)
        session.flush()
        send_receipt.delay(order.id)  # sent now, whatever becomes of the transaction
        if photos == 0:
            raise ValueError("an order needs photos")
        return order.id


def remind_later(order_id, seconds):
    return remind.apply_async((order_id,), countdown=seconds).id


def make_album(order_id, photos):
    return album(order_id, photos).apply_async().id


def outcome(job_id, seconds=20):
    """The value, or the text of the error."""
    try:
        return app.AsyncResult(job_id).get(timeout=seconds)
    except Exception as error:  # the exception of the task, or Celery's own
        return str(error)
