"""A project with two databases; tests/e2e/test_django.py runs its tests, also on other releases of Django."""

import os
from typing import Any

from horsies import Daily, ScheduleConfig, TaskSchedule


def database(name: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": os.environ["PGUSER"],
        "HOST": os.environ["PGHOST"],
        "PORT": os.environ["PGPORT"],
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "TEST": {"TEMPLATE": os.environ.get("CASES_TEMPLATE"), "MIGRATE": False},
        "CONN_MAX_AGE": None,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 4}} if os.environ.get("CASES_POOL") else {},
        **({"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True} if os.environ.get("CASES_POOL") else {}),
    }


SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "horsies.contrib.django",
    "cases",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "cases.urls"
STATIC_URL = "static/"
DATABASES = {"default": database(os.environ["PGDATABASE"]), "other": database(os.environ["PGDATABASE"] + "_other")}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
HORSIES = {"SCHEDULE": ScheduleConfig([TaskSchedule("nightly", "note", Daily("03:00"), kwargs={"text": "x"})])}
