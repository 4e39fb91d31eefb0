"""Earlier releases, built once for the tests that share a database with them."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import horsies_schema
from horsies._pg.schema_guard import HEAD_REVISION
from tests.support import old_release, places, postgres
from tests.support.old_release import Release

Build = Callable[[tuple[str, str]], Release]


@pytest.fixture(scope="session")
def breaking() -> str:
    """The newest revision that older code cannot work with, as an upgrade writes it into the database."""
    with postgres.database(template_name="template0", options="ENCODING 'UTF8'") as database:
        horsies_schema.upgrade(database.url)
        return str(database.value("SELECT breaking FROM horsies_alembic_version"))


@pytest.fixture(scope="session")
def build() -> Iterator[Build]:
    folder = places.directory("horsies-old-")

    def made(found: tuple[str, str]) -> Release:
        return old_release.build(*found, folder / found[0][:12])

    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def old(build: Build, breaking: str) -> Release:
    try:
        return build(old_release.last_release(HEAD_REVISION, breaking))
    except old_release.NoHistory as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def before_breaking(build: Build, breaking: str) -> Release:
    try:
        return build(old_release.release_before(breaking))
    except old_release.NoHistory as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def new() -> Release:
    return Release("this code", HEAD_REVISION, Path(sys.executable).parent)
