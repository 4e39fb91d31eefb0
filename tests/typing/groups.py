# pyright: strict
"""A function for `group_by` has the parameters of its task, and the task keeps its types."""

from typing import assert_type
from uuid import UUID

from horsies import (
    Hourly,
    Outgoing,
    SubWorkflowNode,
    TaskError,
    TaskHandle,
    TaskNode,
    TaskResult,
    TaskSchedule,
    current_task,
    testing,
)
from tests.typing.tasks import app, fetch, touch, translate


@app.task("by_name", group_by="account")
def by_name(account: int, page: int = 1) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{account} {page}")


def account_of(account: int, page: int = 1) -> int | None:
    return account if page else None


def tenant_of(tenant: UUID) -> UUID:
    return tenant


def text_of(text: str, to: str) -> str:
    return f"{text} {to}"


@app.task("by_function", group_by=account_of)
def by_function(account: int, page: int = 1) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{account} {page}")


def page_of(account: int, page: int) -> int:
    return account + page


@app.task("with_defaults", group_by=page_of)
def with_defaults(account: int, page: int = 1) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{account} {page}")


@app.task("by_tenant", group_by=tenant_of)
async def by_tenant(tenant: UUID) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.declare("declared", group_by=text_of)
def declared(text: str, to: str) -> TaskResult[int, TaskError]:
    raise NotImplementedError


@app.declare("declared_by_name", group_by="text")
async def declared_by_name(text: str) -> TaskResult[int, TaskError]:
    raise NotImplementedError


assert_type(by_name.send(1, page=2), TaskHandle[str])
assert_type(by_function.send(1, page=2), TaskHandle[str])
assert_type(by_function(1), TaskResult[str, TaskError])
assert_type(by_tenant.send(UUID(int=1)), TaskHandle[None])
assert_type(declared.send("a", "de"), TaskHandle[int])
assert_type(declared_by_name.send("a"), TaskHandle[int])


async def called_directly() -> None:
    assert_type(await by_tenant(UUID(int=1)), TaskResult[None, TaskError])


assert_type(with_defaults.send(1), TaskHandle[str])  # the defaults are the task's

by_name.with_options(group="acme").send(1)
assert_type(app.with_options(group="acme").send("by_name", 1).task_id, str)
assert_type(fetch.node(group="acme")("a"), TaskNode[bytes])
spec = app.workflow("grouped", [touch.node(group="a")()])
spec.start(group="acme")
assert_type(spec.node(group="acme"), SubWorkflowNode[None])
TaskSchedule("s", "t", Hourly(), group="acme")
assert_type(current_task().group, str | None)
assert_type(Outgoing("a", [], None, {}).group, str | None)
testing.run_as(touch, group="acme")()

# -- what both checkers refuse --------------------------------------------------------------------


@app.task("other_parameters", group_by=text_of)  # type: ignore[arg-type]
def other_parameters(account: int) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


def no_key(account: int) -> float:
    return account / 2


app.task("no_key", group_by=no_key)  # type: ignore[arg-type]
app.task("wrong", group_by=7)  # type: ignore[call-overload]
by_function.send("account")  # type: ignore[arg-type]
with_defaults.send("account")  # type: ignore[arg-type]
declared.send("a")  # type: ignore[call-arg]
by_name.with_options(group=7)  # type: ignore[arg-type]
translate.node(group=7)  # type: ignore[arg-type]
spec.start(group=7)  # type: ignore[arg-type]
TaskSchedule("s", "t", Hourly(), group=7)  # type: ignore[arg-type]
testing.run_as(touch, group=7)  # type: ignore[arg-type]
Outgoing("a", [], None, {}).group = "x"  # type: ignore[misc]
