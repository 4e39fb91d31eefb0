"""An entry of Django's DATABASES becomes the URL of the same database."""

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from horsies import PostgresConfig
from horsies._pg.dsn import connect_arguments
from horsies.contrib.django.database import database_url

ENGINE = {"ENGINE": "django.db.backends.postgresql"}


def arguments(**settings: Any) -> dict[str, Any]:
    return connect_arguments(PostgresConfig(database_url("default", {**ENGINE, **settings})))


def test_names_passwords_and_ports() -> None:
    odd = "p@ss/w:rd?&#% '\\é"
    found = arguments(NAME="a b/c", USER="us@er", PASSWORD=odd, HOST="db.example.org", PORT=5433)
    assert (found["host"], found["port"]) == (["db.example.org"], [5433])
    assert (found["user"], found["password"], found["database"]) == ("us@er", odd, "a b/c")
    assert "p@ss" not in repr(database_url("default", {**ENGINE, "NAME": "x", "USER": "u", "PASSWORD": odd}))


def test_sockets_and_several_hosts() -> None:
    found = arguments(NAME="x", HOST="/var/run/postgresql", PORT="5433")
    assert (found["host"], found["port"]) == (["/var/run/postgresql"], [5433])
    assert "host" not in arguments(NAME="x", HOST="", PORT="")
    several = arguments(NAME="x", HOST="a,b", PORT="1,2")
    assert (several["host"], several["port"]) == (["a", "b"], [1, 2])


def test_options() -> None:
    found = arguments(
        NAME="x",
        OPTIONS={
            "sslmode": "require", "connect_timeout": 3, "pool": {"min_size": 2}, "isolation_level": 3,
            "server_side_binding": True, "options": "-c search_path=tenant", "application_name": "shop",
            "assume_role": "owner", "passfile": None,
        },
    )  # fmt: skip
    assert (found["ssl"], found["timeout"]) == ("require", 3.0)
    settings = found["server_settings"]
    assert (settings["options"], settings["role"]) == ("-c search_path=tenant", "owner")
    assert settings["application_name"] == "shop"
    assert not {"pool", "isolation_level", "server_side_binding"} & settings.keys()


def test_a_service() -> None:
    found = arguments(NAME="", OPTIONS={"service": "shop"})
    assert "service=shop" in str(found["dsn"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}, "needs PostgreSQL.*'django.db.backends.sqlite3'"),
        ({"ENGINE": "", "NAME": "x"}, "needs PostgreSQL.*is not set"),
        ({**ENGINE, "NAME": ""}, "has no NAME"),
        ({**ENGINE}, "has no NAME"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=told):
        database_url("default", settings)
