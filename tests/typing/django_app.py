"""The app of a Django project is typed like any other, without stubs of Django."""

from typing import assert_type

from horsies import Horsies, TaskError, TaskHandle, TaskResult
from horsies.contrib.django import app, outside_transaction

assert_type(app, Horsies)


@app.task("count_letters")
def count_letters(text: str) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(text))


def send() -> None:
    with outside_transaction():
        assert_type(count_letters.send("x"), TaskHandle[int])
    count_letters.send(1)  # type: ignore[arg-type]
