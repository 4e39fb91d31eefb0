"""The web application of project_name: it stores a customer and sends the welcome in one transaction.

No customer without a welcome, and no welcome for a customer that was rolled back.
"""

from typing import Any

from flask import Blueprint, Flask, request
from horsies import OperationalErrorCode, RetrievalCode
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError

from project_name import settings
from project_name.extensions import app, db
from project_name.models import Customer, create_tables
from project_name.tasks import send_welcome

routes = Blueprint("project_name", __name__)

Reply = tuple[dict[str, Any], int]


@routes.post("/customers")
def sign_up() -> Reply:
    match request.get_json():
        case {"address": str(address)} if 0 < len(address) <= 254:
            pass
        case _:
            return {"error": "address is missing or too long"}, 422
    customer = Customer(address=address)
    db.session.add(customer)
    handle = send_welcome.with_options(connection=db.session).send(address)
    try:
        db.session.commit()
    except IntegrityError:  # the customer is rolled back, and the welcome with it
        return {"error": "this address is taken"}, 409
    return {"customer_id": customer.id, "task_id": handle.task_id}, 202


@routes.get("/welcomes/<task_id>")
def read_welcome(task_id: str) -> Reply:
    """The result of the task; with `wait_ms` the request waits for it."""
    wait_ms = request.args.get("wait_ms", 0, type=int)
    result = app.handle(task_id, send_welcome).get(timeout_ms=min(max(wait_ms, 0), 25_000))
    if result.is_ok():
        return {"status": "done", "result": result.ok_value}, 200
    error = result.err_value
    if error.error_code == RetrievalCode.TASK_NOT_FOUND:
        return {"error": "there is no such welcome"}, 404
    if error.error_code == RetrievalCode.WAIT_TIMEOUT:
        return {"status": "pending"}, 202
    if error.error_code == OperationalErrorCode.BROKER_ERROR:  # the database cannot be reached: the task may be well
        return {"status": "unknown"}, 503
    return {"status": "failed", "error": str(error.error_code)}, 200


def create_app(database_url: str | None = None) -> Flask:
    """The application, on the database of the settings or on another one."""
    web = Flask(__name__)
    url = database_url or settings.postgres_url()
    web.config["HORSIES_DATABASE_URL"] = url
    web.config["SQLALCHEMY_DATABASE_URI"] = make_url(url).set(drivername="postgresql+psycopg")
    db.init_app(web)
    app.init_app(web)
    web.register_blueprint(routes)
    with web.app_context():
        with db.engine.begin() as connection:
            create_tables(connection)
        db.engine.dispose()  # a worker forks: its children must not share a connection
    return web
