from django.db import models


class Note(models.Model):
    text = models.CharField(max_length=100, unique=True)
    pid = models.IntegerField(null=True)
