"""The tasks of the shop: found in every installed app that has a module `tasks`."""

from horsies import TaskError, TaskResult
from horsies.contrib.django import app
from shop.models import Order, Receipt


@app.task("shop.write_receipt")
def write_receipt(order_id: int) -> TaskResult[str, TaskError]:
    order = Order.objects.get(pk=order_id)
    # a retry finds the receipt of the attempt before
    receipt, _ = Receipt.objects.get_or_create(order=order, defaults={"text": f"{order.pieces} pieces, {order.email}"})
    return TaskResult(ok=receipt.text)


@app.task("shop.remind")
async def remind(order_id: int) -> TaskResult[str, TaskError]:
    order = await Order.objects.aget(pk=order_id)
    return TaskResult(ok=f"reminded {order.email}")


@app.task("shop.count_orders")
def count_orders() -> TaskResult[int, TaskError]:
    return TaskResult(ok=Order.objects.count())
