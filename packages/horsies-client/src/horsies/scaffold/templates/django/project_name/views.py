from django.db import IntegrityError, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from horsies.contrib.django import app

from project_name.models import Customer
from project_name.tasks import send_welcome


@csrf_exempt
@require_POST
def sign_up(request: HttpRequest) -> JsonResponse:
    """No customer without a welcome, and no welcome for a customer that was rolled back."""
    address = request.POST.get("address", "")
    if not 0 < len(address) <= 254:
        return JsonResponse({"error": "address is missing or too long"}, status=422)
    try:
        with transaction.atomic():
            customer = Customer.objects.create(address=address)
            customer.welcome_task = send_welcome.send(customer.pk).task_id  # part of the transaction
            customer.save()
    except IntegrityError:
        return JsonResponse({"error": "this address is taken"}, status=409)
    return JsonResponse({"customer_id": customer.pk}, status=202)


def read_welcome(request: HttpRequest, customer_id: int) -> JsonResponse:
    """The result of the task; with `wait_ms` the request waits for it."""
    customer = get_object_or_404(Customer, pk=customer_id)
    wait_ms = request.GET.get("wait_ms", "0")
    timeout_ms = min(int(wait_ms), 25_000) if wait_ms.isdecimal() else 0
    result = app.handle(customer.welcome_task, send_welcome).get(timeout_ms=timeout_ms)
    if result.is_ok():
        return JsonResponse({"result": result.ok_value})
    return JsonResponse({"error": str(result.err_value.error_code)}, status=202)
