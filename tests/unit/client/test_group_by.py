"""`group_by=`: what is refused at the definition, what a call's group is, and what the testing kit shows of it."""

import enum
import functools
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest

from horsies import (
    ConfigurationError,
    Horsies,
    TaskDefinitionError,
    TaskError,
    TaskResult,
    TaskSendError,
    current_task,
    testing,
)
from tests.support.apps import UNREACHABLE, make_app

Number = TaskResult[int, TaskError]
Text = TaskResult[str | None, TaskError]
TENANT = UUID("0190b2d5-0000-7000-8000-000000000000")
AccountId = NewType("AccountId", int)


class Plan(enum.StrEnum):
    FREE = "free"


class Colour(str, enum.Enum):  # noqa: UP042  (the older form, whose str() is its name)
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@pytest.fixture
def app() -> Horsies:
    return make_app(UNREACHABLE)


def define(app: Horsies, group_by: Any, **options: Any) -> Any:
    @app.task("work", group_by=group_by, **options)
    def work(account: Any, page: int = 3, *, region: str = "eu") -> Number:
        return TaskResult(ok=page)

    return work


def group_of(app: Horsies, task: Any, *args: Any, **kwargs: Any) -> str | None:
    with testing.recorded(app) as sends:
        task.send(*args, **kwargs)
        return sends.sent()[0].group


# -- definitions ----------------------------------------------------------------------------------


async def awaited(account: int, page: int, region: str) -> str:
    return str(account)


class Awaited:
    async def __call__(self, account: int, page: int, region: str) -> str:
        return str(account)


@pytest.mark.parametrize(
    ("group_by", "why", "fix"),
    [
        ("acount", "the task has no parameter 'acount'", "name one of: account, page, region"),
        ("", "the task has no parameter ''", "name one of"),
        (7, "must be the name of a parameter or a function, got 7", 'write "account_id"'),
        (["account"], "must be the name of a parameter or a function", 'write "account_id"'),
        (awaited, "is `async def`: a send calls it and does not await", "write `def`"),
        (Awaited(), "is `async def`: a send calls it and does not await", "write `def`"),
        (lambda account: account, "does not take the arguments of the task: got an unexpected keyword", "def key(acc"),
        (lambda account, page, region, more: more, "missing a required argument: 'more'", "def key(account"),
        (lambda *account: account, "got an unexpected keyword argument 'account'", "def key(account"),
        (iter, "the parameters of <built-in function iter>", "def key(account"),
    ],
)
def test_what_cannot_work_is_refused_with_all_other_problems(app: Horsies, group_by: Any, why: str, fix: str) -> None:
    with pytest.raises(TaskDefinitionError) as raised:
        define(app, group_by, timeout_ms=0)
    text = str(raised.value)
    assert "task 'work'" in text
    assert "test_group_by.py:" in text
    assert why in text.partition("group_by: ")[2]
    assert fix in text
    assert "timeout_ms: 0 ms is out of range" in text


@pytest.mark.parametrize(
    "group_by",
    [
        "account",
        "region",
        lambda account, page, region: account,
        lambda *args, **kwargs: kwargs["account"],
        lambda account, page=1, region="us", more=5: account,
        functools.partial(lambda prefix, account, page, region: f"{prefix}{account}", "a"),
    ],
)
def test_what_takes_every_call_of_the_task_is_accepted(app: Horsies, group_by: Any) -> None:
    assert group_of(app, define(app, group_by), "a") is not None


def test_parameters_that_stand_for_many_have_no_one_key(app: Horsies) -> None:
    for name in ("rest", "more"):
        with pytest.raises(TaskDefinitionError, match=f"no parameter '{name}'"):

            @app.task("many", group_by=name)
            def many(*rest: int, **more: int) -> Number:
                return TaskResult(ok=0)


@pytest.mark.parametrize(
    "annotation", [float, bytes, list[int], dict[str, int], bool, None, Literal[True], float | None]
)
def test_a_parameter_whose_values_are_no_keys_is_refused(app: Horsies, annotation: Any) -> None:
    def work(key: Any) -> Number:
        return TaskResult(ok=0)

    work.__annotations__["key"] = annotation
    with pytest.raises(TaskDefinitionError, match=r"group_by: parameter 'key' is a .*, which is no key") as raised:
        app.task("work", group_by="key")(work)
    assert "give a function that returns one" in str(raised.value)


@pytest.mark.parametrize(
    ("annotation", "value", "group"),
    [
        (str, "acme", "acme"),
        (int, -7, "-7"),
        (UUID, TENANT, str(TENANT)),
        (int | None, None, None),
        (AccountId, AccountId(7), "7"),
        (Annotated[str, "a note"], "acme", "acme"),
        (Literal["a", 1], 1, "1"),
        (Plan, Plan.FREE, "free"),
        (Colour, Colour.RED, "red"),
        (Level, Level.LOW, "1"),
        (str | float, "acme", "acme"),
        (Any, "acme", "acme"),
    ],
)
def test_keys_become_text(app: Horsies, annotation: Any, value: Any, group: str | None) -> None:
    def work(key: Any) -> Number:
        return TaskResult(ok=0)

    work.__annotations__["key"] = annotation
    assert group_of(app, app.task("work", group_by="key")(work), value) == group


# -- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, 1.5, b"acme", ["acme"], {"a": 1}])
def test_other_values_are_refused(app: Horsies, value: Any) -> None:
    task = define(app, lambda account, page, region: value)
    with pytest.raises(
        TaskSendError, match=r"task 'work': its group_by gives .*: return a str, an int, a UUID, or None"
    ):
        task.send("a")


def test_a_union_may_hold_what_is_no_key(app: Horsies) -> None:
    @app.task("either", group_by="key")
    def either(key: str | float) -> Number:
        return TaskResult(ok=0)

    with pytest.raises(TaskSendError, match=r"task 'either': its group_by gives a float: name a parameter"):
        either.send(1.5)


def test_arguments_reach_the_function_as_they_reach_the_task(app: Horsies) -> None:
    seen: list[Any] = []

    @app.task("first", group_by=lambda *args, **kwargs: seen.append((args, kwargs)))
    def first(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> Number:
        return TaskResult(ok=0)

    @app.task("second", group_by=lambda a, b, c: seen.append((a, b, c)))
    def second(a: int, b: int = 2, *, c: int = 3) -> Number:
        return TaskResult(ok=0)

    with testing.recorded(app):
        first.send(1)
        first.send(1, 5, 6, 7, c=8, d=9)
        second.send(1)
        second.send(b=4, a=1)
        second.send(1, 4, c=5)
    assert seen == [((1, 2), {"c": 3}), ((1, 5, 6, 7), {"c": 8, "d": 9}), (1, 2, 3), (1, 4, 3), (1, 4, 5)]


def test_a_parameter_is_found_wherever_the_call_has_it(app: Horsies) -> None:
    @app.task("some", group_by="key")
    def some(a: int, /, key: str = "default", *rest: int, c: int = 3) -> Number:
        return TaskResult(ok=0)

    @app.task("only", group_by="key")
    def only(*, a: int = 1, key: str = "default") -> Number:
        return TaskResult(ok=0)

    calls = [((1,), {}), ((1, "x"), {}), ((1, "x", 4), {}), ((1,), {"key": "x"})]
    assert [group_of(app, some, *args, **kwargs) for args, kwargs in calls] == ["default", "x", "x", "x"]
    assert [group_of(app, only, **kwargs) for kwargs in ({}, {"key": "x"})] == ["default", "x"]


def test_arguments_that_do_not_fit_are_told_before_the_function_is_asked(app: Horsies) -> None:
    @app.task("strict", group_by=lambda n: 1 / 0)
    def strict(n: int) -> Number:
        return TaskResult(ok=n)

    with pytest.raises(TaskSendError, match="'n'"):
        strict.send()  # type: ignore[call-arg]
    with pytest.raises(TaskSendError, match="its group_by raised ZeroDivisionError: division by zero") as raised:
        strict.send(1)
    assert isinstance(raised.value.__cause__, Exception)


# -- the testing kit ------------------------------------------------------------------------------


def grouped(app: Horsies) -> Any:
    @app.task("group", group_by="tenant")
    def group(tenant: str | None = None) -> Text:
        return TaskResult(ok=current_task().group)

    return group


def test_recorded_sends_have_their_group(app: Horsies) -> None:
    task = grouped(app)
    with testing.recorded(app) as sends:
        task.send()
        task.with_options(group="acme").send("other")
        task.send_many([("a",), ("b",)])
        assert [sent.group for sent in sends.sent()] == [None, "acme", "a", "b"]
        assert sends.assert_sent(task, "a").group == "a"
        assert len(sends.sent(task, where=lambda sent: sent.group == "acme")) == 1
        app.workflow("w", [task.node()("x")]).start(group="run")
        assert sends.assert_started("w").group == "run"


def test_inline_tasks_know_their_group(app: Horsies) -> None:
    task = grouped(app)
    with testing.inline(app):
        assert task.send().get().unwrap() is None
        assert task.send("a").get().unwrap() == "a"
        assert task.with_options(group="acme").send("a").get().unwrap() == "acme"


def test_one_task_runs_in_a_group(app: Horsies) -> None:
    task = grouped(app)
    assert testing.run(task).unwrap() is None
    assert testing.run(task, "a").unwrap() == "a"
    assert testing.run_as(task, group="acme")("a").unwrap() == "acme"
    with pytest.raises(ConfigurationError, match=r"run_as\.group: '' is not a text of 1 to 255 characters"):
        testing.run_as(task, group="")
