from django.db import models


class Customer(models.Model):
    address = models.CharField(max_length=254, unique=True)
    welcome_task = models.CharField(max_length=36)

    def __str__(self) -> str:
        return str(self.address)
