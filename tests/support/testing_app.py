"""Tasks that do what their argument says, for the comparison of `testing.inline` with a real worker."""

import asyncio
import json
import os
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from horsies import Horsies, RetryPolicy, TaskError, TaskResult, TaskStopped, current_task
from tests.support.worker_app import VARIABLE, build

APP = "tests.support.testing_app:app"
Answer = TaskResult[dict[str, Any], TaskError]
RETRIED = ("AGAIN", "UNHANDLED_EXCEPTION", "RETURN_TYPE_MISMATCH")
KINDS = ("ok", "err", "again", "later", "raise", "chained", "exit", "stopped", "cancelled", "wrong", "bare", "reserved",
         "unstorable", "surrogate", "large")  # fmt: skip


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Step:
    """What one attempt does."""

    kind: str
    number: float
    text: str
    data: dict[str, Any] | None = None


def random_steps(chance: random.Random) -> list[Step]:
    def step(kind: str) -> Step:
        text = "".join(chance.choice("ab é\u4e2d'\"\\\n\t😀") for _ in range(chance.randint(0, 12)))
        number = chance.choice([0, -1, 1.5, 1e300, 2**53, chance.random()])
        return Step(kind, number, text, chance.choice([None, {}, {"a": [1, None, text]}]))

    return [step(chance.choice(KINDS)) for _ in range(chance.randint(1, 4))]


def act(step: Step) -> Any:
    """The end of an attempt, the same in a `def` and in an `async def` task."""
    match step.kind:
        case "ok":
            attempt = current_task().attempt
            return TaskResult(ok={"n": step.number, "t": step.text, "d": step.data, "at": attempt})
        case "err":
            return TaskResult(err=TaskError("MINE", step.text, step.data))
        case "again":
            return TaskResult(err=TaskError("AGAIN", step.text, step.data))
        case "later":
            return TaskResult(err=TaskError("AGAIN", step.text, retry_after_ms=20))
        case "raise":
            raise LookupError(step.text)  # mapped
        case "chained":
            try:
                raise ValueError(step.text)
            except ValueError as error:
                raise Odd from error
        case "exit":
            raise SystemExit(3)
        case "stopped":
            raise TaskStopped("timeout")
        case "cancelled":
            raise asyncio.CancelledError(step.text)
        case "wrong":
            return TaskResult(ok=[step.number])
        case "bare":
            return step.text
        case "reserved":
            return TaskResult(err=TaskError("TASK_TIMEOUT", step.text))
        case "unstorable":
            return TaskResult(ok={"n": float("nan"), "o": object()})
        case "surrogate":
            return TaskResult(err=TaskError("MINE", "\ud800", {"a": "\ud800"}))
        case _:
            return TaskResult(ok={"x": "y" * 2_000_000})


def register(app: Horsies) -> SimpleNamespace:
    policy = RetryPolicy.intervals([0.01, 0.02], auto_retry_for=RETRIED)

    @app.task("scripted", retry_policy=policy)
    def scripted(steps: list[Step]) -> Answer:
        return act(steps[min(current_task().attempt, len(steps)) - 1])

    @app.task("scripted_async", retry_policy=policy)
    async def scripted_async(steps: list[Step]) -> Answer:
        await asyncio.sleep(0)
        return act(steps[min(current_task().attempt, len(steps)) - 1])

    @app.task("scripted_once")
    def scripted_once(steps: list[Step]) -> Answer:
        return act(steps[0])

    return SimpleNamespace(scripted=scripted, scripted_async=scripted_async, scripted_once=scripted_once)


def described(url: str) -> dict[str, Any]:
    return {"url": url, "payload_max_bytes": 1_500_000}


def make(config: dict[str, Any]) -> Horsies:
    return build({**config, "exception_mapper": {LookupError: "MISSING"}})


if VARIABLE in os.environ:
    app = make(json.loads(os.environ[VARIABLE]))
    register(app)
