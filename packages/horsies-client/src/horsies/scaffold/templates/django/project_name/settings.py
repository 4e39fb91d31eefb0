"""Settings come from environment variables, so that no secret stands in the repository.

`horsies.contrib.django` and HORSIES are about horsies; the rest is as in any Django project.
"""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

BASE_DIR = Path(__file__).resolve().parent.parent
DEBUG = bool(os.environ.get("DJANGO_DEBUG"))
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY") or ("only for development" if DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("set DJANGO_SECRET_KEY; in development DJANGO_DEBUG=1 will do, which `make` sets")
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost 127.0.0.1").split()

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "horsies.contrib.django",
    "project_name",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "project_name.urls"
WSGI_APPLICATION = "project_name.wsgi.application"
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
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "static"
USE_TZ = True
TIME_ZONE = "UTC"
EMAIL_BACKEND = f"django.core.mail.backends.{'console' if DEBUG else 'smtp'}.EmailBackend"
EMAIL_HOST = os.environ.get("EMAIL_HOST", "localhost")


def postgres_url() -> str:
    """In production the variable is set. Without it, this is a private PostgreSQL from a wheel, which only the extra
    `dev` installs: a production image without the variable stops with an error."""
    url = os.environ.get("HORSIES_DATABASE_URL") or "embedded://?dbname=project_name"
    if not url.startswith("embedded:"):
        return url
    from horsies_schema import embedded

    return embedded.resolve(url)


_database = conninfo_to_dict(postgres_url())
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.pop("dbname", ""),
        "USER": _database.pop("user", ""),
        "PASSWORD": _database.pop("password", ""),
        "HOST": _database.pop("host", ""),
        "PORT": _database.pop("port", ""),
        "OPTIONS": _database,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}

HORSIES = {"EXCEPTION_MAPPER": {OSError: "MAIL_SERVER_DOWN"}}
