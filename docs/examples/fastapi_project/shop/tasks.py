"""The tasks of the shop. A worker runs them: `horsies worker shop.tasks:queue`."""

import os
import time
from decimal import Decimal

from pydantic import BaseModel

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, current_task

queue = Horsies(AppConfig(PostgresConfig()))  # the database of HORSIES_DATABASE_URL
PAGE_S = float(os.environ.get("SHOP_PAGE_S", "0.7"))
"""How long a page takes; the tests do not wait."""


class Receipt(BaseModel):
    number: str
    total: Decimal


@queue.task("send_receipt")
def send_receipt(order_id: int, email: str, pieces: int) -> TaskResult[Receipt, TaskError]:
    if "@" not in email:
        return TaskResult(err=TaskError("NO_ADDRESS", f"{email!r} is not an address"))
    return TaskResult(ok=Receipt(number=f"R-{order_id}", total=Decimal("3.50") * pieces))


@queue.task("import_page")
def import_page(page: int) -> TaskResult[int, TaskError]:
    time.sleep(PAGE_S)  # the work
    return TaskResult(ok=page * 10)


@queue.task("import_catalogue")
def import_catalogue(pages: int) -> TaskResult[int, TaskError]:
    items = 0
    for page in range(1, pages + 1):
        items += import_page(page).unwrap()  # called as a function: it is no task of its own here
        current_task().report_progress({"page": page, "of": pages})
    return TaskResult(ok=items)
