"""The tasks of the photo shop, with Celery."""

import os

from celery import Celery, chain, group
from celery.schedules import crontab
from models import BankBusy, MailServerDown, Order, OrderNotFound, UnreadablePhoto, mail, note, pay, transaction

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_BACKEND"])
app.conf.update(
    timezone="Europe/Berlin",
    beat_schedule={
        "count-carts": {"task": "shop.count_carts", "schedule": float(os.environ.get("COUNT_SECONDS", "3600"))},
        "nightly": {"task": "shop.close_day", "schedule": crontab(minute=30, hour=2, day_of_week="mon-fri")},
    },
)


# OrderNotFound: the task may run before the transaction of its order has committed
@app.task(
    name="shop.send_receipt", autoretry_for=(MailServerDown, OrderNotFound), max_retries=3, default_retry_delay=0.1
)
def send_receipt(order_id):
    return mail(order_id, "receipt")


@app.task(name="shop.remind")
def remind(order_id):
    return mail(order_id, "reminder")


@app.task(name="shop.charge", bind=True, max_retries=5, acks_late=True)
def charge(self, order_id):
    try:
        pay(order_id)
    except BankBusy as busy:
        raise self.retry(exc=busy, countdown=busy.retry_after) from busy


@app.task(name="shop.render")
def render(photo, order_id):
    if photo == 13:
        raise UnreadablePhoto(f"photo {photo} of order {order_id} cannot be read")
    return f"page {photo}"


@app.task(name="shop.bind_album", time_limit=60)
def bind_album(pages, order_id):
    with transaction() as session:
        session.get_one(Order, order_id).album = ", ".join(pages)
    return len(pages)


@app.task(name="shop.count_carts", ignore_result=True)
def count_carts():
    note("count_carts")


@app.task(name="shop.close_day")
def close_day():
    note("close_day")


def album(order_id, photos):
    """Charge, then render all photos at once, then bind them: a chain whose end is a chord."""
    pages = group(render.si(photo, order_id) for photo in range(photos))
    return chain(charge.si(order_id), pages, bind_album.s(order_id))
