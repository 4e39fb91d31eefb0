"""The examples of the guides about workflows that wait, branch, loop and undo, run as a user would run them: two
workers, the script, and for the review queue a web server that has the client only."""

from pathlib import Path

from tests.e2e.test_examples import served
from tests.e2e.test_limit_examples import Example
from tests.support.postgres import Database
from tests.support.waiting import eventually

SERVE_REVIEWS = """
import os, socket, uvicorn
os.environ["HORSIES_DATABASE_URL"] = os.environ["DATABASE_URL"]
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config("review_queue:app")).run(sockets=[listening])
"""
NO_RUN = "00000000-0000-4000-8000-000000000000"


def test_an_order_that_waits_for_a_person(db: Database, tmp_path: Path) -> None:
    assert Example("order_approval", db, tmp_path, PATIENCE_S="2").told() == [
        "order 1: 50 charged", "order 2: 500 charged", "order 3: refused", "order 4: refused",
        "the second answer was ignored",
    ]  # fmt: skip
    skipped = db.execute(
        "SELECT w.unique_key::json ->> 1, n.node_id FROM horsies_workflow_tasks n"
        " JOIN horsies_workflows w ON w.id = n.workflow_id"
        " WHERE n.skip_reason = 'not_taken' ORDER BY 1, n.task_index"
    )
    assert skipped == [
        ("order-1", "approval"), ("order-1", "approved"), ("order-1", "charged"), ("order-1", "refused"),
        ("order-2", "at_once"), ("order-2", "refused"), ("order-3", "at_once"), ("order-3", "charged"),
        ("order-4", "at_once"), ("order-4", "charged"),
    ]  # fmt: skip
    failed = "SELECT node_id, error::json -> 'err' ->> 'error_code' FROM horsies_workflow_tasks WHERE status = 'FAILED'"
    assert db.execute(failed) == [("approval", "SIGNAL_TIMEOUT")]


def test_a_report_over_shards_that_fail(db: Database, tmp_path: Path) -> None:
    total, account, shard, by_path = Example("nightly_report", db, tmp_path).told()
    assert total == f"total {3 * 550 - 70}"
    assert account == "failed: account 7 of south cannot be read"
    assert shard.startswith("failed: ")
    assert shard.endswith("SHARD_DOWN: east does not answer")
    assert by_path == "account 8 of south: 80"


def test_bookings_are_undone_the_last_one_first(db: Database, tmp_path: Path) -> None:
    told = Example("booking_saga", db, tmp_path, TRIPS=str(tmp_path)).told()
    assert told == [
        "a node failed: book_car: NO_CAR: all cars are rented", "book_flight: COMPLETED", "book_hotel: COMPLETED",
        "book_car: FAILED", "undo-1-book_hotel: COMPLETED", "undo-2-book_flight: COMPLETED", "car of Ada",
    ]  # fmt: skip
    assert (tmp_path / "bookings.txt").read_text().splitlines() == [
        "flight to Lisbon booked", "hotel booked", "hotel of Ada cancelled", "flight of Ada to Lisbon cancelled",
        "flight to Lisbon booked", "hotel booked", "car booked",
    ]  # fmt: skip


def test_a_job_is_polled_by_one_run(db: Database, tmp_path: Path) -> None:
    told = Example("polling_loop", db, tmp_path, JOBS=str(tmp_path), FIRST_WAIT_S="0.05").told()
    assert told == ["render-17 is done after 5 looks", "the run went on 4 times, under one id"]
    assert db.value("SELECT max(depth) FROM horsies_workflows") == 0


def test_a_review_queue_over_http(db: Database, tmp_path: Path) -> None:
    example = Example("review_queue", db, tmp_path)
    example.app = "queue"
    with example.worker(), served(SERVE_REVIEWS, db, tmp_path) as web:
        for title in ("one", "two", "three"):
            assert web.call("POST", "/articles", {"title": title})[0] == 201

        def waiting() -> list[str]:
            return [row["title"] for row in web.call("GET", "/reviews")[1]]

        eventually(lambda: sorted(waiting()) == ["one", "three", "two"])
        good, bad = {"editor": "Ada", "is_good": True}, {"editor": "Bob", "is_good": False}
        assert web.call("POST", "/reviews/1", good) == (200, {"article_id": 1, "is_good": True})
        assert web.call("POST", "/reviews/1", bad) == (409, {"detail": "the review was answered already"})
        assert web.call("POST", "/reviews/2", bad)[0] == 200
        assert web.call("POST", "/reviews/9", good)[0] == 404
        assert web.call("POST", "/reviews/3", {"editor": "Ada"})[0] == 422
        eventually(lambda: web.call("GET", "/articles/1")[1]["state"] == "published")
        eventually(lambda: web.call("GET", "/articles/2")[1]["state"] == "returned")
        assert waiting() == ["three"]

        # a run that has ended takes no signal, and the review is not kept either
        run = db.value("SELECT workflow_id FROM articles WHERE id = 3")
        assert db.value("SELECT horsies_cancel_workflow(%s) IS NOT NULL", run)
        status, refused = web.call("POST", "/reviews/3", good)
        assert (status, "WORKFLOW_ENDED" in refused["detail"]) == (409, True)
        assert db.execute("SELECT article_id, editor FROM reviews ORDER BY 1") == [(1, "Ada"), (2, "Bob")]
        assert db.value("SELECT count(*) FROM horsies_workflow_signals") == 2


def test_the_function_for_other_languages_says_what_it_did(db: Database) -> None:
    assert db.value("SELECT horsies_signal(%s, 'review')", NO_RUN) == "WORKFLOW_NOT_FOUND"
