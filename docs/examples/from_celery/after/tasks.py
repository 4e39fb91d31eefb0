"""The tasks of the photo shop, with horsies."""

import os

from models import BankBusy, MailServerDown, Order, UnreadablePhoto, mail, note, pay, transaction

from horsies import (
    AppConfig,
    Cron,
    Horsies,
    Interval,
    PostgresConfig,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
)

schedules = [
    TaskSchedule("count-carts", "shop.count_carts", Interval(seconds=int(os.environ.get("COUNT_SECONDS", "3600")))),
    TaskSchedule("nightly", "shop.close_day", Cron("30 2 * * mon-fri"), timezone="Europe/Berlin"),
]
app = Horsies(
    AppConfig(
        PostgresConfig(),  # HORSIES_DATABASE_URL
        schedule=ScheduleConfig(schedules),
        exception_mapper={MailServerDown: "MAIL_SERVER_DOWN", UnreadablePhoto: "UNREADABLE_PHOTO"},
    )
)


@app.task("shop.send_receipt", retry_policy=RetryPolicy.fixed(0.1, max_retries=3, auto_retry_for=["MAIL_SERVER_DOWN"]))
def send_receipt(order_id: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=mail(order_id, "receipt"))


@app.task("shop.remind")
def remind(order_id: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=mail(order_id, "reminder"))


# acks_late: run it again when its worker dies
@app.task("shop.charge", retry_policy=RetryPolicy.fixed(1, max_retries=5, auto_retry_for=["BANK_BUSY"], max_crashes=3))
def charge(order_id: int, photos: int) -> TaskResult[list[int], TaskError]:
    try:
        pay(order_id)
    except BankBusy as busy:
        return TaskResult(err=TaskError("BANK_BUSY", retry_after_ms=int(busy.retry_after * 1000)))
    return TaskResult(ok=list(range(photos)))


@app.task("shop.render")
def render(photo: int, order_id: int) -> TaskResult[str, TaskError]:
    if photo == 13:
        raise UnreadablePhoto(f"photo {photo} of order {order_id} cannot be read")
    return TaskResult(ok=f"page {photo}")


@app.task("shop.bind_album", timeout_ms=60_000)
def bind_album(pages: list[str], order_id: int) -> TaskResult[int, TaskError]:
    with transaction() as session:
        session.get_one(Order, order_id).album = ", ".join(pages)
    return TaskResult(ok=len(pages))


@app.task("shop.count_carts", store_result=False)
def count_carts() -> TaskResult[None, TaskError]:
    note("count_carts")
    return TaskResult(ok=None)


@app.task("shop.close_day")
def close_day() -> TaskResult[None, TaskError]:
    note("close_day")
    return TaskResult(ok=None)


class Album(WorkflowDefinition[int], app=app, name="shop.album"):
    """Charge, then render all photos at once, then bind them."""

    check_with = ({"order_id": 1, "photos": 3},)

    @classmethod
    def build_with(cls, order_id: int, photos: int) -> WorkflowSpec[int]:
        paid = charge.node()(order_id, photos)
        pages = render.node().map(paid, order_id)
        bound = bind_album.node()(from_node(pages), order_id)
        return cls.workflow([paid, pages, bound], output=bound)
