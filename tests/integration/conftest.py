"""Fixtures of the tests on a database."""

import pytest

from tests.support import factories
from tests.support.findings import RECOVERY
from tests.support.operator import Operator
from tests.support.postgres import Database


@pytest.fixture
def operator(db: Database, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(db, capsys)


@pytest.fixture
def served(db: Database) -> Database:
    """A database with a live worker on the queue `default`."""
    factories.worker_state(db, recovery_config=RECOVERY)
    return db
