"""`testing.recorded` and `inline` with `connection=`: which libraries tell of a commit."""

import pytest

from horsies import testing, wait_for_signal
from tests.support.apps import UNREACHABLE, add_task, make_app
from tests.support.postgres import Database
from tests.support.roads import ROADS

pytestmark = pytest.mark.shared_database


def tells(name: str) -> bool:
    return " on " in name or name.startswith("Django")  # "Session on psycopg", of SQLAlchemy


def test_some_libraries_tell_and_some_do_not() -> None:
    assert {tells(name) for name in ROADS} == {True, False}


@pytest.mark.parametrize("name", ROADS)
def test_a_send_counts_when_its_transaction_has_committed(name: str, db: Database) -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    with ROADS[name](db.url) as road, testing.recorded(app) as sends:
        task = add.with_options(connection=road.connection)
        road.begin()
        road.execute("SELECT 1")
        road.call(task, "send", 1, 1)
        assert len(sends) == (0 if tells(name) else 1)
        road.commit()
        assert len(sends) == 1
        road.begin()
        road.execute("SELECT 1")
        road.call(task, "send", 2, 2)
        road.rollback()
        assert len(sends) == (1 if tells(name) else 2)
    assert db.execute("SELECT count(*) FROM horsies_tasks")[0][0] == 0
    assert app.stand_in is None


@pytest.mark.parametrize("name", ROADS)
def test_a_send_runs_inline_when_its_transaction_has_committed(name: str, db: Database) -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    with ROADS[name](db.url) as road, testing.inline(app) as sends:
        road.begin()
        road.execute("SELECT 1")
        handle = road.call(add.with_options(connection=road.connection), "send", 1, 2)
        assert not tells(name) or sends.sent() == []
        road.commit()
        assert handle.get().ok == 3


@pytest.mark.parametrize("name", ROADS)
def test_a_signal_moves_its_run_when_its_transaction_has_committed(name: str, db: Database) -> None:
    app = make_app(UNREACHABLE)
    node = wait_for_signal("n", int, node_id="n")
    flow = app.workflow("flow", [node], output=node)
    with ROADS[name](db.url) as road, testing.inline(app) as sends:
        run = flow.start()
        road.begin()
        road.execute("SELECT 1")
        road.call(run, "signal", node, 1, connection=road.connection)
        road.rollback()
        if tells(name):
            assert sends.signalled() == []
            road.begin()
            road.execute("SELECT 1")
            road.call(run, "signal", node, 2, connection=road.connection)
            assert run.get().is_err()
            road.commit()
        assert run.get().ok == (2 if tells(name) else 1)
