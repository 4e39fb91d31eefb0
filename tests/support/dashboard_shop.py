"""A shop for pictures of the dashboard: queues, tasks that take a moment, fail now and then, and a workflow."""

import os
import random
import socket
import time

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Daily,
    Horsies,
    Hourly,
    Interval,
    PostgresConfig,
    QueueMode,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    from_node,
)

# the pictures are the shop's, not those of the machine on which they were taken
NAME = os.environ.get("SHOP_HOST", "web-1")
socket.gethostname = lambda: NAME

Done = TaskResult[int, TaskError]

app = Horsies(
    AppConfig(
        PostgresConfig(),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name=name, priority=10) for name in ("default", "mail", "media", "payments")],
        schedule=ScheduleConfig(
            [
                TaskSchedule("poll_carrier", "poll_carrier", Interval(seconds=15)),
                TaskSchedule("sync_inventory", "sync_inventory", Hourly(minute=5), kwargs={"n": 1}),
                TaskSchedule("nightly_report", "report", Daily("02:30"), kwargs={"orders": 0}),
            ]
        ),
    )
)


def _work(seconds: float) -> None:
    time.sleep(random.uniform(0.3, 1.7) * seconds)


@app.task("send_receipt", queue_name="mail", retry_policy=RetryPolicy.fixed(1, 2, auto_retry_for=["SMTP_DOWN"]))
def send_receipt(order: int) -> Done:
    _work(0.08)
    if random.random() < 0.06:
        return TaskResult(err=TaskError("SMTP_DOWN", "connection refused by mx1"))
    return TaskResult(ok=order)


@app.task("charge_card", queue_name="payments")
def charge_card(order: int) -> Done:
    _work(0.1)
    if random.random() < 0.04:
        raise ValueError(f"card of order {order} declined by the bank")
    return TaskResult(ok=order)


@app.task("resize_image", queue_name="media")
def resize_image(n: int) -> Done:
    _work(0.3)
    return TaskResult(ok=n)


@app.task("transcode_video", queue_name="media")
def transcode_video(n: int, seconds: float = 300.0) -> Done:
    time.sleep(seconds)
    return TaskResult(ok=n)


@app.task("sync_inventory", queue_name="default")
def sync_inventory(n: int) -> Done:
    _work(0.15)
    return TaskResult(ok=n)


@app.task("poll_carrier", queue_name="default")
def poll_carrier() -> Done:
    return TaskResult(ok=0)


@app.task("report", queue_name="default")
def report(orders: int) -> Done:
    _work(0.2)
    return TaskResult(ok=orders)


@app.task("pack", queue_name="default")
def pack(order: int, seconds: float = 1.0) -> Done:
    time.sleep(seconds)
    if order % 7 == 6:
        return TaskResult(err=TaskError("OUT_OF_STOCK", f"order {order} cannot be packed"))
    return TaskResult(ok=order)


_fetch = sync_inventory.node(node_id="fetch_order")(7)
_charge = charge_card.node(node_id="charge_card")(from_node(_fetch))
_stock = pack.node(node_id="reserve_stock")(from_node(_fetch), seconds=3.0)
_label = pack.node(node_id="print_label")(from_node(_stock), seconds=2.0)
_mail = send_receipt.node(node_id="send_receipt")(from_node(_charge))
_box = pack.node(node_id="pack_box", waits_for=[_charge])(from_node(_label), seconds=40.0)
_report = report.node(node_id="report", waits_for=[_mail])(from_node(_box))
fulfil = app.workflow("fulfil_order", [_fetch, _charge, _stock, _label, _mail, _box, _report])
