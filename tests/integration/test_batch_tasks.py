"""Batch tasks in the testing kit on a real database, and the traces of their calls."""

from datetime import timedelta
from typing import Any

import sentry_sdk
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies import RetryPolicy, TaskError, TaskResult, testing
from horsies.contrib.opentelemetry import Tracing
from horsies.contrib.sentry import Sentry
from tests.support.apps import app_on
from tests.support.postgres import Database


def test_a_drain_gathers(db: Database) -> None:
    lists: list[list[int]] = []
    with app_on(db) as app:

        @app.batch_task("double", max_size=4, retry_policy=RetryPolicy.fixed(5, 1, auto_retry_for=["ODD"]))
        def double(numbers: list[int]) -> list[TaskResult[int, TaskError]]:
            lists.append(numbers)
            return [
                TaskResult(err=TaskError("ODD", "odd")) if number % 2 else TaskResult(ok=2 * number)
                for number in numbers
            ]

        with testing.real(app, in_place=True) as database:
            handles = double.send_many([(number,) for number in range(6)])
            report = database.drain()
            assert (report.attempts, report.completed, report.retried) == (6, 3, 3)
            assert lists == [[0, 1, 2, 3], [4, 5]]
            database.advance(timedelta(seconds=10))
            assert database.drain().failed == 3
            assert lists[2:] == [[1], [3], [5]], "repeated attempts run alone"
            assert [handle.get(0).ok for handle in handles] == [0, None, 4, None, 8, None]


def test_a_call_is_one_span_with_a_link_to_each_sender(db: Database) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with app_on(db, middleware=[Tracing(provider)]) as app, testing.real(app, in_place=True) as database:

        @app.batch_task("double")
        def double(numbers: list[int]) -> list[TaskResult[int, TaskError]]:
            if 13 in numbers:
                raise ValueError("unlucky")
            return [TaskResult(ok=2 * number) for number in numbers]

        for number in range(3):
            double.send(number)
        database.drain()
        double.send(13)
        database.drain()
    sends = [span for span in exporter.get_finished_spans() if span.name == "send double"]
    call, failed = [span for span in exporter.get_finished_spans() if span.name == "process double"]
    assert call.parent is None
    assert {link.context.span_id for link in call.links} == {
        send.context.span_id for send in sends[:3] if send.context is not None
    }
    assert (call.attributes or {})["messaging.batch.message_count"] == 3
    assert (call.status.is_ok, failed.status.description) == (True, "ValueError: unlucky")


def test_sentry_reports_the_exception_of_a_call_once(db: Database) -> None:
    events: list[Any] = []
    # Without integrations: those patch libraries for the rest of this process.
    client = sentry_sdk.Client(
        "https://key@sentry.invalid/1", before_send=lambda event, _: events.append(event), default_integrations=False
    )
    sentry_sdk.get_global_scope().set_client(client)
    try:
        with app_on(db, middleware=[Sentry()]) as app, testing.real(app, in_place=True) as database:

            @app.batch_task("unlucky")
            def unlucky(numbers: list[int]) -> list[TaskResult[int, TaskError]]:
                raise ValueError("unlucky")

            handles = unlucky.send_many([(number,) for number in range(3)])
            database.drain()
    finally:
        sentry_sdk.get_global_scope().set_client(None)
        client.close(timeout=0)
    (event,) = events
    assert event["tags"]["horsies.task"] == "unlucky"
    assert event["contexts"]["horsies"]["task_ids"] == [handle.task_id for handle in handles]
