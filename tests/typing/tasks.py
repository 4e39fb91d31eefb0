# pyright: strict
"""The tasks that the other files of this folder send. Nothing here runs: pyright and mypy read it
(tests/architecture/test_typing.py). A line that must be refused carries both checkers' ignore comments, and
both complain about one that is not needed."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_type

from horsies import AsyncTaskFunction, Horsies, RetryPolicy, TaskError, TaskFunction, TaskResult, TaskStub

app = Horsies()


@dataclass
class Order:
    number: int


@app.task("receipt", retry_policy=RetryPolicy.fixed(2, max_retries=2, auto_retry_for=["SMTP_DOWN"]), timeout_ms=1_000)
def receipt(order: Order, *, copy: bool = False) -> TaskResult[str, TaskError]:
    if copy:
        return TaskResult(err=TaskError("NO_COPY", "there is only one"))
    return TaskResult(ok=f"receipt of {order.number}")


@app.task("fetch", good_until=timedelta(hours=1))
async def fetch(url: str, tries: int = 3) -> TaskResult[bytes, TaskError]:
    return TaskResult(ok=(url * tries).encode())


@app.task("touch")
def touch() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("total")
def total(*amounts: float, rate: float = 1.0) -> TaskResult[dict[str, float], TaskError]:
    return TaskResult(ok={"sum": sum(amounts) * rate})


@app.declare("resize", queue_name="default", priority=5)
def resize(image: bytes, /, width: int) -> TaskResult[list[int], TaskError]:
    raise NotImplementedError  # to mypy a body of `...` is a missing return


@app.declare("translate")
async def translate(text: str, to: str) -> TaskResult[str | None, TaskError]:
    raise NotImplementedError


assert_type(touch, TaskFunction[[], None])
assert_type(touch(), TaskResult[None, TaskError])
assert_type(receipt(Order(1)), TaskResult[str, TaskError])
assert_type(receipt(Order(1), copy=True).ok_value, str)
assert_type(receipt.name, str)


async def called_directly() -> None:
    assert_type(await fetch("https://example.org"), TaskResult[bytes, TaskError])
    assert_type((await fetch("https://example.org", tries=1)).unwrap(), bytes)
    assert_type(await asyncio.create_task(fetch("https://example.org")), TaskResult[bytes, TaskError])


def kinds(one: AsyncTaskFunction[[str], int], two: TaskStub[[datetime], int]) -> None:
    assert_type(one.send("a").get(), TaskResult[int, TaskError])
    assert_type(two.send(datetime.min).get(), TaskResult[int, TaskError])


# -- what both checkers refuse --------------------------------------------------------------------

receipt(Order(1), True)  # type: ignore[call-arg]
receipt(1)  # type: ignore[arg-type]
resize(b"", 1)  # type: ignore[operator]
touch(1)  # type: ignore[call-arg]


@app.task("bare")  # type: ignore[arg-type]
def bare(number: int) -> int:
    return number


@app.task("other_error")  # type: ignore[arg-type]
def other_error(number: int) -> TaskResult[int, str]:
    return TaskResult(ok=number)


@app.declare("no_result")  # type: ignore[arg-type]
async def no_result(number: int) -> None: ...


app.task("unknown_option", retries=3)  # type: ignore[call-overload]
