"""OpenTelemetry through real workers: spans of the test's process stay in memory, children write theirs to a file."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentry_sdk
from opentelemetry import baggage, context as otel_context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies import Outgoing, TaskSendError
from horsies.contrib.opentelemetry import Tracing
from horsies.contrib.sentry import Sentry
from tests.support import postgres, tracing_app, workers
from tests.support.apps import UNREACHABLE, add_task, make_app
from tests.support.waiting import eventually
from tests.support.workers import describe, ended, start_worker

LONG_MS = 20_000
Span = dict[str, Any]


class Spans:
    """Of both sides."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.tracer = self.provider.get_tracer("web")

    def all(self) -> list[Span]:
        return [tracing_app.as_data(span) for span in self.memory.get_finished_spans()] + tracing_app.read(self.path)

    def of(self, task_id: str, name: str, count: int = 1) -> list[Span]:
        """Spans of one task whose names begin so, in the order of their starts."""

        def found() -> list[Span]:
            return [
                span
                for span in self.all()
                if span["attributes"].get("messaging.message.id") == task_id and span["name"].startswith(name)
            ]

        eventually(lambda: len(found()) >= count, describe=f"{count} spans {name!r} of {task_id}")
        assert len(found()) == count
        return sorted(found(), key=lambda span: span["start"])

    def in_trace(self, trace_id: int) -> list[Span]:
        return [span for span in self.all() if span["trace"] == trace_id]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("tracing")
    spans = Spans(folder / "spans")
    with postgres.database() as db:
        process = start_worker(
            describe(db), folder, app=tracing_app.APP, processes=2, **{tracing_app.SPANS_VARIABLE: str(spans.path)}
        )
        with ended(process):
            process.wait_up()
            workers.shared.add(process.pid)
            try:
                with tracing_app.build_app(describe(db), [Tracing(spans.provider)]) as app:
                    yield SimpleNamespace(db=db, spans=spans, process=process, tasks=tracing_app.register(app))
            finally:
                workers.shared.discard(process.pid)


@pytest.fixture
def spans(shared: SimpleNamespace) -> Spans:
    return shared.spans


@pytest.fixture
def tasks(shared: SimpleNamespace) -> SimpleNamespace:
    return shared.tasks


def test_one_tree_from_a_web_request_to_a_workflow(spans: Spans, tasks: SimpleNamespace) -> None:
    with spans.tracer.start_as_current_span("POST /orders") as request:
        handle = tasks.start_five.send()
    workflow_id = handle.get(LONG_MS).ok
    trace_id = request.get_span_context().trace_id

    # five nodes, one of which needed two attempts
    def processed() -> list[Span]:
        found = spans.in_trace(trace_id)
        return [span for span in found if span["attributes"].get("horsies.workflow.id") == workflow_id
                and span["name"].startswith("process ")]  # fmt: skip

    eventually(lambda: len(processed()) == 6, describe="the spans of five nodes")
    found = spans.in_trace(trace_id)
    ids = {span["id"]: span for span in found}
    assert len(ids) == len(found)

    def path(span: Span) -> list[str]:
        names = [span["name"]]
        while span["parent"] is not None:
            span = ids[span["parent"]]  # every parent is there: one connected tree
            names.append(span["name"])
        return names[::-1]

    top = ["POST /orders", "send start_five", "process start_five", "start five"]
    nodes = sorted((span["attributes"]["horsies.workflow.node"], *path(span)) for span in processed())
    assert nodes == sorted([
        ("first", *top, "process add"), ("second", *top, "process add"), ("third", *top, "process flaky"),
        ("third", *top, "process flaky"), ("fourth", *top, "process add_async"), ("fifth", *top, "process add"),
    ])  # fmt: skip
    assert all(path(span)[0] == "POST /orders" for span in found)
    assert [span["name"] for span in found if span["parent"] is None] == ["POST /orders"]
    # what user code records inside of an async task belongs to it
    (inside,) = [span for span in found if span["name"] == "inside"]
    assert path(inside) == [*top, "process add_async", "inside"]


def test_the_attributes_of_a_send_and_an_attempt(spans: Spans, tasks: SimpleNamespace) -> None:
    handle = tasks.add.send(1)
    assert handle.get(LONG_MS).ok == 1
    common = {
        "messaging.system": "horsies", "messaging.destination.name": "default", "horsies.task": "add",
        "messaging.message.id": handle.task_id,
    }  # fmt: skip
    (send,) = spans.of(handle.task_id, "send ")
    assert (send["name"], send["kind"], send["status"]) == ("send add", "PRODUCER", "UNSET")
    assert send["attributes"] == {**common, "messaging.operation.type": "send", "messaging.operation.name": "send"}
    (process,) = spans.of(handle.task_id, "process ")
    assert (process["name"], process["kind"], process["status"]) == ("process add", "CONSUMER", "UNSET")
    assert process["attributes"] == {
        **common, "messaging.operation.type": "process", "messaging.operation.name": "process", "horsies.attempt": 1,
    }  # fmt: skip
    assert (process["trace"], process["parent"], process["links"]) == (send["trace"], send["id"], [send["id"]])
    (wait,) = spans.of(handle.task_id, "wait ")
    assert (wait["name"], wait["kind"], wait["parent"]) == ("wait add", "INTERNAL", send["id"])
    assert wait["end"] == process["start"]
    assert wait["start"] < wait["end"]


def test_tasks_of_a_batch_are_traces_of_their_own(spans: Spans, tasks: SimpleNamespace) -> None:
    with spans.tracer.start_as_current_span("import") as around:
        handles = tasks.add.send_many([(k,) for k in range(3)])
        (alone,) = tasks.add.send_many([(9,)])
    (send,) = [span for span in spans.in_trace(around.get_span_context().trace_id)
               if span["attributes"].get("messaging.batch.message_count")]  # fmt: skip
    assert send["attributes"]["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in send["attributes"]
    found = [spans.of(handle.task_id, "process ")[0] for handle in handles]
    assert [(span["parent"], span["links"]) for span in found] == [(None, [send["id"]])] * 3
    assert len({span["trace"] for span in (send, *found)}) == 4
    (wait,) = spans.of(handles[0].task_id, "wait ")
    assert (wait["trace"], wait["parent"]) == (found[0]["trace"], found[0]["id"])
    (single,) = spans.of(alone.task_id, "process ")
    assert single["trace"] == send["trace"]


def test_from_task_to_task_and_no_further(spans: Spans, tasks: SimpleNamespace) -> None:
    """A task of a batch is the root of its trace, and its child is in that trace, not linked to the batch."""
    first, _ = tasks.send_child.send_many([(), ()])
    child = first.get(LONG_MS).ok
    (process,) = spans.of(first.task_id, "process ")
    (send,) = spans.of(child, "send ")
    (of_child,) = spans.of(child, "process ")
    assert (process["parent"], send["parent"], of_child["parent"]) == (None, process["id"], send["id"])
    assert of_child["links"] == [send["id"]]


def test_baggage_and_spans_of_user_code(spans: Spans, tasks: SimpleNamespace) -> None:
    token = otel_context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        alone = tasks.inside.send()
        both = tasks.inside.send_many([(), ()])
    finally:
        otel_context.detach(token)
    for handle in (alone, *both):
        assert handle.get(LONG_MS).ok == {"tenant": "acme"}
        (process,) = spans.of(handle.task_id, "process ")
        eventually(lambda process=process: any(span["parent"] == process["id"] and span["name"] == "inside"
                                               for span in spans.all()))  # fmt: skip


def test_async_tasks_at_the_same_time_do_not_mix(spans: Spans, tasks: SimpleNamespace) -> None:
    handles = [tasks.add_async.send(number) for number in range(20)]
    for handle in handles:
        (process,) = spans.of(handle.task_id, "process ")
        inside = eventually(lambda process=process: [s for s in spans.all() if s["parent"] == process["id"]])
        assert [span["name"] for span in inside] == ["inside"]
        assert inside[0]["trace"] == process["trace"]


def test_nested_workflows_and_maps(spans: Spans, tasks: SimpleNamespace) -> None:
    with spans.tracer.start_as_current_span("request") as request:
        run = tasks.wide().start()
    assert run.get(LONG_MS).is_ok()
    trace_id = request.get_span_context().trace_id
    nodes = ["deep", "item-0", "item-1", "listed"]

    def processed() -> list[Span]:
        return [span for span in spans.in_trace(trace_id) if span["name"].startswith("process ")]

    eventually(lambda: len(processed()) == 4)
    (start,) = [span for span in spans.in_trace(trace_id) if span["name"] == "start wide"]
    assert start["attributes"]["horsies.workflow.id"] == run.workflow_id
    assert start["attributes"]["messaging.operation.name"] == "start"
    assert sorted(span["attributes"]["horsies.workflow.node"] for span in processed()) == nodes
    assert {span["parent"] for span in processed()} == {start["id"]}


def test_each_attempt_has_its_span(spans: Spans, tasks: SimpleNamespace) -> None:
    handle = tasks.flaky.send(2)
    assert handle.get(LONG_MS).ok == 1
    first, second = spans.of(handle.task_id, "process ", 2)
    assert [span["attributes"]["horsies.attempt"] for span in (first, second)] == [1, 2]
    assert first["parent"] == second["parent"]
    assert (first["status"], second["status"]) == ("ERROR", "UNSET")
    assert first["attributes"]["error.type"] == "ConnectionError"
    _, again = spans.of(handle.task_id, "wait ", 2)
    assert again["start"] >= first["end"]  # the pause before a retry is no wait in the queue


@pytest.mark.parametrize(
    ("name", "args", "kind", "described", "events"),
    [
        ("fail", ("hunter2",), "LookupError", "LookupError: no such order", ["exception"]),
        ("fail_async", ("hunter2",), "LookupError", "LookupError: no such order", ["exception"]),
        ("refuse", (), "OUT_OF_STOCK", "none left", []),
        ("sleep", (), "timeout", "stopped: timeout", ["exception"]),
        ("nap", (), "timeout", "stopped: timeout", ["exception"]),
    ],
)
def test_errors(
    spans: Spans, tasks: SimpleNamespace, name: str, args: Any, kind: str, described: str, events: list[str]
) -> None:
    handle = getattr(tasks, name).send(*args)
    assert handle.get(LONG_MS).is_err()
    (span,) = spans.of(handle.task_id, "process ")
    assert (span["status"], span["described"], span["events"]) == ("ERROR", described, events)
    assert span["attributes"]["error.type"] == kind


@pytest.mark.parametrize("name", ["wait", "wait_async"])
def test_a_cancelled_task(spans: Spans, tasks: SimpleNamespace, tmp_path: Path, name: str) -> None:
    handle = getattr(tasks, name).send(str(tmp_path / "notes"))
    eventually((tmp_path / "notes").exists)
    handle.cancel()
    assert str(handle.get(LONG_MS).err_value.error_code) == "TASK_CANCELLED"
    (span,) = spans.of(handle.task_id, "process ")
    assert (span["status"], span["attributes"]["error.type"]) == ("ERROR", "cancelled")
    # the next task of the same child is not inside of it
    (after,) = spans.of(tasks.inside.send().task_id, "process ")
    assert after["trace"] != span["trace"]


def test_a_stack_does_not_begin_with_our_frames(tasks: SimpleNamespace) -> None:
    text = tasks.fail.send("hunter2").get(LONG_MS).err_value.data["traceback"]
    assert text.count("File ") == 1, text


def test_a_send_that_fails() -> None:
    spans = Spans(Path("nowhere"))
    with make_app(UNREACHABLE, resilience={"send_attempts": 1}, middleware=[Tracing(spans.provider)]) as app:
        add = add_task(app)
        with pytest.raises(TaskSendError) as raised:
            add.send(1)
        with pytest.raises(TaskSendError):
            raised.value.retry()
    (span,) = spans.all()  # of the first try; a repeated one has none of its own
    assert (span["status"], span["attributes"]["error.type"]) == ("ERROR", "ENQUEUE_FAILED")


@pytest.mark.parametrize("order", [1, -1])
def test_beside_sentry(order: int) -> None:
    """Both write headers into the trace context, and neither removes the other's."""
    spans = Spans(Path("nowhere"))
    task = Outgoing("add", ["id"], "default", {"horsies.trace": {"traceparent": "old", "horsies-batch": "7"}})
    with sentry_sdk.new_scope() as scope:
        scope.set_client(
            sentry_sdk.Client("http://key@127.0.0.1:1/1", traces_sample_rate=1.0, default_integrations=False)
        )
        for middleware in [Tracing(spans.provider), Sentry()][::order]:
            middleware.on_send(task)
    carrier = task.metadata["horsies.trace"]
    assert carrier.keys() == {"traceparent", "sentry-trace", "sentry-baggage"}
    assert carrier["traceparent"] != "old"


class Broken(TracerProvider):
    def get_tracer(self, *_: Any, **__: Any) -> Any:
        return self

    def start_span(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the SDK is broken")


def test_a_broken_sdk_breaks_no_send(shared: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR, "horsies"),
        tracing_app.build_app(describe(shared.db), [Tracing(Broken())]) as app,
    ):
        tasks = tracing_app.register(app)
        assert tasks.add.send(1).get(LONG_MS).ok == 1
        assert tasks.add.send(2).get(LONG_MS).ok == 2
    assert caplog.text.count("the span of a send could not be started") == 1


def test_a_broken_sdk_breaks_no_task() -> None:
    """In the layers around a task, without a worker."""
    from horsies import TaskError, TaskResult
    from horsies.context import TaskContext

    context = TaskContext(
        task_id="t", task_name="t", attempt=1, deadline=None, fencing_token=1,
        metadata_json='{"horsies.trace": {"traceparent": 7, "x": "y"}}', ready_at=1.0,
    )  # fmt: skip
    failed = TaskResult[int, TaskError](err=TaskError("X", "y"))
    for tracing in (Tracing(Broken()), Tracing()):  # and one without an SDK
        assert tracing.run_task(context, lambda: TaskResult(ok=1)).ok == 1
        assert tracing.run_task(context, lambda: failed) is failed
        with pytest.raises(KeyboardInterrupt):
            tracing.run_task(context, interrupt)
    assert trace.get_current_span() is trace.INVALID_SPAN


def interrupt() -> Any:
    raise KeyboardInterrupt


def test_spans_of_the_last_tasks_are_exported_at_the_end(shared: SimpleNamespace, tmp_path: Path) -> None:
    """A BatchSpanProcessor that a lifespan made has its own thread in the child; its shutdown exports the rest."""
    path = tmp_path / "spans"
    with postgres.database() as db:
        process = start_worker(
            describe(db), tmp_path, app=tracing_app.APP, processes=1, **{tracing_app.SPANS_VARIABLE: str(path)}
        )
        with ended(process), tracing_app.build_app(describe(db), []) as app:
            process.wait_up()
            assert "their start slower" not in process.log
            handle = tracing_app.register(app).add.send(1)
            assert handle.get(LONG_MS).ok == 1
            assert process.stop() == 0
    # the sender had no tracing: the attempt is a root, and its wait is under it
    wait, attempt = sorted(tracing_app.read(path), key=lambda span: span["start"])
    assert (attempt["parent"], attempt["links"]) == (None, [])
    assert wait["parent"] == attempt["id"]


@pytest.mark.parametrize(("module", "absent"), [("opentelemetry", "opentelemetry"), ("sentry", "sentry_sdk")])
def test_without_its_library_the_import_says_what_to_install(module: str, absent: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; import horsies.contrib.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    extra = {"opentelemetry": "otel", "sentry": "sentry"}[module]
    assert f"pip install 'horsies-client[{extra}]'" in run.stderr


def test_only_the_api_is_imported() -> None:
    code = "import sys, horsies.contrib.opentelemetry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("opentelemetry.sdk", "sentry_sdk", "asyncpg"))]
