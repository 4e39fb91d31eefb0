"""Orders, and the receipts that a task writes."""

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    pieces = models.PositiveIntegerField()
    receipt_task = models.CharField(max_length=36, blank=True)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.email}"


class Receipt(models.Model):
    order = models.OneToOneField(Order, models.CASCADE)
    text = models.TextField()

    def __str__(self) -> str:
        return f"receipt of order {self.order_id}"
