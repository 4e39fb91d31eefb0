"""Sentry with the real SDK, through a real worker; a transport of the test's writes the envelopes to a file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentry_sdk

from horsies.contrib.sentry import Sentry
from tests.support import postgres, tracing_app
from tests.support.waiting import eventually
from tests.support.workers import describe, ended, start_worker

LONG_MS = 20_000
TRACE = "0af7651916cd43dd8448eb211c80319c"


@contextmanager
def reporting(folder: Path, **options: Any) -> Iterator[SimpleNamespace]:
    """A worker with Sentry, and what it has reported."""
    path = folder / "envelopes"

    def found(kind: str, task: str = "") -> list[dict[str, Any]]:
        return [item for item in tracing_app.read(path) if item["type"] == kind and task in str(item)]

    environment = {tracing_app.SENTRY_VARIABLE: str(path), "HORSIES_TEST_SENTRY_OPTIONS": json.dumps(options)}
    with postgres.database() as db:
        process = start_worker(describe(db), folder, app=tracing_app.APP, processes=1, **environment)
        with ended(process), tracing_app.build_app(describe(db), [Sentry()]) as app:
            process.wait_up()
            tasks = tracing_app.register(app)
            yield SimpleNamespace(process=process, tasks=tasks, found=found)


def test_failures_that_are_final(tmp_path: Path) -> None:
    with reporting(tmp_path) as sentry:
        tasks = sentry.tasks
        sender = tasks.fail.with_options(metadata={"tenant": "acme"})
        failed, from_async = sender.send("hunter2"), tasks.fail_async.send("hunter2")
        handles = [tasks.add.send(1), tasks.refuse.send(), tasks.flaky.send(2)]
        stopped = [tasks.sleep.send(), tasks.nap.send()]
        for handle in (failed, from_async, *handles, *stopped):
            handle.get(LONG_MS)
        eventually(lambda: len(sentry.found("event")) == 4)
        assert sentry.process.stop() == 0
        # asked to flush before the process ended: the SDK's own exit function was lost at the fork
        assert [item["timeout"] for item in sentry.found("flush") if item["pid"] != sentry.process.pid] == [2.0]
        assert len(sentry.found("event")) == 4
        (event,) = sentry.found("event", failed.task_id)
        (value,) = event["exception"]["values"]
        assert (value["type"], value["value"]) == ("LookupError", "no such order")
        assert value["mechanism"] == {"type": "horsies", "handled": False}
        assert [frame["function"] for frame in value["stacktrace"]["frames"]] == ["fail"]
        assert event["tags"] == {
            "horsies.task": "fail", "horsies.queue": "default", "horsies.attempt": 1, "horsies.outcome": "error",
            "horsies.retry_expected": "false",
        }  # fmt: skip
        assert event["contexts"]["horsies"] == {
            "task_id": failed.task_id, "attempt": 1, "metadata": {"tenant": "acme"},
        }  # fmt: skip
        assert event["transaction"] == "fail"
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["about to fail"]
        # arguments stay in the process, and what one task left behind does not reach the next
        assert "hunter2" not in json.dumps(sentry.found("event"))
        (other,) = sentry.found("event", from_async.task_id)
        assert not other.get("breadcrumbs", {}).get("values")
        for handle in stopped:
            (event,) = sentry.found("event", handle.task_id)
            assert event["tags"]["horsies.outcome"] == "timeout"


def test_what_can_be_asked_for(tmp_path: Path) -> None:
    with reporting(tmp_path, capture_retried=True, capture_returned=True, local_variables=True) as sentry:
        tasks = sentry.tasks
        failed, refused, flaky = tasks.fail.send("hunter2"), tasks.refuse.send(), tasks.flaky.send(3)
        for handle in (failed, refused, flaky):
            handle.get(LONG_MS)
        eventually(lambda: len(sentry.found("event")) == 4)
        (event,) = sentry.found("event", refused.task_id)
        assert event["message"] == "refuse: OUT_OF_STOCK: none left"
        assert event["fingerprint"] == ["horsies", "refuse", "OUT_OF_STOCK"]
        attempts = sentry.found("event", flaky.task_id)
        assert [event["tags"]["horsies.retry_expected"] for event in attempts] == ["true", "true"]
        (event,) = sentry.found("event", failed.task_id)
        assert "password" in event["exception"]["values"][0]["stacktrace"]["frames"][-1]["vars"]


class Nowhere(sentry_sdk.Transport):
    def capture_envelope(self, envelope: Any) -> None:
        pass


@pytest.fixture
def traced() -> Iterator[None]:
    """A web process with Sentry, in the middle of a request that belongs to a trace."""
    with sentry_sdk.new_scope() as scope:
        scope.set_client(
            sentry_sdk.Client(
                "http://key@127.0.0.1:1/1", transport=Nowhere, traces_sample_rate=1.0, default_integrations=False
            )
        )
        transaction = sentry_sdk.continue_trace({"sentry-trace": f"{TRACE}-b7ad6b7169203331-1"}, name="POST /orders")
        with sentry_sdk.start_transaction(transaction):
            yield


def test_a_transaction_per_attempt_in_the_trace_of_the_sender(tmp_path: Path, traced: None) -> None:
    with reporting(tmp_path) as sentry:
        tasks = sentry.tasks
        fine, failed, child = tasks.add.send(1), tasks.fail.send("x"), tasks.send_child.send()
        for handle in (fine, failed, child):
            handle.get(LONG_MS)
        eventually(lambda: len(sentry.found("transaction")) == 4)
        for handle, status in ((fine, "ok"), (failed, "internal_error")):
            (transaction,) = sentry.found("transaction", handle.task_id)
            told = transaction["contexts"]["trace"]
            assert (told["trace_id"], told["op"], told["status"]) == (TRACE, "queue.process", status)
            assert told["origin"] == "auto.queue.horsies"
            assert transaction["transaction_info"] == {"source": "task"}
        (event,) = eventually(lambda: sentry.found("event", failed.task_id))
        assert event["contexts"]["trace"]["trace_id"] == TRACE
        # the task that a task sent
        (transaction,) = sentry.found("transaction", child.get(LONG_MS).ok)
        assert transaction["contexts"]["trace"]["trace_id"] == TRACE


def test_it_forks_well(tmp_path: Path) -> None:
    """`sentry_sdk.init` at import leaves no thread behind: children are forked from the app that is imported."""
    with reporting(tmp_path) as sentry:
        assert "their start slower" not in sentry.process.log
