"""What the shop does, whatever runs its tasks. The last test shows what the move changes."""

import os
import time
from collections.abc import Callable
from types import ModuleType

import pytest
from models import Order, Outage, calls, mails, transaction

BEFORE = os.environ.get("SHOP") == "before"


def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def refuse(of: str, times: int) -> None:
    with transaction() as session:
        session.merge(Outage(of=of, left=times))


def album_of(order_id: int) -> str | None:
    with transaction() as session:
        return session.get_one(Order, order_id).album


def test_a_receipt_for_every_order(shop: ModuleType) -> None:
    order_id = shop.place_order("ada@example.org", 3)
    eventually(lambda: mails(order_id) == ["receipt"])


def test_a_receipt_is_tried_again_while_the_mail_server_is_down(shop: ModuleType) -> None:
    refuse("mail", times=2)
    order_id = shop.place_order("ada@example.org", 3)
    eventually(lambda: mails(order_id) == ["receipt"])
    assert len(calls("receipt", order_id)) >= 3


def test_an_album_is_charged_rendered_and_bound(shop: ModuleType) -> None:
    order_id = shop.place_order("ada@example.org", 3)
    assert shop.outcome(shop.make_album(order_id, 3)) == 3
    assert album_of(order_id) == "page 0, page 1, page 2"
    assert len(calls("charge", order_id)) == 1


def test_a_bank_that_says_when_to_come_back(shop: ModuleType) -> None:
    order_id = shop.place_order("ada@example.org", 2)
    refuse("bank", times=2)
    assert shop.outcome(shop.make_album(order_id, 2)) == 2
    first, second, third = calls("charge", order_id)
    assert (second - first).total_seconds() >= 0.3
    assert (third - second).total_seconds() >= 0.3


def test_an_album_with_a_photo_that_cannot_be_read_is_not_bound(shop: ModuleType) -> None:
    order_id = shop.place_order("ada@example.org", 14)
    assert f"photo 13 of order {order_id} cannot be read" in shop.outcome(shop.make_album(order_id, 14))
    assert album_of(order_id) is None


def test_a_reminder_comes_at_its_time(shop: ModuleType) -> None:
    order_id = shop.place_order("ada@example.org", 1)
    eventually(lambda: mails(order_id) == ["receipt"])
    asked = calls("receipt", order_id)[-1]
    shop.remind_later(order_id, 1)
    eventually(lambda: mails(order_id) == ["receipt", "reminder"])
    (came,) = calls("reminder", order_id)
    assert (came - asked).total_seconds() >= 1


def test_carts_are_counted_by_a_schedule(shop: ModuleType) -> None:
    eventually(lambda: len(calls("count_carts")) >= 2)


def test_the_receipt_of_an_order_that_is_rolled_back(shop: ModuleType) -> None:
    with pytest.raises(ValueError, match="an order needs photos"):
        shop.place_order("eve@example.org", 0)
    kept = shop.place_order("ada@example.org", 1)
    eventually(lambda: mails(kept) == ["receipt"])
    rolled_back = kept - 1  # the sequence of ids does not roll back
    if BEFORE:
        eventually(lambda: len(calls("receipt", rolled_back)) == 4)  # it is searched for, again and again
    else:
        assert calls("receipt", rolled_back) == []  # it was never sent
