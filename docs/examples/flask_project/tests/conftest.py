import pytest
from flask import Flask
from reports import create_app
from reports.extensions import db

from horsies.testing import TestDatabase


@pytest.fixture
def app(horsies_db: TestDatabase) -> Flask:
    """The web application, with its tables and its tasks in a database of the test's own."""
    url = horsies_db.url.replace("postgresql://", "postgresql+psycopg://")
    app = create_app({"TESTING": True, "ORDERS_PER_LETTER": 2, "SQLALCHEMY_DATABASE_URI": url})
    with app.app_context():
        db.create_all()
    return app
