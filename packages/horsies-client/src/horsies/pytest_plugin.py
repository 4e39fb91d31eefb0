"""The pytest plugin of horsies: fixtures for `horsies.testing`. pytest loads it by its entry point; nothing else does.

    # pytest.ini: horsies_app = shop.tasks:app
    def test_sign_up(horsies_recorded):
        sign_up("ada@example.org")
        horsies_recorded.assert_sent(send_welcome, "ada@example.org")

Every run of pytest in the environment imports this module, so it imports nothing of horsies before a fixture is used.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.testing.databases import Prepare
    from horsies.testing.real import TestDatabase
    from horsies.testing.sends import Sends


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "horsies_app", "The app of the fixtures horsies_recorded, horsies_inline and horsies_db: module:attribute"
    )
    told = "a PostgreSQL server on which horsies_db may create databases, in place of an embedded one: postgresql://..."
    parser.addini("horsies_database_url", told)
    parser.getgroup("horsies").addoption("--horsies-database-url", metavar="URL", help=told)


def pytest_configure(config: pytest.Config) -> None:
    url = config.getoption("--horsies-database-url") or config.getini("horsies_database_url")
    if url:
        os.environ["HORSIES_TEST_DATABASE_URL"] = str(url)
    if run := getattr(config, "workerinput", {}).get("horsies_run"):
        os.environ["HORSIES_TESTING_RUN"] = run


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: its processes share one server."""
    from horsies.testing.databases import begin_run

    node.workerinput["horsies_run"] = str(begin_run())


@pytest.fixture(scope="session")
def horsies_app(request: pytest.FixtureRequest) -> "Horsies":
    """The app under test: of the ini option `horsies_app`. Define a fixture of this name to give another one."""
    from horsies.errors import HorsiesError
    from horsies.locate import load_app

    locator = str(request.config.getini("horsies_app") or "")
    if not locator:
        pytest.fail(
            "horsies does not know the app under test: define a fixture horsies_app that returns it, or write "
            "horsies_app = module:attribute into pytest.ini or [tool.pytest.ini_options]",
            pytrace=False,
        )
    try:
        return load_app(locator)
    except HorsiesError as error:
        pytest.fail(f"the ini option horsies_app: {error}", pytrace=False)


@pytest.fixture
def horsies_recorded(horsies_app: "Horsies") -> "Iterator[Sends]":
    """What the app sends in this test is kept here, and nothing runs."""
    from horsies.testing import recorded

    with recorded(horsies_app) as sends:
        yield sends


@pytest.fixture
def horsies_inline(horsies_app: "Horsies") -> "Iterator[Sends]":
    """What the app sends in this test runs at once, in this process, and is kept here."""
    from horsies.testing import inline

    with inline(horsies_app) as sends:
        yield sends


@pytest.fixture(scope="session")
def horsies_prepare() -> "Prepare | None":
    """Define a fixture of this name that returns a function: it gets the URL of the template database once per run, and
    makes the tables of your own there."""
    return None


@pytest.fixture
def horsies_db(horsies_app: "Horsies", horsies_prepare: "Prepare | None") -> "Iterator[TestDatabase]":
    """The app on a clean database of this test; what is sent runs when the test drains it."""
    from horsies.testing import real

    with real(horsies_app, prepare=horsies_prepare) as database:
        yield database
