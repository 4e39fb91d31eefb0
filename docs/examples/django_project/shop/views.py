"""Place an order, and look at it."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import aget_object_or_404, get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from horsies.contrib.django import app
from shop import tasks
from shop.models import Order

STOCK = 10


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """The order and its task exist together, or not at all."""
    pieces = int(request.POST["pieces"])
    try:
        with transaction.atomic():
            order = Order.objects.create(email=request.POST["email"], pieces=pieces)
            order.receipt_task = tasks.write_receipt.send(order.pk).task_id
            order.save()
            if pieces > STOCK:
                raise ValueError("out of stock")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"order": order.pk, "task": order.receipt_task}, status=202)


def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    """The receipt, once the task has written it; waits for `?wait_ms=`."""
    order = get_object_or_404(Order, pk=order_id)
    result = app.handle(order.receipt_task, tasks.write_receipt).get(timeout_ms=int(request.GET.get("wait_ms", "0")))
    if result.is_ok():
        return JsonResponse({"order": order.pk, "receipt": result.unwrap()})
    return JsonResponse({"order": order.pk, "error": str(result.err_value.error_code)}, status=202)


@csrf_exempt
@require_POST
async def remind(request: HttpRequest, order_id: int) -> JsonResponse:
    """An async view awaits the `_async` verbs."""
    order = await aget_object_or_404(Order, pk=order_id)
    handle = await tasks.remind.send_async(order.pk)
    return JsonResponse({"task": handle.task_id}, status=202)
