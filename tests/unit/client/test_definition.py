"""Registering tasks: what is refused at import, and how it says where."""

import inspect
import smtplib
from datetime import timedelta
from typing import Any

import pytest

from horsies import (
    AppConfig,
    AsyncTaskFunction,
    ConfigurationError,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    RetryPolicy,
    TaskDefinitionError,
    TaskError,
    TaskFunction,
    TaskResult,
    TaskStub,
    UsageError,
    as_completed,
    as_completed_async,
    gather,
    gather_async,
)
from horsies.errors import BUILT_IN_CODES

QUEUES = [CustomQueueConfig("mail", priority=5), CustomQueueConfig("slow")]


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig(PostgresConfig("postgresql://u@h/d")))


@pytest.fixture
def custom() -> Horsies:
    return Horsies(AppConfig(PostgresConfig("postgresql://u@h/d"), queue_mode=QueueMode.CUSTOM, custom_queues=QUEUES))


def receipt(order: int, *, copy: bool = False) -> TaskResult[str, TaskError]:
    """Send a receipt."""
    return TaskResult(ok=f"{order} {copy}")


def place(fn: Any) -> str:
    return f"{__file__}:{inspect.unwrap(fn).__code__.co_firstlineno}"


# -- what a registration gives -------------------------------------------------------------------


def test_a_task_keeps_what_the_function_was(app: Horsies) -> None:
    task = app.task("receipt", timeout_ms=5_000)(receipt)
    assert isinstance(task, TaskFunction)
    assert (task.name, task.__name__, task.__doc__) == ("receipt", "receipt", "Send a receipt.")
    assert inspect.signature(task) == inspect.signature(receipt)
    assert task(5, copy=True) == TaskResult(ok="5 True")
    assert repr(task) == "<TaskFunction 'receipt'>"
    definition = app.registry.get("receipt")
    assert definition is not None
    assert (definition.location, definition.is_async, definition.is_stub) == (place(receipt), False, False)
    assert definition.options.timeout_ms == 5_000
    assert len(app.registry) == 1
    assert repr(app) == "<Horsies 1 task, PostgresConfig(database_url='postgresql://u@h/d')>"


def test_an_async_task_and_a_stub(app: Horsies) -> None:
    @app.task("later")
    async def later() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.declare("bill", priority=3)
    def bill(order: int) -> TaskResult[None, TaskError]: ...

    assert isinstance(later, AsyncTaskFunction)
    assert isinstance(bill, TaskStub)
    assert not callable(bill)
    assert [task.name for task in app.registry if task.is_async] == ["later"]
    assert [task.name for task in app.registry if task.is_stub] == ["bill"]


def test_a_nested_function_is_fine_where_its_types_are_known(app: Horsies) -> None:
    @app.task("inner")
    def inner(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    assert inner(1) == TaskResult(ok=1)


def test_hooks_are_kept_in_order(app: Horsies) -> None:
    @app.on_child_start
    def first() -> None: ...

    @app.on_child_start
    def second() -> None: ...

    assert app.child_start_hooks == [first, second]


# -- refused -------------------------------------------------------------------------------------


def test_a_name_is_given_once(app: Horsies) -> None:
    app.task("receipt")(receipt)

    def other(x: int) -> TaskResult[int, TaskError]: ...

    for register in (app.task, app.declare):
        with pytest.raises(TaskDefinitionError) as raised:
            register("receipt")(other)
        assert str(raised.value) == (
            f"task 'receipt' ({place(other)}): the name is taken by receipt at {place(receipt)}\n"
            "    fix: give each task a name of its own"
        )
        assert raised.value.task_name == "receipt"
        assert raised.value.location == place(other)
    assert app.registry.get("receipt").fn is receipt  # type: ignore[union-attr]


def test_the_same_module_imported_twice_is_no_duplicate(app: Horsies) -> None:
    """As `__main__` and by name, or by a reloader: the same line defines the same task."""
    source = "def work(x: int) -> TaskResult[int, TaskError]: ..."
    made = []
    for _ in range(2):
        scope: dict[str, Any] = {"TaskResult": TaskResult, "TaskError": TaskError}
        exec(compile(source, "shop.py", "exec"), scope)
        made.append(app.task("work")(scope["work"]))
    assert len(app.registry) == 1
    assert app.registry.get("work").location == "shop.py:1"  # type: ignore[union-attr]


def test_a_task_is_decorated_once(app: Horsies) -> None:
    task = app.task("receipt")(receipt)
    for register in (app.task, app.declare):
        with pytest.raises(TaskDefinitionError, match="it is a task already") as raised:
            register("again")(task)  # type: ignore[arg-type]
        assert raised.value.location == place(receipt)
    with pytest.raises(TaskDefinitionError, match="it is a task already"):
        app.task("again")(task.with_options(priority=1))  # type: ignore[call-overload]
    assert len(app.registry) == 1


def test_the_parentheses_are_not_forgotten(app: Horsies) -> None:
    with pytest.raises(TaskDefinitionError) as raised:
        app.task(receipt)  # type: ignore[arg-type]
    assert str(raised.value) == (
        f"task 'receipt' ({place(receipt)}): @app.task needs a name\n    fix: write @app.task(\"receipt\")"
    )


def test_all_wrong_options_are_told_at_once(app: Horsies) -> None:
    with pytest.raises(TaskDefinitionError) as raised:
        app.task(
            "x" * 256, queue_name="mail", retry_policy="often", timeout_ms=0, priority=101,  # type: ignore[arg-type]
            good_until=timedelta(0), run_ahead="no",  # type: ignore[arg-type]
        )(receipt)  # fmt: skip
    told = str(raised.value)
    assert place(receipt) in told
    for option in ("name", "queue_name", "retry_policy", "timeout_ms", "priority", "good_until", "run_ahead"):
        assert f"{option}: " in told, option
    assert len(app.registry) == 0


@pytest.mark.parametrize("name", ["", None, 5, "a\0b", "a\ud800", "n" * 256])
def test_a_name_is_text_that_fits(app: Horsies, name: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="name: "):
        app.task(name)(receipt)


@pytest.mark.parametrize("name", ["a", "n" * 255, "shop.orders:receipt v2", "имя", "🐎"])
def test_many_names_fit(app: Horsies, name: str) -> None:
    assert app.task(name)(receipt).name == name


def test_a_custom_queue_has_to_be_named_and_known(custom: Horsies) -> None:
    with pytest.raises(TaskDefinitionError, match=r"queue_name: this app has queues of its own\n.*mail, slow"):
        custom.task("receipt")(receipt)
    with pytest.raises(TaskDefinitionError, match="'default' is not a queue of this app"):
        custom.task("receipt", queue_name="default")(receipt)
    with pytest.raises(TaskDefinitionError, match="queue_name"):
        custom.declare("receipt")(receipt)
    assert custom.task("receipt", queue_name="mail")(receipt).name == "receipt"


def test_a_policy_is_checked_where_it_is_made(app: Horsies) -> None:
    with pytest.raises(ConfigurationError, match="auto_retry_for"):
        app.task("receipt", retry_policy=RetryPolicy.fixed(1, max_retries=3))(receipt)


# -- the app itself ------------------------------------------------------------------------------


class SmtpDown(Exception):
    pass


class Unmapped(smtplib.SMTPException):
    pass


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("TimeoutError", "list the class itself, TimeoutError .* has the code 'UNHANDLED_EXCEPTION'"),
        ("asyncio.TimeoutError", "can never match"),
        ("smtplib.SMTPException", "can never match"),
        ("KeyboardInterrupt", "can never match"),
        ("SmtpDown", "its error code is 'SMTP_DOWN'.*list 'SMTP_DOWN'"),
        ("Unmapped", "list the class itself, Unmapped"),
        ("SMTPException", "can never match"),
        ("zipfile.BadZipFile", "can never match"),
        ("TASK_CANCELLED", "no attempt ends with TASK_CANCELLED.*for good"),
        ("WAIT_TIMEOUT", "no attempt ends with WAIT_TIMEOUT.*reader"),
        ("BROKER_ERROR", "no attempt ends with BROKER_ERROR.*reader"),
        ("RESULT_DESERIALIZATION_ERROR", "no attempt ends with RESULT_DESERIALIZATION_ERROR.*reader"),
        ("WORKER_RESOLUTION_ERROR", "no attempt ends with WORKER_RESOLUTION_ERROR.*no worker knows"),
        ("TASK_EXCEPTION", "no attempt ends with TASK_EXCEPTION.*reserved"),
        ("WORKFLOW_ENQUEUE_FAILED", "no attempt ends with WORKFLOW_ENQUEUE_FAILED.*node"),
        ("SUBWORKFLOW_FAILED", "no attempt ends with SUBWORKFLOW_FAILED.*node"),
    ],
)
def test_a_retry_for_what_no_attempt_ends_with(code: str, told: str) -> None:
    app = Horsies(AppConfig(PostgresConfig("postgresql://u@h/d"), exception_mapper={SmtpDown: "SMTP_DOWN"}))
    policy = RetryPolicy.fixed(1, 3, auto_retry_for=["SMTP_DOWN", code])
    with pytest.raises(TaskDefinitionError, match=f"(?s)auto_retry_for.*{told}"):
        app.task("receipt", retry_policy=policy)(receipt)
    assert RetryPolicy.from_json(policy.to_json()) == policy  # a row of an older release stays readable


ENDS_OF_ATTEMPTS = (
    "UNHANDLED_EXCEPTION", "WORKER_CRASHED", "WORKER_SERIALIZATION_ERROR", "RETURN_TYPE_MISMATCH",
    "RESERVED_ERROR_CODE", "TASK_TIMEOUT", "COMPLETION_NOT_COMMITTED",
)  # fmt: skip


@pytest.mark.parametrize("code", sorted(BUILT_IN_CODES.keys() - {*ENDS_OF_ATTEMPTS}))
def test_a_retry_for_any_other_built_in_code_is_refused(app: Horsies, code: str) -> None:
    with pytest.raises(TaskDefinitionError, match=f"no attempt ends with {code}, so it can never match: "):
        app.task("receipt", retry_policy=RetryPolicy.fixed(1, 3, auto_retry_for=[code]))(receipt)


def test_a_retry_for_codes_that_look_like_exceptions_and_are_none() -> None:
    mapper: dict[type[BaseException], str] = {TimeoutError: "TimeoutError", SmtpDown: "smtp.Error"}
    app = Horsies(AppConfig(PostgresConfig("postgresql://u@h/d"), exception_mapper=mapper))
    codes = ["TimeoutError", "smtp.Error", "SmtpError", "shop.out_of_stock", *ENDS_OF_ATTEMPTS]
    app.task("receipt", retry_policy=RetryPolicy.fixed(1, 3, auto_retry_for=codes))(receipt)


def test_an_app_takes_a_configuration() -> None:
    with pytest.raises(UsageError, match="Horsies takes an AppConfig, not a str"):
        Horsies("postgresql://u:hunter2@h/d")  # type: ignore[arg-type]


def test_an_app_without_one_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="HORSIES_DATABASE_URL is not set"):
        Horsies()
    monkeypatch.setenv("HORSIES_DATABASE_URL", "postgresql://u:hunter2@h/d")
    assert "hunter2" not in repr(Horsies())


# -- words of other libraries --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("delay", r"write receipt\.send\(\.\.\.\)"), ("apply_async", r"receipt\.send\(\.\.\.\).*with_options"),
        ("s", r"receipt\.node\(\)\(\.\.\.\)"), ("si", "node"), ("apply", r"receipt\(\.\.\.\)"), ("message", "node"),
        ("send_with_options", r"with_options\(\.\.\.\)\.send"), ("defer", r"receipt\.send"),
        ("defer_async", "send_async"),
        ("kiq", "send_async"), ("enqueue", r"receipt\.send"),
        ("nonsense", "^'TaskFunction' object has no attribute 'nonsense'$"),
    ],
)  # fmt: skip
def test_what_to_write_instead_of_a_verb_of_another_library(app: Horsies, name: str, told: str) -> None:
    task = app.task("receipt")(receipt)
    with pytest.raises(AttributeError, match=told):
        getattr(task, name)
    assert not hasattr(task, name)
    if name == "delay":
        stub = app.declare("else")(receipt)
        for sender in (task.with_options(priority=1), stub):
            with pytest.raises(AttributeError, match=told):
                getattr(sender, name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("result", r"handle\.get\(timeout_ms=\.\.\.\)"), ("wait", r"handle\.get"),
        ("ready", r"handle\.get\(timeout_ms=0\)"),
        ("id", r"write handle\.task_id"), ("revoke", r"handle\.cancel\(\)"),
        ("nonsense", "has no attribute 'nonsense'$"),
    ],
)  # fmt: skip
def test_what_to_write_instead_on_a_handle(app: Horsies, name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=told):
        getattr(app.handle("x"), name)


def test_what_to_write_instead_elsewhere(app: Horsies) -> None:
    spec = app.workflow("w", [app.task("receipt")(receipt).node()(1)])
    with pytest.raises(AttributeError, match=r"write workflow\.start\(\)"):
        getattr(spec, "delay")  # noqa: B009  (a type checker knows that it is not there)
    with pytest.raises(AttributeError, match=r"write handle\.workflow_id"):
        getattr(app.workflow_handle("x"), "id")  # noqa: B009
    with pytest.raises(AttributeError, match=r'write app\.send\("task_name", \.\.\.\)'):
        getattr(app, "send_task")  # noqa: B009


def test_a_decorator_without_a_name(app: Horsies) -> None:
    for decorator in ("task", "declare"):
        with pytest.raises(TaskDefinitionError) as raised:
            getattr(app, decorator)()(receipt)
        assert str(raised.value) == (
            f"task 'receipt' ({place(receipt)}): @app.{decorator}() needs a name\n"
            f'    fix: write @app.{decorator}("receipt")'
        )
        with pytest.raises(TaskDefinitionError, match=r'write @app\.\w+\("receipt"\)'):
            getattr(app, decorator)(priority=5)(receipt)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("acks_late", r"retry_policy=RetryPolicy\.crashes\(3\)"), ("reject_on_worker_lost", r"RetryPolicy\.crashes"),
        ("rate_limit", r"rate=Rate\(100, 60\)"), ("base", r"middleware=\["), ("link", "a workflow"),
        ("store_results", "nothing: results are stored"), ("retry_jitter", r"RetryPolicy\.exponential"),
        ("lock", r"group_by=\.\.\., in a queue with GroupPolicy\(max_concurrency=1\)"), ("headers", "metadata="),
        ("queueing_lock", r"with_options\(unique_key=\.\.\.\) where it is sent"), ("on_failure", "on_attempt_end"),
    ],
)  # fmt: skip
def test_an_option_of_another_library_on_a_task(app: Horsies, option: str, told: str) -> None:
    decorator: Any = app.task
    with pytest.raises(TaskDefinitionError, match=f"does not know {option}\n    fix: instead of {option} use .*{told}"):
        decorator("receipt", **{option: True})(receipt)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("lock", r"use group=\.\.\., in a queue"), ("job_id", r"use task_id=\.\.\.$"),
        ("schedule_at", r"use eta=\.\.\.$"),
        ("acks_late", "as an option of @app.task$"), ("routing_key", r"use queue_name=\.\.\.$"),
    ],
)  # fmt: skip
def test_an_option_of_another_library_on_a_send(app: Horsies, option: str, told: str) -> None:
    task: Any = app.task("receipt")(receipt)
    with pytest.raises(UsageError, match=told):
        task.with_options(**{option: 1})
    with pytest.raises(UsageError) as refused:
        task.node(**{option: 1})
    assert "task_id=" not in str(refused.value)
    assert "eta=" not in str(refused.value)


def test_a_task_has_no_self(app: Horsies) -> None:
    def charge(self, order_id: int) -> TaskResult[int, TaskError]:  # type: ignore[no-untyped-def]
        return TaskResult(ok=order_id)

    with pytest.raises(TaskDefinitionError, match=r"parameter 'self' .*\n    fix: leave it out: current_task\(\)"):
        app.task("charge")(charge)


def test_options_of_other_libraries(app: Horsies) -> None:
    task: Any = app.task
    with pytest.raises(
        TaskDefinitionError, match=r"(?s)does not know bind, max_retries.*current_task\(\).*RetryPolicy"
    ):
        task("receipt", bind=True, max_retries=3)(receipt)
    with pytest.raises(TaskDefinitionError, match=r"instead of queue use queue_name="):
        task(name="receipt", queue="mail")(receipt)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        task("receipt", nonsense=1)
    task(name="receipt")(receipt)


@pytest.mark.parametrize("decorator", ["task", "declare"])
@pytest.mark.parametrize("name", [5, None, ["receipt"]])
def test_a_name_that_is_no_text_is_refused_before_the_function(app: Horsies, decorator: str, name: Any) -> None:
    with pytest.raises(TaskDefinitionError, match=rf'name: must be a string, got (?s:.*)@app\.{decorator}\("name"\)'):
        getattr(app, decorator)(name)


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_a_method_of_a_class_is_no_task(app: Horsies, kind: Any) -> None:
    with pytest.raises(TaskDefinitionError) as raised:
        app.task("receipt")(kind(receipt))
    assert str(raised.value) == (
        f"task 'receipt' ({place(receipt)}): a {kind.__name__} is not a function\n"
        "    fix: put the decorator on a plain function, outside of a class"
    )


@pytest.mark.parametrize(
    ("method", "options", "told"),
    [
        ("with_options", {"countdown": 5}, r"know countdown \(its options: .*; instead of countdown use delay="),
        ("with_options", {"queue": "mail"}, r"know queue .*instead of queue use queue_name="),
        ("with_options", {"time_limit": 5}, r"use timeout_ms=.*, as an option of @app\.task"),
        ("node", {"retries": 5}, r"instead of retries use retry_policy=RetryPolicy.*, as an option of @app\.task"),
        ("node", {"countdown": 5}, r"know countdown \(its options: node_id, .*compensate\)$"),
        ("node", {"node_id": "a", "nonsense": 5}, r"know nonsense \(its options"),
    ],
)
def test_options_that_a_send_or_a_node_does_not_have(
    app: Horsies, method: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=f"^<TaskFunction 'receipt'>: {method} .*{told}"):
        getattr(app.task("receipt")(receipt), method)(**options)


def test_options_that_a_send_by_name_does_not_have(app: Horsies) -> None:
    with pytest.raises(UsageError, match=r"with_options does not know countdown .*instead of countdown use delay="):
        app.with_options(countdown=5)  # type: ignore[call-arg]


def test_options_that_a_get_does_not_have(app: Horsies) -> None:
    """Those of Celery's."""
    with pytest.raises(UsageError, match=r"<TaskHandle x>: get does not know timeout .*use timeout_ms="):
        app.handle("x").get(timeout=5)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"instead of propagate use result\.unwrap\(\)"):
        app.handle("x").get(propagate=False)  # type: ignore[call-arg]


@pytest.mark.parametrize("wait", [gather, as_completed, as_completed_async])
def test_only_handles_are_waited_for(app: Horsies, wait: Any) -> None:
    with pytest.raises(UsageError, match=r"takes several handles, not 5: give a list of what send\(\) returned"):
        wait(5)
    with pytest.raises(UsageError, match=r"takes several handles, not <TaskHandle x>"):
        wait(app.handle("x"))
    with pytest.raises(UsageError, match=r"item 1 is 'y' \(str\), not a handle: .* app\.handle\(task_id\)"):
        wait([app.handle("x"), "y"])


async def test_only_handles_are_waited_for_in_a_coroutine() -> None:
    with pytest.raises(UsageError, match=r"gather item 0 is 5, not a handle"):
        await gather_async([5])  # type: ignore[list-item]


def test_a_handle_is_typed_by_a_task(app: Horsies) -> None:
    task = app.task("receipt")(receipt)
    assert repr(app.handle("x", task)) == "<TaskHandle receipt x>"
    with pytest.raises(UsageError, match=r"app\.handle takes the task itself, not 5"):
        app.handle("x", 5)  # type: ignore[call-overload]


def test_every_public_name_is_listed_once() -> None:
    import horsies

    assert horsies.Horsies is Horsies
    assert len(dir(horsies)) == len(set(dir(horsies)))
    assert set(horsies.__all__) < set(dir(horsies))
