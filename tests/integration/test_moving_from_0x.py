"""What code of the original horsies relies on, inline and in a database, which may be the one that 0.x uses."""

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from horsies import (
    Daily,
    Horsies,
    OnError,
    RetryPolicy,
    SchemaError,
    SubWorkflowSummary,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    TaskSchedule,
    TerminalResults,
    UsageError,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowStatus,
    current_task,
    result_from,
    testing,
)
from horsies_schema import migrate
from tests.support.apps import UNREACHABLE, app_on, make_app
from tests.support.names_of_0x import TABLES
from tests.support.postgres import Database

Number = TaskResult[int, TaskError]
Text = TaskResult[str, TaskError]


@pytest.fixture
def app(db: Database) -> Iterator[Horsies]:
    with app_on(db, exception_mapper={ConnectionResetError: "RESET"}) as app:
        yield app


def both(app: Horsies, act: Any) -> Any:
    """What `act(app, work)` returns inline, which is also what it returns in the database."""
    imagined = make_app(UNREACHABLE, exception_mapper=app.config.exception_mapper)
    with testing.inline(imagined) as sends:
        inline = act(imagined, sends.advance)
    with testing.real(app) as database:

        def work(after: Any = None) -> None:
            database.drain()
            if after is not None:
                database.advance(after)
                database.drain()

        assert act(app, work) == inline
    return inline


def test_exceptions_are_retried_by_their_class_and_have_the_codes_of_the_task(app: Horsies) -> None:
    def act(app: Horsies, work: Any) -> Any:
        policy = RetryPolicy.fixed(0, 2, auto_retry_for=[ConnectionError, KeyError])

        @app.task(
            task_name="ping",
            retry_policy=policy,
            exception_mapper={ValueError: "BAD"},
            default_unhandled_error_code="ODD",
        )
        def ping(kind: str) -> Number:
            if current_task().attempt == 3:
                return TaskResult(ok=3)
            raise {"lost": ConnectionResetError, "key": KeyError, "bad": ValueError, "odd": OSError}[kind](kind)

        @app.batch_task("pings", max_wait_ms=1, exception_mapper={ValueError: "WRONG"})
        def pings(kinds: list[str]) -> list[Number]:
            raise ValueError(kinds[0])

        handles = [ping.send(kind) for kind in ("lost", "key", "bad", "odd")] + [pings.send("x")]
        if app.stand_in is None:
            work()
        results = [handle.get(timeout_ms=0) for handle in handles]
        return [one.ok if one.is_ok() else str(one.err_value.error_code) for one in results]

    assert both(app, act) == [3, 3, "BAD", "ODD", "WRONG"]


def workflow(app: Horsies) -> Any:
    @app.task("number")
    def number(n: int) -> Number:
        return TaskResult(ok=n) if n < 5 else TaskResult(err=TaskError("BIG", f"{n} is too much"))

    @app.task("tell")
    def tell(number: TaskResult[int, TaskError] | None = None) -> Text:
        return TaskResult(ok="none" if number is None else str(number.ok))

    @app.task("report")
    def report(ctx: WorkflowContext) -> TaskResult[list[str], TaskError]:
        failed, good = ctx.summary_for(bad), ctx.summary_for(fine)
        assert isinstance(failed, SubWorkflowSummary)
        with pytest.raises(UsageError, match=r"no summary of node 'alone'.*it has: bad, fine"):
            ctx.summary_for(alone)
        has = [ctx.has_result(alone), ctx.has_result(last), ctx.has_summary(bad), ctx.has_summary(alone)]
        return TaskResult(ok=[repr(failed), repr(good), repr(has), repr(sorted(ctx.results))])

    i2 = number.node(node_id="i2")(7)
    inner = app.workflow("bad", [number.node(node_id="i1")(1), i2, number.node(node_id="i3", waits_for=[i2])(1)])
    one = number.node(node_id="one")(1)
    other = app.workflow("fine", [one], output=one, on_error=OnError.FAIL)
    bad, fine = inner.node(node_id="bad"), other.node(node_id="fine")
    alone = number.node(node_id="alone")(2)
    told = report.node(workflow_ctx_from=[bad, fine, alone], allow_failed_deps=True)()
    last = tell.node(node_id="last", args_from={"number": alone})()
    again = tell.node(node_id="again")(result_from(alone))
    plain = tell.node(node_id="plain")()
    policy = SuccessPolicy([SuccessCase([told])])
    return app.workflow("all", [bad, fine, alone, told, last, again, plain], success_policy=policy), tell


def test_summaries_and_results_of_a_run_without_output(app: Horsies) -> None:
    def act(app: Horsies, work: Any) -> Any:
        spec, tell = workflow(app)
        handle = spec.start()
        if app.stand_in is None:
            work()
        assert handle.status() is WorkflowStatus.COMPLETED
        found = handle.get(timeout_ms=5_000).unwrap()
        assert isinstance(found, TerminalResults)
        assert found == handle.get().unwrap() == app.workflow_handle(handle.workflow_id, spec).get(0).unwrap()
        if app.stand_in is None:
            check_nodes(app, handle)
        direct = [tell.send(), tell.send(None), tell.send(TaskResult(ok=3))]
        if app.stand_in is None:
            work()
        return {name: one.unwrap() for name, one in found.items()}, [one.get(0).unwrap() for one in direct]

    found, direct = both(app, act)
    assert direct == ["none", "none", "3"]
    report = found.pop("report")
    assert found == {"last": "2", "again": "2", "plain": "none"}
    assert report == [
        "SubWorkflowSummary(status=<WorkflowStatus.FAILED: 'FAILED'>, output=None, total_tasks=3, completed_tasks=1, "
        "failed_tasks=1, skipped_tasks=1, "
        "error_summary='SUBWORKFLOW_FAILED: inside it, a node failed: i2: BIG: 7 is too much')",
        "SubWorkflowSummary(status=<WorkflowStatus.COMPLETED: 'COMPLETED'>, output=1, total_tasks=1, "
        "completed_tasks=1, failed_tasks=0, skipped_tasks=0, error_summary=None)",
        "[True, False, True, False]", "['alone', 'bad', 'fine']",
    ]  # fmt: skip


def check_nodes(app: Horsies, handle: WorkflowHandle[Any]) -> None:
    nodes = {node.node_id: node for node in handle.tasks(include_results=True)}
    assert nodes["alone"].result == TaskResult(ok=2)
    assert nodes["alone"].sub_workflow_summary is None
    summary = nodes["fine"].sub_workflow_summary
    assert summary is not None
    assert (summary.output, summary.total_tasks, summary.status) == (1, 1, WorkflowStatus.COMPLETED)
    inside = {node.node_id: node.result for node in handle.tasks("bad", include_results=True)}
    assert inside["i1"] == TaskResult(ok=1)
    assert str(inside["i3"].err_value.error_code) == "UPSTREAM_SKIPPED"  # pyright: ignore[reportOptionalMemberAccess]
    plain: Any = handle.tasks()[0]
    with pytest.raises(AttributeError, match="include_results=True"):
        _ = plain.result
    # a process that does not define the workflow cannot know its last nodes
    elsewhere = make_app(app.config.broker.url)
    with elsewhere:
        assert elsewhere.workflow_handle(handle.workflow_id).get(0) == TaskResult(ok=None)


def test_a_run_without_output_that_fails_or_returns_none(app: Horsies) -> None:
    def act(app: Horsies, work: Any) -> Any:
        @app.task("number")
        def number(n: int) -> Number:
            return TaskResult(ok=n) if n < 5 else TaskResult(err=TaskError("BIG"))

        class Quiet(WorkflowDefinition[None], app=app):
            one = number.node()(1)

        class Loud(WorkflowDefinition[TerminalResults], app=app):
            one = number.node()(1)
            two = number.node(waits_for=[one])(2)

        handles: list[Any] = [
            app.workflow("w", [number.node()(7)]).start(),
            Quiet.build().start(),
            Loud.build().start(),
        ]
        if app.stand_in is None:
            work()
        failed, quiet, loud = (handle.get(timeout_ms=5_000) for handle in handles)
        return str(failed.err_value.error_code), quiet, loud

    assert both(app, act) == (
        "WORKFLOW_FAILED", TaskResult(ok=None), TaskResult(ok={"two": TaskResult(ok=2)}),
    )  # fmt: skip


def test_a_schedule_with_arguments_by_position(app: Horsies) -> None:
    @app.task("add")
    def add(a: int, b: int = 2, *, c: int = 0) -> Number:
        return TaskResult(ok=a + b + c)

    app.schedules.put(TaskSchedule("sums", "add", Daily("03:00"), args=(1, 3), kwargs={"c": 4}))
    stored = app.schedules.get("sums")
    assert stored is not None
    assert stored.kwargs == {"a": 1, "b": 3, "c": 4}
    for wrong, told in (
        ({"args": (1, 2, 3)}, "takes by position and by name: a, b; 3 are given"),
        ({"args": (1,), "kwargs": {"a": 2}}, "'a' is in kwargs too"),
        ({"args": "12"}, "args: must be a list"),
        ({"args": {1, 2}}, "has no order"),
        ({"args": ("x",)}, "parameter 'a'"),
    ):
        with pytest.raises(ValueError, match=told):
            app.schedules.put(TaskSchedule("sums", "add", Daily("03:00"), **wrong))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'other' is not defined here, so that the names"):
        app.schedules.put(TaskSchedule("sums", "other", Daily("03:00"), args=(1,)))
    with pytest.raises(ValueError, match="a workflow takes its arguments by name"):
        TaskSchedule("sums", workflow="w", pattern=Daily("03:00"), args=(1,))


# -- the database of 0.x -------------------------------------------------------------------------

ALL = (
    "SELECT c.relname, a.attname, a.atttypid::regtype::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
    " WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 ORDER BY 1, 2"
)


def live_beside(db: Database) -> None:
    """This release finds the tables, leaves them alone, and works in a schema of its own."""
    before = db.execute(ALL)
    with pytest.raises(migrate.MigrationError, match=r"look like those of horsies 0\.x: see moving/from-horsies-0\.md"):
        migrate.upgrade(db.url)
    with app_on(db) as app, pytest.raises(SchemaError, match=r"look like those of horsies 0\.x"):
        app.run_sync("get_queues", app.get_broker().get_queues)
    assert migrate.upgrade(db.url, schema="horsies") == migrate.head()
    with app_on(db, broker={"schema": "horsies"}) as app:

        @app.task("one")
        def one() -> Number:
            return TaskResult(ok=1)

        with testing.real(app) as database:
            handle = one.send()
            database.drain()
            assert handle.get(5_000) == TaskResult(ok=1)
    assert db.execute(ALL) == before


def test_the_tables_of_0x_are_left_alone(empty_db: Database) -> None:
    empty_db.execute(TABLES)
    live_beside(empty_db)
    assert empty_db.execute("SELECT id, status FROM public.horsies_tasks") == [("an-old-task", "PENDING")]


CREATE = """
import asyncio, sys
from horsies import AppConfig, Horsies, PostgresConfig
url = sys.argv[1].replace("postgresql://", "postgresql+psycopg://")
broker = Horsies(AppConfig(broker=PostgresConfig(database_url=url))).get_broker()
print(type(asyncio.run(broker.ensure_schema_initialized())).__name__)
"""


@pytest.mark.parametrize("python", os.environ.get("HORSIES_TEST_0X_PYTHONS", "").split())
def test_the_tables_that_the_real_package_makes_are_left_alone(empty_db: Database, python: str) -> None:
    """HORSIES_TEST_0X_PYTHONS: interpreters of environments that have the distribution `horsies` of PyPI."""
    made = subprocess.run([python, "-c", CREATE, empty_db.url], capture_output=True, text=True, cwd="/", timeout=60)
    assert made.stdout == "Ok\n", made.stderr
    live_beside(empty_db)
    again = subprocess.run([python, "-c", CREATE, empty_db.url], capture_output=True, text=True, cwd="/", timeout=60)
    assert again.stdout == "Ok\n", again.stderr
    with app_on(empty_db, broker={"schema": "horsies"}) as app:
        found = app.run_sync("diagnose", app.get_broker().diagnose)
        assert not [one.what for one in found if "missing" in one.what]
