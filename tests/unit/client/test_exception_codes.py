"""Which error code an exception gets: by the app, by the task, and by the classes that its retry policy lists."""

from typing import Any

import pytest

from horsies import Horsies, RetryPolicy, TaskDefinitionError, TaskError, TaskResult
from tests.support.apps import UNREACHABLE, make_app


def ping() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)


def define(app: Horsies, **options: Any) -> Any:
    app.task("ping", **options)(ping)
    definition = app.registry.get("ping")
    assert definition is not None
    return definition


def codes(*listed: Any, app: dict[Any, str] | None = None, **options: Any) -> tuple[Any, Any]:
    policy = RetryPolicy.fixed(1, 2, auto_retry_for=listed)
    definition = define(make_app(UNREACHABLE, exception_mapper=app or {}), retry_policy=policy, **options)
    assert policy.auto_retry_for == listed  # the policy may be shared with other tasks
    return definition.exception_codes, definition.options.retry_policy.auto_retry_for


def test_a_class_without_a_code_is_called_by_its_name() -> None:
    mapped, listed = codes(ConnectionError, "DOWN")
    assert listed == ("ConnectionError", "DOWN")
    assert mapped.code_of(ConnectionResetError()) == "ConnectionError"
    assert mapped.code_of(OSError()) == "UNHANDLED_EXCEPTION"


def test_a_class_stands_for_its_code_and_for_those_of_its_subclasses() -> None:
    mapped, listed = codes(OSError, app={ConnectionResetError: "RESET", OSError: "IO", ValueError: "BAD"})
    assert set(listed) == {"IO", "RESET"}
    assert mapped.code_of(ConnectionResetError()) == "RESET"
    assert mapped.code_of(TimeoutError()) == "IO"


def test_exception_stands_for_all() -> None:
    mapped, listed = codes(Exception, app={ValueError: "BAD"}, default_unhandled_error_code="ODD")
    assert set(listed) == {"BAD", "ODD"}
    assert mapped.code_of(KeyError()) == "ODD"
    _, listed = codes(Exception)
    assert listed == ("UNHANDLED_EXCEPTION",)


def test_two_classes_of_which_one_extends_the_other() -> None:
    mapped, listed = codes(OSError, TimeoutError)
    assert set(listed) == {"OSError", "TimeoutError"}
    assert mapped.code_of(TimeoutError()) == "TimeoutError"


def test_a_class_that_shares_the_code_of_a_base_class_is_refused() -> None:
    with pytest.raises(TaskDefinitionError, match=r"(?s)TimeoutError has the code 'IO' of OSError.*exception_mapper="):
        codes(TimeoutError, app={OSError: "IO"})
    mapped, listed = codes(TimeoutError, app={OSError: "IO"}, exception_mapper={TimeoutError: "SLOW"})
    assert listed == ("SLOW",)
    assert mapped.code_of(OSError()) == "IO"


@pytest.mark.parametrize(
    ("mapper", "told"),
    [
        ({OSError: "DOWN", ValueError: "DOWN"}, "OSError has the code 'DOWN', and so has ValueError"),
        ({TimeoutError: "DOWN", ValueError: "DOWN"}, "TimeoutError has the code 'DOWN', and so has ValueError"),
        ({ValueError: "OSError"}, "OSError has the code 'OSError', and so has ValueError"),
        ({OSError: "ODD"}, "OSError has the code 'ODD', and so has every exception that is not mapped"),
    ],
)
def test_a_class_that_shares_its_code_with_one_that_is_not_listed_is_refused(mapper: dict[Any, str], told: str) -> None:
    with pytest.raises(TaskDefinitionError, match=told):
        codes(OSError, app=mapper, default_unhandled_error_code="ODD")
    shared = {*mapper.values()}.pop()
    assert shared in codes(OSError, shared, app=mapper, default_unhandled_error_code="ODD")[1]
    assert shared in codes(OSError, ValueError, Exception, app=mapper)[1]


def test_every_exception_is_not_retried_where_all_have_the_code_of_base_exception() -> None:
    with pytest.raises(TaskDefinitionError, match="Exception has the code 'ANY' of BaseException"):
        codes(Exception, app={BaseException: "ANY"})


def test_a_class_whose_name_is_reserved() -> None:
    reserved = type("WORKER_CRASHED", (Exception,), {})
    with pytest.raises(TaskDefinitionError, match="is a built-in code"):
        codes(reserved)


def test_the_task_goes_before_the_app() -> None:
    app = make_app(UNREACHABLE, exception_mapper={OSError: "IO", ValueError: "BAD"}, default_unhandled_error_code="APP")
    mapped = define(app, exception_mapper={OSError: "DISK"}).exception_codes
    assert [mapped.code_of(one) for one in (OSError(), ValueError(), KeyError())] == ["DISK", "BAD", "APP"]
    app = make_app(UNREACHABLE)
    assert define(app, default_unhandled_error_code="OWN").exception_codes.code_of(KeyError()) == "OWN"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"exception_mapper": {"OSError": "IO"}}, "is not an exception class"),
        ({"exception_mapper": {OSError: ""}}, r"exception_mapper\[OSError\]: is empty"),
        ({"exception_mapper": {OSError: "TASK_EXPIRED"}}, "reserved for horsies itself"),
        ({"exception_mapper": [OSError]}, "must be a mapping"),
        ({"default_unhandled_error_code": "TASK_TIMEOUT"}, "reserved for horsies itself"),
        ({"default_unhandled_error_code": 5}, "default_unhandled_error_code: must be a str"),
        (
            {
                "exception_mapper": 3,
                "timeout_ms": -1,
                "retry_policy": RetryPolicy.fixed(1, 1, auto_retry_for=[OSError]),
            },
            "timeout_ms",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_definition(options: dict[str, Any], told: str) -> None:
    app = make_app(UNREACHABLE)
    with pytest.raises(TaskDefinitionError, match=told):
        app.task("ping", **options)(ping)
    with pytest.raises(TaskDefinitionError, match="it has a name and a task_name"):
        app.task("ping", task_name="pong")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
