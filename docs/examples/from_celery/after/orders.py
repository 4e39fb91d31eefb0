"""What the web application of the shop calls, with horsies."""

from models import Order, transaction
from tasks import Album, app, remind, send_receipt


def place_order(email: str, photos: int) -> int:
    with transaction() as session:
        order = Order(email=email, photos=photos)
        session.add(order)
        session.flush()
        send_receipt.with_options(connection=session).send(order.id)  # committed, or rolled back, with the order
        if photos == 0:
            raise ValueError("an order needs photos")
        return order.id


def remind_later(order_id: int, seconds: float) -> str:
    return remind.schedule(seconds, order_id).task_id


def make_album(order_id: int, photos: int) -> str:
    return Album.build_with(order_id, photos).start().workflow_id


def outcome(job_id: str, seconds: float = 20) -> int | str:
    """The value, or the text of the error."""
    result = app.workflow_handle(job_id).get(timeout_ms=int(seconds * 1000))
    return result.ok_value if result.is_ok() else result.err_value.message
