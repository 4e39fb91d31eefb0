"""`FlaskHorsies`: its settings, the context around tasks, and what it refuses. docs/examples/flask_project runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask, current_app, g

from horsies import (
    AppConfig,
    ConfigurationError,
    Horsies,
    Middleware,
    PostgresConfig,
    TaskError,
    TaskResult,
    UsageError,
    testing,
)
from horsies.contrib.flask import FlaskHorsies, current_horsies

URL = "postgresql://u@db.example/shop"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)


def application(**config: object) -> Flask:
    app = Flask("shop")
    app.config.update(config)
    return app


def test_the_settings_of_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FlaskHorsies(application(HORSIES_DATABASE_URL=URL, HORSIES_SCHEMA="tasks", HORSIES_POOL_MAX_SIZE=3))
    assert queue.config.broker == PostgresConfig(URL, schema="tasks", pool_max_size=3)
    # without a key: what was given, else the environment, else the database of Flask-SQLAlchemy
    given = FlaskHorsies(application(HORSIES_SCHEMA="x"), broker=PostgresConfig(URL, pool_max_size=2))
    assert given.config.broker == PostgresConfig(URL, pool_max_size=2, schema="x")
    orders = {"SQLALCHEMY_DATABASE_URI": "postgresql+psycopg://u@db.example/orders"}
    assert FlaskHorsies(application(**orders)).config.broker.url == "postgresql+psycopg://u@db.example/orders"
    monkeypatch.setenv("HORSIES_DATABASE_URL", URL)
    assert FlaskHorsies(application(**orders)).config.broker.url == URL


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, r"app.config\['HORSIES_DATABASE_URL'\]: is not set"),
        ({"SQLALCHEMY_DATABASE_URI": "sqlite://"}, "is not set"),
        ({"HORSIES_DATABASE_URL": URL, "HORSIES_DATABSE_URL": URL}, "is not a setting of horsies"),
        ({"HORSIES_DATABASE_URL": "mysql://x"}, "database_url"),
        ({"HORSIES_DATABASE_URL": URL, "HORSIES_POOL_MAX_SIZE": "many"}, "pool_max_size"),
    ],
)
def test_settings_that_cannot_work(config: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        FlaskHorsies(application(**config))


def test_wrong_usage() -> None:
    queue = FlaskHorsies()
    with pytest.raises(ConfigurationError, match="init_app"):
        queue.send("x")
    with pytest.raises(UsageError, match="takes the Flask application"):
        queue.init_app("shop")
    app = application(HORSIES_DATABASE_URL=URL)
    queue.init_app(app)
    queue.init_app(app)
    with pytest.raises(UsageError, match="has a FlaskHorsies already"):
        FlaskHorsies(app)
    with Flask("other").app_context(), pytest.raises(UsageError, match="has no FlaskHorsies"):
        current_horsies.send("x")
    with app.app_context():
        assert current_horsies.config is queue.config
        assert isinstance(current_horsies, Horsies)


def test_an_app_takes_the_settings_of_an_app_config() -> None:
    class Own(Middleware):
        pass

    queue = FlaskHorsies(middleware=[Own()], release="7", exception_mapper={OSError: "IO"})
    assert (queue.config.release, len(queue.config.middleware)) == ("7", 2)
    with pytest.raises(TypeError):
        FlaskHorsies(relase="7")
    assert isinstance(queue.config, AppConfig)


def test_the_context_of_a_task() -> None:
    queue = FlaskHorsies()
    ended: list[str] = []

    @queue.task("plain")
    def plain() -> TaskResult[list[str], TaskError]:
        g.seen = True
        return TaskResult(ok=[current_app.config["SHOP"], str(current_horsies.flask_app.name)])

    @queue.task("asynchronous")
    async def asynchronous() -> TaskResult[bool, TaskError]:
        return TaskResult(ok=current_app.config["SHOP"] == "acme" and "seen" not in g)

    @queue.batch_task("many")
    def many(items: list[int]) -> list[TaskResult[str, TaskError]]:
        return [TaskResult(ok=current_app.config["SHOP"]) for _ in items]

    @queue.task("without")
    def without() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    assert testing.run(without).ok == 1  # needs no application
    assert "outside of application context" in testing.run(plain).err_value.message
    app = application(HORSIES_DATABASE_URL=URL, SHOP="acme")
    queue.init_app(app)

    @app.teardown_appcontext
    def end(error: BaseException | None) -> None:
        ended.append("task")

    assert testing.run(plain).ok == ["acme", "shop"]
    assert testing.run(asynchronous).ok is True
    assert testing.run(many, 1).ok == "acme"
    assert ended == ["task"] * 3
    # of several applications, as in tests, the last one
    queue.init_app(application(HORSIES_DATABASE_URL=URL, SHOP="umbrella"))
    with app.app_context(), testing.inline(queue):
        g.seen = "outer"
        assert plain.send().get().ok == ["umbrella", "shop"]
        assert g.seen == "outer"


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from flask import Flask\n"
        "from horsies import TaskError, TaskResult\n"
        "from horsies.contrib.flask import FlaskHorsies\n"
        "queue = FlaskHorsies()\n"
        "@queue.task('add')\n"
        "def add(a: int) -> TaskResult[int, TaskError]: return TaskResult(ok=a)\n"
        "def create_app():\n"
        "    app = Flask('shop')\n"
        f"    app.config['HORSIES_DATABASE_URL'] = '{URL}'\n"
        "    queue.init_app(app)\n"
        "    return app\n"
        "bare = Flask('bare')\n"
    )

    def flask(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flask", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)

    checked = flask("--app", "shop:create_app", "horsies", "check")
    assert "no problems found" in checked.stdout, checked.stderr
    assert checked.returncode == 0
    command = [sys.executable, "-m", "horsies_worker", "shop:queue"]
    early = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)
    assert "start it with `flask --app <your app> horsies worker`" in early.stderr
    assert early.returncode == 3
    helped = flask("--app", "shop:create_app", "horsies", "worker", "--help")
    assert "--async-concurrency" in helped.stdout
    assert "No such command 'horsies'" in flask("--app", "shop:bare", "horsies", "check").stderr
