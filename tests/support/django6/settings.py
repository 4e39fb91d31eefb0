"""A project on Django 6 whose `django.tasks` run on horsies; tests/e2e/test_django_tasks.py runs it."""

import os

from horsies import RetryPolicy

SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes", "horsies.contrib.django", "jobs"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "USER": os.environ["PGUSER"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "TEST": {"TEMPLATE": os.environ.get("CASES_TEMPLATE"), "MIGRATE": False},
    }
}
HORSIES = {"EXCEPTION_MAPPER": {ConnectionError: "DOWN"}}
TASKS = {
    "default": {
        "BACKEND": "horsies.contrib.django.backend.HorsiesBackend",
        "OPTIONS": {"retry_policy": RetryPolicy.intervals([60], auto_retry_for=["DOWN"])},
    }
}
